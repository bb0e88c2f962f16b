"""Python worker threads: they fetch samples in this process, each into its row of the batch.

Batches in flight form one queue. A thread takes a few samples of the oldest batch that has any left, so that all
threads share one batch; batches of an iterable dataset belong to one thread each, as torch's worker processes have
it. How many threads work at a time is measured while samples cost little: where each holds Python's lock most of
the time, more of them only hand it to and fro.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data._utils.fetch import _IterableDatasetFetcher

from penstock.errors import InvalidOption
from penstock.executors.buffers import Buffers
from penstock.executors.collating import Build, Layout, layout_of
from penstock.executors.fetch import Fetch
from penstock.executors.workers.leaving import end_crew
from penstock.executors.workers.loading import At, Loading, stage_of
from penstock.executors.workers.own_fetch import OwnFetches, can_be_copied
from penstock.executors.workers.pace import Pace
from penstock.executors.workers.surroundings import one_core_each, ready_for_threads, surroundings
from penstock.executors.workers.worker_info import ThreadWorkerInfo, set_for_this_thread
from penstock.recipe.compose_hook import natively
from penstock.sample_notes import add_note
from penstock.state.delivery import Task
from penstock.state.streams import restore_fetcher, state_of
from penstock.system.modes import outside_inference
from penstock.system.randomness import Generators

#: Work that a thread takes at a time, in seconds: long beside taking it, short beside a batch.
GRAIN_SECONDS = 3e-4
#: The first batch need not wait until OpenMP's libraries are found, which takes tens of milliseconds.
SETTLING_SECONDS = 0.1
#: The caller fetches in the threads' place where it is away for less than this share of a batch's cost,
IDLE_SHARE = 0.25
#: and a batch costs less than this, in seconds.
CALLER_SECONDS = 0.05
#: and whether worker 0's copy of the dataset may be used by the caller is known within this time, in seconds.
COPY_SECONDS = 2e-3
#: The largest block that tells glibc to keep freed memory: below DEFAULT_MMAP_THRESHOLD_MAX, 32 MiB.
HEAP_BYTES = 30 << 20


class Threads:
    """The Python worker threads of a loader. They hold their fetches, never the iterator, which can be collected.

    Args:
        fetch: calls the user's dataset, where the caller works for itself.
        count: threads; 0: `wait` does everything in the caller's thread.
        own: what each thread fetches with, and the worker_init_fn that is called in each when it starts.
        buffers: where batches are built; None: collate_fn makes them from a list of samples.
        iterable: the dataset is iterable; each thread goes through it on its own.
        seed: of worker 0, for get_worker_info().
    """

    def __init__(
        self,
        fetch: Fetch,
        count: int,
        *,
        own: OwnFetches,
        buffers: Buffers | None,
        iterable: bool = False,
        drop_last: bool = False,
        seed: int = 0,
    ) -> None:
        self._fetch = fetch
        self._own = own
        self._buffers = buffers
        self._iterable = iterable
        self._drop_last = drop_last
        self._seed = seed
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._parked = threading.Condition(self._lock)  # of threads that the pace keeps from work
        self._done = threading.Condition(self._lock)
        self._open: deque[Loading] = deque()
        self._layout: Layout | None = None
        self._sample_seconds = GRAIN_SECONDS
        self._closed = False
        self._states: list[Any] | None = None
        self._round = 0  # of an iterable dataset: each thread goes through it anew
        self._around = surroundings()  # of the pass
        self._inside = [self._around] * count  # which ones each thread is in
        self.pace = Pace(max(1, count))
        self.at = [At() for _ in range(max(1, count))]
        self.ended = threading.Event()
        self._at_work = 0  # threads that have taken a part of a batch
        self._caller_works = False  # in the threads' place
        self._away_seconds = GRAIN_SECONDS  # that the caller does other things between two batches
        self._left: float | None = None  # when the caller went away
        self._caller: int | None = None  # the thread that has worked in the threads' place
        self._fetches: list[Fetch | None] = [None] * count  # each thread's own, once it has begun
        self._bound: Fetch | None = None  # the one of worker 0 that holds something of its thread's
        self._threads = [
            threading.Thread(
                target=self._run,
                args=(number, count),
                name=f"penstock-worker-{number}",
                daemon=True,
            )
            for number in range(count)
        ]
        if self._threads:
            ready_for_threads()
        for thread in self._threads:
            thread.start()

    @property
    def sample_bytes(self) -> int | None:
        """Bytes of a sample's rows, once one is known."""
        return None if self._layout is None else self._layout.nbytes

    # --- the caller's side --------------------------------------------------------------------------------------

    def prepare(self, batch: Loading, task: Task) -> None:
        """Make a batch ready to be submitted: what its task gives."""
        fetch = self._fetch
        split = fetch.batched and not self._iterable and fetch.one_by_one
        indices = list(task.given) if split else None
        if indices is not None:
            task = replace(task, given=indices)  # what was given may be gone through only once
        if indices is not None and self._buffers is None:
            batch.samples = [None] * len(indices)
        batch.indices, batch.unfinished = indices or None, len(indices) if indices else 1
        batch.task = task

    def submit(self, batch: Loading) -> None:
        """Queue a batch, once however often it is submitted."""
        with self._lock:
            if not batch.taken and batch not in self._open:
                self._open.append(batch)
            self._work.notify_all()

    def wait(self, batches: list[Loading], timeout: float) -> Loading | None:
        """Wait until one of the batches is done and return it; None: `timeout` seconds (0: no limit) went by."""
        if not self._threads:
            self._work_here(batches[0], self._fetch)
        elif not timeout and self._caller_should_work(batches[0]):
            fetch = self._fetch_of(0)
            info = ThreadWorkerInfo(0, len(self._threads), self._seed, fetch.dataset)
            set_for_this_thread(info)
            try:
                with outside_inference():  # where the threads are
                    self._work_here(batches[0], fetch, info.rng)
            finally:
                set_for_this_thread(None)
        deadline = time.monotonic() + timeout
        with self._lock:
            while (found := next((batch for batch in batches if batch.done), None)) is None:
                if self._closed:
                    raise RuntimeError("the loader's iterator was closed while a batch was waited for")
                remaining = deadline - time.monotonic()
                if timeout and remaining <= 0:
                    return None
                self._done.wait(remaining if timeout else None)
        return found

    def leave(self) -> None:
        """Take note that the caller goes away with a batch."""
        self._left = time.perf_counter()

    def _caller_should_work(self, batch: Loading) -> bool:
        """Return whether the caller fetches a batch itself, as worker 0, while all threads rest.

        That is faster where more than one at a time do not get on (Python's lock goes to and fro) and the caller does
        next to nothing else. Not where worker_init_fn has prepared the threads, or the dataset is iterable.
        """
        if self._left is not None:
            self._away_seconds += 0.3 * (time.perf_counter() - self._left - self._away_seconds)
        cost = self._sample_seconds * len(batch.indices or ())
        with self._lock:
            before = self._caller_works
            self._caller_works = (
                not self._own.prepares
                and not self._iterable
                and self._caller in (None, threading.get_ident())
                and self.pace.alone
                and self._away_seconds < IDLE_SHARE * cost
                and cost < CALLER_SECONDS
                and (before or self._unbound())
            )
            if self._caller_works:
                self._caller = threading.get_ident()
            if before != self._caller_works:
                self.pace.restart()
            if before and not self._caller_works:
                if not self._unbound():
                    self._fetches[0] = None  # the thread makes another one
                self._parked.notify_all()
            while self._caller_works and self._at_work and not self._closed:
                self._done.wait()  # they take no more, and finish what they have
            return self._caller_works and not batch.done and not self._closed

    def _unbound(self) -> bool:
        """Return whether another thread may use what worker 0 fetches with: it holds no connection or file of its own.

        The connections of some databases may be used only in the thread that has opened them.
        """
        own = self._fetches[0]
        if self._own.shared:
            return True
        if own is None or own is self._bound or self._own.seconds > COPY_SECONDS:
            return False
        if can_be_copied(own):
            return True
        self._bound = own
        return False

    def _fetch_of(self, number: int) -> Fetch:
        """Return what a thread fetches with. Raises NotCopied."""
        if self._own.shared:
            return self._fetch
        own = self._fetches[number]
        if own is None:
            own, _ = self._own.take()
            self._fetches[number] = own
        return own

    def begin(self, fetch: Fetch, states: list[Any] | None = None) -> None:
        """Begin a pass, in the caller's surroundings.

        Batches in flight are forgotten; an iterable dataset begins anew, or where its states say.
        """
        around = surroundings()
        with self._lock:
            self._fetch = fetch
            self._states = states
            self._open.clear()
            self._round += 1
            self._around = around
            self._work.notify_all()
            self._parked.notify_all()

    def doing(self) -> list[str]:
        """Return what each thread that is at work does, for how long, and its stack."""
        frames, now = sys._current_frames(), time.monotonic()
        lines = []
        for number, (thread, at) in enumerate(zip(self._threads, self.at, strict=False)):
            frame = frames.get(thread.ident or 0)
            if at.stage and frame is not None:
                stack = "".join(traceback.format_stack(frame))
                lines.append(f"thread {number} is in {stage_of(at)} since {now - at.since:.1f} s:\n{stack}")
        return lines

    def close(self) -> None:
        """End the threads. In a forked child they do not exist, and nothing is done."""
        end_crew(self._threads, self._stop, self.ended, self._pid)

    def _stop(self) -> None:
        with self._lock:
            self._closed = True
            self._open.clear()
            for waiting in (self._work, self._parked, self._done):
                waiting.notify_all()

    # --- the threads' side --------------------------------------------------------------------------------------

    def _run(self, number: int, count: int) -> None:
        work = self._work_on(number, count)
        with natively() if self._fetch.composes else contextlib.nullcontext():
            while not self._closed:
                self._inside[number] = around = self._around
                around(next, work, None)

    def _work_on(self, number: int, count: int) -> Iterator[None]:
        """Work until the crew is closed. Yields where another pass has begun, to be called on in its surroundings."""
        info = ThreadWorkerInfo(number, count, self._seed + number, self._fetch.dataset)
        set_for_this_thread(info)
        failed: BaseException | None = None
        fetch = self._fetch
        try:
            fetch, init = self._own.take()
            self._fetches[number] = fetch
            info.dataset = fetch.dataset
            if init is not None:
                init(number)
        except BaseException as error:
            failed = error  # raised at the first batch that this thread takes
        fetcher: Any = None
        gone_through = -1
        begun, settled = time.monotonic(), False
        while (work := (yield from self._taken(number))) is not None:
            batch, begin, end = work
            if (failed is None and self._fetches[number] is not fetch) or self._own.shared:
                fetch = self._fetch_of(number)
                info.dataset = fetch.dataset
            if failed is not None:
                self._failed(batch, begin, failed)
                failed = None
                self._finish(batch, end - begin, fetch)
            elif self._iterable:
                if gone_through != self._round:
                    fetcher, gone_through = None, self._round
                fetcher = self._go_on(batch, fetch, fetcher)
                self._finish(batch, 1, fetch)
            else:
                started = time.perf_counter()
                self._do(batch, begin, end, fetch, info.rng, self.at[number])
                self._finish(batch, end - begin, fetch, time.perf_counter() - started)
            if not settled and time.monotonic() - begun > SETTLING_SECONDS:
                one_core_each()
                settled = True
            del work, batch  # a thread that waits holds no batch
            self._rest()

    def _taken(self, number: int) -> Generator[None, None, tuple[Loading, int, int] | None]:
        """Return the next work of a thread, in the surroundings of its pass. None: the crew is closed."""
        while (work := self._take(number)) is None and not self._closed:
            yield
        return work

    def _take(self, number: int) -> tuple[Loading, int, int] | None:
        """Return the next work of a thread: a batch and a part of its samples. None: closed, or another pass began."""
        with self._lock:
            while not self._closed and self._inside[number] is self._around:
                if (number >= self.pace.active or self._caller_works) and not self._iterable:
                    self._parked.wait()
                    continue
                for batch in self._open:
                    if batch.owner in (None, number):
                        self._at_work += 1
                        return self._take_from(batch)
                self._work.wait()
        return None

    def _take_from(self, batch: Loading) -> tuple[Loading, int, int]:
        """Take a part of a batch; the lock is held."""
        if batch.indices is None:
            self._open.remove(batch)
            batch.taken = 1
            return batch, 0, 1
        begin = batch.taken
        count = max(1, int(GRAIN_SECONDS / self._sample_seconds))
        batch.taken = end = min(len(batch.indices), begin + count)
        if end == len(batch.indices):
            self._open.remove(batch)
        return batch, begin, end

    def _do(
        self,
        batch: Loading,
        begin: int,
        end: int,
        fetch: Fetch,
        generators: Generators | None,
        at: At,
        *,
        here: bool = False,
    ) -> None:
        """Fetch a part of a batch's samples. here: in the caller's thread, where an interrupt is no error of theirs."""
        if batch.failed is not None or self._closed:
            return
        task = batch.task
        assert task is not None
        at.part = [task.given] if batch.indices is None else batch.indices[begin:end]
        at.left = iter(at.part)
        at.stage, at.since = "getitem", time.monotonic()
        if generators is not None:
            generators.turn_to(task.seed, task.epoch, at, task.positions[begin:end])
        try:
            if batch.indices is None:
                next(at.left)
                batch.result = fetch.load(task)
                return
            if fetch.plain:
                dataset = fetch.dataset
                samples = [dataset[index] for index in at.left]
            else:
                places = iter(task.positions[begin:end])
                samples = [fetch.sample(task, index, place) for index, place in zip(at.left, places, strict=False)]
            at.stage = "collate"
            if self._buffers is None:
                batch.samples[begin:end] = samples
            else:
                self._build(batch, samples[0], self._buffers).take(samples, begin)
        except BaseException as error:
            if here and not isinstance(error, Exception):
                raise
            with contextlib.suppress(Exception):  # a repr of the user's, or an exception that takes no notes
                place = f"in {threading.current_thread().name}"  # of a batch done in one go its fetch has said more
                add_note(error, place if batch.indices is None else f"{place}, sample {at.sample()!r}")
            self._failed(batch, begin + at.position(), error)
        finally:
            at.stage = ""

    def _build(self, batch: Loading, sample: Any, buffers: Buffers) -> Build:
        """Return what takes in the samples of a batch, of which this is one."""
        with self._lock:
            if batch.build is None:
                if self._layout is None:
                    self._layout = layout_of(sample)
                    _prepare_heap(self._layout.nbytes * len(batch.indices or ()))
                batch.build = Build(self._layout, len(batch.indices or ()), buffers)
            return batch.build

    def _go_on(self, batch: Loading, fetch: Fetch, fetcher: Any) -> Any:
        """Fetch a batch of an iterable dataset in the thread that owns it, and return the thread's fetcher."""
        try:
            if fetcher is None:
                fetcher = _IterableDatasetFetcher(fetch.dataset, fetch.batched, fetch.collate_fn, self._drop_last)
                given = None if self._states is None or batch.owner is None else self._states[batch.owner]
                if given is not None:
                    restore_fetcher(fetcher, given)
                if self._own.shared and fetcher.dataset_iter is fetch.dataset and len(self._threads) > 1:
                    raise InvalidOption(
                        f"{type(fetch.dataset).__name__}.__iter__ returns the dataset itself, which several threads "
                        "would go through at once: let it return an iterator of its own, or give no share_dataset=True"
                    )
            assert batch.task is not None
            batch.result = fetcher.fetch(batch.task.given)
            batch.state = state_of(None, fetcher.dataset_iter, ended=fetcher.ended)
        except StopIteration:
            batch.ended = True
            batch.state = state_of(None, fetcher.dataset_iter, ended=True)
        except BaseException as error:
            self._failed(batch, 0, error)
        return fetcher

    def _failed(self, batch: Loading, position: int, error: BaseException) -> None:
        with self._lock:
            if batch.failed is None or position < batch.failed[0]:
                batch.failed = (position, error)

    def _rest(self) -> None:
        """Take note that a thread has nothing in work."""
        with self._lock:
            self._at_work -= 1
            if self._caller_works:
                self._done.notify_all()

    def _finish(self, batch: Loading, samples: int, fetch: Fetch, seconds: float = 0.0, *, here: bool = False) -> None:
        """Count a part as done; whoever finishes the last one collates."""
        with self._lock:
            before = self.pace.active
            if seconds:
                self._sample_seconds += 0.3 * (seconds / samples - self._sample_seconds)
            if seconds and not (self._caller_works and not self.pace.alone):  # else the caller ends its batch
                self.pace.did(samples, seconds)
                if self.pace.active > before:
                    self._parked.notify_all()
            batch.unfinished -= samples
            if batch.unfinished:
                return
        if batch.failed is None and batch.indices is not None:
            try:
                batch.result = self._collated(batch, fetch)
            except BaseException as error:
                if here and not isinstance(error, Exception):
                    raise
                self._failed(batch, 0, error)
        with self._lock:
            batch.done = True
            self._done.notify_all()
        batch.build, batch.samples = None, []

    def _collated(self, batch: Loading, fetch: Fetch) -> Any:
        if batch.build is None:
            assert batch.task is not None
            return fetch.collate(batch.task, batch.samples)
        if not batch.build.agrees:
            self._layout = None  # the next batch may be of the other kind
        batch.in_place = True
        return batch.build.finish(batch.indices)

    def _work_here(self, batch: Loading, fetch: Fetch, generators: Generators | None = None) -> None:
        """Do what is left of a batch in the calling thread."""
        with fetch.as_guest():
            while not batch.done:
                total = 1 if batch.indices is None else len(batch.indices)
                begin = total - batch.unfinished
                try:
                    with self._lock:
                        _, begin, end = self._take_from(batch)
                    started = time.perf_counter()
                    self._do(batch, begin, end, fetch, generators, self.at[0], here=True)
                    self._finish(batch, end - begin, fetch, time.perf_counter() - started, here=True)
                except BaseException:  # Ctrl-C: this part is done again
                    with self._lock:
                        if not batch.done:
                            batch.taken, batch.unfinished = begin, total - begin
                            if batch not in self._open:
                                self._open.appendleft(batch)
                    raise


def _prepare_heap(size: int) -> None:
    """Let the C library keep as much freed memory as a batch's samples take, in place of asking for it anew each time.

    glibc does so once a block of that size has been freed (mallopt(3), M_MMAP_THRESHOLD, "dynamic"), as happens with
    each batch that torch's loader makes; here batches are recycled, and only samples come and go.
    """
    torch.empty(min(size, HEAP_BYTES), dtype=torch.uint8, device="cpu")
