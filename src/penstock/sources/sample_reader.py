"""Reading the samples of a dataset one by one, natively where an adapter can."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

import penstock._native as _native
from penstock.recipe.steps import Step
from penstock.sources.premises import Holds

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class Draw(NamedTuple):
    """What a sample's native random draws depend on, each modulo 2**64."""

    seed: int
    epoch: int
    sample: int
    """The sample's index in the whole dataset."""
    position: int
    """The sample's position in the order of the epoch."""


class SampleReader:
    """Reads a dataset by its own __getitem__. Subclasses read natively what they can, and leave it the rest.

    Any number of threads may call it at once.

    Attributes:
        gains: whether any part of the dataset is read natively.
        steps: who does what, for explain().
    """

    gains = False

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.steps: tuple[Step, ...] = (Step(f"read    {type(dataset).__name__}, by its __getitem__", "Python"),)

    def folders(self) -> Iterator[FolderReader]:
        """Yield the readers of the folders of files in the dataset."""
        return iter(())

    def get(self, index: Any, draw: Draw) -> Any:
        """Return the sample at an index of any type."""
        number = whole(index)
        return self.dataset[index] if number is None else self.read(number, draw)

    def read(self, index: int, draw: Draw) -> Any:
        """Return the sample at an index, which may be negative or out of range."""
        return self.dataset[index]


class FolderReader(SampleReader):
    """Reads a folder of files, each of them one sample.

    Args:
        dataset: the folder.
        still: whether the folder's transform is what it was; once it is not, the dataset reads its samples itself.
    """

    gains = True
    files = True
    """Each sample is a file of its own, whose bytes a cache may keep."""
    _filler: Any
    """Of files: _native.TensorFileFiller or ImageFileFiller."""

    def __init__(self, dataset: Any, still: Holds) -> None:
        super().__init__(dataset)
        self._still = still

    def folders(self) -> Iterator[FolderReader]:
        if self.files:
            yield self

    def path(self, position: int) -> str:
        """Return the file of the sample at a position."""
        raise NotImplementedError

    def keep_in(self, cache: _native.SampleCache) -> None:
        """Have a cache keep the bytes of the files from here on."""
        self._filler = self._filler.cached(cache) or self._filler

    def read(self, index: int, draw: Draw) -> Any:
        size = len(self.dataset)
        if not -size <= index < size or not self._still():
            return self.dataset[index]
        return self.read_at(index % size, draw)

    def read_at(self, position: int, draw: Draw) -> Any:
        """Return the sample at a position from 0 on."""
        raise NotImplementedError


def whole(index: object) -> int | None:
    """Return an index as a Python int; None for all that the dataset itself must make sense of."""
    if type(index) is int:
        return index
    if isinstance(index, np.integer):
        return int(index)
    if isinstance(index, torch.Tensor) and index.ndim == 0 and index.dtype in _INTEGERS:
        return int(index)
    return None


def target_steps(target_transform: Callable[[Any], Any] | None) -> tuple[Step, ...]:
    """Return the step of a dataset's target_transform, where it has one."""
    if target_transform is None:
        return ()
    return (Step(f"call    {function_name(target_transform)}, on each label", "Python"),)


def function_name(function: object) -> str:
    """Return the name of a function, or of a callable object's class, for explain()."""
    return getattr(function, "__qualname__", None) or type(function).__name__
