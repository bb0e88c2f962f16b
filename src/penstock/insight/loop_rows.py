"""What is recorded of loops as rows of numbers, in a bounded memory: their batches, and the work of their threads."""

from __future__ import annotations

import threading
from array import array
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

#: Rows that are kept of the loops over a loader, 72 bytes each: when there are twice as many, the older half goes.
MOST_ROWS = 1 << 15
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

    def table(self) -> Numbers:
        """Return the rows of all passes, by COLUMNS."""
        return np.concatenate([np.empty((0, len(COLUMNS))), *self.passes()])


def column(table: Numbers, name: str) -> Numbers:
    """Return a column of a table of rows by its name."""
    return table[:, COLUMNS.index(name)]


# --- the work of threads ---------------------------------------------------------------------------------------------

#: Pieces of work that a thread's lane keeps, 32 bytes each: when it is full, the older half goes.
MOST_SPANS = 1 << 14
#: Pieces of one stage that follow each other within this time are one piece, up to a length; both in seconds.
_GAP, _LONGEST = 50e-6, 5e-3


class Lane(NamedTuple):
    """What one thread did."""

    thread: str
    """The thread's name."""
    stages: list[str]
    """The names of the stages that the table's first column numbers."""
    table: NDArray[np.float64]
    """(n, 4): the stage's number, begin and end by time.perf_counter(), and samples."""


class WorkSpans:
    """A sink of a Meter. Any thread may call any method; a thread writes its own lane without a lock.

    Attributes:
        lost: how many pieces of work are not kept.
    """

    def __init__(self) -> None:
        self._stages: list[str] = []
        self._lanes: dict[tuple[int, str], array[float]] = {}  # by number and name of the thread
        self.lost = 0

    def __call__(self, stage: str, seconds: float, samples: int, ended: float, thread: str = "") -> None:
        """Add a piece of work of the calling thread, or of a native one of this name."""
        key = (0, thread) if thread else (threading.get_ident(), threading.current_thread().name)
        if (lane := self._lanes.get(key)) is None:
            lane = self._lanes[key] = array("d")
        if stage not in self._stages:
            self._stages.append(stage)
        number, begin = self._stages.index(stage), ended - seconds
        if lane and lane[-4] == number and begin - lane[-2] < _GAP and ended - lane[-3] < _LONGEST:
            lane[-2], lane[-1] = ended, lane[-1] + samples
            return
        lane.extend((number, begin, ended, samples))
        if len(lane) >= 4 * MOST_SPANS:
            self.lost += MOST_SPANS // 2
            self._lanes[key] = lane[2 * MOST_SPANS :]

    def lanes(self) -> list[Lane]:
        """Return what each thread did."""
        found = [(name, np.array(lane, dtype=np.float64)) for (_, name), lane in list(self._lanes.items())]
        stages = list(self._stages)
        return [Lane(name, stages, numbers[: len(numbers) // 4 * 4].reshape(-1, 4)) for name, numbers in found]
