"""Reading the samples of a dataset one by one, natively where an adapter can: for those that end in the user's code.

Native readers may bring the files of coming samples ahead of the Python threads that make the samples. An image comes
as the PIL image that the dataset would have handed on, a tensor as torch.load would have given it. Whatever native code
does not take is read by the dataset's own __getitem__, which also raises all errors.
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

import penstock._native as _native
from penstock.recipe.steps import Step
from penstock.sources.unchanged import Unchanged
from penstock.storage.tiers import Caches, SampleNames

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)  # uint8 is a mask to torch

#: Bytes of a file that is read as a whole.
_MOST_BYTES = 1 << 30
#: Positions in the order of an epoch, and indices of samples, as random draws know them: modulo 2**64.
MASK = 0xFFFFFFFFFFFFFFFF


class SampleFile(NamedTuple):
    """Which file of a dataset a sample is."""

    folder: int
    position: int
    name: bytes | None
    """The path of the file; None: the native core has a table of the folder's files."""


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
        return iter(())

    def locate(self, index: int) -> SampleFile | None:
        """Return the file of the sample at an index; None where it is none that readers may bring."""
        return None

    def read(self, index: int, draw: Draw) -> Any:
        """Return the sample at an index, which may be negative or out of range."""
        return self.dataset[index]


class FolderReader(SampleReader):
    """Reads a folder of files, each of them one sample.

    Args:
        filler: of its files, by the dataset's table of paths where it has one.
        still: whether the folder's transform is what it was; once it is not, the dataset reads its samples itself.
    """

    gains = True
    files = True
    """Each sample is a file of its own, whose bytes a cache may keep."""
    remote = False
    """The files come from an object store, before they can be opened."""
    _number = -1
    _ahead: ReadAhead | None = None

    def __init__(self, dataset: Any, filler: Any, still: Unchanged) -> None:
        super().__init__(dataset)
        self._still = still
        self.read_with(filler)

    def read_with(self, filler: Any) -> None:
        """Read the files by a filler of theirs from here on."""
        self.filler = filler
        self._alone = _native.FileReaders(_native.Program([[filler]]), 0, 0)

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
        raise NotImplementedError

    def read_from(self, ahead: ReadAhead | None, number: int) -> None:
        """Take files that readers have brought from here on. number: of this folder among those of the readers."""
        self._ahead, self._number = ahead, number

    def _brought(self, position: int, name: bytes | None, draw: Draw) -> _native.BroughtFile | None:
        """Return the file that readers have brought for a sample, after waiting for it; None: none is at work on it."""
        if self._ahead is None or not self._ahead.native.depth:
            return None
        return self._ahead.take(draw.position, self._file(position, name))

    def _content(self, position: int, name: bytes | None, brought: _native.BroughtFile | None) -> io.BytesIO | None:
        """Return the bytes of a file, brought, from a cache or read natively; None: the dataset must read it.

        name: of the file, as the native core knows it; None: the dataset has a table of them.
        """
        if brought is None:
            readers, number = (self._alone, 0) if self._ahead is None else (self._ahead.native, self._number)
            found = readers.read(number, position, self._file(position, name).name, _MOST_BYTES)
            if isinstance(found, str):
                return None
            brought = found
        return io.BytesIO(brought.content.data)

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
    if target_transform is None:
        return ()
    return (Step(f"call    {function_name(target_transform)}, on each label", "Python"),)


def function_name(function: object) -> str:
    """Return the name of a function, or of a callable object's class, for explain()."""
    return getattr(function, "__qualname__", None) or type(function).__name__


# --- files that are brought ahead -------------------------------------------------------------------------------------


class ComingBatch(Protocol):
    """A batch whose samples threads take one after another."""

    taken: int
    """Samples that threads have taken."""
    done: bool
    """Nothing is left to do."""


class ReadAhead:
    """Brings the files of the samples of a pass, in their order, where reads of files block.

    The native core sees at some reads whether the thread sleeps for them; while it does not, nothing is brought. Any
    thread may call any method. Threads share it: a copy is the object itself.

    Args:
        program: one filler for each folder of the dataset.
        locate: returns the file of the sample at an index; None: the sample is no file of these folders.
        readers: threads at the most.
        ahead_bytes: of files that are held ahead, at the most.
    """

    def __init__(
        self, program: _native.Program, locate: Callable[[Any], SampleFile | None], readers: int, ahead_bytes: int
    ) -> None:
        self.native = _native.FileReaders(program, readers, ahead_bytes)
        self._locate = locate
        self._lock = threading.Lock()  # held by the thread that lets the readers know of batches
        self._unannounced: OrderedDict[int, tuple[ComingBatch, Sequence[Any], Sequence[int]]] = OrderedDict()
        self._announced: dict[int, tuple[_native.ReadList, int, SampleFile]] = {}  # by position in the epoch's order

    def expect(self, batch: ComingBatch, indices: Sequence[Any], positions: Sequence[int]) -> None:
        """Take note of the samples of a batch, and where they stand in the order of the epoch."""
        self._unannounced[id(batch)] = (batch, indices, positions)

    def forget(self, batch: ComingBatch, positions: Sequence[int]) -> None:
        """Let go of what was brought for a batch and not taken."""
        self._unannounced.pop(id(batch), None)
        if self._announced:
            for position in positions:
                self._announced.pop(position & MASK, None)

    def clear(self) -> None:
        self._unannounced.clear()
        self._announced.clear()

    def take(self, position: int, file: SampleFile) -> _native.BroughtFile | None:
        """Return the file that was brought for the sample at a position of the epoch's order, after waiting for it.

        None: the calling thread reads the file. Called where readers are at work.
        """
        if self._unannounced:
            self._announce()
        found = self._announced.pop(position, None)
        if found is None or found[2] != file:  # another sample stands in for a bad one, or the dataset was changed
            return None
        return self.native.take(found[0], found[1])

    def close(self) -> None:
        """End the readers, and wake the threads that wait for them."""
        self._locate = lambda index: None  # the former holds what holds this
        self.clear()
        self.native.close()

    def _announce(self) -> None:
        """Let the readers know of all batches, unless another thread does."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            with contextlib.suppress(KeyError):  # there is no batch left
                while True:
                    _, (batch, indices, positions) = self._unannounced.popitem(last=False)
                    self._add(batch, indices, positions)
        finally:
            self._lock.release()

    def _add(self, batch: ComingBatch, indices: Sequence[Any], positions: Sequence[int]) -> None:
        """Let the readers know of the samples of a batch that no thread has taken."""
        begin = batch.taken
        found: list[tuple[int, SampleFile]] = []
        for index, position in zip(indices[begin:], positions[begin:], strict=False):
            try:
                file = self._locate(index)
            except Exception:  # it is raised by the thread that makes the sample
                continue
            if file is not None and b"\0" not in (file.name or b""):
                found.append((position & MASK, file))
        if not found:
            return
        named = any(file.name is not None for _, file in found)
        names = b"".join((file.name or b".") + b"\0" for _, file in found) if named else None
        local = np.array([file.position for _, file in found], dtype=np.int64)
        folders = np.array([file.folder for _, file in found], dtype=np.int32)
        files = self.native.add(local, folders, names)
        if files is None:  # in a process that was forked off
            return
        for place, (position, file) in enumerate(found):
            self._announced[position] = (files, place, file)
        if batch.done:
            self.forget(batch, positions)

    def __deepcopy__(self, memo: object) -> ReadAhead:
        return self

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()  # in another process


# --- datasets whose samples end in the user's own code ----------------------------------------------------------------


class Assisted:
    """Reads single samples of a dataset, natively as far as possible.

    Any number of threads may call it at once, also in a forked process. It may be pickled where the dataset may. It is
    made anew for each pass; once a transform is changed during a pass, the dataset reads its samples itself.

    Args:
        reader_of: returns what reads its samples as it is then; found by its name in another process.
        caches: keep the bytes of the files that are read natively.
        ahead: brings files before threads need them.
    """

    def __init__(
        self,
        dataset: Any,
        reader_of: Callable[[Any], SampleReader],
        caches: Caches | None = None,
        ahead: ReadAhead | None = None,
    ) -> None:
        self.dataset = dataset
        self._reader_of = reader_of
        self._caches = caches
        self._ahead = ahead
        self.renew()
        self.steps = self._reader.steps
        self.gains = self._reader.gains

    def renew(self) -> None:
        """Look at the dataset again: a worker_init_fn may have changed it, and its class, before the first sample."""
        self._reader = self._reader_of(self.dataset)
        if self._caches is not None:
            folders = [folder for folder in self._reader.folders() if folder.files and len(folder.dataset)]
            names = [SampleNames.of(len(folder.dataset), folder.path) for folder in folders]
            for folder, cache in zip(folders, self._caches.of(names), strict=True):
                folder.read_with(folder.filler.cached(cache) or folder.filler)
        self.take_from(self._ahead)

    def __call__(self, index: Any, seed: int, epoch: int, position: int = 0) -> Any:
        """Return what ``dataset[index]`` returns; native random steps draw from (seed, epoch, index, position)."""
        number = whole(index)
        if number is None:
            return self.dataset[index]
        return self._reader.read(number, Draw(seed & MASK, epoch & MASK, number & MASK, position & MASK))

    def read_ahead(self, readers: int, ahead_bytes: int) -> ReadAhead | None:
        """Have files brought ahead of the threads that read samples by this object, or by a copy of it, from here on.

        None: no sample is a file. readers: threads at the most. ahead_bytes: of files held ahead, at the most.
        """
        folders = [folder for folder in self._reader.folders() if not folder.remote]
        if not folders:
            return None
        program = _native.Program([[folder.filler] for folder in folders])
        self.take_from(ReadAhead(program, self._locate, readers, ahead_bytes))
        return self._ahead

    def take_from(self, ahead: ReadAhead | None) -> None:
        """Take files that readers have brought from here on; None: no files are brought ahead any more."""
        self._ahead = ahead
        for number, folder in enumerate(folder for folder in self._reader.folders() if not folder.remote):
            folder.read_from(ahead, number)

    def _locate(self, index: Any) -> SampleFile | None:
        number = whole(index)
        return None if number is None else self._reader.locate(number)

    def __reduce__(self) -> tuple[Any, ...]:
        return _assisted, (self.dataset, self._reader_of, self._caches, os.getpid(), self._ahead)


def _assisted(
    dataset: Any, reader_of: Callable[[Any], SampleReader], caches: Caches | None, process: int, ahead: ReadAhead | None
) -> Assisted:
    """Return a copy, made in this process or another one. ahead: None in another one."""
    if caches is not None and os.getpid() != process:
        caches = caches.in_folders()  # memory would be taken once a process
    return Assisted(dataset, reader_of, caches, ahead)
