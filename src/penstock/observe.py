"""One seam for whoever watches a loader: every executor tells the same observers of each batch, error and end."""

from __future__ import annotations

import contextlib
import logging
import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partialmethod
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import penstock._native as _native
from penstock.call_counts import CallMeter, CallRow
from penstock.errors import WorkerStuck
from penstock.totals import Reader, Totals

#: The stages that a LoopCounter counts of passes in the caller's thread.
CALLER_STAGES = ("getitem", "collate", "iterate", "copy")
#: Seconds that a light sample takes at most: a file cannot be opened in them, nor an image be transformed.
LIGHT = 1e-5


@dataclass(slots=True, eq=False)
class Delivery:
    """A batch on its way to its user."""

    batch: Any
    samples: int
    """Samples in it: what the sampler gave for it. Of an iterable dataset, what the batch shows."""
    waited: float = 0.0
    """Seconds that the caller's thread spent until it had the batch."""
    read_by_python: Sequence[str] = ()
    """Why Python read some of its samples, where the native core reads the dataset."""
    bad: Sequence[Any] = ()
    """The samples (BadSample) that a worker process found bad, and that others replace."""
    begun: float = 0.0
    """When its making began, by time.perf_counter(); 0: that is not known."""
    in_flight: int = 0
    """Batches that were begun and are not handed out, beside this one."""


@dataclass(slots=True, eq=False)
class PassCount:
    """How far a pass is, counted by the pass itself or by an observer."""

    taken: int = 0
    """Batches that came, or failed."""
    handed: int = 0
    """The number of the last batch that came, from 1 on."""


class LoopWatch(Protocol):
    """Reads the CPU times of the loops over a loader, now and then."""

    every: float
    """In how many seconds they are read again."""
    looked: float
    """When they were read, by time.perf_counter()."""

    def look(self, *, begins: bool = False) -> None:
        """Read them. begins: the first batch of a pass came."""


class Observer:
    """Watches the passes of a loader. Its methods are called by the thread that calls next(); here they do nothing.

    A pass in the caller's thread counts its batches itself, at no cost. Where all of its observers can read that
    (`reads_counts`), each is asked once to `follow` it, and is not told of batches.
    """

    loop_watch: LoopWatch | None = None
    """Of an observer that counts the loop over the pass."""

    @property
    def reads_counts(self) -> bool:
        """Whether it knows all that it needs of a batch from what the pass counts."""
        return False

    def follow(self, count: PassCount, clock: _native.CallerClock) -> Callable[[], None] | None:
        """Read from now on what a pass counts, in the place of `delivered`. Returns what is called behind each batch.

        clock: of the pass; it counts samples, stages and the loop in the loader's `Meter`.
        """
        return None

    def delivered(self, delivery: Delivery) -> None:
        """Take note of a batch that its user is about to get; an exception is raised in its place."""

    def failed(self, error: Exception) -> None:
        """Take note of an error that its user gets in a batch's place."""

    def ended(self) -> None:
        """Take note that the pass came to its end."""


Observers = tuple[Observer, ...]
#: Called with a loader when one of its passes begins; returns an observer of what the pass's user gets, or None.
Watcher = Callable[[Any], Observer | None]

_watchers: list[Watcher] = []
_log = logging.getLogger("penstock")


def watch(watcher: Watcher) -> Callable[[], None]:
    """Have a watcher called for each pass of any loader of this process that begins; return what ends that.

    What a watcher and its observers raise is logged, once, and never reaches a program.
    """
    _watchers.append(watcher)

    def end() -> None:
        with contextlib.suppress(ValueError):
            _watchers.remove(watcher)

    return end


def watching(loader: Any) -> Observers:
    """Return the observers that watchers have for a pass of a loader that begins."""
    if not _watchers:
        return ()
    found: list[Observer] = []
    for watcher in tuple(_watchers):
        try:
            observer = watcher(loader)
        except Exception:
            _log.exception("a watcher of loaders failed, and is not called any more")
            with contextlib.suppress(ValueError):
                _watchers.remove(watcher)
        else:
            found += [] if observer is None else [Harmless(observer)]
    return tuple(found)


class Harmless(Observer):
    """Passes on what an observer is to know, until the observer raises an exception, which is logged."""

    def __init__(self, observer: Observer) -> None:
        self._observer: Observer | None = observer

    def _tell(self, event: str, *told: Any) -> None:
        try:
            if self._observer is not None:
                getattr(self._observer, event)(*told)
        except Exception:
            _log.exception("an observer of a loader failed, and is not called any more")
            self._observer = None

    delivered: Any = partialmethod(_tell, "delivered")
    failed: Any = partialmethod(_tell, "failed")
    ended: Any = partialmethod(_tell, "ended")


def observed(observers: Observers, take: Callable[[], Delivery]) -> Any:
    """Return the batch of the delivery that take() returns; the observers know of it, or of the error in its place."""
    try:
        delivery = take()
    except StopIteration:
        for observer in observers:
            observer.ended()
        raise
    except WorkerStuck:
        raise  # the next call waits for the same batch
    except Exception as error:
        for observer in observers:
            observer.failed(error)
        raise
    for number, observer in enumerate(observers):
        try:
            observer.delivered(delivery)
        except Exception as error:
            for later in observers[number + 1 :]:
                later.failed(error)
            raise
    return delivery.batch


class StageTime(NamedTuple):
    """What all workers of a loader together spent in one stage."""

    seconds: float
    samples: int
    """Samples that went through the stage, or are in it."""
    cpu_seconds: float = 0.0
    """Of the seconds, those in which the worker ran on a CPU: in the others it waited for files, for Python's lock or
    for a CPU. The share is that of some of the samples."""
    bytes: int = 0
    """Bytes that the stage read from files; of Python's stages, about what storage gave: not what lies in memory."""
    queued_seconds: float = 0.0
    """Of the seconds, those in the run queue: the worker could run, and other threads had the CPUs. As cpu_seconds."""


#: A stage's name and the fields of its StageTime, all or the first ones.
StageCount = tuple[Any, ...]


@dataclass(frozen=True)
class Reading:
    """What reader threads did ahead of the threads that make samples, in all passes of a loader."""

    depth: int = 0
    """Readers at work now: 0 where reads do not block, and between passes."""
    deepest: int = 0
    """The most readers that were at work at a time."""
    ahead: int = 0
    """Samples whose file a reader had brought when a worker came for it."""
    awaited: int = 0
    """Samples for which a worker waited until a reader had brought the file."""
    direct: int = 0
    """Samples that workers read themselves while readers were at work."""
    seen: int = 0
    """Reads at which it was seen whether the thread sleeps for them: some of the workers' and of the readers'."""
    blocked: int = 0
    """Of these, those that did."""
    bytes: int = 0
    """Of the files that readers brought."""
    most_held: int = 0
    """The most bytes that one pass held ahead at a time."""

    def __add__(self, other: Reading) -> Reading:
        """Return the counts of both: the greater one of depths and of bytes held, else the sum."""
        both = {name: (one, getattr(other, name)) for name, one in vars(self).items()}
        return Reading(**{name: max(pair) if name in _GREATEST else sum(pair) for name, pair in both.items()})


_GREATEST = ("depth", "deepest", "most_held")


class Instant(NamedTuple):
    """A moment of a thread."""

    time: float
    """By perf_counter()."""
    clock: _native.ThreadClock
    """Knows where the thread's time goes from then on."""

    @classmethod
    def now(cls) -> Instant:
        """Return this moment, of the calling thread."""
        return cls(perf_counter(), _native.ThreadClock())


class SpanSink(Protocol):
    """Is called with each piece of work of a loader's threads in this process, by any of its threads."""

    def __call__(self, stage: str, seconds: float, samples: int, ended: float, thread: str = "") -> None:
        """Take note of work that ended at a time of time.perf_counter(); of the calling thread where none is named."""


#: Returns what native threads did since the last call: the thread, stage, begin, end and samples of each piece.
SpanReader = Callable[[], Iterable[tuple[str, str, float, float, int]]]


class Meter:
    """Adds up the stages of all workers that a loader ever had. Any thread may call any method."""

    def __init__(self) -> None:
        counter = self.counter = _native.LoopCounter()
        """Counts the passes in the caller's thread, batch by batch, and the loops over all passes."""
        self._stages: Totals[StageCount] = Totals(_merged_stages)
        self._stages.open(lambda: zip(CALLER_STAGES, *zip(*counter.direct()[2], strict=True), strict=True))
        self.calls = CallMeter()
        self.reading: Totals[Reading] = Totals(lambda rows: [sum(rows, Reading())])
        """What the readers of all passes did."""
        self.sinks: tuple[SpanSink, ...] = ()
        """Called for each piece of work that is added, where somebody records them."""
        self._native_spans: list[SpanReader] = []
        self._collecting = threading.RLock()

    def __reduce__(self) -> tuple[type[Meter], tuple[()]]:
        return Meter, ()  # a copy counts anew

    def open(self, read: Reader[StageCount], calls: Reader[CallRow] | None = None) -> None:
        """Add workers that count for themselves. calls: reads the calls of those that count them for themselves too."""
        self._stages.open(read)
        if calls is not None:
            self.calls.workers.open(calls)

    def close(self, read: Reader[StageCount], calls: Reader[CallRow] | None = None) -> None:
        """Read the counters of workers for the last time; the second call does nothing."""
        self._stages.close(read)
        if calls is not None:
            self.calls.workers.close(calls)

    def add_sink(self, sink: SpanSink) -> Callable[[], None]:
        """Have a sink called from now on, by native workers from the next pass on; return what ends that."""
        self.sinks = (*self.sinks, sink)

        def end() -> None:
            self.sinks = tuple(one for one in self.sinks if one is not sink)

        return end

    def open_spans(self, read: SpanReader) -> None:
        """Add native workers that record what they do: it reaches the sinks when stages are read."""
        self._native_spans.append(read)

    def close_spans(self, read: SpanReader) -> None:
        """Collect what native workers did for the last time; the second call does nothing."""
        with contextlib.suppress(ValueError):
            self._native_spans.remove(read)
            with self._collecting:
                self._collect_spans(read)

    def _collect_spans(self, read: SpanReader) -> None:
        for thread, stage, begin, end, samples in read():
            for sink in self.sinks:
                sink(stage, end - begin, samples, end, thread)

    def add(self, stage: str, begun: Instant, samples: int) -> float:
        """Count work of the calling thread, which began then and ends now; return the seconds that it took."""
        seconds = perf_counter() - begun.time
        on_cpu, queued, read = begun.clock.lap(int(1e9 * seconds))
        self._stages.add((stage, seconds, samples, on_cpu / 1e9, read, queued / 1e9))
        self.tell(stage, begun.time, begun.time + seconds, samples)
        return seconds

    def begin_copy(self) -> _native.WorkClock:
        """Return the clock of a batch that begins to move to a device, in the calling thread."""
        return _native.WorkClock(self.counter, CALLER_STAGES.index("copy"))

    def tell(self, stage: str, begun: float, ended: float, samples: int) -> None:
        """Tell the sinks of work of the calling thread that is counted elsewhere."""
        for sink in self.sinks:
            sink(stage, ended - begun, samples, ended)

    def stages(self) -> dict[str, StageTime]:
        if self._native_spans and self._collecting.acquire(blocking=False):  # else another thread collects them
            try:
                for collect in list(self._native_spans):
                    self._collect_spans(collect)
            finally:
                self._collecting.release()
        return {stage: StageTime(*time) for stage, *time in self._stages.rows() if time[1]}

    def light(self) -> bool:
        """Return whether passes in the caller's thread read their samples in less time than one costly call takes."""
        return self.counter.light(LIGHT)


def _merged_stages(rows: Iterable[StageCount]) -> list[StageCount]:
    totals: dict[str, StageTime] = {}
    for stage, *counts in rows:
        before = totals.get(stage, StageTime(0.0, 0))
        totals[stage] = StageTime(*map(operator.add, before, StageTime(*counts)))
    return [(stage, *time) for stage, time in totals.items()]
