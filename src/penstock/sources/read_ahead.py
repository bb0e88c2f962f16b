"""Files of coming samples, which native readers bring ahead of the Python threads that make the samples."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

import penstock._native as _native

#: Positions in the order of an epoch, and indices of samples, as random draws know them: modulo 2**64.
MASK = 0xFFFFFFFFFFFFFFFF


class SampleFile(NamedTuple):
    """Which file of a dataset a sample is."""

    folder: int
    """The number of the folder in the dataset."""
    position: int
    """The position of the sample in the folder."""
    name: bytes | None
    """The path of the file; None: the native core has a table of the folder's files."""


class ComingBatch(Protocol):
    """A batch whose samples threads take one after another."""

    taken: int
    """Samples that threads have taken."""
    done: bool
    """Nothing is left to do."""


class ReadAhead:
    """Brings the files of the samples of a pass, in their order, where reads of files block.

    The native core sees at some reads whether the thread sleeps for them. While it does not, nothing is brought, and a
    sample costs a look at the number of readers. Any thread may call any method. Threads share it: a copy is the
    object itself.

    Args:
        program: one filler for each folder of the dataset.
        locate: returns the file of the sample at an index; None: the sample is no file of these folders.
        readers: threads at the most.
        ahead_bytes: of files that are held ahead, at the most.

    Attributes:
        native: the readers.
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
        """Forget all batches."""
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
        self._locate = _nowhere  # which holds what holds this
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

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _no_read_ahead, ()


def _nowhere(index: Any) -> None:
    """Return that no file is to be brought."""


def _no_read_ahead() -> None:
    """Return what another process has in the place of these readers."""
