"""Reading the samples of a dataset one by one, natively where an adapter can."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

import penstock._native as _native
from penstock.recipe.steps import Step
from penstock.sources.read_ahead import ReadAhead, SampleFile
from penstock.sources.unchanged import Unchanged
from penstock.storage.jpeg_index import Photos

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

    def locate(self, index: int) -> SampleFile | None:
        """Return the file of the sample at an index; None where it is none that readers may bring."""
        return None

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
    remote = False
    """The files come from an object store, before they can be opened."""
    filler: Any
    """Of files: _native.TensorFileFiller or ImageFileFiller."""
    _number = -1
    _ahead: ReadAhead | None = None
    _readers: _native.FileReaders | None = None
    """Those of `_ahead`."""
    _cache: _native.SampleCache | None = None

    def __init__(self, dataset: Any, still: Unchanged) -> None:
        super().__init__(dataset)
        self._still = still

    def folders(self) -> Iterator[FolderReader]:
        yield self

    def locate(self, index: int) -> SampleFile | None:
        size = len(self.dataset)
        if self.remote or self._number < 0 or not -size <= index < size:
            return None
        return self._file(index % size)

    def _file(self, position: int, name: bytes | None = None) -> SampleFile:
        """Return the file of the sample at a position. name: its path, where it is known."""
        return SampleFile(self._number, position, name)

    def path(self, position: int) -> str:
        """Return the file of the sample at a position."""
        raise NotImplementedError

    def keep_in(self, cache: _native.SampleCache) -> None:
        """Have a cache keep the bytes of the files from here on."""
        self.filler, self._cache = self.filler.cached(cache) or self.filler, cache

    def photos(self) -> Photos | None:
        """Return what tells the folder's photos from another's, where an index of decoder states may serve them."""
        return None

    def go_by(self, index: _native.JpegIndex) -> None:
        """Have JPEG files decoded by an index of decoder states from here on."""
        self.filler = self.filler.indexed(index)

    def read_from(self, ahead: ReadAhead | None, number: int) -> None:
        """Take files that readers have brought from here on. number: of this folder among those of the readers."""
        self._ahead, self._number = ahead, number
        self._readers = None if ahead is None else ahead.native

    def _brought(self, position: int, name: bytes | None, draw: Draw) -> _native.BroughtFile | None:
        """Return the file that readers have brought for a sample, after waiting for it; None: none is at work on it."""
        if self._ahead is None:
            return None
        return self._ahead.take(draw.position, self._file(position, name))

    def _content(self, position: int, name: bytes, brought: _native.BroughtFile | None) -> io.BytesIO | None:
        """Return the bytes of a file that lie in memory or in a cache already; None: Python must open the file.

        name: of the file, as the native core knows it.
        """
        if not self.files:
            return None
        if brought is not None:
            return io.BytesIO(brought.content.data)
        kept = None if self._cache is None else self._cache.find(position, name)
        return None if kept is None else io.BytesIO(kept)

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
