"""Batches of a dataset that Python threads of this process read."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from functools import cached_property

from penstock.carriers.thread_batch import Activity, FetchedBatch, SampleRows
from penstock.carriers.thread_crew import ThreadCrew
from penstock.carriers.worker_thread import WORKER_INFO, generators_here
from penstock.errors import InvalidOption, WorkerStuck
from penstock.observe import Delivery, Instant
from penstock.passes.carrier import Carrier, pinned
from penstock.passes.job import Job
from penstock.passes.staging import Staging
from penstock.passes.values import PassInput, PassResources
from penstock.recipe.drawing import SEEDING
from penstock.recipe.patches import Lease
from penstock.sources.tree import RemoteLeaves, remote_leaves
from penstock.sources.unchanged import collates_as_torch
from penstock.state.delivery import Task
from penstock.state.streams import Streams, restore_dataset, state_of
from penstock.stats import samples_given
from penstock.system.modes import in_callers_mode
from penstock.system.randomness import Generators, sample_number
from penstock.workers.changes import Copied
from penstock.workers.own_workers import OwnWorkers
from penstock.workers.worker import Worker


class ThreadCarrier(Carrier):
    """Has Python threads make the samples of a dataset into the rows of the batches.

    Args:
        resources: the threads are Python's.
        seed: of worker 0, for get_worker_info().
        own: what each thread makes samples with; None: all with `worker`.
        in_order: batches are handed out in the sampler's order.
    """

    def __init__(
        self,
        worker: Worker,
        resources: PassResources,
        seed: int,
        *,
        own: OwnWorkers | None = None,
        in_order: bool = True,
    ) -> None:
        super().__init__(resources)
        self.in_order = in_order
        stacks = worker.batched and worker.stacks and collates_as_torch()
        self._rows = SampleRows(resources.buffers) if stacks else None
        self._own, self._seed = own or OwnWorkers(worker, None, shared=True), seed
        self._crew = self._made_crew(worker)
        self._lease = Lease()
        self._staging: Staging | None = None  # of the pass; None: it needs none
        self._worker = worker
        self._copied: Copied  # of the dataset, as the threads know it
        self._streams: Streams | None = None  # are told of each batch that comes
        self._remote: RemoteLeaves | None = None  # of the samples whose shards are brought here ahead of need

    def _made_crew(self, worker: Worker) -> ThreadCrew:
        resources = self.resources
        return ThreadCrew(
            worker,
            resources.workers,
            own=self._own,
            rows=self._rows,
            meter=resources.meter,
            pins=resources.buffers.pinned,
            seed=self._seed,
        )

    def work_for(self, job: Job, worker: Worker) -> None:
        """Make the next pass of a job."""
        self._worker, self._streams = worker, job.streams
        self._remote = remote_leaves(job.settings.dataset)

    # --- the life of a pass -----------------------------------------------------------------------------------------

    def start(self) -> None:
        self._lease = self._lease_for_pass()
        self._copied = Copied() if self._own.shared else Copied(self._worker.dataset, self._worker.collate_fn)
        try:
            self._crew.start()
        except RuntimeError as error:
            why = f"the system cannot start so many threads ({error})"
            raise InvalidOption(f"num_workers={self.workers}: {why}") from error

    def open(self, pass_input: PassInput) -> None:
        super().open(pass_input)
        self._let_shards_go()
        if self._remote is not None:
            self._staging = Staging(self._remote, pass_input.coming, pass_input.samples)
        self._lease = self._lease_for_pass()
        self._crew.begin(self._worker)
        if (streams := self._streams) is not None:
            restore_dataset(self._worker.dataset, streams.states()[0])
            streams.begin_with(state_of(self._worker.dataset))

    def _lease_for_pass(self) -> Lease:
        return self._worker.lease(*([WORKER_INFO, SEEDING] if self.workers else ()))

    def rest(self) -> bool:
        self._let_shards_go()
        self._lease.close()
        return True

    def close(self) -> None:
        self._let_shards_go()
        self._crew.close()
        self._lease.close()

    def _let_shards_go(self) -> None:
        if self._staging is not None:
            self._staging.close()
            self._staging = None

    @property
    def reusable(self) -> bool:
        return os.getpid() == self.pid and not self._crew.closed and not any(self._copied.changes())

    def __repr__(self) -> str:
        return f"Python, {self.workers} threads, {self._crew.pace.active} at a time"

    # --- batches ----------------------------------------------------------------------------------------------------

    def new_batch(self) -> FetchedBatch:
        return FetchedBatch()

    def prepare(self, queue: deque[FetchedBatch], *, first: bool) -> bool:
        if os.getpid() != self.pid:
            super().prepare(queue, first=first)  # which raises
        if not first or self._staging is not None or not any(self._copied.changes()):
            return False
        self._crew.close()
        self._own = self._own.anew()
        self._crew = self._made_crew(self._worker)
        self.start()
        self._crew.begin(self._worker)
        return True

    def begin(self, batch: FetchedBatch) -> None:
        assert batch.given is not None
        given, positions = batch.given
        self._lease.meet()  # a sample of an earlier batch may have imported a package
        task = Task(given, self._input.seed, self._input.epoch, positions)
        try:
            self._crew.prepare(batch, task)
        except Exception as error:  # it is not a list of indices
            batch.error = error
            return
        indices = (batch.indices if self._worker.batched else [given]) or ()
        if self._staging is None:
            self._submit(batch)
        else:
            batch.shards = self._staging.shards_of(indices)

    def _submit(self, batch: FetchedBatch) -> None:
        if self.workers:
            self._crew.submit(batch)
        batch.submitted = True

    def depth(self, queue: deque[FetchedBatch]) -> int:
        if self._staging is not None:
            self._staging.submit_ready(queue, self._submit)
        workers = self.workers
        if not self.reads_ahead:
            return 1
        if self.resources.in_flight is not None:
            return max(1, self.resources.in_flight)
        sample_bytes = None if self._rows is None else self._rows.sample_bytes
        if sample_bytes is None or not queue:
            return 2 * workers + 1
        samples = max(1, len(queue[0].indices or ()))
        fitting = self._in_flight_of(samples * sample_bytes)
        return max(fitting, -(-2 * workers // samples))  # work for every thread, where batches are small

    def ready(self, queue: deque[FetchedBatch]) -> FetchedBatch:
        batch = self._wait(queue)
        if batch.failed is not None:
            _, error = batch.failed
            batch.error, batch.failed = error, None
            del error
        return batch

    def at_hand(self, queue: deque[FetchedBatch]) -> bool:
        batches = [queue[0]] if self.in_order else queue
        return not self.workers or any(batch.done or batch.error is not None for batch in batches)

    def _wait(self, queue: deque[FetchedBatch]) -> FetchedBatch:
        timeout, workers = self.resources.timeout, self.workers
        batches = [queue[0]] if self.in_order else list(queue)
        if self._staging is not None:
            if all(batch.waits_for_shards for batch in batches):
                self._staging.wait_and_submit(batches[0], timeout, self._submit)
            batches = [batch for batch in batches if not batch.waits_for_shards or batch.error is not None]
        failed = next((batch for batch in batches if batch.error is not None), None)
        if failed is not None:
            return failed
        if not workers:
            self._make_here(batches[0])
            return batches[0]
        batch = self._crew.wait(batches, timeout)
        if batch is None:
            doing = "\n".join(self._crew.describe()) or "No worker thread is working."
            raise WorkerStuck(
                f"DataLoader timed out after {timeout} seconds: no batch came from {workers} worker "
                f"threads. Raise timeout= if samples may take that long.\n{doing}"
            )
        return batch

    def _make_here(self, batch: FetchedBatch) -> None:
        """Make a batch in the calling thread. An error is kept in the batch."""
        meter, activity, task = self.resources.meter, Activity(), batch.task
        assert task is not None
        samples, begun, worker = self._samples_of(task), Instant.now(), self._worker.beside(activity.each)
        with worker.in_callers_thread(meter.calls):
            failed = batch.make_part(0, batch.unfinished, worker, self._rows, self._generators, activity)
            if failed is not None:
                batch.error = failed[1]
                del failed  # whose traceback holds this frame
            else:
                meter.add("getitem", begun, samples)
                if batch.indices is not None:
                    self._collate_here(batch, worker, samples)
        batch.build, batch.samples = None, []

    def _collate_here(self, batch: FetchedBatch, worker: Worker, samples: int) -> None:
        begun = Instant.now()
        try:
            batch.collate(worker, self._rows)
        except Exception as error:
            batch.error = error
        self.resources.meter.add("collate", begun, samples)

    @cached_property
    def _generators(self) -> Generators:
        """Those of the calling thread, where it is a worker."""
        return generators_here() or Generators()

    def _samples_of(self, task: Task) -> int:
        return samples_given(task.given) if self._worker.batched else 1

    def delivery(self, batch: FetchedBatch) -> Delivery:
        out = batch.result
        if self.workers or self._rows is not None:  # else it was made here
            out = in_callers_mode(out)
        out = pinned(out) if self.resources.buffers.pinned and not self.workers else out
        if self._streams is not None:
            batch.state = state_of(self._worker.dataset)
        assert batch.task is not None
        return Delivery(out, self._samples_of(batch.task))


def thread_carrier(job: Job, held: Carrier | None, drawn: Callable[[], PassInput]) -> ThreadCarrier:
    """Return Python threads of this process, and the caller's thread where samples are seeded or replaced.

    Raises NotCopied, before anything is drawn for the pass.
    """
    settings, worker = job.settings, job.worker(here=job.settings.num_workers == 0)
    if isinstance(held, ThreadCarrier):
        held.work_for(job, worker)
        return held
    own = OwnWorkers(worker, settings.worker_init_fn, shared=settings.share_dataset or settings.num_workers == 0)
    seed = worker_seed(drawn().seed, drawn().epoch)
    made = ThreadCarrier(worker, job.resources, seed, own=own, in_order=settings.in_order)
    made.work_for(job, worker)
    return made


def worker_seed(seed: int, epoch: int) -> int:
    """Return what worker 0 of a pass seeds its generators with; with a seed passes differ only by their epoch."""
    return seed if epoch == 0 else sample_number((seed, epoch)) >> 1
