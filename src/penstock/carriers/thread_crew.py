"""Python worker threads: they make samples in this process, each into its row of the batch.

Batches in flight form one queue. A thread takes a few samples of the oldest batch that has any left, so that all
threads share one batch. How many threads work at a time is measured while samples cost little: where each holds
Python's lock most of the time, more of them only hand it to and fro.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from statistics import median

from penstock.carriers.thread_batch import FetchedBatch, SampleRows
from penstock.carriers.worker_thread import (
    ThreadWorkerInfo,
    WorkerThread,
    context_here,
    end_crew,
    one_core_each,
    set_for_this_thread,
)
from penstock.observe import Instant, Meter
from penstock.passes.carrier import pinned
from penstock.recipe import drawing
from penstock.recipe.patches import working
from penstock.state.delivery import Task
from penstock.stats import samples_given
from penstock.workers.own_workers import OwnWorkers
from penstock.workers.worker import Worker

#: Work that a thread takes at a time, in seconds: long beside taking it, short beside a batch.
GRAIN_SECONDS = 3e-4
#: Samples cheaper than this are worth measuring how many threads make them best, in seconds.
CHEAP_SECONDS = 1e-3


class ThreadCrew:
    """The Python worker threads of a loader. They hold their fetches, never the iterator, which can be collected.

    Args:
        worker: calls the user's dataset, where the threads share it.
        count: threads.
        own: what each thread fetches with, and the worker_init_fn that is called in each when it starts.
        rows: where batches are built; None: collate_fn makes them from a list of samples.
        meter: counts getitem and collate.
        pins: batches come in page-locked memory.
        seed: of worker 0, for get_worker_info().

    Attributes:
        closed: the threads are to end.
    """

    # More than 15 attributes: all are guarded by one lock, and each decision of the queue looks at most of them.

    def __init__(
        self,
        worker: Worker,
        count: int,
        *,
        own: OwnWorkers,
        rows: SampleRows | None,
        meter: Meter,
        pins: bool = False,
        seed: int = 0,
    ) -> None:
        self._worker = worker
        self._own = own
        self._rows, self._pins = rows, pins
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._parked = threading.Condition(self._lock)  # of threads that the pace keeps from work
        self._done = threading.Condition(self._lock)
        self._open: deque[FetchedBatch] = deque()
        self._sample_seconds = GRAIN_SECONDS
        self.closed = False
        self._context = context_here()  # of the pass; a new pass has new ones
        self.pace = Pace(count)
        self._meter = meter
        infos = (ThreadWorkerInfo(number, count, seed + number, worker.dataset) for number in range(count))
        self._workers = [WorkerThread(info, self._run) for info in infos]
        self._threads = [thread.thread for thread in self._workers]

    def start(self) -> None:
        """Start the threads. Raises RuntimeError: the system has not so many."""
        for thread in self._threads:
            thread.start()

    # --- the caller's side --------------------------------------------------------------------------------------

    def prepare(self, batch: FetchedBatch, task: Task) -> None:
        """Make a batch ready to be submitted: what its task gives."""
        if self._worker.batched and self._worker.one_by_one:
            task = task._replace(given=list(task.given))  # it may be iterable only once
            batch.indices = task.given or None
        if batch.indices and self._rows is None:
            batch.samples = [None] * len(batch.indices)
        batch.task, batch.unfinished = task, len(batch.indices or "1")

    def submit(self, batch: FetchedBatch) -> None:
        """Queue a batch, once however often it is submitted."""
        with self._lock:
            if not batch.taken and batch not in self._open:
                self._open.append(batch)
            self._work.notify_all()

    def wait(self, batches: list[FetchedBatch], timeout: float) -> FetchedBatch | None:
        """Wait until one of the batches is done and return it; None: `timeout` seconds (0: no limit) went by."""
        deadline = time.monotonic() + timeout
        with self._lock:
            while (found := next((batch for batch in batches if batch.done), None)) is None:
                if self.closed:
                    raise RuntimeError("the loader's iterator was closed while it waited for a batch")
                remaining = deadline - time.monotonic()
                if timeout and remaining <= 0:
                    return None
                self._done.wait(remaining if timeout else None)
        return found

    def begin(self, worker: Worker) -> None:
        """Begin a pass, in the caller's context. Batches in flight are forgotten."""
        self._own.begin()
        context = context_here()
        with self._lock:
            self._worker, self._context = worker, context
            self._open.clear()

    def describe(self) -> list[str]:
        """Return what each thread that is at work does, for how long, and its stack."""
        return [text for thread in self._workers if (text := thread.describe())]

    def close(self) -> None:
        """End the threads. In a forked child they do not exist, and nothing is done."""
        end_crew(self._threads, self._stop, self._pid)

    def _stop(self) -> None:
        with self._lock:
            self.closed = True
            self._open.clear()
            for waiting in (self._work, self._parked, self._done):
                waiting.notify_all()

    def _count(self, stage: str, batch: FetchedBatch, begun: Instant, samples: int | None = None) -> float:
        """Count samples of a batch, all of it unless said otherwise, and return the seconds that they took."""
        if samples is None or batch.indices is None:
            assert batch.task is not None
            samples = samples_given(batch.task.given) if self._worker.batched else 1
        return self._meter.add(stage, begun, samples)

    # --- the threads' side --------------------------------------------------------------------------------------

    def _run(self, thread: WorkerThread) -> None:
        set_for_this_thread(thread.info)
        one_core_each()
        context = self._context
        here = context()
        with contextlib.ExitStack() as stack:
            stack.enter_context(working(self._meter.calls) if self._worker.composes else contextlib.nullcontext())
            worker, failed = here(self._begin, thread)
            stack.enter_context(drawing.beside_others())  # not before: a worker_init_fn may seed generators
            while (work := self._take(thread)) is not None:
                if context is not self._context:  # another pass has begun
                    context = self._context
                    here = context()
                if self._own.shared:
                    worker = self._worker.beside(thread.activity.each)  # of the pass
                    thread.info.dataset = worker.dataset
                here(self._make_part, work, worker, thread, failed)
                failed = None
                del work  # a thread that waits holds no batch

    def _begin(self, thread: WorkerThread) -> tuple[Worker, BaseException | None]:
        """Return what a thread fetches with, and the error that its first batch raises."""
        worker = self._worker
        try:
            worker, init = self._own.take()
            worker = worker.beside(thread.activity.each)
            thread.info.dataset = worker.dataset
            if init is not None:
                init(thread.number)
        except BaseException as error:
            return worker, error
        return worker, None

    def _take(self, thread: WorkerThread) -> tuple[FetchedBatch, int, int] | None:
        """Return the next work of a thread: a batch and a part of its samples. None: the crew is closed."""
        with self._lock:
            while not self.closed:
                if thread.number >= self.pace.active:
                    self._parked.wait()
                elif self._open:
                    return self._take_from(self._open[0])
                else:
                    self._work.wait()
        return None

    def _take_from(self, batch: FetchedBatch) -> tuple[FetchedBatch, int, int]:
        """Take a part of a batch; the lock is held."""
        if batch.indices is None:
            self._open.remove(batch)
            batch.taken = 1
            return batch, 0, 1
        begin = batch.taken
        batch.taken = end = min(len(batch.indices), begin + max(1, int(GRAIN_SECONDS / self._sample_seconds)))
        if end == len(batch.indices):
            self._open.remove(batch)
        return batch, begin, end

    def _make_part(
        self, work: tuple[FetchedBatch, int, int], worker: Worker, thread: WorkerThread, broken: BaseException | None
    ) -> None:
        """Make a part of a batch's samples, and finish the batch with the last of them. broken: why it cannot be."""
        batch, begin, end = work
        begun = None if broken is not None else Instant.now()
        if broken is not None:
            self._fail(batch, begin, broken)
        elif batch.failed is None and not self.closed:
            failed = batch.make_part(begin, end, worker, self._rows, thread.info.rng, thread.activity)
            if failed is not None:
                self._fail(batch, *failed)
            del failed  # whose traceback holds this frame, and with it the pass
        self._finish(batch, end - begin, worker, begun)

    def _fail(self, batch: FetchedBatch, position: int, error: BaseException) -> None:
        with self._lock:
            batch.fail(position, self._own.explained(error))

    def _finish(self, batch: FetchedBatch, samples: int, worker: Worker, begun: Instant | None = None) -> None:
        """Count a part as done; whoever finishes the last one collates."""
        seconds = 0.0 if begun is None else self._count("getitem", batch, begun, samples)
        with self._lock:
            before = self.pace.active
            if seconds:
                self._sample_seconds += 0.3 * (seconds / samples - self._sample_seconds)
                self.pace.did(samples, seconds)
                if self.pace.active > before:
                    self._parked.notify_all()
            batch.unfinished -= samples
            if batch.unfinished:
                return
        if batch.failed is None:
            begun = Instant.now()
            try:
                if batch.indices is not None:
                    batch.collate(worker, self._rows)
                    self._count("collate", batch, begun)
                if self._pins:
                    batch.result = pinned(batch.result)
                self._own.check()
            except BaseException as error:
                self._fail(batch, 0, error)
        with self._lock:
            batch.done = True
            self._done.notify_all()
        batch.build, batch.samples = None, []


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
        self._begin_windows(1)

    def _begin_windows(self, windows: int) -> None:
        """Let all threads work for so many windows before the first trials."""
        self._windows = self._trials(windows)
        self._begin_window(next(self._windows))

    def _begin_window(self, active: int) -> None:
        self.active, self._begin = active, self._clock()
        self._samples = self._chunks = 0
        self._seconds = 0.0

    def did(self, samples: int, seconds: float) -> None:
        if self._threads == 1:
            return
        self._samples += samples
        self._chunks += 1
        self._seconds += seconds
        elapsed = self._clock() - self._begin
        if elapsed < self.WINDOW_SECONDS or self._chunks < 2 * self.active:
            return
        if self._seconds / self._samples >= CHEAP_SECONDS:
            self._begin_windows(self.FIRST_PAUSE)  # some samples may take longer than others
        else:
            self._begin_window(self._windows.send(self._samples / elapsed))

    def _trials(self, windows: int) -> Generator[int, float, None]:
        """Yield how many threads work in each window, and take the rate of samples in it."""
        settled, pause = self._threads, self.FIRST_PAUSE
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
