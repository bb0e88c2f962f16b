"""One tensor a file, or several by name, by ID: the layout of ``torch.save(x, f"data/{ID}.pt")``; and its adapter."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

import penstock._native as _native
from penstock.errors import InvalidID, InvalidOption, MissingLabel
from penstock.order.permutations import Indices
from penstock.recipe.originals import replaced_in
from penstock.recipe.steps import Refusal, Step
from penstock.showing import shown
from penstock.sources.labels import LabelColumn, LazySequence, Missing, as_objects, looked_up, taken, transformed
from penstock.sources.native_source import Field, Form, NativeSource, SampleFiles
from penstock.sources.reading import holds_mappings, open_sample, read_mapping, read_tensor
from penstock.sources.source import Source, label_reader, own_transform
from penstock.system.words import counted


class IDs(LazySequence[str]):
    """The IDs of a folder, held as one byte array and decoded when they are taken."""

    def __init__(self, paths: _native.PathTable) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def _at(self, position: int) -> str:
        return os.fsdecode(self._paths.name(position))


class TensorFolder(Dataset[Any]):
    """A folder that holds each sample as one file, ``root/ID.pt``, ``.npy``, ``.safetensors`` or ``.npz``.

    A sample is the tensor, or the pair (tensor, label) when labels are given. Files hold one dense tensor as
    torch.save wrote it, or an array as numpy.save wrote it; nothing in them is executed. With a suffix that ends in
    ``.safetensors`` or ``.npz`` a sample has a dictionary of tensors by name instead: the
    result of safetensors.torch.load_file or numpy.load. Python reads these files.

    Args:
        root: the folder.
        ids: names of the samples, relative to root and without the suffix; None lists the folder, sorted.
        labels: label by ID. An ID without one is an error when its sample is loaded.
        suffix: what follows the ID in the file's name.
        transform: called with the tensor, or the dictionary. Python then reads the samples (see ``explain()``).
        target_transform: called with the label.

    Attributes:
        ids: the IDs, in order.

    Raises:
        InvalidID: an ID is empty, absolute or contains "..".
        FileNotFoundError: root is not a folder, or ids is None and the folder has no file with this suffix.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        ids: Iterable[str] | None = None,
        labels: Mapping[str, Any] | None = None,
        *,
        suffix: str = ".pt",
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.root = os.fspath(root)
        self.suffix = suffix
        self.transform = transform
        self.target_transform = target_transform
        if not os.path.isdir(self.root):
            raise FileNotFoundError(
                errno.ENOENT, f"no such folder; root must hold one file for each sample, as root/ID{suffix}", self.root
            )
        if labels is not None and not isinstance(labels, Mapping):
            raise TypeError(f"labels must be a dict from ID to label, not {type(labels).__name__}")
        if "/" in suffix or "\0" in suffix:
            raise InvalidOption(f"suffix must be the end of a file name, such as '.pt', not {suffix!r}")
        names = _native.list_folder(os.fsencode(self.root), os.fsencode(suffix)) if ids is None else _join(ids)
        if ids is None and not names:
            raise FileNotFoundError(
                f"no file in {shown(self.root)} ends in {suffix!r}: give ids=, or the right suffix="
            )
        bad = _native.first_bad_name(names)
        if bad is not None:
            name = os.fsdecode(names.split(b"\0")[bad])
            raise InvalidID(
                f"ID {name!r} (number {bad}) is not a name inside {self.root}: give a relative name, without '..'"
            )
        self.paths = _native.PathTable(os.fsencode(self.root), names, os.fsencode(suffix), True)
        self.ids = IDs(self.paths)
        self.labels: NDArray[Any] | None = None
        if labels is not None:
            listed = ids if isinstance(ids, (list, tuple)) else self.ids  # the caller's list spares decoding the IDs
            self.labels = looked_up(labels, listed)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        position = range(len(self))[index]  # as a list: negative counts from the end, IndexError past it
        return self._sample(position, self.read(position))

    def _sample(self, position: int, tensor: Any) -> Any:
        """Return the sample at a position from the tensor, or tensors, in its file. Raises MissingLabel."""
        value = tensor if self.transform is None else self.transform(tensor)
        if self.labels is None:
            return value
        return value, transformed([self.label(position)], self.target_transform)[0]

    def label(self, position: int) -> Any:
        """Return the label of the sample at a position. Raises MissingLabel."""
        return as_objects(self.take_labels(np.array([position])))[0]

    def take_labels(self, positions: Indices) -> LabelColumn:
        """Return the labels of the samples at these positions. Raises MissingLabel."""
        assert self.labels is not None
        found = taken(self.labels, positions)
        without = [] if isinstance(found, np.ndarray) else [n for n, label in enumerate(found) if label is Missing]
        if not without:
            return found
        position = int(positions[without[0]])
        name = self.ids[position]
        raise MissingLabel(
            f"sample {name!r} ({self.path(position)}) has no label: labels= has no key {name!r}; "
            "add it, or leave the ID out of ids=",
            sample_id=name,
            path=self.path(position),
        )

    def path(self, position: int) -> str:
        return os.fsdecode(self.paths.path(position))

    def read(self, position: int, file: BinaryIO | None = None) -> Any:
        """Return the tensor, or dictionary of tensors, at a position. Raises SampleError. file: its file, open."""
        read, name = read_mapping if holds_mappings(self.suffix) else read_tensor, self.ids[position]
        return read(file or open_sample(self.paths, position, name), name, self.path(position))

    def __repr__(self) -> str:
        labelled = "" if self.labels is None else ", labelled"
        return f"TensorFolder({str(Path(self.root))!r}: {counted(len(self), 'sample')}, *{self.suffix}{labelled})"


def _join(ids: Iterable[str]) -> bytes:
    """Return the IDs as one byte string, each followed by a NUL."""
    if isinstance(ids, str):
        raise TypeError("ids must be a list of names, not one string")
    names = ids if isinstance(ids, (list, tuple)) else list(ids)
    try:
        joined = os.fsencode("".join(f"{name}\0" for name in names))
    except UnicodeEncodeError as error:
        wrong = error.object[: error.start].rpartition("\0")[2] + error.object[error.start :].partition("\0")[0]
        raise InvalidID(f"ID {wrong!r} cannot be the name of a file: {error.reason}") from error
    if joined.count(b"\0") != len(names) or not all(isinstance(name, str) for name in names):
        wrong = next(name for name in names if not isinstance(name, str) or "\0" in name)
        if isinstance(wrong, str):
            raise InvalidID(f"ID {wrong!r} contains a NUL character")
        raise TypeError(f"an ID is a string, the file's name without its suffix; got {wrong!r}")
    return joined


# --- the adapter ------------------------------------------------------------------------------------------------------


class TensorFolderSource(Source):
    """TensorFolder's adapter: its files are read by one preadv each."""

    dataset: TensorFolder
    classes = (TensorFolder,)

    def name(self, index: int) -> tuple[str, str | None]:
        return self.dataset.ids[index], self.dataset.path(index % len(self.dataset))

    def ids(self) -> bytes | None:
        return self.dataset.paths.names()

    def native(self, raw: bool) -> NativeSource | Refusal:
        dataset = self.dataset
        if holds_mappings(dataset.suffix):
            return Refusal(
                f"TensorFolder(suffix={dataset.suffix!r})",
                "files of several tensors by name are read by Python",
                "one tensor a file, as .pt or .npy",
            )
        if (refusal := own_transform(dataset) or replaced_tensor_reading()) is not None:
            return refusal
        dataset.paths.refresh()
        held = dataset.labels
        return NativeSource(
            fields=(Field(_native.TensorFileFiller(dataset.paths), None),),
            steps=(_read_step(dataset),),
            read_in_python=dataset.read,
            files=SampleFiles(dataset.paths.name),
            form=Form(pair=held is not None),
            labels=None if held is None else label_reader(dataset.take_labels, dataset),
        )


def _read_step(dataset: TensorFolder) -> Step:
    files = f"read    {counted(len(dataset), 'file')} *{dataset.suffix} in {dataset.root}"
    if holds_mappings(dataset.suffix):
        return Step(f"{files}, each of several tensors by name", "Python")
    return Step(f"{files}, one preadv each", "native")


def replaced_tensor_reading() -> Refusal | None:
    """Return which function that reads the files was replaced, or None."""
    return replaced_in("torch", "load") or replaced_in("numpy", "load")
