"""What the worker threads of this process did, and when: one lane a thread, in a bounded memory."""

from __future__ import annotations

import logging
import threading
from array import array
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Pieces of work that a thread's lane keeps, 32 bytes each: when it is full, the older half goes.
MOST_SPANS = 1 << 14
#: Threads of one loader that have a lane.
MOST_LANES = 256
#: Pieces of one stage that follow each other within this time are one piece, up to a length; both in seconds.
_GAP, _LONGEST = 50e-6, 5e-3

_WIDTH = 4
_log = logging.getLogger("penstock")


class Lane(NamedTuple):
    """What one thread did."""

    thread: str
    """The thread's name."""
    stages: list[str]
    """The names of the stages that the table's first column numbers."""
    table: NDArray[np.float64]
    """(n, 4): the stage's number, begin and end by time.perf_counter(), and samples."""


class _Writing:
    """The lane of a thread, written by that thread only."""

    def __init__(self, thread: str) -> None:
        self.thread = thread
        self.numbers = array("d")
        self.dropped = 0

    def add(self, stage: int, begin: float, end: float, samples: int) -> None:
        numbers = self.numbers
        if numbers and numbers[-4] == stage and begin - numbers[-2] < _GAP and end - numbers[-3] < _LONGEST:
            numbers[-2], numbers[-1] = end, numbers[-1] + samples
            return
        numbers.extend((stage, begin, end, samples))
        if len(numbers) >= MOST_SPANS * _WIDTH:
            half = MOST_SPANS // 2
            self.dropped += half
            self.numbers = numbers[half * _WIDTH :]


class WorkSpans:
    """A sink of a Meter. Any thread may call any method; a thread writes its own lane without a lock."""

    def __init__(self) -> None:
        self._stages: list[str] = []
        self._lanes: dict[int | str, _Writing] = {}
        self._failed = False
        self.dropped = 0
        """Pieces of work that are not kept, because there are too many threads."""

    def __call__(self, stage: str, seconds: float, samples: int, ended: float, thread: str = "") -> None:
        """Add a piece of work of the calling thread, or of a native one of this name."""
        if self._failed:
            return
        try:
            key = thread or threading.get_ident()
            name = thread or threading.current_thread().name
            self._add(key, name, stage, (ended - seconds, ended, samples))
        except Exception:
            self._failed = True
            _log.exception("the work of a loader's threads could not be recorded, and is not any more")

    def _add(self, key: int | str, name: str, stage: str, piece: tuple[float, float, int]) -> None:
        lane = self._lanes.get(key)
        if lane is None or lane.thread != name:  # the system gives the numbers of ended threads to new ones
            if len(self._lanes) >= MOST_LANES and lane is None:
                self.dropped += 1
                return
            if lane is not None:
                self._lanes[-1 - len(self._lanes)] = lane
            lane = self._lanes[key] = _Writing(name)
        if stage not in self._stages:
            self._stages.append(stage)
        lane.add(self._stages.index(stage), *piece)

    def lanes(self) -> list[Lane]:
        """Return what each thread did."""
        found = [(lane.thread, np.array(lane.numbers, dtype=np.float64)) for lane in list(self._lanes.values())]
        whole = [(thread, numbers[: len(numbers) // _WIDTH * _WIDTH]) for thread, numbers in found]
        return [Lane(thread, list(self._stages), numbers.reshape(-1, _WIDTH)) for thread, numbers in whole]

    @property
    def lost(self) -> int:
        """Return how many pieces of work are not kept."""
        return self.dropped + sum(lane.dropped for lane in list(self._lanes.values()))
