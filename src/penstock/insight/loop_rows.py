"""What is recorded of loops as rows of numbers, in a bounded memory: their batches, and the work of their threads."""

from __future__ import annotations

import threading
from array import array
from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

#: Rows that are kept of the loops over a loader, 72 bytes each: when there are twice as many, the older half goes.
MOST_ROWS = 1 << 15
#: Pieces of work that are kept of a loader's threads.
MOST_SPANS = 1 << 15
#: What a row has of a batch, in seconds and by time.perf_counter().
COLUMNS = (
    "start",  # when the loop got the batch before; of the first batch of a pass, when it asked
    "got",  # when it got the batch, or the end of the pass
    "waited",  # for the batch: what LoopTimes.waited adds up
    "first_waited",  # of these, for the first batch of a pass
    "worked",  # between the batch before and the call for this one
    "samples",  # 0 where batches go to a device
    "batches",  # 0: the loop's work on the last batch of a pass
    "number",  # of the pass, in the order in which they began
    "done",  # batches of the pass so far
    "begun",  # when the batch's making began; 0: that is not known
)
_WIDTH = len(COLUMNS) - 1  # numbers that are kept of a row


class Rows:
    """The latest rows of batches. Any thread may call any method."""

    def __init__(self, most: int = MOST_ROWS) -> None:
        self._lock = threading.Lock()
        self._numbers, self._most = array("d"), most

    def add(self, got: float, amounts: tuple[float, ...], number: int, done: int, begun: float = 0.0) -> None:
        """Add a batch. amounts: its waited, first_waited, worked, samples and batches."""
        with self._lock:
            self._numbers.extend((got, *amounts, number, done, begun))
            if len(self._numbers) >= 2 * self._most * _WIDTH:
                del self._numbers[: self._most * _WIDTH]

    def passes(self) -> list[Numbers]:
        """Return a table of the rows of each pass, by COLUMNS."""
        with self._lock:
            rows = np.array(self._numbers).reshape(-1, _WIDTH)
        found = []
        for number in np.unique(rows[:, 6]):
            own = rows[rows[:, 6] == number]
            got = np.maximum.accumulate(own[:, 0])
            # Threads that share a pass wait at the same time: what overlaps is the later one's.
            before = np.concatenate([[-np.inf], got[:-1]])
            start = np.minimum(np.maximum(got - own[:, 1] - own[:, 3], before), got)
            found.append(np.column_stack([start, got, own[:, 1:]]))
        return found


def column(table: Numbers, name: str) -> Numbers:
    return table[:, COLUMNS.index(name)]


class Work(NamedTuple):
    """A piece of work of a thread, by time.perf_counter()."""

    thread: str
    stage: str
    begin: float
    end: float
    samples: int


class WorkSpans:
    """The latest pieces of work of a loader's threads: a sink of a Meter. Any thread may call any method."""

    def __init__(self, most: int = MOST_SPANS) -> None:
        self._found: deque[Work] = deque(maxlen=most)

    def __call__(self, stage: str, seconds: float, samples: int, ended: float, thread: str = "") -> None:
        """Add a piece of work of the calling thread, or of a native one of this name."""
        self._found.append(Work(thread or threading.current_thread().name, stage, ended - seconds, ended, samples))

    def by_thread(self) -> dict[str, list[Work]]:
        """Return the work of each thread, by its name, in the order in which it began."""
        found: dict[str, list[Work]] = {}
        for work in sorted(self._found.copy(), key=lambda one: one.begin):
            found.setdefault(work.thread, []).append(work)
        return dict(sorted(found.items()))
