"""How many Python threads work at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

#: Samples cheaper than this are worth measuring how many threads fetch them best, in seconds.
CHEAP_SECONDS = 1e-3


class Pace:
    """How many threads work at a time: the fewest that do as much as any number does.

    Rates are measured over short windows, for a number of threads and twice as many in turn, a few times each, for on
    a busy machine one window tells little: 1 and 2, 2 and 4, ..., until more do not help, be it that they hinder each
    other or that the caller takes no more. Both may change, so it is done again later; the less often, the more often
    nothing had changed. Guarded by the crew's lock.
    """

    WINDOW_SECONDS = 0.01
    ROUNDS = 3  # of windows for either number
    FIRST_PAUSE = 25  # windows till the next trials
    LONGEST_PAUSE = 400
    GAIN = 1.1  # by which more threads must be faster

    def __init__(self, threads: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.active = self._settled = self._threads = threads
        self._clock = clock
        self._few = 0  # compared with twice as many; 0: nothing is tried
        self._rates: list[float] = []  # of few, many, few, many, ...
        self._pause = self.FIRST_PAUSE
        self._left = 1  # windows till the next trials
        self._begin_window()

    def _begin_window(self) -> None:
        self._begin = self._clock()
        self._samples = self._chunks = 0

    def did(self, samples: int, seconds: float) -> None:
        """Count a chunk of work."""
        if self._threads == 1:
            return
        self._samples += samples
        self._chunks += 1
        elapsed = self._clock() - self._begin
        if elapsed < self.WINDOW_SECONDS or self._chunks < 2 * self.active:
            return
        if seconds / samples >= CHEAP_SECONDS:
            self.active, self._few = self._threads, 0
        elif self._few:
            self._rates.append(self._samples / elapsed)
            self._go_on()
        else:
            self._left -= 1
            if self._left <= 0:
                self._try(1)
        self._begin_window()

    def _try(self, few: int) -> None:
        self._rates, self._few, self.active = [], few, few

    def _go_on(self) -> None:
        few, many = self._few, min(2 * self._few, self._threads)
        if len(self._rates) < 2 * self.ROUNDS:
            self.active = many if len(self._rates) % 2 else few
        elif median(self._rates[1::2]) <= self.GAIN * median(self._rates[::2]):
            self._settle(few)
        elif many == self._threads:
            self._settle(many)
        else:
            self._try(many)

    def _settle(self, count: int) -> None:
        self._pause = min(2 * self._pause, self.LONGEST_PAUSE) if count == self._settled else self.FIRST_PAUSE
        self._left, self._few, self._settled, self.active = self._pause, 0, count, count
