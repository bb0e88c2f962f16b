"""One pass over a dataset that Python threads of this process read."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import replace
from typing import Any

from penstock.errors import InvalidOption, WorkerStuck
from penstock.executors.copies import NotCopied
from penstock.executors.fetch import Fetch
from penstock.executors.iterator import Handed, Pass, PassInput, PassResources, pinned
from penstock.executors.job import Job
from penstock.executors.staging import PassShards, Staging
from penstock.executors.tuning import Knobs
from penstock.executors.tuning_trial import Setting
from penstock.executors.workers.crew import ThreadCrew
from penstock.executors.workers.loading import FetchedBatch, SampleRows
from penstock.executors.workers.own_fetch import Init, OwnFetches
from penstock.executors.workers.readers import ThreadReaders, readers_of
from penstock.executors.workers.worker_thread import WORKER_INFO
from penstock.observe import Delivery
from penstock.order.leftover import Arrivals
from penstock.plan import NativePlan, PythonPlan
from penstock.recipe.patches import Lease
from penstock.sources.tree import RemoteLeaves, remote_leaves
from penstock.sources.unchanged import collates_as_torch
from penstock.state.delivery import Task
from penstock.state.streams import Streams, restore_dataset, state_of, with_first_drawn
from penstock.stats import samples_given, samples_in
from penstock.system.modes import in_callers_mode
from penstock.system.randomness import sample_number


class ThreadPass(Pass):
    """One pass over a dataset whose samples Python threads fetch into the rows of the batch.

    Args:
        fetch: calls the user's dataset.
        pass_input: what the sampler gives.
        resources: the threads are Python's.
        init: the loader's worker_init_fn, called in each thread when it starts.
        iterable: each thread goes through the dataset on its own, as torch's worker processes do.
        in_order: batches are handed out in the sampler's order.
        drop_last: of an iterable dataset, a last batch that is not full is left out.
        eager: start fetching now, not when the first batch is asked for.
        streams: the states of a dataset that has a state_dict(); the pass reports to them each batch that comes.
        own: what each thread fetches with; None: all with `fetch`.
        readers: bring the files of the samples, which the threads take from them.
        remote: the samples that lie in object stores, whose shards are brought here ahead of need.
    """

    _shards: PassShards | None = None
    """Those of the pass; None: it needs none."""
    arrivals: Arrivals | None = None
    """Told which batches come, where they come out of order."""

    def __init__(
        self,
        fetch: Fetch,
        pass_input: PassInput,
        resources: PassResources,
        *,
        init: Init | None = None,
        iterable: bool = False,
        in_order: bool = True,
        drop_last: bool = False,
        eager: bool = True,
        streams: Streams | None = None,
        own: OwnFetches | None = None,
        readers: ThreadReaders | None = None,
        remote: RemoteLeaves | None = None,
    ) -> None:
        super().__init__(resources)
        self._in_flight = 1  # batches, as chosen last
        self._readers = readers
        self._in_order = in_order
        self._iterable = iterable
        stacks = fetch.batched and fetch.stacks and collates_as_torch()
        self._rows = SampleRows(resources.buffers) if stacks else None
        self._crew = ThreadCrew(
            fetch,
            resources.workers,
            own=own or OwnFetches(fetch, init, shared=True),
            rows=self._rows,
            meter=resources.meter,
            iterable=iterable,
            drop_last=drop_last,
            # With a seed passes differ by their epoch alone.
            seed=pass_input.seed if pass_input.epoch == 0 else sample_number((pass_input.seed, pass_input.epoch)) >> 1,
            readers=readers,
        )
        self._hold(self._crew)  # before the threads start: an interrupt in any line leaves none behind
        self._lease = self._lease_for(fetch)
        try:
            self._crew.start()
        except RuntimeError as error:
            self.close()
            raise InvalidOption(
                f"num_workers={resources.workers}: the system has not so many threads ({error})"
            ) from error
        self._pid = os.getpid()
        self.begin(fetch, pass_input, eager=eager, streams=streams, remote=remote)

    def begin(
        self,
        fetch: Fetch,
        pass_input: PassInput,
        *,
        eager: bool = True,
        streams: Streams | None = None,
        readers: ThreadReaders | None = None,
        remote: RemoteLeaves | None = None,
    ) -> None:
        """Begin a pass with the same threads. readers: in the place of those before; None: they stay."""
        self._let_shards_go()
        if remote is not None:
            self._shards = PassShards(self, Staging(remote, pass_input.coming, pass_input.samples))
        if self._readers is not None:
            self._readers.ahead.clear()
        if readers is not None:
            if self._readers is not None:
                self._readers.close()
            self._readers = self._crew.readers = readers
            readers.open()
        self._lease = self._lease_for(fetch)
        self._crew.begin(fetch, streams.states() if streams is not None and self._iterable else None)
        self._fetch = fetch
        self._streams = streams
        if streams is not None and not self._iterable:
            if any(streams.counts):
                pass_input = replace(pass_input, batches=with_first_drawn(pass_input.batches))
            restore_dataset(fetch.dataset, streams.states()[0])
            streams.begin_with(state_of(fetch.dataset))
        self._owners = deque(range(self._num_workers)) if self._iterable else None  # whose turn it is
        if self._owners is not None and streams is not None and streams.given:
            self._owners.rotate(-streams.following)
        self._start(pass_input, eager=eager)

    def _lease_for(self, fetch: Fetch) -> Lease:
        return fetch.lease(*([WORKER_INFO] if self._num_workers else ()))

    def _hand_out(self, handed: Handed) -> Delivery:
        self._came: FetchedBatch | None = None
        try:
            return super()._hand_out(handed)
        except (StopIteration, WorkerStuck):
            raise
        except Exception:
            self._report(done=False)
            raise

    def _report(self, *, done: bool) -> None:
        """Tell of the batch that came, or of the error in its place."""
        came, self._came = self._came, None
        if came is not None and came.reported:
            return
        if came is not None:
            came.reported = True
        if self.arrivals is not None:
            self.arrivals.read(None if came is None else came.number)
        if self._streams is not None and self._streams.now is None:
            if done and came is not None:
                self._streams.read(came.owner or 0, came.state)
            else:
                self._streams.failed()

    def _prepare(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError("the threads of this iterator are in the process that this one was forked off from")

    def _new_batch(self) -> FetchedBatch:
        return FetchedBatch()

    def _begin(self, batch: FetchedBatch) -> None:
        assert batch.given is not None
        if batch.task is None:
            given, positions = batch.given
            batch.number = self._cursor.count - 1
            batch.owner = self._owners[0] if self._owners else None
            task = Task(given, self._input.seed, self._input.epoch, positions)
            try:
                self._crew.prepare(batch, task)
            except Exception as error:  # it is no list of indices
                batch.error = error
                return
        if self._owners and self._owners[0] == batch.owner:
            self._owners.rotate(-1)
        assert batch.task is not None
        given = batch.indices if self._fetch.batched else [batch.task.given]
        if self._readers is not None:
            self._readers.ahead.expect(batch, given or (), batch.task.positions)
        if self._shards is None or batch.submitted:
            self._submit(batch)
        else:
            self._shards.stage(batch, given or ())

    def _submit(self, batch: FetchedBatch) -> None:
        self._crew.submit(batch)
        batch.submitted = True

    def _refill(self, queue: deque[FetchedBatch], *, done: int = 0) -> None:
        super()._refill(queue, done=done)
        if self._shards is not None:
            self._shards.staging.submit_ready(queue, self._submit)

    def _depth(self, queue: deque[FetchedBatch]) -> int:
        self._in_flight = self._choose_depth(queue)
        return self._in_flight

    def _choose_depth(self, queue: deque[FetchedBatch]) -> int:
        workers = self._num_workers
        if self._owners is not None and not self._owners:
            return 0  # all threads are at the end of the dataset
        if not self._reads_ahead:
            return 1
        if self._resources.in_flight is not None:
            return max(1, self._resources.in_flight)
        sample_bytes = None if self._rows is None else self._rows.sample_bytes
        if self._iterable or sample_bytes is None or not queue:
            return 2 * workers + 1
        samples = max(1, len(queue[0].indices or ()))
        fitting = self._in_flight_of(samples * sample_bytes)
        if self._readers is not None and self._resources.settled:
            fitting = max(fitting, self._readers.batches_ahead(samples, sample_bytes))
        return max(fitting, -(-2 * workers // samples))  # work for every thread, where batches are small

    def _ready(self, queue: deque[FetchedBatch]) -> FetchedBatch | None:
        batch = self._wait(queue)
        streams = self._streams
        if batch.ended:
            if streams is not None and batch.owner is not None:
                streams.ended(batch.owner, batch.state)
            if self._owners is not None and batch.owner is not None and batch.owner in self._owners:
                self._owners.remove(batch.owner)
            queue.remove(batch)
            return None
        if batch.error is None and streams is not None and streams.to_drop[batch.owner or 0]:
            queue.remove(batch)
            streams.dropped(batch.owner or 0, batch.state)
            return None
        self._came = batch
        if batch.failed is not None:
            _, error = batch.failed
            batch.error, batch.failed = error, None
            del error
        if streams is not None and not self._iterable:
            batch.state = state_of(self._fetch.dataset)
        return batch

    def _assemble(self, batch: FetchedBatch) -> Any:
        out = batch.result
        if self._num_workers or batch.in_place:  # else it was made here
            out = in_callers_mode(out)
        return pinned(out) if self._resources.buffers.pinned else out

    def _delivery(self, batch: FetchedBatch, out: Any, waited: float) -> Delivery:
        self._report(done=True)
        self._crew.leave()
        return Delivery(out, self._samples(batch, out), waited)

    def _samples(self, batch: FetchedBatch, out: Any) -> int:
        if batch.indices is not None or not self._fetch.batched:
            return 1 if batch.indices is None else len(batch.indices)
        assert batch.task is not None
        return samples_in(out, samples_given(batch.task.given), iterable=self._iterable, stacks=self._fetch.stacks)

    def _drop(self, batch: Any) -> None:
        if batch in self._queue:
            self._queue.remove(batch)
        if self._readers is not None and batch is not None and batch.task is not None:
            self._readers.ahead.forget(batch, batch.task.positions)
        if batch is not None:
            batch.let_shards_go()

    @property
    def reusable(self) -> bool:
        """Whether another pass can be made with these threads."""
        return os.getpid() == self._pid and not self._ended.is_set()

    def __repr__(self) -> str:
        state = "open" if self._open else "closed"
        return (
            f"<ThreadPass: {state}, {self._num_workers} threads, {self._crew.pace.active} at a time, "
            f"{len(self._queue)} batches in flight>"
        )

    def knobs(self) -> Knobs | None:
        if self._iterable or not self._num_workers:
            return None
        deepens = self._resources.in_flight is None and self._reads_ahead
        size = self._batch_bytes if deepens else 0
        return Knobs(self._num_workers, self._in_flight, size, paced=True)

    def tune(self, setting: Setting) -> None:
        super().tune(setting)
        with self._crew.parked:
            self._crew.pace.limit(setting.threads)
            self._crew.parked.notify_all()

    def _end_pass(self) -> None:
        if self._persistent_workers:
            self._let_shards_go()
            self._lease.close()
            self._open = False
        else:
            self.close()

    def close(self) -> None:
        self._let_shards_go()
        super().close()

    def _let_shards_go(self) -> None:
        if self._shards is not None:
            self._shards.close()
            self._shards = None

    def _wait(self, queue: deque[FetchedBatch]) -> FetchedBatch:
        batches = [queue[0]] if self._in_order else list(queue)
        if self._shards is not None and all(batch.waits_for_shards for batch in batches):
            self._shards.staging.wait_and_submit(batches[0], self._timeout, self._submit)
        batches = [batch for batch in batches if not batch.waits_for_shards or batch.error is not None]
        failed = next((batch for batch in batches if batch.error is not None), None)
        if failed is not None:
            return failed
        batch = self._crew.wait(batches, self._timeout)
        if batch is None:
            doing = "\n".join(self._crew.describe()) or "No worker thread is at work."
            raise WorkerStuck(
                f"DataLoader timed out after {self._timeout} seconds: no batch came from {self._num_workers} worker "
                f"threads. Raise timeout= if samples may take as long.\n{doing}"
            )
        return batch


class ThreadExecutor:
    """Python threads of this process, and the caller's thread where samples are seeded or replaced."""

    kind = ThreadPass

    def accepts(self, job: Job) -> bool:
        """Return whether threads read the dataset, or torch's own iterator could not seed or replace samples."""
        settings = job.settings
        if isinstance(job.plan, NativePlan):
            return False
        if job.in_threads and (settings.num_workers or not settings.iterable):
            return True
        return not settings.num_workers and not settings.iterable and not job.plain

    def open(self, job: Job) -> ThreadPass:
        """Return an iterator of the batches. Raises NotCopied, before anything is drawn for the pass."""
        settings = job.settings
        fetch = job.fetch(here=settings.num_workers == 0)
        readers = _readers(job)
        try:
            own = OwnFetches(fetch, settings.worker_init_fn, shared=settings.share_dataset or settings.num_workers == 0)
        except NotCopied:
            _read_directly(job)  # another executor may read by the same plan
            raise
        made = ThreadPass(
            fetch,
            job.input_of_python(),
            job.resources,
            init=settings.worker_init_fn,
            iterable=settings.iterable,
            in_order=settings.in_order,
            drop_last=settings.drop_last,
            eager=job.eager,
            streams=job.streams,
            own=own,
            readers=readers,
            remote=_remote(job),
        )
        made.arrivals = job.progress.arrivals
        return made

    def restart(self, held: ThreadPass, job: Job) -> None:
        """Let the same threads make another pass."""
        readers = _readers(job) if job.settings.share_dataset else None  # copies keep those that they were made with
        fetch, pass_input = job.fetch(here=False), job.input_of_python()
        held.begin(fetch, pass_input, eager=job.eager, streams=job.streams, readers=readers, remote=_remote(job))
        held.arrivals = job.progress.arrivals


def _readers(job: Job) -> ThreadReaders | None:
    """Return readers of the files that the threads of a pass need, None where threads read none that are known.

    Whole batches that are filled natively have readers of their own.
    """
    if not job.settings.num_workers or not isinstance(job.plan, PythonPlan) or job.plan.filled is not None:
        return None
    return readers_of(job.plan, job.resources.meter)


def _remote(job: Job) -> RemoteLeaves | None:
    """Return the samples of a pass that lie in object stores, None where none is known to."""
    return None if job.settings.iterable else remote_leaves(job.settings.dataset)


def _read_directly(job: Job) -> None:
    """Have no files brought for a pass."""
    if isinstance(job.plan, PythonPlan) and job.plan.assisted is not None:
        job.plan.assisted.read_directly()
