"""Arrays in memory or in memory-mapped files: sample i is the i-th row of each."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from penstock.errors import CorruptSample, InvalidOption, MissingSample, like
from penstock.sources.integrity import truncated

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
        MissingSample, CorruptSample: a ``.npy`` file that is not there, or is truncated or damaged.
    """

    def __init__(self, *arrays: ArrayLike, transform: Callable[[torch.Tensor], Any] | None = None) -> None:
        if not arrays:
            raise InvalidOption("Arrays needs at least one array")
        self.transform = transform
        self._given = tuple(_absolute(array) for array in arrays)
        self.tensors = tuple(_as_tensor(array) for array in self._given)
        for tensor, array in zip(self.tensors, arrays, strict=True):
            if tensor.ndim == 0:
                raise InvalidOption(f"{_describe(array)} is 0-dimensional: the first dimension is the samples")
            if len(tensor) != len(self.tensors[0]):
                raise InvalidOption(
                    f"{_describe(array)} has {len(tensor):,} rows, the first array has {len(self.tensors[0]):,}: "
                    "all arrays must have one row a sample"
                )

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        position = range(len(self))[index]
        row = tuple(tensor[position] for tensor in self.tensors)
        return row if self.transform is None else (self.transform(row[0]), *row[1:])

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["tensors"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.tensors = tuple(_as_tensor(array) for array in self._given)

    def __repr__(self) -> str:
        rows = ", ".join(f"{str(t.dtype).removeprefix('torch.')}{list(t.shape[1:])}" for t in self.tensors)
        return f"Arrays({len(self):,} samples of {rows})"


def _absolute(array: ArrayLike) -> np.ndarray | torch.Tensor | str:
    if isinstance(array, (np.ndarray, torch.Tensor)):
        return array
    if isinstance(array, (str, os.PathLike)):
        return os.path.abspath(array)  # a worker process may start in another folder
    raise TypeError(f"an array is a numpy array, a torch tensor or the path of a .npy file, not {type(array).__name__}")


def _as_tensor(array: np.ndarray | torch.Tensor | str) -> torch.Tensor:
    if isinstance(array, torch.Tensor):
        return array
    values = _map_file(array) if isinstance(array, str) else array
    if not values.dtype.isnative:
        raise TypeError(f"{_describe(array)} has byte order {values.dtype.str!r}; convert it with astype first")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # rows are only read
        try:
            return torch.from_numpy(values)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{_describe(array)} cannot be a tensor: {error}") from error


def _map_file(path: str) -> NDArray[Any]:
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise like(error, MissingSample, f"no such file: {path}", sample_id=path, path=path) from error
    except (ValueError, EOFError) as error:
        with open(path, "rb") as file:
            empty = os.fstat(file.fileno()).st_size == 0
            reason = "it is empty" if empty else truncated(file, error) or str(error)
        message = f"{path} is not a readable .npy file: {reason}; write it again with numpy.save"
        raise like(error, CorruptSample, message, sample_id=path, path=path) from error
    if not isinstance(values, np.ndarray):
        raise TypeError(f"{path} is an archive of several arrays; give the .npy file of each")
    return values


def _describe(array: ArrayLike) -> str:
    if isinstance(array, (np.ndarray, torch.Tensor)):
        return f"an array of shape {tuple(array.shape)} and dtype {array.dtype}"
    return os.fspath(array)
