"""How many Python threads work at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
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
        self._threads, self._clock = threads, clock
        self._begin_windows()

    def _begin_windows(self) -> None:
        self._windows = self._trials()
        self._begin_window(next(self._windows))

    def _begin_window(self, active: int) -> None:
        self.active, self._begin = active, self._clock()
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
            self._begin_windows()
        else:
            self._begin_window(self._windows.send(self._samples / elapsed))

    def _trials(self) -> Generator[int, float, None]:
        """Yield how many threads work in each window, and take the rate of samples in it."""
        settled, pause, windows = self._threads, self.FIRST_PAUSE, 1
        while True:
            for _ in range(windows):
                yield settled
            few = 1
            while few < self._threads:
                many = min(2 * few, self._threads)
                rates: dict[int, list[float]] = {few: [], many: []}
                for count in (few, many) * self.ROUNDS:
                    rates[count].append((yield count))
                if median(rates[many]) <= self.GAIN * median(rates[few]):
                    break
                few = many
            pause = min(2 * pause, self.LONGEST_PAUSE) if few == settled else self.FIRST_PAUSE
            settled, windows = few, pause
