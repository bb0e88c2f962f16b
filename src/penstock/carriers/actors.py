"""Batches that are filled on the nodes of a Ray cluster, and handed out here: worker_method="ray"."""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import penstock._native as _native
from penstock.carriers.actor import ActorJob, BatchActor, Filled
from penstock.cluster.connection import Memory, Pieces, connected, files_of, pickled, stored, value_of
from penstock.cluster.crew import Crew
from penstock.cluster.option import REQUESTS, Ray
from penstock.errors import InvalidOption, WorkerDied, WorkerStuck
from penstock.memory.buffers import Field
from penstock.observe import Delivery
from penstock.passes.carrier import Carrier, pinned
from penstock.passes.job import Job, worker_maker
from penstock.passes.values import IN_FLIGHT, PassInput, PassResources
from penstock.plan import NativePlan
from penstock.settings import known_size
from penstock.sources.naming import names_of
from penstock.system.modes import in_callers_mode
from penstock.workers.batch import Batch

#: Files of a dataset that each node is asked for when a pass begins, evenly spread.
_FILES = 16


@dataclass(slots=True, eq=False)
class ActorBatch(Batch):
    """A batch that a filler makes."""

    number: int = -1
    """Of its request; -1: it was not asked for."""
    filled: Filled | None = None

    def let_go(self) -> None:
        self.filled = None


class ActorTraceback(Exception):
    """Where in a filler an error was raised: the cause of the error that the trainer raises."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


class ActorCarrier(Carrier):
    """Has the fillers of a Ray cluster make the batches. All of it happens in the thread that is in the pass's next().

    Args:
        ray: Ray's module, connected.
        cluster: where the fillers run.
        job: their ActorJob, pickled.
        files: of the dataset, some, with their sizes: each node must see them.
        resources: `workers` is the number of fillers.
        in_order: batches are handed out in the sampler's order.

    Raises:
        ClusterError: the object store of Ray has no space for the job.
    """

    def __init__(
        self,
        ray: Any,
        cluster: Ray,
        job: bytes,
        files: list[tuple[str, int]],
        resources: PassResources,
        *,
        in_order: bool,
    ) -> None:
        super().__init__(resources)
        assert resources.fillers is not None
        self._report, self._cluster, self.in_order = resources.fillers, cluster, in_order
        self._crew = Crew(
            ray,
            cluster,
            BatchActor,
            (stored(ray, job), files),
            resources.workers,
            what="filler",
            doing=lambda key: f"made the same batch, of samples {self._asked[key]}",
            each=REQUESTS,
        )
        self._report.begin(resources.workers)
        self._numbers = itertools.count()
        self._asked: dict[int, str] = {}  # the samples of each batch in flight, for messages
        self._stages: dict[int, list[tuple[Any, ...]]] = {}  # of each filler, as it said last
        self._deepest = IN_FLIGHT
        self._failed = False
        self._closed = False
        resources.meter.open(self._stage_rows)

    def start(self) -> None:
        self._crew.start()
        self._follow()

    def _follow(self) -> None:
        crew = self._crew
        places = {one.number: one.facts.place for one in crew.members if one.facts is not None}
        self._report.follow(places, crew.lost, crew.again)

    def open(self, pass_input: PassInput) -> None:
        super().open(pass_input)
        self._crew.forget()
        self._asked.clear()

    def rest(self) -> bool:
        return True

    def close(self) -> None:
        self._crew.close()
        if os.getpid() == self.pid:
            self._report.running = False
            self.resources.meter.close(self._stage_rows)
        self._closed = True

    @property
    def reusable(self) -> bool:
        return os.getpid() == self.pid and not self._closed and not self._failed

    def __repr__(self) -> str:
        return f"{self.workers} fillers of a Ray cluster"

    def new_batch(self) -> ActorBatch:
        return ActorBatch()

    def begin(self, batch: ActorBatch) -> None:
        if batch.number < 0:
            batch.number = next(self._numbers)
        assert batch.given is not None
        self._asked[batch.number] = repr(batch.given[0])[:200]
        self._crew.give(batch.number, (self._input.seed, self._input.epoch), *batch.given)

    def depth(self, queue: deque[ActorBatch]) -> int:
        if not self.reads_ahead:
            return 1
        if self.resources.in_flight is not None:
            return max(1, self.resources.in_flight)
        fillers = max(1, len(self._crew.at_work))
        largest = self._report.largest
        depth = min(2 * REQUESTS * fillers, self._cluster.limit // largest) if largest else fillers
        if depth > self._deepest:
            self._deepest = depth
            self.resources.buffers.keep_times((depth + 2) / (IN_FLIGHT + 2))
        return max(1, depth)

    def ready(self, queue: deque[ActorBatch]) -> ActorBatch:
        timeout, begun, wait = self.resources.timeout, time.monotonic(), 0.0
        while True:
            try:
                self._crew.take(wait)
            except Exception:
                self._failed = True
                raise
            finally:
                self._follow()
            for batch in [queue[0]] if self.in_order else queue:
                if batch.error is not None or batch.filled is not None or self._came(batch):
                    return batch
            wait = timeout - (time.monotonic() - begun) if timeout else 1.0
            if wait <= 0:
                raise WorkerStuck(
                    f"DataLoader timed out after {timeout} seconds: no batch came from {self.workers} fillers "
                    f"of a Ray cluster. Raise timeout= if samples may take that long."
                )

    def at_hand(self, queue: deque[ActorBatch]) -> bool:
        try:
            self._crew.take(0.0)
        except Exception as error:
            self._failed, queue[0].error = True, error
        batches, answers = [queue[0]] if self.in_order else queue, self._crew.answers
        return any(one.error is not None or one.filled is not None or one.number in answers for one in batches)

    def _came(self, batch: ActorBatch) -> bool:
        """Take a batch out of what the fillers have answered; False: it is not there."""
        answer: Pieces | WorkerDied | None = self._crew.answers.get(batch.number)
        if answer is None:
            return False
        begun = time.perf_counter()
        if isinstance(answer, WorkerDied):
            batch.error = answer
        else:
            try:
                filled: Filled = value_of(answer, self._allocate)
            except Exception as error:  # its class is not known here
                filled = Filled(error=error)
            if filled.error is not None and filled.traceback:
                filled.error.__cause__ = ActorTraceback(filled.traceback)
            self._stages[filled.filler] = filled.stages
            self._report.came(answer.size, time.perf_counter() - begun)
            batch.filled, batch.error = filled, filled.error
        self._asked.pop(batch.number, None)
        self._crew.forget(batch.number)
        return True

    def _allocate(self, size: int) -> Memory:
        rows = self.resources.buffers.rows(1, Field(_native.Spec("uint8", [size])))
        return Memory(rows.tensor, rows.memory)

    def delivery(self, batch: ActorBatch) -> Delivery:
        filled = batch.filled
        assert filled is not None
        out = in_callers_mode(filled.batch)
        out = pinned(out) if self.resources.buffers.pinned else out
        return Delivery(out, filled.samples, read_by_python=filled.read_by_python, bad=filled.bad)

    def _stage_rows(self) -> list[tuple[Any, ...]]:
        return [row for rows in list(self._stages.values()) for row in rows]


def actor_carrier(job: Job, held: Carrier | None, drawn: Callable[[], PassInput]) -> ActorCarrier:
    """Return fillers of a Ray cluster; those that are kept have the dataset of the first pass.

    Raises, before anything is drawn for the pass:

    InvalidOption: Ray is not installed; the dataset has its own state.
    ClusterUnreachable, ClusterError: the cluster, or a node of it, cannot do its part.
    """
    if isinstance(held, ActorCarrier):
        return held
    settings = job.settings
    if job.streams is not None:
        raise InvalidOption(
            f"worker_method='ray' cannot keep the state_dict() of a {type(settings.dataset).__name__}: each filler "
            "has a copy of the dataset, and another filler repeats what a lost one did"
        )
    ray = connected(settings.cluster)  # what is missing here is said before the dataset is pickled
    job_bytes = pickled(_fill_job(job), settings.dataset)
    files = _files(settings.dataset)
    return ActorCarrier(ray, settings.cluster, job_bytes, files, job.resources, in_order=settings.in_order)


def _fill_job(job: Job) -> ActorJob:
    settings, chosen = job.settings, job.plan
    native = isinstance(chosen, NativePlan)
    return ActorJob(
        dataset=settings.dataset,
        worker=worker_maker(settings, job.substitutes, here=True),
        native=native,
        collate_fn=settings.collate_fn,
        substitutes=job.substitutes,
        raw=isinstance(chosen, NativePlan) and chosen.table is not None,
        caches=settings.caches,
        init=None if native else settings.worker_init_fn,
        fillers=settings.num_workers,
        threads=settings.cluster.threads,
        folder=os.getcwd(),
    )


def _files(dataset: Any) -> list[tuple[str, int]]:
    """Return some files of a dataset with their sizes; none where it has no files that are known."""
    size = known_size(dataset) or 0
    chosen = range(0, size, max(1, -(-size // _FILES)))
    return files_of(path for _, path in names_of(dataset, chosen))
