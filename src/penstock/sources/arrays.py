"""Arrays in memory or in memory-mapped files: sample i is the i-th row of each; with the adapters."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, TensorDataset

import penstock._native as _native
from penstock.errors import CorruptSample, InvalidOption, MissingSample, like
from penstock.recipe.steps import Refusal, Step
from penstock.showing import shown
from penstock.sources.native_source import Field, Memory, NativeSource
from penstock.sources.reading import tensor_of
from penstock.sources.source import Source, own_transform
from penstock.sources.unchanged import all_of, same_items, same_memory
from penstock.system.words import counted

ArrayLike = np.ndarray | torch.Tensor | str | os.PathLike[str]


class Arrays(Dataset[tuple[Any, ...]]):
    """Rows of numpy arrays, torch tensors and ``.npy`` files; files are memory-mapped, not read.

    A sample is the tuple of the i-th rows, as torch tensors (0-d for a row of a 1-d array).

    Args:
        arrays: at least one; the first dimension is the samples and has the same extent in all.
        transform: called with the first row of each tuple. Python then reads the samples (see ``explain()``).

    Attributes:
        tensors: the arrays as tensors that share their memory.

    Raises:
        InvalidOption: no array, a 0-d array, or different numbers of samples.
        TypeError: an array of a dtype that torch does not have.
        MissingSample, CorruptSample: a ``.npy`` file that is not there, or is truncated or damaged; the latter from a
            sample too, where its file has become shorter since.
    """

    def __init__(self, *arrays: ArrayLike, transform: Callable[[torch.Tensor], Any] | None = None) -> None:
        if not arrays:
            raise InvalidOption("Arrays needs at least one array")
        self.transform = transform
        self._given = tuple(_absolute(array) for array in arrays)
        self._open()
        for tensor, array in zip(self.tensors, arrays, strict=True):
            if tensor.ndim == 0:
                raise InvalidOption(f"{_describe(array)} is 0-dimensional: the first dimension is the samples")
            if len(tensor) != len(self.tensors[0]):
                raise InvalidOption(
                    f"{_describe(array)} has {counted(len(tensor), 'row')}, the first array has "
                    f"{len(self.tensors[0]):,}: all arrays must have one row a sample"
                )

    def _open(self) -> None:
        held = [_map_file(array) if isinstance(array, str) else array for array in self._given]
        self.tensors = tuple(map(_as_tensor, held))
        pairs = zip(self._given, held, strict=True)
        self._files = [(path, array) for path, array in pairs if isinstance(path, str) and isinstance(array, np.memmap)]
        # numpy does not resize an array that a weak reference leads to: the tensor lies in its memory.
        self._pins = [weakref.ref(array) for array in self._given if isinstance(array, np.ndarray)]

    def truncated(self) -> CorruptSample | None:
        """Return the error of a mapped file that is shorter than it must be, else None."""
        for path, array in self._files:
            assert isinstance(array.base, mmap.mmap)
            size, needed = array.base.size(), array.offset + array.nbytes
            if size < needed:
                return CorruptSample(
                    f"{path} was cut off: it has {counted(size, 'byte')} now, and {needed:,} are needed. Write it "
                    "again, and make the dataset again; replace such a file by renaming another to its name, not by "
                    "writing into it",
                    sample_id=path,
                    path=path,
                )
        return None

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        position = range(len(self))[index]
        if (error := self.truncated()) is not None:
            raise error
        row = tuple(tensor[position] for tensor in self.tensors)
        return row if self.transform is None else (self.transform(row[0]), *row[1:])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("tensors", "_files", "_pins")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __repr__(self) -> str:
        rows = ", ".join(f"{str(t.dtype).removeprefix('torch.')}{list(t.shape[1:])}" for t in self.tensors)
        return f"Arrays({counted(len(self), 'sample')} of {rows})"


def _absolute(array: ArrayLike) -> np.ndarray | torch.Tensor | str:
    if isinstance(array, (np.ndarray, torch.Tensor)):
        return array
    if isinstance(array, (str, os.PathLike)):
        return os.path.abspath(array)  # a worker process may start in another folder
    raise TypeError(f"an array is a numpy array, a torch tensor or the path of a .npy file, not {type(array).__name__}")


def _as_tensor(array: np.ndarray | torch.Tensor) -> torch.Tensor:
    if isinstance(array, torch.Tensor):
        return array
    if not array.dtype.isnative:
        raise TypeError(f"{_describe(array)} has byte order {array.dtype.str!r}; convert it with astype first")
    try:
        return tensor_of(array)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{_describe(array)} cannot be a tensor: {error}") from error


def _map_file(path: str) -> NDArray[Any]:
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise like(error, MissingSample, f"no such file: {path}", sample_id=path, path=path) from error
    except (ValueError, EOFError) as error:
        message = (
            f"{path} is not a readable .npy file: {error} (it has {counted(os.path.getsize(path), 'byte')}); write it "
            "again with numpy.save"
        )
        raise like(error, CorruptSample, message, sample_id=path, path=path) from error
    if not isinstance(values, np.ndarray):
        raise TypeError(f"{shown(path)} is an archive of several arrays; give the .npy file of each")
    return values


def _describe(array: ArrayLike) -> str:
    if isinstance(array, (np.ndarray, torch.Tensor)):
        return f"an array of shape {tuple(array.shape)} and dtype {array.dtype}"
    return os.fspath(array)


class ArraysSource(Source):
    """The adapter of Arrays: rows, some of which may lie in mapped files."""

    dataset: Arrays
    classes = (Arrays,)

    def native(self, raw: bool) -> NativeSource | Refusal:
        dataset = self.dataset
        if (refusal := own_transform(dataset)) is not None:
            return refusal
        if dataset.truncated() is not None:
            return Refusal("Arrays", "a file that it maps was truncated", "the whole file")
        native = _rows(dataset, dataset.tensors)
        if isinstance(native, Refusal) or native.memory is None:
            return native
        if not dataset._files:
            return native
        mapped = len(dataset._files) == len(dataset.tensors)  # and the dataset holds the maps

        def whole() -> bool:
            return dataset.truncated() is None

        return replace(
            native,
            same_dataset=whole,
            same_memory=all_of(native.same_memory, whole),
            memory=native.memory._replace(reads_ahead=mapped),
            reusable=None,
        )


class TensorDatasetSource(Source):
    """The adapter of torch.utils.data.TensorDataset."""

    classes = (TensorDataset,)

    def sizes(self) -> NDArray[np.int64]:
        shapes = [(one.ndim, *one.shape[1:], one.element_size()) for one in self.dataset.tensors]
        return np.array([number for shape in shapes for number in shape], np.int64)

    def native(self, raw: bool) -> NativeSource | Refusal:
        return _rows(self.dataset, self.dataset.tensors)


def _rows(dataset: object, tensors: Sequence[torch.Tensor]) -> NativeSource | Refusal:
    """Return how the native core copies the rows of tensors, which a dataset has as `tensors`, or why it cannot."""
    fields, shapes = [], []
    for number, tensor in enumerate(tensors):
        why = _not_gatherable(tensor) or (len(tensor) != len(tensors[0]) and "it has another number of rows") or None
        if why is not None:
            what = f"{type(dataset).__name__}, array {number}"
            return Refusal(what, why, "a plain tensor on the CPU whose rows are contiguous")
        spec = _native.Spec(str(tensor.dtype).removeprefix("torch."), list(tensor.shape[1:]))
        fields.append(Field(_native.GatherFiller(_as_bytes(tensor, spec.nbytes), spec), spec))
        shapes.append(f"{spec.dtype}{list(spec.shape)}")
    size = len(tensors[0])
    return NativeSource(
        fields=tuple(fields),
        steps=(Step(f"gather  {counted(size, 'row')} of {', '.join(shapes)}", "native"),),
        read_in_python=lambda position: tensors[0][position],
        memory=Memory(held=tuple(tensors)),
        same_dataset=same_items(tensors),
        same_memory=same_memory(tensors),
        reusable=lambda: all(map(within_storage, tensors)),
    )


def within_storage(tensor: torch.Tensor) -> bool:
    """Return whether a storage holds all elements of a tensor: it may have been made smaller."""
    if tensor.numel() == 0:
        return True
    last = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
    end = (tensor.storage_offset() + last + 1) * tensor.element_size()
    return bool(end <= tensor.untyped_storage().nbytes())


def _not_gatherable(tensor: torch.Tensor) -> str | None:
    """Return why the rows of a tensor cannot be copied as bytes, or None."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return f"{type(tensor).__name__} is a subclass of torch.Tensor"
    if tensor.device.type != "cpu":
        return f"it is on {tensor.device}"
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return "it is not a plain dense tensor"
    if tensor.requires_grad:
        return "it requires grad, which its batches would need too"
    if tensor.ndim - 1 > _native.MAX_DIMS or str(tensor.dtype).removeprefix("torch.") not in _native.DTYPES:
        return f"dtype {tensor.dtype} or its {tensor.ndim} dimensions are not native"
    if len(tensor) > 0 and not tensor[0].is_contiguous():
        return "its rows are not contiguous"
    if not within_storage(tensor):
        return "its storage was made smaller"
    return None


def _as_bytes(tensor: torch.Tensor, row_bytes: int) -> torch.Tensor:
    """Return the rows as bytes, uint8 of shape (rows, row_bytes): an alias, which lies where the tensor lies."""
    if len(tensor) == 0 or row_bytes == 0:
        return torch.empty((len(tensor), row_bytes), dtype=torch.uint8, device="cpu")
    flat = torch.as_strided(
        tensor.detach(),
        (len(tensor), row_bytes // tensor.element_size()),
        (tensor.stride(0), 1),
        tensor.storage_offset(),
    )
    return flat.view(torch.uint8)
