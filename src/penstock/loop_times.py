"""What the loop over a loader's batches does with its time: it waits for a batch, or it works on one."""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter, process_time
from typing import Any, NamedTuple

import penstock._native as _native
from penstock import announcements
from penstock.observe import Delivery, Observer, PassCount
from penstock.system.limits import machine_cpu_seconds

#: Waits are counted by their length: up to 1 us, 2 us, 4 us, ...; the last class holds all longer ones (over 67 s).
WAIT_CLASSES = len(_native.LoopCounter().counts()[-1])
#: CPU times, which take some 30 us, are read once in so many seconds, and at the ends of passes that take longer than
#: SHORT_PASS: shorter ones that follow each other are looked at together.
LOOK_SECONDS = 0.25
SHORT_PASS = 0.01


@dataclass(frozen=True)
class LoopTimes:
    """Times of the loops over a loader's batches, in all of its passes, in seconds."""

    batches: int = 0
    waited: float = 0.0
    """For batches: from each call of next() to the batch, with num_workers=0 the work on it included."""
    first_waited: float = 0.0
    """Of these, for the first batch of each pass, in which workers start."""
    worked: float = 0.0
    """Between a batch and the next call of next(), or the end of the pass; not what a loop does between two passes."""
    longest_wait: float = 0.0
    """For one batch, but for the first of each pass."""
    cpu_seconds: float = 0.0
    """CPU time of this process, in all of its threads, from the first batch of each pass to its end."""
    machine_cpu_seconds: float = 0.0
    """CPU time of all processes of the machine meanwhile; 0.0 where it is not known."""
    queued_seconds: float = 0.0
    """Seconds that the loop's thread was in the run queue meanwhile: it could run, and other threads had the CPUs."""
    device_idle: float = 0.0
    """Of the time waited, what the device that batches go to had nothing to do in, by its own clock; 0.0 where batches
    stay on the host, or the device has no such clock. The latest batches are not in it yet."""
    waits: tuple[int, ...] = field(default=(0,) * WAIT_CLASSES)
    """How many batches, but for the first of each pass, were waited for up to 1 us, 2 us, 4 us, ..."""
    in_flight: int = 0
    """Batches in flight behind each batch when the loop got it, the sum of all."""

    @property
    def queue_depth(self) -> float:
        """Batches that were in flight behind one, on average: begun, and not handed out."""
        return self.in_flight / self.batches if self.batches else 0.0

    @property
    def steady_waited(self) -> float:
        """Seconds waited, but for the first batch of each pass."""
        return self.waited - self.first_waited

    @property
    def wait_share(self) -> float:
        """The share of the time that the loops waited, but for the first batch of each pass: 0 to 1."""
        return self.steady_waited / total if (total := self.steady_waited + self.worked) > 0 else 0.0

    def wait_quantile(self, share: float) -> float:
        """Return the seconds within which a share (0 to 1) of the batches came, but for the first of each pass.

        It is the upper end of the class of that wait: up to twice the wait itself, at most the longest one.
        """
        needed, counted = share * sum(self.waits), 0
        for place, count in enumerate(self.waits):
            counted += count
            if count and counted >= needed:
                return self.longest_wait if place == WAIT_CLASSES - 1 else min(self.longest_wait, 1e-6 * 2**place)
        return 0.0


class LoopLabel(NamedTuple):
    """Whose loops a LoopMeter counts."""

    dataset: str
    batches: int | str | None
    """The batch size, None where a batch_sampler makes the batches; or how they are made, in words."""
    workers: int
    reader: str
    """What reads the dataset."""
    owner: Callable[[], Any]
    """Returns what counts for the loader, while the loader or one of its passes is there; else None."""
    read: Callable[[Any], Any]
    """Returns batches, samples, loop and stages of the owner, as Stats."""


class LoopMeter:
    """Adds up the times of all passes of a loader. Any thread may call any method.

    Args:
        counter: of the loader; None: a new one.

    Attributes:
        failed: errors that the loops got in a batch's place.
        latest: returns the clock of the pass that began last, while it is there.
        looked: when the CPU times were read, by time.perf_counter(); before that, when this was made.
        label: of the loader; None: nobody follows its loops.
        when_long: is called once, when the loops have taken longer than SHORT_PASS.
        followed_by: what follows them.
    """

    def __init__(self, counter: _native.LoopCounter | None = None) -> None:
        self._lock = threading.RLock()  # a garbage collection in any line may log the verdict of a loader
        self._counter = counter or _native.LoopCounter()
        self._cpu = self._machine_cpu = self._queued = self._idle = 0.0
        self.passes = self.failed = 0
        self.latest: Callable[[], LoopClock | None] = lambda: None
        self.looked = perf_counter()  # a loader that is gone within SHORT_PASS never pays for it
        self.label: LoopLabel | None = None
        self.followed_by: object = None
        self.when_long: Callable[[], None] | None = None
        #: Of the process and the machine, and in the run queue of the loop's thread, then.
        self._ran: tuple[float, float, float] | None = None
        #: In how many seconds the CPU times are read again.
        self.every = SHORT_PASS
        # Batch by batch they are counted natively: behind a batch's samples Python's code has left the CPU's caches.
        self.add, self.add_work = self._counter.add, self._counter.add_work

    def add_idle(self, seconds: float) -> None:
        """Count time in which the device had nothing to do because its loop waited."""
        with self._lock:
            self._idle += seconds

    @property
    def open(self) -> bool:
        """Whether the pass that began last has neither come to its end nor been left."""
        clock = self.latest()
        return clock is not None and not clock.over

    def look(self, *, begins: bool = False) -> None:
        """Count the CPU times of process and machine since the last look; begins: of a pass, they are only read."""
        if (now := perf_counter()) - self.looked < SHORT_PASS:
            return
        with self._lock:
            passed, self.looked, self.every = now - self.looked, now, LOOK_SECONDS
            before, self._ran = self._ran, (process_time(), machine_cpu_seconds(), _native.ready_seconds())
            if not begins and before is not None:
                process, machine, queued = map(operator.sub, self._ran, before)
                self._cpu += process
                self._machine_cpu += machine
                self._queued += min(max(0.0, queued), passed)  # another thread may have continued the loop
            first, self.when_long = self.when_long, None
        if first is not None:
            first()
        for tell in announcements.looked if self.label is not None else ():
            tell(self, now)

    def times(self) -> LoopTimes:
        batches, in_flight, waited, first_waited, worked, longest_wait, waits = self._counter.counts()
        with self._lock:
            cpu = (self._cpu, self._machine_cpu, self._queued, self._idle)
        return LoopTimes(batches, waited, first_waited, worked, longest_wait, *cpu, waits, in_flight)


class LoopClock(Observer):
    """Measures the loop over one pass: the last of the observers of what its user gets.

    over: the pass came to its end.
    """

    over = False
    reads_counts = True

    def __init__(self, meter: LoopMeter) -> None:
        self.meter = self.loop_watch = meter
        self._add = meter.add
        meter.passes += 1
        meter.latest = weakref.ref(self)
        self._left: float | None = None  # when the loop got its latest batch, or an error in its place
        self.worked: float | None = None
        """Seconds of the loop's work before the latest batch, at the end on the last one; None: nothing came before."""
        self._looked = 0.0  # when CPU times were due
        self._clock: _native.CallerClock | None = None
        """Measures the loop in the place of `delivered`: that of a pass in the caller's thread."""

    def follow(self, count: PassCount, clock: _native.CallerClock) -> None:
        """Have the clock of the pass measure the loop."""
        self._clock = clock

    def delivered(self, delivery: Delivery) -> None:
        """Count a batch, and the loop's work before it was called for."""
        now, left = perf_counter(), self._left
        self._left = now
        self.worked = worked = None if left is None else now - delivery.waited - left
        self._add(delivery.waited, worked, delivery.in_flight)
        if left is None or now - self._looked > self.meter.every:
            self._looked = now
            self.meter.look(begins=left is None)

    def failed(self, error: Exception) -> None:
        """Take note that the loop continues from here."""
        self.meter.failed += 1
        self._left = perf_counter()
        if self._clock is not None:
            self._clock.failed()

    def ended(self) -> None:
        """Count the loop's work on the last batch."""
        self.over, self.worked = True, None
        if self._clock is not None:
            begun = self._clock.ended()
        else:
            begun = self._left is not None
            if self._left is not None:
                self.worked = max(0.0, perf_counter() - self._left)
                self.meter.add_work(self.worked)
        if begun:
            self.meter.look()
        self._left = None
