"""How many Python threads work at a time."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.executors.tuning import Comparison

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
    FIRST_PAUSE = 25  # windows till the next trials
    LONGEST_PAUSE = 400
    GAIN = 1.1  # by which more threads must be faster

    def __init__(self, threads: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.active = self._settled = self._threads = threads
        self._clock = clock
        self._trial: Comparison[int] | None = None
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
            self.active, self._trial = self._threads, None
        elif self._trial is not None:
            self._trial.rates.append(self._samples / elapsed)
            self._go_on(self._trial)
        else:
            self._left -= 1
            if self._left <= 0:
                self._try(1)
        self._begin_window()

    def _try(self, few: int) -> None:
        self._trial = Comparison(few, min(2 * few, self._threads))
        self.active = few

    def _go_on(self, trial: Comparison[int]) -> None:
        if not trial.decided:
            self.active = trial.setting
        elif trial.factor <= self.GAIN:
            self._settle(trial.before)
        elif trial.other == self._threads:
            self._settle(trial.other)
        else:
            self._try(trial.other)

    def _settle(self, count: int) -> None:
        self._pause = min(2 * self._pause, self.LONGEST_PAUSE) if count == self._settled else self.FIRST_PAUSE
        self._left, self._trial, self._settled, self.active = self._pause, None, count, count
