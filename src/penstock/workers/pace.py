"""How many Python threads work at a time."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Samples cheaper than this are worth measuring how many threads fetch them best, in seconds.
CHEAP_SECONDS = 1e-3


class Pace:
    """How many threads work at a time: the fewest that do as much as any number does.

    Rates are measured over windows, for 1, 2, 4, ... threads, until more do not help, be it that they hinder each
    other or that the caller takes no more; and again later, for both may have changed. Guarded by the crew's lock.
    """

    WINDOW_SECONDS = 0.02
    WINDOWS_TILL_NEXT = 150
    GAIN = 1.1  # by which more threads must be faster

    def __init__(self, threads: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.active = threads
        self._threads = threads
        self._clock = clock
        self._best: tuple[float, int] | None = None  # of this round of trials
        self._trying = False
        self._windows = 0
        self._restart()

    @property
    def alone(self) -> bool:
        """Whether it is settled that one thread does as much as more would."""
        return self._threads == 1 or (self.active == 1 and not self._trying)

    def _restart(self) -> None:
        self._begin = self._clock()
        self._samples = 0
        self._chunks = 0

    def did(self, samples: int, seconds: float) -> None:
        """Count a chunk of work."""
        if self._threads == 1:
            return
        self._samples += samples
        self._chunks += 1
        elapsed = self._clock() - self._begin
        if elapsed < self.WINDOW_SECONDS or self._chunks < 2 * self.active:
            return
        self._window(self._samples / elapsed, cheap=seconds / samples < CHEAP_SECONDS)
        self._restart()

    def _window(self, rate: float, *, cheap: bool) -> None:
        if not self._trying:
            self._windows += 1
            if not cheap:
                self.active = self._threads
            elif self._windows == 1 or self._windows % self.WINDOWS_TILL_NEXT == 0:
                self._trying, self._best, self.active = True, None, 1
            return
        if self._best is None or rate > self.GAIN * self._best[0]:
            self._best = (rate, self.active)
            if self.active < self._threads:
                self.active = min(2 * self.active, self._threads)
                return
        self._trying, self.active = False, self._best[1]
