"""How many Python threads work at a time, and whether their caller works in their place."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from statistics import median

#: Samples cheaper than this are worth measuring how many threads fetch them best, in seconds.
CHEAP_SECONDS = 1e-3
#: The caller fetches in the threads' place where it is away for less than this share of a batch's cost,
IDLE_SHARE = 0.25
#: and a batch costs less than this, in seconds.
CALLER_SECONDS = 0.05
#: It waits no longer for threads to finish their samples before.
PATIENCE_SECONDS = 0.01
#: What the caller's estimated absence becomes where threads shall fetch for a while, in seconds.
DEFERRED_SECONDS = 1.0


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
        self.active = threads
        self._threads = threads
        self._clock = clock
        self._few = 0  # compared with twice as many; 0: nothing is tried
        self._rates: list[float] = []  # of few, many, few, many, ...
        self._settled = threads
        self._pause = self.FIRST_PAUSE
        self._left = 1  # windows till the next trials
        self.restart()

    @property
    def alone(self) -> bool:
        """Whether one thread works at a time: it does as much as more would, or a trial shows whether it does."""
        return self.active == 1

    def limit(self, threads: int) -> None:
        """Let at most so many threads work from here on. Where all that might did, as many as may from here on do."""
        all_of_them = self.active == self._threads and not self._few
        self._threads = threads
        if self._few or self.active > threads:
            self._few, self._left = 0, 1  # what was measured was not of these threads
            self.active = self._settled = min(self._settled, threads)
        elif all_of_them:
            self.active = self._settled = threads
            self._left = 1
        self.restart()

    def restart(self) -> None:
        """Begin the window anew: what it has counted was done in another way."""
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
        self.restart()

    def _window(self, rate: float, *, cheap: bool) -> None:
        if not cheap:
            self.active, self._few = self._threads, 0
        elif self._few:
            self._rates.append(rate)
            self._go_on()
        else:
            self._left -= 1
            if self._left <= 0:
                self._try(1)

    def _try(self, few: int) -> None:
        self._rates, self._few, self.active = [], few, few

    def _go_on(self) -> None:
        few, many = self._few, min(2 * self._few, self._threads)
        if len(self._rates) < 2 * self.ROUNDS:
            self.active = many if len(self._rates) % 2 else few
            return
        if median(self._rates[1::2]) <= self.GAIN * median(self._rates[::2]):
            self._settle(few)
        elif many == self._threads:
            self._settle(many)
        else:
            self._try(many)

    def _settle(self, count: int) -> None:
        self._pause = min(2 * self._pause, self.LONGEST_PAUSE) if count == self._settled else self.FIRST_PAUSE
        self._left, self._few, self._settled, self.active = self._pause, 0, count, count


class CallerTime:
    """How long the caller does other things between two batches.

    Args:
        seconds: the first estimate.
    """

    def __init__(self, seconds: float) -> None:
        self._away = seconds
        self._left: float | None = None
        self._thread: int | None = None

    def leave(self) -> None:
        """Take note that the caller goes away with a batch."""
        self._left = time.perf_counter()

    def come_back(self) -> None:
        """Take note that the caller wants the next batch."""
        if self._left is not None:
            self._away += 0.3 * (time.perf_counter() - self._left - self._away)

    def defer(self) -> None:
        """Let threads fetch the next batches, some 30 of them."""
        self._away = DEFERRED_SECONDS

    def suffices(self, cost: float) -> bool:
        """Return whether the calling thread may fetch batches that take so many seconds: it does next to nothing else.

        Once a thread has begun to fetch (`bind`), no other thread may.
        """
        bound = self._thread in (None, threading.get_ident())
        return bound and self._away < IDLE_SHARE * cost and cost < CALLER_SECONDS

    def bind(self) -> None:
        """Take note that the calling thread fetches."""
        self._thread = threading.get_ident()
