"""num_workers=None: how many threads fill batches and how many batches are in flight, found by the loop's clocks.

A `Controller` is numbers only: it reads no clock of its own and touches no thread. In windows of the loop's time it
compares the setting in use with another one, in turns, and keeps the better one. Where the loop hardly waits and the
CPUs have time to spare there is nothing to gain, and nothing is tried. What has settled is frozen, until the loop's
times are much different. `Autotune` gives it the loop's times, and its setting to the pass, as an observer of what the
loop gets: all of it is done by the thread that calls next().
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from statistics import median
from typing import Any, NamedTuple

from penstock.executors.filler import Knobs, Setting
from penstock.loop_times import LoopTimes
from penstock.observe import Delivery, Harmless, Observer, Observers
from penstock.stats import Counters, Tuning, TuningStep
from penstock.system.cpus import usable_cpus
from penstock.system.host_memory import available_bytes
from penstock.system.words import counted

#: By this factor a loop must be faster to be worth a change, and by this one it may be slower for fewer threads.
FASTER, AS_FAST = 1.05, 0.99
#: A setting that makes the loop so much slower is not tried for another window.
HOPELESS = 0.8
#: Windows of either setting of a trial, in turns.
ROUNDS = 3
#: A loop that waits for this share of its time, or more, lacks batches.
STARVED = 0.05
#: CPUs are full where this process takes this share of their time, or more: then threads take time from the loop.
FULL = 0.8
#: The wait comes in bursts where half of it is for this share of the batches, or for fewer.
RARE = 1 / 16
#: Such bursts in a window that compares depths, which ends after so many seconds at the latest.
BURSTS, LONGEST_BURSTS = 4, 3.0
#: Batches in flight at the most, and the part of the available memory that those of a deeper setting may take.
MOST_IN_FLIGHT, MEMORY_PART = 64, 8
#: A loop has changed where a batch takes it so many times as long, or as short, or it waits for so much more or less of
#: the time, in so many windows one after the other.
CHANGED, CHANGED_SHARE, CHANGED_WINDOWS = 1.5, 0.1, 3
#: Seconds for which nothing more is tried, the first time and at the most: they double where the loop changes often.
FIRST_HOLD, LONGEST_HOLD = 2.0, 300.0
#: Steps that are kept.
MOST_STEPS = 32
#: After so many seconds a window of two batches is long enough.
LONG_WINDOW = 2.0
#: Batches that belong to the setting before, when another one begins.
PASSED_OVER = 2
#: The controller is asked no more often than once in so many seconds.
LOOK_SECONDS = 0.1
#: The stage in which readers work, which fill no batches.
_READERS = "read_ahead"


class State(Enum):
    """What a controller does."""

    OBSERVING = auto()  # it looks whether another setting is worth a trial
    TRYING = auto()  # two settings are in use in turns
    FROZEN = auto()  # it looks whether the loop has changed


#: The least seconds and batches of a window.
WINDOWS = {State.OBSERVING: (0.5, 16), State.TRYING: (0.2, 8), State.FROZEN: (1.0, 16)}


@dataclass(frozen=True)
class Span:
    """What a loop did in a window of its time."""

    batches: int
    waited: float
    worked: float
    rare: float
    """The share of the batches that half of the wait was for, those with the longest waits."""

    @property
    def seconds(self) -> float:
        """The loop's time."""
        return self.waited + self.worked

    @property
    def rate(self) -> float:
        """Batches a second."""
        return self.batches / self.seconds

    @property
    def share(self) -> float:
        """The share of the time that the loop waited."""
        return self.waited / self.seconds


def span_between(begin: LoopTimes, end: LoopTimes) -> Span:
    """Return what a loop did between two readings of its times."""
    waits = [after - before for before, after in zip(begin.waits, end.waits, strict=True)]
    batches = sum(waits)
    waited = end.steady_waited - begin.steady_waited
    half, longest = waited / 2, 0
    for group in reversed(range(len(waits))):
        each = 0.75e-6 * (1 << group)  # of waits up to 2 to the power of the group, in microseconds
        enough = math.ceil(half / each)
        longest += min(waits[group], enough)
        if waits[group] >= enough:
            break
        half -= waits[group] * each
    return Span(batches, waited, end.worked - begin.worked, longest / max(1, batches))


@dataclass
class Comparison:
    """Two settings in turns, in windows of the loop's time: the one in use, another one, the one in use, ..."""

    before: Setting
    other: Setting
    least: float
    """The rate that the other one must reach, as a factor of the rate with the one in use."""
    why: str
    batches: int = 0
    """The batches of a window, where long waits are rare; 0: as usual."""
    rates: list[float] = field(default_factory=list)

    @property
    def setting(self) -> Setting:
        """Whose turn it is."""
        return self.other if len(self.rates) % 2 else self.before

    @property
    def deepens(self) -> bool:
        """Whether the settings differ in the number of batches in flight."""
        return self.other.in_flight != self.before.in_flight

    @property
    def factors(self) -> list[float]:
        """The rate with the other one over the one in use, of each round."""
        return [after / before for before, after in zip(self.rates[::2], self.rates[1::2], strict=False)]

    @property
    def decided(self) -> bool:
        """Whether nothing more need be measured."""
        return len(self.factors) == ROUNDS or (bool(self.factors) and self.factors[-1] < HOPELESS)

    @property
    def better(self) -> bool:
        """Whether the other one is better: threads that are to be faster are so in every round."""
        factors = self.factors
        every = self.least < 1 or self.deepens or min(factors) > 1
        return len(factors) == ROUNDS and median(factors) >= self.least and every


class Work(NamedTuple):
    """What was worked until now, in seconds."""

    now: float
    busy: float
    """Of all threads that fill batches."""
    cpu: float
    """CPU time of this process."""


class Controller:
    """Chooses the setting for the passes of a loader.

    Args:
        threads: that there are.
        cpus: that this process may use.
        room: returns how many bytes of memory this process may still take.
        clock: returns seconds.
    """

    def __init__(
        self,
        threads: int,
        cpus: int,
        room: Callable[[], int],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.setting = Setting(threads)
        self.state = State.OBSERVING
        self._threads, self._cpus, self._room, self._clock = threads, cpus, room, clock
        self._began = clock()
        self._steps: tuple[TuningStep, ...] = ()
        self._usual = 0  # batches in flight as chosen by their size
        self._window: tuple[LoopTimes, Work | None] | None = None
        self._passed_over = PASSED_OVER  # batches until the window begins
        self._trial: Comparison | None = None
        self._tried: set[frozenset[Setting]] = set()  # pairs, since the loop changed
        self._full: Setting | None = None  # the setting before threads were taken away to leave CPUs to the loop
        self._gave_back = False  # these threads, after a time without them; they are taken away when that may do
        self._frozen_with: Span | None = None
        self._windows_changed = 0
        self._hold, self._held_until = FIRST_HOLD, 0.0

    def look(self, loop: LoopTimes, work: Callable[[], Work], knobs: Knobs) -> None:
        """Choose the setting from here on by the loop's times until now. work: is called where it is needed."""
        if self.setting.in_flight is None:
            self._usual = knobs.in_flight
        if self._window is None:
            self._window = loop, None
            return
        begun, work_begun = self._window
        span = span_between(begun, loop)
        if self._passed_over:
            if span.batches >= self._passed_over:
                self._passed_over = 0
                self._window = loop, work() if self.state is State.OBSERVING else None
            return
        if not self._suffices(span):
            return
        if self._short_of_memory(knobs):
            self._give_memory_back()
        elif self.state is not State.TRYING and self._full is not None and span.share >= STARVED:
            self._give_threads_back(self._full, span)
        elif self.state is State.TRYING:
            self._go_on(span)
        elif self.state is State.FROZEN:
            self._check(span)
        else:
            assert work_begun is not None
            self._observe(span, work_begun, work(), knobs)
        self._begin_window(loop)

    def tuning(self) -> Tuning:
        """Return what was done so far."""
        in_flight = self.setting.in_flight or self._usual
        return Tuning(self.setting.threads, self._threads, in_flight, self.state is State.FROZEN, self._steps)

    # --- windows ------------------------------------------------------------------------------------------------------

    def _begin_window(self, loop: LoopTimes) -> None:
        """Begin a window behind the batches that were made with the setting before."""
        self._window = loop, None
        self._passed_over = PASSED_OVER
        if self._trial is not None and self._trial.deepens:
            self._passed_over = max(PASSED_OVER, self._trial.other.in_flight or 0)

    def _suffices(self, span: Span) -> bool:
        """Return whether a window is long enough."""
        if self._trial is not None and self._trial.batches:
            return span.batches >= self._trial.batches or span.seconds >= LONGEST_BURSTS
        seconds, batches = WINDOWS[self.state]
        return (span.seconds >= seconds and span.batches >= batches) or (
            span.seconds >= LONG_WINDOW and span.batches >= 2
        )

    # --- what a window comes to ---------------------------------------------------------------------------------------

    def _observe(self, span: Span, begun: Work, ended: Work, knobs: Knobs) -> None:
        wall = max(ended.now - begun.now, 1e-9)
        busy = (ended.busy - begun.busy) / span.seconds
        full = (ended.cpu - begun.cpu) / (wall * self._cpus)
        for setting, least, why, *batches in self._candidates(span, busy, full, knobs):
            if frozenset((self.setting, setting)) not in self._tried:
                self._trial, self.state = Comparison(self.setting, setting, least, why, *batches), State.TRYING
                return
        self._frozen_with, self._windows_changed = span, 0
        self._gave_back &= self._full is None
        self._held_until = self._clock() + self._hold
        self.state = State.FROZEN

    def _candidates(self, span: Span, busy: float, full: float, knobs: Knobs) -> Iterator[tuple[Any, ...]]:
        """Yield the settings that may be better, as a Comparison has them.

        busy: threads at work on average. full: the CPUs' share in use.
        """
        threads, in_flight = self.setting.threads, self.setting.in_flight
        waited = f"the loop waited {span.share:.0%} of the time"
        competing = full >= FULL and span.share < 0.8  # the loop and the threads take CPUs from each other
        filled = f"{waited} and the CPUs were {min(full, 1.0):.0%} busy"
        one_left = threads - 1 if threads == self._cpus else threads
        if span.share < STARVED:
            fewer = max(1, min(one_left, math.ceil(busy)))
            if competing and fewer < threads:
                yield Setting(fewer, in_flight), AS_FAST, filled
            return
        if threads < self._threads:
            yield Setting(min(self._threads, 2 * threads), in_flight), FASTER, waited
        if span.rare <= RARE:
            deeper = min(2 * knobs.in_flight, self._deepest(knobs))
            if deeper > knobs.in_flight:
                apart = round(1 / max(span.rare, 1e-3))
                why = f"{waited}, half of it for one batch in {apart}"
                yield Setting(threads, deeper), FASTER, why, BURSTS * apart
        if threads > 1 and not knobs.paced:
            yield Setting((threads + 1) // 2, in_flight), FASTER, waited
        if competing and 0 < one_left < threads:
            yield Setting(one_left, in_flight), FASTER, filled

    def _go_on(self, span: Span) -> None:
        """Take note of a window of a trial."""
        trial = self._trial
        assert trial is not None
        trial.rates.append(span.rate)
        self.setting = trial.setting
        if not trial.decided:
            return
        better = trial.better
        if better and trial.least < 1:
            self._full = self._full or trial.before
        self.setting = trial.other if better else trial.before
        self._tried.add(frozenset((trial.before, trial.other)))
        new, old = (self._words(setting, trial.deepens) for setting in (trial.other, trial.before))
        self._note(f"{trial.why}; with {new} it took {_compared(median(trial.factors))} with {old}")
        self._trial, self.state = None, State.OBSERVING

    def _give_threads_back(self, full: Setting, span: Span) -> None:
        """Go back to all threads: what was in flight had hidden that fewer are too few, or the loop is faster now."""
        lean, self._full, self.setting = self.setting, None, Setting(full.threads, self.setting.in_flight)
        self._tried.add(frozenset((lean, self.setting)))
        self._gave_back |= self.state is State.FROZEN
        self._note(f"with {self._words(lean, False)} the loop came to wait {span.share:.0%} of the time")
        self.state = State.OBSERVING

    def _check(self, span: Span) -> None:
        """Look whether the loop does something else than when its setting was frozen."""
        before = self._frozen_with
        assert before is not None
        factor, difference = span.rate / before.rate, abs(span.share - before.share)
        turned = difference >= CHANGED_SHARE and (span.share >= STARVED) != (before.share >= STARVED)
        changed = not 1 / CHANGED < factor < CHANGED or turned
        waits_no_more = self._gave_back and span.share < STARVED
        self._windows_changed = self._windows_changed + 1 if changed or waits_no_more else 0
        now = self._clock()
        if self._windows_changed < CHANGED_WINDOWS or now < self._held_until:
            return
        quiet = now - (self._held_until - self._hold) > 10 * self._hold
        self._hold = FIRST_HOLD if quiet else min(2 * self._hold, LONGEST_HOLD)
        self._tried.clear()
        if changed:
            self._note(
                f"the loop has changed: it takes {_compared(factor)} before, and waits {span.share:.0%} of the time, "
                f"before {before.share:.0%}; other settings are tried"
            )
        self.state = State.OBSERVING

    # --- memory -------------------------------------------------------------------------------------------------------

    def _deepest(self, knobs: Knobs) -> int:
        """Return how many batches may be in flight: 0 where the pass does not let more be so."""
        if not knobs.batch_bytes:
            return 0
        return min(MOST_IN_FLIGHT, self._room() // MEMORY_PART // knobs.batch_bytes)

    def _short_of_memory(self, knobs: Knobs) -> bool:
        """Return whether the batches of a deeper setting would take twice their part of the memory that is left."""
        depth = self.setting.in_flight
        return depth is not None and depth * knobs.batch_bytes > self._room() // MEMORY_PART * 2

    def _give_memory_back(self) -> None:
        """Go back to the usual depth."""
        if self._trial is not None:
            self._trial, self.state = None, State.OBSERVING
        depth, self.setting = self.setting.in_flight, Setting(self.setting.threads)
        self._note(f"{depth} batches in flight would take too large a part of the memory that is left")

    # --- words --------------------------------------------------------------------------------------------------------

    def _words(self, setting: Setting, deeper: bool) -> str:
        if deeper:
            return f"{counted(setting.in_flight or self._usual, 'batch', 'batches')} in flight"
        return counted(setting.threads, "thread")

    def _note(self, why: str) -> None:
        seconds = self._clock() - self._began
        step = TuningStep(seconds, self.setting.threads, self.setting.in_flight or self._usual, why)
        self._steps = (*self._steps, step)[-MOST_STEPS:]


def _compared(factor: float) -> str:
    if abs(factor - 1) < 0.005:
        return "as many batches a second as"
    return f"{abs(factor - 1):.0%} {'more' if factor > 1 else 'fewer'} batches a second than"


class Autotune:
    """Tunes the passes of one loader, the one that began last where there are several. It holds none of them.

    Args:
        counters: of the loader.
        clock: returns seconds.
    """

    def __init__(self, counters: Counters, clock: Callable[[], float] = time.perf_counter) -> None:
        self._counters = counters
        self._clock = clock
        self._lock = threading.Lock()
        self._controller: Controller | None = None
        self._latest: TuningObserver | None = None

    def begin(self, made: Any, *, chosen: bool) -> Observers:
        """Return the observers that tune a pass which begins. chosen: num_workers= was not given."""
        knobs = made.knobs() if hasattr(made, "knobs") else None  # torch's own iterator has none
        if not chosen or knobs is None:
            self._latest = None
            return ()
        controller = self._controller
        if controller is None or controller.tuning().of != knobs.threads:
            controller = Controller(knobs.threads, usable_cpus(), available_bytes, self._clock)
            self._controller = controller
        made.tune(controller.setting)
        self._latest = TuningObserver(self, made, self._clock)
        return (Harmless(self._latest),)

    def look(self, observer: TuningObserver, made: Any) -> None:
        """Let the controller see the loop's times; it is not asked where another thread has it do so just now."""
        controller, knobs = self._controller, made.knobs()
        if observer is not self._latest or controller is None or knobs is None:
            return
        if not self._lock.acquire(blocking=False):
            return
        try:
            before = controller.setting
            controller.look(self._counters.loop.times(), self._work, knobs)
            if controller.setting != before:
                made.tune(controller.setting)
        finally:
            self._lock.release()

    def tuning(self) -> Tuning | None:
        """Return what was done so far; None: no pass was tuned."""
        controller = self._controller
        return None if controller is None else controller.tuning()

    def _work(self) -> Work:
        stages = self._counters.meter.stages()
        busy = sum(spent.seconds for name, spent in stages.items() if name != _READERS)
        return Work(self._clock(), busy, time.process_time())


class TuningObserver(Observer):
    """Has a pass tuned now and then, as its batches are delivered."""

    def __init__(self, autotune: Autotune, made: Any, clock: Callable[[], float]) -> None:
        self._autotune = autotune
        self._made = weakref.ref(made)  # which holds its observers
        self._clock = clock
        self._next = 0.0

    def delivered(self, delivery: Delivery) -> None:
        """Look at the loop's times where some time has gone by."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + LOOK_SECONDS
        if (made := self._made()) is not None:
            self._autotune.look(self, made)
