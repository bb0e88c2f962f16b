"""Files that Python is about to read, brought into the page cache ahead of it, where reads block.

A worker that reads one file at a time waits for each. The pass knows which samples come: while storage is read from, a
few threads open the files of each batch that begins and advise the kernel that they will be needed (posix_fadvise),
which reads them without being waited for. Where the files lie in memory nothing is opened.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import monotonic
from typing import Any

#: Files that are opened at a time: an open may block as a read does.
THREADS = 16
#: Seconds between looks at whether storage is read from.
LOOK_SECONDS = 0.1

PathsOf = Callable[[Sequence[Any]], Iterable[str | None]]
"""Returns the files of some samples, called with their indices; None for a sample that is not a file."""


class AdvisedBatches:
    """What a sampler gives for batches; the kernel is advised of the files of each.

    Args:
        batches: pairs of what the sampler gives, and another value.
        paths_of: is called in threads of this object, which end with it.
        bytes_read: returns how many bytes the workers have read from storage so far.
    """

    def __init__(self, batches: Iterator[tuple[Any, Any]], paths_of: PathsOf, bytes_read: Callable[[], int]) -> None:
        self._batches, self._paths_of, self._bytes_read = batches, paths_of, bytes_read
        self._work: queue.SimpleQueue[Sequence[Any] | None] = queue.SimpleQueue()
        self._threads = 0
        self._read: int | None = None
        self._next_look, self._blocks = monotonic() + LOOK_SECONDS, False
        weakref.finalize(self, _end, self._work)

    def __iter__(self) -> AdvisedBatches:
        return self

    def __next__(self) -> tuple[Any, Any]:
        batch = next(self._batches)
        if (now := monotonic()) >= self._next_look:
            before, self._read = self._read, self._bytes_read()
            self._next_look, self._blocks = now + LOOK_SECONDS, before is not None and self._read > before
        if self._blocks:
            given = batch[0]
            self._expect(given if hasattr(given, "__getitem__") else [given])
        return batch

    def _expect(self, indices: Sequence[Any]) -> None:
        while self._threads < THREADS:
            name = f"penstock-advice-{self._threads}"
            threading.Thread(target=_advise, args=(self._work, self._paths_of), name=name, daemon=True).start()
            self._threads += 1
        step = max(1, -(-len(indices) // THREADS))
        for begin in range(0, len(indices), step):
            self._work.put(indices[begin : begin + step])


def _end(work: queue.SimpleQueue[Sequence[Any] | None]) -> None:
    for _ in range(THREADS):
        work.put(None)


def _advise(work: queue.SimpleQueue[Sequence[Any] | None], paths_of: PathsOf) -> None:
    while (indices := work.get()) is not None:
        for path in paths_of(indices):
            if path is None:
                continue
            with contextlib.suppress(OSError, ValueError):  # whoever reads the file raises it
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                try:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
                finally:
                    os.close(descriptor)
