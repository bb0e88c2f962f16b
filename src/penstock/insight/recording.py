"""A recording: what the loops over the loaders of this process did, batch by batch, in a bounded memory.

One watcher (penstock.observe.watch) keeps for each loader the rows of its batches, the pieces of work of its Python
threads, and twice a second at most what stats() says. The thread that calls next() does all of it. Neither a sample,
nor its ID, nor the name of its file enters a recording.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from time import time as wall_clock
from typing import Any

from penstock.insight.batch_rows import BatchRow, BatchRows
from penstock.insight.loader_facts import options_of, title_of
from penstock.insight.work_spans import WorkSpans
from penstock.loader import DataLoader
from penstock.observe import Delivery, Observer, StageTime, watch
from penstock.stats import Stats

#: Seconds between two readings of stats(), at the least.
EVERY = 0.5
#: Readings that a loader keeps: when there are so many, every second one goes, and they are made half as often.
MOST_READINGS = 2400
#: Loaders of a process that are recorded, and errors of each that are kept.
MOST_LOADERS, MOST_ERRORS = 64, 1000


_log = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True)
class Reading:
    """What stats() said at one moment: sums since the loader was made."""

    time: float
    """By time.perf_counter()."""
    batches: int
    samples: int
    waited: float
    first_waited: float
    worked: float
    depth: int
    """Readers at work ahead of the workers at that moment."""
    cache_hits: int
    """Samples that came from a tier of cache=."""
    stages: dict[str, StageTime]


def reading_of(stats: Stats, now: float) -> Reading:
    """Return what a recording keeps of stats()."""
    loop, hits = stats.loop, sum(tier.hits for tier in stats.cache.values())
    times = (loop.waited, loop.first_waited, loop.worked)
    return Reading(now, stats.batches, stats.samples, *times, stats.reading.depth, hits, stats.stages)


@dataclass(eq=False)
class LoaderRecording:
    """What is recorded of one loader."""

    number: int
    """Of the loader in its process, from 1 on, in the order of their first passes."""
    title: str
    """The type of its dataset."""
    read_by: str
    """Who reads the dataset: "native threads" or "Python"."""
    options: dict[str, str]
    loader: weakref.ref[DataLoader[Any]]
    read_stats: weakref.WeakMethod[Callable[[], Stats]]
    """Alive while the loader or one of its recorded passes is."""
    rows: BatchRows = field(default_factory=BatchRows)
    spans: WorkSpans = field(default_factory=WorkSpans)
    readings: list[Reading] = field(default_factory=list)
    """What stats() said, from the beginning of the first recorded pass on."""
    errors: list[tuple[float, str]] = field(default_factory=list)
    """When the loop got an error in a batch's place, and the error's type."""
    failed: int = 0
    """Errors in all."""
    passes: int = 0
    explained: str = ""
    """What explain() said last."""
    stats: Stats | None = None
    """What stats() said last."""

    def read(self, now: float, every: float) -> None:
        """Keep what stats() says, where the loader or a pass is still alive; one reading in so many seconds."""
        if (read_stats := self.read_stats()) is None:
            return
        self.stats = read_stats()
        if len(self.readings) > 2 and now - self.readings[-2].time < every:
            self.readings.pop()
        self.readings.append(reading_of(self.stats, now))

    def explain(self) -> None:
        """Keep what explain() says, where the loader is still alive and can."""
        if (loader := self.loader()) is not None:
            with contextlib.suppress(Exception):  # of a dataset of the user's, which has changed
                self.explained = loader.explain()


class PassRecorder(Observer):
    """Records the loop over one pass."""

    def __init__(self, recording: Recording, loader: LoaderRecording, read_stats: Callable[[], Stats]) -> None:
        self._recording, self._loader, self._number = recording, loader, loader.passes
        self._read_stats = read_stats  # kept alive
        self._left: float | None = None  # when the loop got its latest batch, or an error in its place

    def delivered(self, delivery: Delivery) -> None:
        """Record a batch."""
        if self._recording.pid != os.getpid():
            return  # a child that was forked off: its parent writes the recording
        now, waited, left = perf_counter(), delivery.waited, self._left
        asked = now - waited
        first = left is None
        worked = 0.0 if left is None else max(0.0, asked - left)
        self._loader.rows.add(
            BatchRow(
                asked if left is None else left,
                now,
                waited,
                waited if first else 0.0,
                worked,
                delivery.samples,
                1,
                self._number,
                delivery.begun,
                0.0 if first else waited,
            )
        )
        self._left = now
        if now >= self._recording.due:
            self._recording.read(now)

    def failed(self, error: Exception) -> None:
        """Record an error that the loop gets in a batch's place."""
        if self._recording.pid != os.getpid():
            return
        self._left = now = perf_counter()
        self._loader.failed += 1
        if len(self._loader.errors) < MOST_ERRORS:
            self._loader.errors.append((now, type(error).__name__))

    def ended(self) -> None:
        """Record the loop's work on the last batch."""
        if self._recording.pid != os.getpid():
            return
        now = perf_counter()
        if self._left is not None:
            self._loader.rows.add(BatchRow(self._left, now, 0, 0, now - self._left, 0, 0, self._number, 0, 0))
        self._left = None
        self._recording.pass_ended(self._loader, now)


class Recording:
    """Records the loaders of this process between begin() and end(). Any thread may call any method.

    Attributes:
        began, began_at: when, by time.perf_counter() and by time.time().
        ended: when end() was called, by time.perf_counter(); None before.
        loaders: what is recorded of each loader.
        unrecorded: how many passes of further loaders were not recorded.
        due: when the next reading of stats() is made, by time.perf_counter().
    """

    def __init__(self) -> None:
        self.began, self.began_at = perf_counter(), wall_clock()
        self.ended: float | None = None
        self.loaders: list[LoaderRecording] = []
        self.unrecorded = 0
        self.due = 0.0
        self.pid = os.getpid()
        self._every = EVERY
        self._lock = threading.RLock()  # explain() calls code of the dataset's, which may begin a pass
        self._stop: Callable[[], None] | None = None
        self._sinks: list[Callable[[], None]] = []  # what ends the recording of each loader's work

    def begin(self) -> None:
        """Record each pass that begins from now on."""
        self.began, self.began_at = perf_counter(), wall_clock()
        self.due = self.began + self._every
        self._stop = watch(self._observe)

    def end(self) -> None:
        """Record no pass that begins from now on, and read stats() and explain() for the last time."""
        if self._stop is None or self.ended is not None or self.pid != os.getpid():
            return
        self._stop()
        try:
            self.read(perf_counter(), last=True)
        except Exception:
            _log.exception("the last numbers of the loaders could not be recorded")
        self.ended = perf_counter()
        for stop in self._sinks:
            stop()

    def read(self, now: float, *, last: bool = False) -> None:
        """Keep what stats() of each loader says. last: and what explain() says."""
        with self._lock:
            if self.ended is not None:
                return
            self.due = now + self._every
            for recorded in tuple(self.loaders):
                recorded.read(now, self._every)
                if last or not recorded.explained:
                    recorded.explain()
            if any(len(recorded.readings) >= MOST_READINGS for recorded in self.loaders):
                self._every *= 2
                for recorded in self.loaders:
                    recorded.readings = recorded.readings[::2]

    def pass_ended(self, recorded: LoaderRecording, now: float) -> None:
        """Keep what stats() of a loader says whose pass is at its end: the loader may be gone soon."""
        with self._lock:
            if self.ended is None:
                recorded.read(now, self._every)
                if not recorded.explained:
                    recorded.explain()

    def _observe(self, loader: DataLoader[Any]) -> PassRecorder | None:
        if self.pid != os.getpid():
            return None  # a child that was forked off: its parent writes the recording
        with self._lock:
            recorded = next((one for one in self.loaders if one.loader() is loader), None)
            if recorded is None:
                if len(self.loaders) >= MOST_LOADERS:
                    self.unrecorded += 1
                    return None
                facts = (title_of(loader), loader.read_by, options_of(loader), weakref.ref(loader))
                method = weakref.WeakMethod(loader.stats_reader())
                recorded = LoaderRecording(len(self.loaders) + 1, *facts, method)
                self.loaders.append(recorded)
                recorded.read(perf_counter(), self._every)
                self._sinks.append(loader.record_spans(recorded.spans))
            recorded.passes += 1
            return PassRecorder(self, recorded, loader.stats_reader())
