"""One pass over a dataset that Python threads of this process read."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from penstock.collating import collates_as_torch
from penstock.composed import natively
from penstock.errors import InvalidOption, WorkerStuck
from penstock.fetch import Fetch, Task
from penstock.passing import Course, Handed, Means, Pass, batches_that_fit, pinned
from penstock.progress import Progress, counted
from penstock.randomness import sample_number
from penstock.streams import ENDED, Streams, state_of
from penstock.workers.own_fetch import Init, OwnFetches
from penstock.workers.threads import Loading, Threads


class InTurn(_SingleProcessDataLoaderIter):
    """torch's own pass in the caller's thread.

    Args:
        loader: a torch DataLoader with num_workers=0.
        batches: what its sampler gives; None: it is asked by torch.
        composes: each Compose that the dataset calls runs natively.
        streams: where an iterable dataset is that says so itself.
        ahead: the pass is read ahead of its user.
    """

    progress: Progress | None = None

    def __init__(
        self,
        loader: Any,
        batches: Iterator[Any] | None = None,
        *,
        composes: bool = True,
        streams: Streams | None = None,
        ahead: bool = False,
    ) -> None:
        (given,) = [None] if streams is None else streams.states()
        if given is not None and given != ENDED:
            loader.dataset.load_state_dict(given["state"])
        super().__init__(loader)
        self._composes = composes
        if batches is not None:
            self._sampler_iter = batches
        if streams is not None:
            self._dataset_fetcher.ended = given == ENDED
        self._streams = streams if ahead else None
        if streams is not None and not ahead:
            streams.now = partial(_state_now, loader.dataset, self._dataset_fetcher)

    def __next__(self) -> Any:
        return counted(self.progress, self._one)

    def _one(self) -> Any:
        if self._streams is None:
            return super().__next__()
        try:
            batch = super().__next__()
        except StopIteration:
            raise
        except Exception:
            self._streams.failed()
            raise
        self._streams.read(0, _state_now(self._dataset_fetcher.dataset, self._dataset_fetcher))
        return batch

    def _next_data(self) -> Any:
        with natively() if self._composes else nullcontext():
            return super()._next_data()  # type: ignore[no-untyped-call]


def _state_now(dataset: Any, fetcher: Any) -> dict[str, Any]:
    return state_of(dataset, ended=fetcher.ended)


class Fetching(Pass):
    """One pass over a dataset whose samples Python threads fetch into the rows of the batch.

    Args:
        fetch: calls the user's dataset.
        course: what the sampler gives.
        means: the threads are Python's.
        init: the loader's worker_init_fn, called in each thread when it starts.
        iterable: each thread goes through the dataset on its own, as torch's worker processes do.
        in_order: batches are handed out in the sampler's order.
        drop_last: of an iterable dataset, a last batch that is not full is left out.
        eager: start fetching now, not when the first batch is asked for.
        own: what each thread fetches with; None: all with `fetch`.
    """

    def __init__(
        self,
        fetch: Fetch,
        course: Course,
        means: Means,
        *,
        init: Init | None = None,
        iterable: bool = False,
        in_order: bool = True,
        drop_last: bool = False,
        eager: bool = True,
        own: OwnFetches | None = None,
    ) -> None:
        super().__init__(means)
        self._in_order = in_order
        self._iterable = iterable
        self._queue: deque[Loading] = deque()
        in_place = fetch.batched and fetch.stacks and collates_as_torch(torch.Tensor, np.ndarray)
        try:
            self._crew = Threads(
                fetch,
                means.workers,
                own=own or OwnFetches(fetch, init, shared=True),
                buffers=means.buffers if in_place else None,
                iterable=iterable,
                drop_last=drop_last,
                # With a seed passes differ by their epoch alone.
                seed=course.seed if course.epoch == 0 else sample_number((course.seed, course.epoch)) >> 1,
            )
        except RuntimeError as error:
            raise InvalidOption(f"num_workers={means.workers}: the system has not so many threads ({error})") from error
        self._hold(self._crew)
        self._pid = os.getpid()
        self.begin(fetch, course, eager=eager)

    def begin(self, fetch: Fetch, course: Course, *, eager: bool = True) -> None:
        """Begin a pass with the same threads."""
        self._crew.begin(fetch)
        self._queue = deque()
        self._fetch = fetch
        self._exhausted = False
        self._owners = deque(range(self._num_workers)) if self._iterable else None  # whose turn it is
        self._start(course)
        if eager:
            self._refill(self._queue)

    def _hand_out(self, handed: Handed) -> Any:
        if os.getpid() != self._pid:
            raise RuntimeError("the threads of this iterator are in the process that this one was forked off from")
        started = time.perf_counter()
        queue = self._queue  # close(), in another thread, makes another one
        while True:
            self._refill(queue)
            if not queue:
                self._end_pass()
                raise StopIteration
            batch = self._wait(queue)
            if not batch.ended:
                break
            if self._owners is not None and batch.owner is not None and batch.owner in self._owners:
                self._owners.remove(batch.owner)
            queue.remove(batch)
        if batch.failed is not None:
            error = batch.failed[1]
            queue.remove(batch)
            batch.failed = None  # or the error's traceback, which holds the batch, holds itself
            try:
                raise error
            finally:
                del error
        try:
            out = self._means.deliver(batch.result)
            if self._means.buffers.pinned:
                out = pinned(out)
        except Exception:
            queue.remove(batch)
            raise
        if self._num_workers and self._means.ahead:  # without workers nothing is done before it is asked for
            self._refill(queue, done=1)
        samples = 1 if batch.indices is None else len(batch.indices)
        self._means.counters.delivered(samples, time.perf_counter() - started, ())
        self._crew.leave()
        handed.append((batch, out))
        self._drop(batch)
        return out

    def _drop(self, batch: Any) -> None:
        if batch in self._queue:
            self._queue.remove(batch)

    @property
    def reusable(self) -> bool:
        """Whether another pass can be made with these threads."""
        return os.getpid() == self._pid

    def close(self) -> None:
        super().close()
        self._queue = deque()

    def __repr__(self) -> str:
        state = "open" if self._open else "closed"
        return (
            f"<Fetching: {state}, {self._num_workers} threads, {self._crew.pace.active} at a time, "
            f"{len(self._queue)} batches in flight>"
        )

    def _end_pass(self) -> None:
        if self._persistent_workers:
            self._open = False
        else:
            self.close()

    def _refill(self, queue: deque[Loading], *, done: int = 0) -> None:
        """Ask for batches ahead. done: so many in the queue are to be handed out now."""
        if queue:
            self._submit(queue[-1])  # an interrupt may have come before
        target = self._in_flight(queue) + done
        while not self._exhausted and len(queue) < target:
            if self._owners is not None and not self._owners:
                return
            given = self._take()
            if given is None:
                self._exhausted = True
                return
            task = Task(given[0], self._course.seed, self._course.epoch)
            try:
                batch = self._crew.loading(task, self._owners[0] if self._owners else None)
            except Exception:  # it is no list of indices
                self._took(given)
                raise
            batch.given = given
            queue.append(batch)
            self._submit(batch)

    def _submit(self, batch: Loading) -> None:
        """Have the threads fetch a batch that is in the queue; again, after an interrupt."""
        if batch.submitted:
            return
        if batch.given is not None:
            self._took(batch.given)
        if self._owners and self._owners[0] == batch.owner:
            self._owners.rotate(-1)
        self._crew.submit(batch)
        batch.submitted = True

    def _in_flight(self, queue: deque[Loading]) -> int:
        """Return how many batches to keep in flight."""
        workers = self._num_workers
        if workers == 0 or not self._means.ahead:
            return 1
        if self._means.in_flight is not None:
            return max(1, self._means.in_flight)
        if self._iterable or self._crew.sample_bytes is None or not queue:
            return 2 * workers + 1
        samples = max(1, len(queue[0].indices or ()))
        fitting = batches_that_fit(samples * self._crew.sample_bytes)
        return max(fitting, -(-2 * workers // samples))  # work for every thread, where batches are small

    def _wait(self, queue: deque[Loading]) -> Loading:
        batches = [queue[0]] if self._in_order else list(queue)
        batch = self._crew.wait(batches, self._timeout)
        if batch is None:
            doing = "\n".join(self._crew.doing()) or "No worker thread is at work."
            raise WorkerStuck(
                f"DataLoader timed out after {self._timeout} seconds: no batch came from {self._num_workers} worker "
                f"threads. Raise timeout= if samples may take as long.\n{doing}"
            )
        return batch
