"""Batches that the native core fills, ahead of the user, and that are handed out in order.

`NativeCarrier` has a few batches filled by the native pool, waits for the oldest, and turns what went wrong with a
sample into the error of its batch.

Before a batch is submitted, and before it is handed out, the dataset is looked at: where memory of the user's was
exchanged, or (in a live pass) the dataset was changed, Python reads the rest of the pass.

Memory of the user's is read only within next(), where nothing can move it that would not move it under torch's loader:
rows are gathered while the caller waits for them, and images are copied when their batch is submitted. Only where
batches go to a device, rows are gathered while the loop computes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from torch.utils.data import default_collate

import penstock._native as _native
from penstock.errors import ShapeMismatch, WorkerStuck
from penstock.passes.carrier import Carrier, pinned
from penstock.passes.job import Job, worker_maker
from penstock.passes.staging import Staging
from penstock.passes.values import IN_FLIGHT, PassInput, PassResources
from penstock.plan import NativePlan
from penstock.recipe.conversions import refuse_pixels
from penstock.sample_notes import note_batch, torch_batch
from penstock.state.delivery import Task
from penstock.state.substitutes import Substitutes
from penstock.system.modes import in_callers_mode
from penstock.workers.batch import BatchShards
from penstock.workers.failures import agree_on_fields, error_of, put_others, why_stuck
from penstock.workers.native_crew import SAMPLES_AHEAD, NativeBatch, NativeCrew
from penstock.workers.worker import Worker


class NativeCarrier(Carrier):
    """Fills the batches of one pass over the data of a native plan.

    Args:
        resources: the threads are native ones.
        substitutes: how bad samples are replaced; None raises their errors.
        sends: batches go to a device: rows of memory are gathered by the native threads ahead of the user, too.
        live: batches are what the dataset is when they are asked for, as in torch's loader without workers. Images in
            memory are not copied ahead then; files are read ahead, and again where the dataset was changed meanwhile.
            False: changes need not be seen, as where torch's workers have a copy.
        worker: returns what reads the rest of a pass in which the dataset was changed, and batches with a bad label.
    """

    # Over 15 attributes: the pass, and the plan, its crew and its layout.

    def __init__(
        self,
        plan: NativePlan,
        resources: PassResources,
        *,
        substitutes: Substitutes | None = None,
        sends: bool = False,
        live: bool = False,
        worker: Callable[[], Worker] | None = None,
    ) -> None:
        super().__init__(resources)
        self._live = live
        self._make_worker = worker or partial(
            Worker, plan.dataset, batched=True, collate_fn=default_collate, replacing=substitutes
        )
        self._buffers = resources.buffers
        self._substitutes = substitutes
        self._plan = plan
        self._crew: NativeCrew
        self._opened = False
        self._staging: Staging | None = None
        self._worker: Worker | None = None  # reads the rest of the pass
        self._target = 1  # batches in flight
        within_next = (plan.gathers and not sends) or (live and plan.in_memory)
        self.reads_ahead = bool(self.workers) and resources.ahead and not within_next
        self._waits_for_next = within_next  # batches that are begun by iter() read no memory of the user's

    def open(self, pass_input: PassInput) -> None:
        super().open(pass_input)
        self._crew = NativeCrew(self._plan, self.workers, self.resources.meter)
        self._pool, self._opened = self._crew.pool, True
        if self._plan.remote is not None:
            self._staging = Staging(self._plan.remote, pass_input.coming, pass_input.samples)

    def close(self) -> None:
        if self._staging is not None:
            self._staging.close()
            self._staging = None
        if self._opened:
            self._crew.close()

    def __repr__(self) -> str:
        return f"native, {self.workers} threads"

    def new_batch(self) -> NativeBatch:
        return NativeBatch(key=(self._input.seed, self._input.epoch))

    def prepare(self, queue: deque[NativeBatch], *, first: bool) -> bool:
        self._waits_for_next = False
        # What must hold when a batch is asked for, before memory is read.
        unchanged = self._plan.same_dataset if self._live and not self.reads_ahead else self._plan.same_memory
        if self._worker is None and not unchanged():
            self._read_in_python(queue)
        return False

    def depth(self, queue: deque[NativeBatch]) -> int:
        self._submit_ready(queue)
        return self._target + self._known_ahead(queue)

    def _known_ahead(self, queue: deque[NativeBatch]) -> int:
        """Return how many batches without memory readers are to know of, behind those in flight."""
        known = self.reads_ahead and self.resources.settled and not self._plan.in_memory
        if not queue or not known or self._staging is not None:  # files of shards that are not here cannot be opened
            return 0
        if not self._pool.read_depth:
            return IN_FLIGHT - 1 if self._target == 1 else 0  # they are in flight as soon as the first tells its shape
        return max(0, -(-SAMPLES_AHEAD // max(1, len(queue[-1].indices))) - self._target)

    def begin(self, batch: NativeBatch) -> None:
        batch.begin(partial(self._begin, batch))

    def _begin(self, batch: NativeBatch) -> None:
        if self._worker is not None:
            batch.other = batch.wanted.tolist()
            return
        if self._substitutes is not None:
            bad = [i for i, index in enumerate(batch.wanted) if self._substitutes.is_bad(int(index))]
            put_others(batch, bad, self._substitutes)
        self._crew.resolve(batch)
        if self._staging is not None:
            self._stage(batch, self._staging)
        else:
            self._crew.prepare(batch)

    def _submit_ready(self, queue: deque[NativeBatch]) -> None:
        if self._staging is not None:
            self._staging.submit_ready(queue, self._submit)
            return
        if self._waits_for_next:
            return
        for batch in islice(queue, self._target):
            if batch.prepared is not None:
                try:
                    self._submit(batch)
                except Exception as error:  # there is no memory for it
                    batch.error, batch.prepared = error, None

    def ready(self, queue: deque[NativeBatch]) -> NativeBatch | None:
        batch = queue[0]
        if batch.error is None:
            failures = self._finish(batch, queue)
            if failures is None:
                return None
            if failures:
                batch.error = self._error_of(batch, failures)
        return batch

    def at_hand(self, queue: deque[NativeBatch]) -> bool:
        batch = queue[0]
        if batch.error is not None or not self.reads_ahead:
            return True
        return not batch.waits_for_shards and (batch.number < 0 or self._pool.at_hand(batch.number))

    # --- changes of the dataset -----------------------------------------------------------------------------

    def _read_in_python(self, queue: deque[NativeBatch]) -> None:
        """Have Python read the rest of the pass: the dataset is not what was planned for."""
        self.close()
        self._worker = self._make_worker()
        self.reads_ahead = False
        for batch in queue:
            if batch.given is not None:  # else it is an error of the sampler's
                batch.number, batch.prepared = -1, None
                batch.let_shards_go()
                self.begin(batch)

    def _serves(self, batch: NativeBatch) -> bool:
        """Return whether a batch that was filled is what the user asked for. Costs microseconds.

        Of one that was read ahead the dataset's lists may name other samples now. In a pass that is not live only where
        their labels, which are read when the batch is handed out, may be others.
        """
        plan = self._plan
        if not (plan.same_dataset() if self._live and self.reads_ahead else plan.same_memory()):
            return False
        if self._target == 1 or not (self._live or batch.names is not None):
            return True
        try:
            leaves, local = plan.root.resolve(batch.indices) if self._live else (batch.leaves, batch.local)
            same = plan.names(leaves, local) == batch.names and np.array_equal(local, batch.local)
            return same and (leaves is None or batch.leaves is None or np.array_equal(leaves, batch.leaves))
        except Exception:  # Python raises what the dataset raises
            return False

    # --- submitting -----------------------------------------------------------------------------------------

    def _stage(self, batch: NativeBatch, staging: Staging) -> BatchShards:
        """Let the shards of a batch be fetched; those that it had may go."""
        batch.let_shards_go()
        batch.shards = staging.shards_at(batch.leaves, batch.local)
        return batch.shards

    def _submit(self, batch: NativeBatch) -> None:
        if self._target == 1:
            known = [field for field in self._crew.fields if field is not None]
            if self.reads_ahead and len(known) == len(self._crew.fields):  # else the first batch tells
                self._target = self._in_flight_of(len(batch.indices) * sum(field.nbytes for field in known))
        staged = self.reads_ahead and self._plan.in_memory and not self._plan.gathers
        self._crew.submit(batch, self._buffers, staged=staged)

    # --- waiting --------------------------------------------------------------------------------------------

    def _finish(self, batch: NativeBatch, queue: deque[NativeBatch]) -> list[_native.Failure] | None:
        """Wait until the oldest batch is filled with what the dataset holds, and return what failed in it.

        None: the dataset has changed, and Python makes it.
        """
        while True:
            if batch.number < 0 and batch.shards is not None and self._staging is not None:
                self._staging.wait_and_submit(batch, self.resources.timeout, self._submit)
            if batch.number < 0:
                return []
            self._wait(batch)
            if not self._serves(batch):
                self._read_in_python(queue)
                return None
            failures = self._crew.retire(batch)
            if not failures:
                return failures
            # The samples may agree on another shape of the rows.
            agree = agree_on_fields(self._crew, batch, failures, lenient=self._substitutes is not None)
            if not agree and not self._replace(batch, failures):
                return failures
            self._submit(batch)

    def _wait(self, batch: NativeBatch) -> None:
        if self.workers == 0 or (self._plan.in_memory and not self.reads_ahead):  # this thread has no other work
            self._pool.run_here(batch.number)
        if self.workers == 0:
            self._crew.serve_here()
        while (state := self._pool.wait(batch.number, self.resources.timeout)) != "done":
            if state == "python":
                self._crew.start(self.workers)
            elif state == "timeout":
                raise WorkerStuck(why_stuck(self._plan, self._crew, self._pool, self.resources.timeout, self.workers))
            else:
                raise RuntimeError("the loader's iterator was closed while it waited for a batch")

    def assemble(self, batch: NativeBatch) -> Any:
        if batch.other is not None:
            return self._by_python(batch, self._worker)
        fields: list[Any] = in_callers_mode([rows.tensor for rows in batch.rows])
        try:
            labels = self._plan.labels(batch.leaves, batch.local)
        except Exception as error:
            if self._substitutes is not None:  # the label's sample is bad, and Python finds it
                batch.other = batch.wanted.tolist()
                return self._by_python(batch, self._make_worker())
            note_batch(error, batch.indices.tolist())
            raise
        if labels is not None:
            fields.append(pinned(labels) if self._buffers.pinned else labels)
        return self._plan.leaves[0].form.batch(fields)

    def _by_python(self, batch: NativeBatch, worker: Worker | None) -> Any:
        if worker is None:
            out = torch_batch(self._plan.dataset, batch.other)
        else:
            with worker.lease(), worker.in_callers_thread(self.resources.meter.calls):
                out = worker.make(Task(batch.other, *batch.key, batch.positions))
        if self._plan.table is not None:  # pixels would be taken for those that are yet to be converted
            refuse_pixels(out)
        return pinned(out) if self._buffers.pinned else out

    # --- failures -------------------------------------------------------------------------------------------

    def _error_of(self, batch: NativeBatch, failures: list[_native.Failure]) -> Exception:
        error = error_of(self._plan, batch, failures)
        if isinstance(error, ShapeMismatch):  # the samples are sound: their labels come before they are stacked
            try:
                self._plan.labels(batch.leaves, batch.local)
            except Exception as of_label:
                note_batch(of_label, batch.indices.tolist())
                return of_label
        return error

    def _replace(self, batch: NativeBatch, failures: list[_native.Failure]) -> bool:
        """Put other samples in the places of those that failed; False: none are replaced, or no other one is good."""
        if self._substitutes is None:
            return False
        bad = [failure for failure in failures if failure[2] != "mismatch"] or failures
        for failure in {failure[0]: failure for failure in reversed(bad)}.values():
            self._substitutes.found_bad(int(batch.indices[failure[0]]), error_of(self._plan, batch, [failure]))
        if not put_others(batch, [failure[0] for failure in bad], self._substitutes):
            return False
        self._crew.resolve(batch)
        if self._staging is not None:  # the other samples may lie in other shards
            self._stage(batch, self._staging).wait(self.resources.timeout or None)
        return True


def native_carrier(job: Job, held: Carrier | None, drawn: Callable[[], PassInput]) -> NativeCarrier:
    """Return native threads, for a dataset that the native core reads."""
    assert isinstance(job.plan, NativePlan)
    worker = worker_maker(job.settings, job.substitutes, here=job.settings.num_workers == 0)
    return NativeCarrier(
        job.plan, job.resources, substitutes=job.substitutes, sends=job.sends, live=not job.eager, worker=worker
    )
