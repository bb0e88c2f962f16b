"""The recorder: what the loops over the loaders of this process do, for `penstock run`, the trace and the report.

The thread that calls next() does all of it. Neither a sample, nor its ID, nor the name of its file enters a recording.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter, time as wall_clock
from types import SimpleNamespace
from typing import Any

from torch.utils.data import get_worker_info

from penstock.derived import owner_of
from penstock.insight.loop_rows import Rows, WorkSpans
from penstock.insight.program_loaders import LoaderFacts, facts_of, place_of, watch_torch
from penstock.loader import DataLoader
from penstock.loop_times import LoopClock, LoopLabel, LoopMeter, LoopTimes
from penstock.observe import Delivery, Observer, watch
from penstock.plan import NativePlan, plan
from penstock.stats import Stats

#: Seconds between two readings of stats(), at the least.
EVERY = 0.5
#: Loops of a process that are recorded in detail, and errors of each that are kept.
MOST_LOOPS, MOST_ERRORS = 64, 1000

_log = logging.getLogger("penstock")

#: Called with a loop when a batch of it has come, by the thread that called next().
Progress = Callable[["Loop"], None]


class Loop:
    """What is recorded of the loops over a loader, or over those of one kind that one line of a program made.

    Any thread may call any method.

    Attributes:
        loader: what tells these loaders from others.
        number: of the loop in its recording, from 1 on.
        loaders, passes, samples: that made a pass; that began; of all batches, 0 where their number is not known.
        background: a thread beside the main one called next().
        read_by: what reads the dataset.
        rows, spans, errors: in detail: the batches; the pieces of work of worker threads; when the loop got an error in
            a batch's place, and its type.
        explained: what explain() said last.
        stats: what stats() of the latest penstock.DataLoader said last.
        instead: of torch's loader, what the native core would do for penstock.DataLoader; empty: nothing that is known.
    """

    def __init__(self, loader: LoaderFacts, number: int) -> None:
        self.loader, self.number = loader, number
        self.meter = LoopMeter()
        self.loaders = self.passes = self.samples = 0
        self.background = False
        self.read_by = loader.method
        self.rows, self.spans = Rows(), WorkSpans()
        self.errors: list[tuple[float, str]] = []
        self.explained = ""
        self.stats: Stats | None = None
        self.instead = ""
        self.lock = threading.RLock()  # a garbage collection in any line may end a pass
        self._first: Stats | None = None  # what stats() said when the first pass of the latest loader began
        self._read_stats: Callable[[], Callable[[], Stats] | None] = lambda: None  # alive while that loader is
        self._loader: Callable[[], Any] = lambda: None
        self._planned = False
        self._ends: list[Callable[[], None]] = []

    def begin(self, loader: Any, *, new: bool, detail: bool) -> None:
        with self.lock:
            self.passes += 1
            self.loaders += new
            if not self.loader.penstock:
                facts, owner = self.loader, weakref.ref(self)
                self.meter.label = LoopLabel(
                    facts.dataset, facts.batching, facts.workers, facts.method, owner, type(self)._counts
                )
            if not new:
                return
            self._loader = weakref.ref(loader)
            if self.loader.penstock:
                self.read_by = loader.read_by
                self._first, self._read_stats = loader.stats(), weakref.WeakMethod(loader.stats_reader())
                if detail:
                    self._ends.append(loader.record_spans(self.spans))

    def read(self, *, last: bool = False) -> None:
        """Keep what stats() says now, and what explain() says: once, and at the end as far as the loader is there."""
        with self.lock:
            if (read_stats := self._read_stats()) is not None:
                self.stats = read_stats()
            if self._ends and (last or not self.explained) and (loader := self._loader()) is not None:
                with contextlib.suppress(Exception):  # of a dataset of the user's, which has changed
                    self.explained = loader.explain()

    def _counts(self) -> SimpleNamespace:
        return SimpleNamespace(batches=(times := self.times).batches, samples=self.samples, loop=times, stages={})

    def plan(self) -> None:
        """Find out, once, what the native core would do for a loader of torch's, while it is there."""
        loader = self._loader()
        if self._planned or isinstance(loader, DataLoader) or loader is None:
            return
        self._planned = True
        with contextlib.suppress(Exception):  # of a dataset of the user's
            options = {"collate_fn": loader.collate_fn, "worker_init_fn": loader.worker_init_fn}
            found = plan(loader.dataset, batched=loader.batch_sampler is not None, **options)
            if isinstance(found, NativePlan):
                self.instead = "native threads would fill the batches"
            elif found.filled is not None:
                self.instead = "native code would fill the batches that your functions get"

    def end(self) -> None:
        """Record no more of the work of threads."""
        self.read(last=True)
        self.plan()
        while self._ends:
            self._ends.pop()()

    @property
    def stages(self) -> dict[str, tuple[float, int]]:
        """Seconds and samples of each stage of the latest loader while it was recorded."""
        if self.stats is None or self._first is None:
            return {}
        before = {name: (one.seconds, one.samples) for name, one in self._first.stages.items()}
        found = {}
        for name, now in self.stats.stages.items():
            seconds, samples = before.get(name, (0.0, 0))
            if now.samples > samples:
                found[name] = max(0.0, now.seconds - seconds), now.samples - samples
        return found

    @property
    def times(self) -> LoopTimes:
        return self.meter.times()


class _PassRecorder(Observer):
    """Records the loop over one pass."""

    def __init__(self, recording: Recording, loop: Loop) -> None:
        self._recording, self._loop, self._number = recording, loop, loop.passes
        self._clock = LoopClock(loop.meter)
        self._main = threading.main_thread().ident
        # Of torch's loader the first wait has the start of the pass in it.
        self._begun = perf_counter() if loop.loader.penstock else 0.0
        self._done = 0

    def delivered(self, delivery: Delivery) -> None:
        """Record a batch. Raises SystemExit behind the last step that is wanted."""
        recording, loop, main = self._recording, self._loop, threading.get_ident() == self._main
        if main and recording.is_over(loop):
            self.ended()
            raise SystemExit(0)
        now = perf_counter()
        if self._begun:
            delivery, self._begun = replace(delivery, waited=now - self._begun), 0.0
        self._clock.delivered(delivery)
        waited, worked = delivery.waited, self._clock.worked
        with loop.lock:
            loop.samples += delivery.samples
            loop.background |= not main
            self._done += 1
        if recording.detail:
            first = waited if worked is None else 0.0
            amounts = (waited, first, max(0.0, worked or 0.0), delivery.samples, 1)
            loop.rows.add(now, amounts, self._number, self._done, delivery.begun)
            recording.look(now)
        if recording.progress is not None:
            recording.progress(loop)

    def failed(self, error: Exception) -> None:
        """Record an error that the loop gets in a batch's place."""
        self._clock.failed(error)
        now = perf_counter()
        if len(self._loop.errors) < MOST_ERRORS:
            self._loop.errors.append((now, type(error).__name__))

    def ended(self) -> None:
        """Record the loop's work on the last batch, and read stats(): the loader may be gone soon."""
        self._clock.ended()
        if self._recording.detail and (worked := self._clock.worked) is not None:
            self._loop.rows.add(perf_counter(), (0.0, 0.0, worked, 0, 0), self._number, self._done)
        self._recording.read(self._loop)
        self._loop.plan()


class Recording:
    """Records the loops over loaders of this process, torch's and Penstock's, between begin() and end().

    Any thread may call any method.

    Args:
        detail: each batch and each piece of work is recorded, for a trace and a report.
        progress: called at each batch.
        steps: the program ends by SystemExit where a loop of the main thread continues behind so many batches of one
            loader, or when that loop has taken so many seconds; None: it does not.
        seconds: see steps.
        printed: the caller prints what held each loop up, and Penstock's loaders do not log it.

    Attributes:
        began, began_at: when, by time.perf_counter() and by time.time().
        ended: when end() was called, by time.perf_counter(); None before.
        unrecorded: how many passes of further loaders were not recorded.
    """

    def __init__(
        self,
        *,
        detail: bool = True,
        progress: Progress | None = None,
        steps: int | None = None,
        seconds: float | None = None,
        printed: bool = False,
    ) -> None:
        self.detail, self.progress, self.steps, self.seconds = detail, progress, steps, seconds
        self.began, self.began_at = perf_counter(), wall_clock()
        self.ended: float | None = None
        self.pid = os.getpid()
        self.unrecorded = 0
        self._printed, self._folder = printed, ""
        with contextlib.suppress(FileNotFoundError):  # it was removed
            self._folder = os.path.join(os.getcwd(), "")
        self._due = 0.0
        self._loops: list[Loop] = []
        self._of: weakref.WeakKeyDictionary[Any, Loop] = weakref.WeakKeyDictionary()
        self._places: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._lock = threading.RLock()  # explain() calls code of the dataset's, which may begin a pass
        self._ends: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Record each pass that begins from now on."""
        self.began, self.began_at = perf_counter(), wall_clock()
        self._ends += [watch(self.observe), watch_torch(self._note)]

    def end(self) -> None:
        """Record no pass that begins from now on, and read stats() and explain() for the last time."""
        while self._ends:
            self._ends.pop()()
        if self.ended is None and self.pid == os.getpid():
            try:
                for loop in self.all_loops():
                    loop.end()
            except Exception:
                _log.exception("the last numbers of the loaders could not be recorded")
            self.ended = perf_counter()

    def all_loops(self) -> list[Loop]:
        """Return the loops, in the order of their first passes."""
        return list(self._loops)

    def loops(self) -> list[Loop]:
        """Return the loops that got batches, those that waited longest first."""
        return sorted((one for one in self.all_loops() if one.times.batches), key=lambda one: -one.times.waited)

    def without_batches(self) -> list[LoaderFacts]:
        """Return the loaders of which a pass began, and that gave no batch."""
        return [loop.loader for loop in self.all_loops() if not loop.times.batches]

    def _note(self, loader: Any) -> None:
        file, line = place_of(loader, sys._getframe(1))
        if file is not None:
            self._places[loader] = f"{file.removeprefix(self._folder)}:{line}"

    def observe(self, loader: Any) -> _PassRecorder | None:
        """Return what records a pass that begins; None in the workers of a loader, and in a child forked off."""
        if get_worker_info() is not None or self.pid != os.getpid():
            return None
        with self._lock:
            found, known = self._of.get(loader), loader in self._of
            if found is None:
                try:
                    made = owner_of(loader)
                    facts = facts_of(made, self._places.get(made, ""))
                    facts = facts if made is loader else replace(facts, penstock=True)
                except Exception:  # of a class of the user's
                    _log.exception("a pass of a loader is not recorded")
                    return None
                found = next((one for one in self._loops if facts.place and one.loader == facts), None)
                if found is None and self.detail and len(self._loops) >= MOST_LOOPS:
                    self.unrecorded += 1
                    return None
                if found is None:
                    found = Loop(facts, len(self._loops) + 1)
                    self._loops.append(found)
                self._of[loader] = found
            found.begin(loader, new=not known, detail=self.detail)
            if isinstance(loader, DataLoader) and self._printed:
                loader.silence_verdict()
            return _PassRecorder(self, found)

    def is_over(self, loop: Loop) -> bool:
        """Return whether a loop has done as many steps, or taken as many seconds, as are wanted."""
        if self.steps is None and self.seconds is None:
            return False
        times, seconds = loop.times, self.seconds or math.inf
        return times.batches >= (self.steps or math.inf) or times.steady_waited + times.worked >= seconds

    def look(self, now: float) -> None:
        """Read stats() of all loaders where that is due."""
        if now >= self._due:
            self._due = now + EVERY
            for loop in self.all_loops():
                self.read(loop)

    def read(self, loop: Loop) -> None:
        """Keep what stats() of a loop's loaders says, while this records, and not in a child that was forked off."""
        if self.ended is None and self.pid == os.getpid():
            loop.read()
