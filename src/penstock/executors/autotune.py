"""num_workers=None: passes in threads are tuned while they run.

An observer of what the loop gets calls `Autotune`, so that all of this is done by the thread that calls next(). It
gives the loop's times to a `Controller`, and the controller's setting to the pass.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any

from penstock.executors.iterator import Pass
from penstock.executors.tuning import Controller, Work
from penstock.observe import Delivery, Harmless, Observer, Observers
from penstock.stats import Counters, Tuning
from penstock.system.cpus import usable_cpus
from penstock.system.host_memory import available_bytes

#: The controller is asked no more often than once in so many seconds.
LOOK_SECONDS = 0.1
#: The stage in which readers work, which fill no batches.
_READERS = "read_ahead"


class Autotune:
    """Tunes the passes of one loader, the one that began last where there are several. It holds none of them.

    Args:
        counters: of the loader.
        clock: returns seconds.
    """

    def __init__(self, counters: Counters, clock: Callable[[], float] = perf_counter) -> None:
        self._counters = counters
        self._clock = clock
        self._lock = threading.Lock()
        self._controller: Controller | None = None
        self._latest: TuningObserver | None = None

    def begin(self, made: Any, *, chosen: bool) -> Observers:
        """Return the observers that tune a pass which begins. chosen: num_workers= was not given."""
        knobs = made.knobs() if isinstance(made, Pass) else None
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

    def look(self, observer: TuningObserver, made: Pass) -> None:
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
        return Work(self._clock(), busy, process_time())


class TuningObserver(Observer):
    """Has a pass tuned now and then, as its batches are delivered."""

    def __init__(self, autotune: Autotune, made: Pass, clock: Callable[[], float]) -> None:
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
