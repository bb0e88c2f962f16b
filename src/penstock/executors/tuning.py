"""num_workers=None: how many threads fill batches and how many batches are in flight, found by the loop's clocks.

A `Controller` is numbers only: it reads no clock of its own and touches no thread. In windows of the loop's time it
compares the setting in use with another one, in turns, and keeps the better one (`Comparison`, which Python threads use
too to find how many of them get on: `workers.pace`). What has settled is frozen, until the loop's times are much
different. `Autotune` gives it the loop's times, and its setting to the pass, as an observer of what the loop gets: all
of it is done by the thread that calls next().
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
from typing import Any, Generic, TypeVar

from penstock.executors.filler import Knobs, Setting
from penstock.loop_times import LoopTimes
from penstock.observe import Delivery, Harmless, Observer, Observers
from penstock.stats import Counters, Tuning, TuningStep
from penstock.system.cpus import usable_cpus
from penstock.system.host_memory import available_bytes
from penstock.system.words import counted

S = TypeVar("S")

#: By this factor a loop must be faster to be worth a change.
FASTER = 1.05
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
#: Seconds for which nothing more is tried, the first time and at the most: they double with each change of the loop.
FIRST_HOLD, LONGEST_HOLD = 2.0, 300.0
#: Steps that are kept.
MOST_STEPS = 32
#: After so many seconds a window of two batches is long enough.
LONG_WINDOW = 2.0
#: Batches that belong to the setting before, when another one begins.
PASSED_OVER = 2
#: The controller is asked no more often than once in so many seconds.
LOOK_SECONDS = 0.1


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
class Comparison(Generic[S]):
    """Two settings that are measured in turns: the one in use, another one, the one in use, ..."""

    before: S
    other: S
    hopeless: float = 0.0
    """The comparison ends where the other one has less than this factor of the rate in a round."""
    rates: list[float] = field(default_factory=list)

    @property
    def setting(self) -> S:
        """Whose turn it is."""
        return self.other if len(self.rates) % 2 else self.before

    @property
    def factors(self) -> list[float]:
        """The rate with the other one over the one in use, of each round."""
        return [after / before for before, after in zip(self.rates[::2], self.rates[1::2], strict=False)]

    @property
    def decided(self) -> bool:
        """Whether nothing more need be measured."""
        return len(self.factors) == ROUNDS or (bool(self.factors) and self.factors[-1] < self.hopeless)

    @property
    def factor(self) -> float:
        """How many times as fast the other one is."""
        return median(self.factors)


@dataclass
class Trial(Comparison[Setting]):
    """Another setting of a pass, which may be better."""

    hopeless: float = HOPELESS
    why: str = ""
    """What was seen of the loop."""
    batches: int = 0
    """The batches of a window, where long waits are rare; 0: as usual."""

    @property
    def deepens(self) -> bool:
        """Whether the settings differ in the number of batches in flight."""
        return self.other.in_flight != self.before.in_flight

    @property
    def better(self) -> bool:
        """Whether the other one is worth a change: another number of threads must be faster in every round."""
        return self.factor >= FASTER and len(self.factors) == ROUNDS and (self.deepens or min(self.factors) > 1)


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
        self._window: tuple[LoopTimes, float, float] | None = None  # its begin, with the clock and the CPU time then
        self._passed_over = PASSED_OVER  # batches until the window begins
        self._trial: Trial | None = None
        self._tried: set[frozenset[Setting]] = set()  # pairs, since the loop changed
        self._frozen_with: Span | None = None
        self._windows_changed = 0
        self._hold, self._held_until = FIRST_HOLD, 0.0

    def look(self, loop: LoopTimes, cpu_seconds: float, knobs: Knobs) -> None:
        """Choose the setting from here on by the loop's times, and the CPU time of this process, until now."""
        if self.setting.in_flight is None:
            self._usual = knobs.in_flight
        now = loop, self._clock(), cpu_seconds
        if self._window is None:
            self._window = now
            return
        begun, begun_at, cpu_begun = self._window
        span = span_between(begun, loop)
        if self._passed_over:
            if span.batches >= self._passed_over:
                self._passed_over, self._window = 0, now
            return
        if not self._suffices(span):
            return
        if self._trial is not None:
            self._go_on(self._trial, span)
        elif self.state is State.FROZEN:
            self._check(span)
        else:
            self._observe(span, (cpu_seconds - cpu_begun) / (max(now[1] - begun_at, 1e-9) * self._cpus), knobs)
        self._window, trial = now, self._trial
        deeper = trial.other.in_flight if trial is not None and trial.deepens else None
        self._passed_over = max(PASSED_OVER, deeper or 0)

    def tuning(self) -> Tuning:
        """Return what was done so far."""
        in_flight = self.setting.in_flight or self._usual
        return Tuning(self.setting.threads, self._threads, in_flight, self.state is State.FROZEN, self._steps)

    def _suffices(self, span: Span) -> bool:
        """Return whether a window is long enough."""
        if self._trial is not None and self._trial.batches:
            return span.batches >= self._trial.batches or span.seconds >= LONGEST_BURSTS
        seconds, batches = WINDOWS[self.state]
        return (span.seconds >= seconds and span.batches >= batches) or (
            span.seconds >= LONG_WINDOW and span.batches >= 2
        )

    # --- what a window comes to ---------------------------------------------------------------------------------------

    def _observe(self, span: Span, full: float, knobs: Knobs) -> None:
        """Begin a trial, or freeze the setting where none is left. full: the share of the CPUs that is in use."""
        for trial in self._candidates(span, full, knobs):
            if frozenset((trial.before, trial.other)) not in self._tried:
                self._trial, self.state = trial, State.TRYING
                return
        self._frozen_with, self._windows_changed = span, 0
        self._held_until = self._clock() + self._hold
        self.state = State.FROZEN

    def _candidates(self, span: Span, full: float, knobs: Knobs) -> Iterator[Trial]:
        """Yield the settings that may be better."""
        threads, in_flight = self.setting.threads, self.setting.in_flight
        why = f"the loop waited {span.share:.0%} of the time"
        fewer = Setting((threads + 1) // 2, in_flight)
        if span.share < STARVED:
            if full >= FULL and threads > 1 and not knobs.paced:
                yield Trial(self.setting, fewer, why=f"{why} and the CPUs were {min(full, 1.0):.0%} busy")
            return
        if threads < self._threads:
            yield Trial(self.setting, Setting(min(self._threads, 2 * threads), in_flight), why=why)
        if span.rare <= RARE:
            deeper = min(2 * knobs.in_flight, self._deepest(knobs))
            if deeper > knobs.in_flight:
                apart = round(1 / max(span.rare, 1e-3))
                rarely = f"{why}, half of it for one batch in {apart}"
                yield Trial(self.setting, Setting(threads, deeper), why=rarely, batches=BURSTS * apart)
        if threads > 1 and not knobs.paced:
            yield Trial(self.setting, fewer, why=why)

    def _deepest(self, knobs: Knobs) -> int:
        """Return how many batches may be in flight: 0 where the pass does not let more be so."""
        if not knobs.batch_bytes:
            return 0
        return min(MOST_IN_FLIGHT, self._room() // MEMORY_PART // knobs.batch_bytes)

    def _go_on(self, trial: Trial, span: Span) -> None:
        """Take note of a window of a trial."""
        trial.rates.append(span.rate)
        self.setting = trial.setting
        if not trial.decided:
            return
        self.setting = trial.other if trial.better else trial.before
        self._tried.add(frozenset((trial.before, trial.other)))
        new, old = (self._words(setting, trial.deepens) for setting in (trial.other, trial.before))
        self._note(f"{trial.why}; with {new} it took {_compared(trial.factor)} with {old}")
        self._trial, self.state = None, State.OBSERVING

    def _check(self, span: Span) -> None:
        """Look whether the loop does something else than when its setting was frozen."""
        before = self._frozen_with
        assert before is not None
        factor, difference = span.rate / before.rate, abs(span.share - before.share)
        turned = difference >= CHANGED_SHARE and (span.share >= STARVED) != (before.share >= STARVED)
        changed = not 1 / CHANGED < factor < CHANGED or turned
        self._windows_changed = self._windows_changed + 1 if changed else 0
        if self._windows_changed < CHANGED_WINDOWS or self._clock() < self._held_until:
            return
        self._hold = min(2 * self._hold, LONGEST_HOLD)
        self._tried.clear()
        self._note(
            f"the loop has changed: it takes {_compared(factor)} before, and waits {span.share:.0%} of the time, "
            f"before {before.share:.0%}; other settings are tried"
        )
        self.state = State.OBSERVING

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
            controller.look(self._counters.loop.times(), time.process_time(), knobs)
            if controller.setting != before:
                made.tune(controller.setting)
        finally:
            self._lock.release()

    def tuning(self) -> Tuning | None:
        """Return what was done so far; None: no pass was tuned."""
        controller = self._controller
        return None if controller is None else controller.tuning()


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
