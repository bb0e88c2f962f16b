"""The recorder: what the loops over the loaders of this process do, for the live file, the trace and the report.

A Recording follows passes by one watcher (penstock.observe.watch), and keeps what stats() says of each loader, twice a
second at most. In detail it keeps the rows of the batches and the pieces of work of the worker threads too, in a
bounded memory. The thread that calls next() does all of it. Neither a sample, nor its ID, nor the name of its file
enters a recording.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from time import time as wall_clock
from typing import Any, NamedTuple

from torch.utils.data import get_worker_info

from penstock.errors import InvalidOption
from penstock.insight.batch_rows import BatchRow, BatchRows, WorkSpans
from penstock.insight.live_files import program_name
from penstock.loader import DataLoader
from penstock.observe import Delivery, Observer, watch
from penstock.showing import shown
from penstock.stats import Stats
from penstock.system.output_files import OutputFile

#: Seconds between two readings of stats(), at the least.
EVERY = 0.5
#: Readings that a loader keeps: when there are so many, every second one goes, and they are made half as often.
MOST_READINGS = 2400
#: Loaders of a process that are recorded in detail, and errors of each that are kept.
MOST_LOADERS, MOST_ERRORS = 64, 1000
#: Characters of an option's value that are kept.
_LONGEST = 120
#: Options of torch's loader whose values are kept, and those of which only the type is.
_VALUES = ("batch_size", "num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "drop_last", "in_order")
_TYPES = ("dataset", "sampler", "batch_sampler", "collate_fn")
#: Arguments whose values are said; of any other object only the type.
_PLAIN = (bool, int, float, str, bytes, type(None))

_log = logging.getLogger("penstock")


class Reading(NamedTuple):
    """What stats() said at one moment: sums since the loader was made."""

    time: float
    """By time.perf_counter(); in a live file by time.time()."""
    batches: int
    samples: int
    waited: float
    first_waited: float
    """Of the seconds waited, those for the first batches of passes."""
    worked: float
    depth: int = 0
    """Readers at work ahead of the workers at that moment."""

    @property
    def steady(self) -> float:
        """Seconds waited, but for first batches."""
        return self.waited - self.first_waited


@dataclass(eq=False)
class LoaderRecord:
    """What is recorded of one loader."""

    number: int
    """Of the loader in its process, from 1 on, in the order of their first passes."""
    loader: weakref.ref[DataLoader[Any]]
    read_stats: weakref.WeakMethod[Callable[[], Stats]]
    """Alive while the loader or one of its recorded passes is."""
    title: str = ""
    """The type of its dataset."""
    read_by: str = ""
    """Who reads the dataset: "native threads" or "Python"."""
    batch_size: int | None = None
    workers: int = 0
    passes: int = 0
    failed: int = 0
    """Errors that the loop got in a batch's place."""
    readings: list[Reading] = field(default_factory=list)
    """What stats() said, from the beginning of the first recorded pass on."""
    first: Stats | None = None
    """All that stats() said first."""
    stats: Stats | None = None
    """All that stats() said last."""
    rows: BatchRows = field(default_factory=BatchRows)
    spans: WorkSpans = field(default_factory=WorkSpans)
    errors: list[tuple[float, str]] = field(default_factory=list)
    """When the loop got an error, and its type."""
    options: dict[str, str] = field(default_factory=dict)
    explained: str = ""
    """What explain() said last."""

    @classmethod
    def of(cls, loader: DataLoader[Any], number: int) -> LoaderRecord:
        """Return the record of a loader."""
        method: Any = weakref.WeakMethod(loader.stats_reader())
        found = cls(number, weakref.ref(loader), method)
        found.describe(loader)
        return found

    def describe(self, loader: DataLoader[Any]) -> None:
        """Keep what the loader says of itself, which a program may change."""
        self.title, self.read_by, self.workers = type(loader.dataset).__name__, loader.read_by, int(loader.num_workers)
        self.batch_size = None if loader.batch_size is None else int(loader.batch_size)  # one of numpy's integers, say

    def read(self, now: float, every: float) -> Stats | None:
        """Keep what stats() says, and return it; None: loader and passes are gone. every: seconds between readings."""
        if (read_stats := self.read_stats()) is None:
            return None
        if (loader := self.loader()) is not None:
            self.describe(loader)
        self.stats = stats = read_stats()
        self.first, loop = self.first or stats, stats.loop
        if len(self.readings) > 2 and now - self.readings[-2].time < every:
            self.readings.pop()
        times = (loop.waited, loop.first_waited, loop.worked)
        self.readings.append(Reading(now, stats.batches, stats.samples, *times, stats.reading.depth))
        return stats

    def explain(self) -> None:
        """Keep what explain() says, where the loader is still alive and can."""
        if (loader := self.loader()) is not None:
            with contextlib.suppress(Exception):  # of a dataset of the user's, which has changed
                self.explained = loader.explain()


class PassRecorder(Observer):
    """Records the loop over one pass, in detail."""

    def __init__(self, recording: Recording, loader: LoaderRecord, read_stats: Callable[[], Stats]) -> None:
        self._recording, self._loader, self._number = recording, loader, loader.passes + 1
        self._read_stats = read_stats  # kept alive
        self._left: float | None = None  # when the loop got its latest batch, or an error in its place
        loader.passes += 1

    def delivered(self, delivery: Delivery) -> None:
        """Record a batch, and read stats() where that is due."""
        now, waited, left = perf_counter(), delivery.waited, self._left
        asked = now - waited
        first = left is None
        worked = 0.0 if left is None else max(0.0, asked - left)
        times = (asked if left is None else left, now, waited, waited if first else 0.0, worked)
        self._loader.rows.add(BatchRow(*times, delivery.samples, 1, self._number, delivery.begun))
        self._left = now
        if now >= self._recording.due:
            self._recording.read(now)

    def failed(self, error: Exception) -> None:
        """Record an error that the loop gets in a batch's place."""
        self._loader.failed += 1
        self._left = now = perf_counter()
        if len(self._loader.errors) < MOST_ERRORS:
            self._loader.errors.append((now, type(error).__name__))

    def ended(self) -> None:
        """Record the loop's work on the last batch, and read stats(): the loader may be gone soon."""
        now = perf_counter()
        if self._left is not None:
            self._loader.rows.add(BatchRow(self._left, now, 0, 0, now - self._left, 0, 0, self._number, 0))
        self._left = None
        self._recording.read(now, self._loader)


class Recording:
    """Records the loaders of this process in detail between begin() and end(). Any thread may call any method.

    Attributes:
        began, began_at: when, by time.perf_counter() and by time.time().
        ended: when end() was called, by time.perf_counter(); None before.
        pid: the process that is recorded.
        loaders: what is recorded of each loader: of the first ones.
        unrecorded: how many passes of further loaders were not recorded.
        due: when readings of stats() are due, by time.perf_counter().
    """

    def __init__(self) -> None:
        self.began, self.began_at = perf_counter(), wall_clock()
        self.ended: float | None = None
        self.pid = os.getpid()
        self.loaders: list[LoaderRecord] = []
        self.unrecorded = 0
        self.due = float("inf")
        self._every = EVERY
        self._lock = threading.RLock()  # explain() calls code of the dataset's, which may begin a pass
        self._stop: Callable[[], None] | None = None
        self._ends: list[Callable[[], None]] = []  # what ends the recording of each loader's work

    def begin(self) -> None:
        """Record each pass that begins from now on."""
        self.began, self.began_at = perf_counter(), wall_clock()
        self.due = self.began + self._every
        self._stop = watch(self.observe)

    def observe(self, loader: DataLoader[Any]) -> PassRecorder | None:
        """Return what records a pass that begins; None in the workers of a loader, and in a child forked off."""
        if get_worker_info() is not None or self.pid != os.getpid():
            return None
        with self._lock:
            found = next((one for one in self.loaders if one.loader() is loader), None)
            if found is None and len(self.loaders) >= MOST_LOADERS:
                self.unrecorded += 1
                return None
            return PassRecorder(self, found or self._new(loader), loader.stats_reader())

    def _new(self, loader: DataLoader[Any]) -> LoaderRecord:
        found = LoaderRecord.of(loader, len(self.loaders) + 1)
        self.loaders.append(found)
        found.options = options_of(loader)
        found.read(perf_counter(), 0.0)
        self._ends.append(loader.record_spans(found.spans))
        return found

    def read(self, now: float, only: LoaderRecord | None = None) -> None:
        """Keep what stats() of each loader says, or of one."""
        with self._lock:
            if self.ended is not None or self.pid != os.getpid():  # a child that was forked off: its parent writes
                return
            for recorded in tuple(self.loaders) if only is None else (only,):
                recorded.read(now, self._every)
                if not recorded.explained:
                    recorded.explain()
            if only is None:
                self.due = now + self._every
            if any(len(recorded.readings) >= MOST_READINGS for recorded in self.loaders):
                self._every *= 2
                for recorded in self.loaders:
                    recorded.readings = recorded.readings[::2]

    def end(self) -> None:
        """Record no pass that begins from now on, and read stats() and explain() for the last time."""
        if self._stop is None or self.ended is not None or self.pid != os.getpid():
            return
        self._stop()
        try:
            self.read(perf_counter())
            for recorded in tuple(self.loaders):
                recorded.explain()
        except Exception:
            _log.exception("the last numbers of the loaders could not be recorded")
        self.ended = perf_counter()
        for end in self._ends:
            end()


@contextmanager
def record(
    trace: str | os.PathLike[str] | None = None,
    report: str | os.PathLike[str] | None = None,
    *,
    verdict: Callable[[LoaderRecord], str] | None = None,
) -> Iterator[Recording]:
    """Record the loaders of this process while a block of code runs: a context manager, which gives the Recording.

    Passes that begin in the block are recorded; no sample, ID or file name is. The files are written when the block
    ends, also by an exception or Ctrl-C; one that cannot be written then is logged, and nothing is raised.

    Args:
        trace: a file for ui.perfetto.dev; gzip compresses it where its name ends in .gz.
        report: a file for one HTML page. In both "{rank}" is the RANK of torchrun, or 0.
        verdict: returns the sentence that the report begins with for each loader; None: a plain one.

    Raises:
        InvalidOption: a file that cannot be written, or the same one for both.
    """
    # When they are asked for: `import penstock` does not load them.
    from penstock.insight import report as reports  # noqa: PLC0415
    from penstock.insight import trace as traces  # noqa: PLC0415

    trace_file = None if trace is None else OutputFile(trace, "trace")
    report_file = None if report is None else OutputFile(report, "report")
    if trace_file is not None and report_file is not None and trace_file.path == report_file.path:
        raise InvalidOption(f"trace and report are the same file, {trace_file.path}: give each its own")
    recording = Recording()
    recording.begin()
    try:
        yield recording
    finally:
        recording.end()
        if recording.pid == os.getpid():  # not in a child that was forked off in the block
            facts = {"program": program_name(), "host": os.uname().nodename, "process": str(recording.pid)}
            if trace_file is not None:
                with _logged(trace_file):
                    traces.write_trace(recording, trace_file, facts)
            if report_file is not None:
                with _logged(report_file):
                    reports.write_report(recording, report_file, facts, verdict or reports.plain_verdict)


@contextmanager
def _logged(file: OutputFile) -> Iterator[None]:
    """Log what writing a file raises: the run is over, and its own result counts."""
    try:
        yield
    except Exception as error:
        _log.error("%s could not be written: %s", shown(file.path), shown(str(error)))


def options_of(loader: DataLoader[Any]) -> dict[str, str]:
    """Return the options of a loader as text: values that are numbers and texts, of other objects the type."""
    options = {name: _value(getattr(loader, name, None)) for name in _VALUES}
    options |= {name: _type(getattr(loader, name, None)) for name in _TYPES}
    return options | {name: _value(value) for name, value in loader.own_options().items()}


def _value(value: Any) -> str:
    if isinstance(value, tuple | list) and len(value) <= 4:
        return f"({', '.join(map(_value, value))})"[:_LONGEST]
    text = repr(value) if isinstance(value, _PLAIN) else _type(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _type(value: Any) -> str:
    name = getattr(value, "__qualname__", None) if callable(value) else None
    return (name if isinstance(name, str) else type(value).__name__)[:_LONGEST]
