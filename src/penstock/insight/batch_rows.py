"""What is recorded of a loader as rows of numbers, in a bounded memory: its batches, and the work of its threads.

A row of a batch says when the loop asked for it, when it got it, and what it did before.
"""

from __future__ import annotations

import threading
from array import array
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Rows that a loader keeps; 72 bytes each.
MOST_ROWS = 1 << 15


class BatchRow(NamedTuple):
    """One batch; or several that were merged, whose times are added up. Times are those of time.perf_counter()."""

    start: float
    """When the loop got the batch before, or an error in its place; of the first batch of a pass, when it asked."""
    got: float
    """When the loop got the batch, or the end of the pass."""
    waited: float
    """Seconds for the batch: what LoopTimes.waited adds up."""
    first_waited: float
    """Of these, for the first batch of a pass."""
    worked: float
    """Seconds between the batch before and the call for this one: what LoopTimes.worked adds up."""
    samples: float
    """In the batch; 0 where batches go to a device."""
    batches: float
    """How many it stands for; 0: the loop's work on the last batch of a pass."""
    number: float
    """Of the pass that it belongs to, in the order in which they began."""
    begun: float
    """When its making began; 0: that is not known, or it stands for several."""


_WIDTH = len(BatchRow._fields)
_SUMS = [BatchRow._fields.index(name) for name in ("waited", "first_waited", "worked", "samples", "batches")]
_GOT, _BEGUN, _BATCHES, _NUMBER = (BatchRow._fields.index(name) for name in ("got", "begun", "batches", "number"))


class BatchRows:
    """Rows of batches in a bounded memory. Any thread may call any method.

    When there are `most` rows, each two neighbours become one, and from then on a row stands for twice as many batches:
    the whole run is kept, evenly, and no second of it is lost.
    """

    def __init__(self, most: int = MOST_ROWS) -> None:
        self._lock = threading.Lock()
        self._most = most
        self._each = 1  # batches that a row of one pass stands for
        self._numbers = array("d")

    def add(self, row: BatchRow) -> None:
        """Add a batch."""
        with self._lock:
            numbers = self._numbers
            if self._each > 1 and numbers[_BATCHES - _WIDTH] < self._each and numbers[_NUMBER - _WIDTH] == row.number:
                _merge_into_last(numbers, row)
                return
            numbers.extend(row)
            if len(numbers) >= self._most * _WIDTH:
                self._numbers = array("d", _merged(_table(numbers)).tobytes())
                self._each *= 2

    def table(self) -> NDArray[np.float64]:
        """Return the rows, (n, 9), by the columns of BatchRow, in the order in which they came."""
        with self._lock:
            return _table(self._numbers)


def column(table: NDArray[np.float64], name: str) -> NDArray[np.float64]:
    """Return a column of a table of rows by its name in BatchRow."""
    return table[:, BatchRow._fields.index(name)]


def _table(numbers: array[float]) -> NDArray[np.float64]:
    return np.array(numbers, dtype=np.float64).reshape(-1, _WIDTH)


def _merge_into_last(numbers: array[float], row: BatchRow) -> None:
    """Do to the last row and this one what _merged does to two neighbours, at a tenth of the cost."""
    last = len(numbers) - _WIDTH
    for place in _SUMS:
        numbers[last + place] += row[place]
    numbers[last] = min(numbers[last], row.start)
    numbers[last + _GOT] = max(numbers[last + _GOT], row.got)
    numbers[last + _BEGUN] = 0


def _merged(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a table with each two neighbours as one row; an odd last one stays."""
    pairs = len(table) // 2
    first, second = table[: 2 * pairs : 2], table[1 : 2 * pairs : 2]
    rows = first.copy()
    rows[:, _SUMS] += second[:, _SUMS]
    rows[:, _GOT] = np.maximum(first[:, _GOT], second[:, _GOT])
    rows[:, 0] = np.minimum(first[:, 0], second[:, 0])
    rows[:, _BEGUN] = 0
    return np.concatenate([rows, table[2 * pairs :]])


class PassRows(NamedTuple):
    """The rows of one pass, by the time of its batches."""

    number: int
    """Of the pass."""
    table: NDArray[np.float64]
    """Rows as in BatchRows, by `got`."""
    starts: NDArray[np.float64]
    """When each row begins, at the end of the one before at the earliest."""
    first: NDArray[np.int64]
    """The number of each row's first batch in its pass, from 0 on."""


def passes_of(table: NDArray[np.float64]) -> list[PassRows]:
    """Return the rows of each pass, in the order in which the passes began."""
    found = []
    numbers = column(table, "number")
    for number in np.unique(numbers):
        rows = table[numbers == number]
        rows = rows[np.argsort(column(rows, "got"), kind="stable")]
        got, batches = column(rows, "got"), column(rows, "batches")
        # Threads that share a pass wait at the same time: what overlaps is the later one's.
        before = np.concatenate([[-np.inf], got[:-1]])
        starts = np.minimum(np.maximum(column(rows, "start"), before), got)
        first = (np.cumsum(batches) - batches).astype(np.int64)
        found.append(PassRows(int(number), rows, starts, first))
    return found


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
