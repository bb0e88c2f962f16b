"""What the worker threads of this process did, and when: one lane a thread, in a bounded memory."""

from __future__ import annotations

import threading
from array import array
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
