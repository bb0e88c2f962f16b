"""Batches that are filled on the nodes of a Ray cluster, and handed out here: worker_method="ray"."""

from __future__ import annotations

import os
from collections import deque
from typing import Any

from penstock.cluster.connection import connected, files_of, pickled
from penstock.errors import InvalidOption, WorkerStuck
from penstock.executors.filler import IN_FLIGHT, Filler, PassInput, PassResources, pinned
from penstock.executors.iterator import Pass
from penstock.executors.job import Job, fetcher
from penstock.executors.workers.filler_actor import FillJob
from penstock.executors.workers.filler_crew import FillerCrew
from penstock.executors.workers.filler_link import FillerBatch
from penstock.observe import Delivery
from penstock.plan import NativePlan
from penstock.sources.naming import names_of
from penstock.system.modes import in_callers_mode

#: Files of a dataset that each node is asked for when a pass begins, evenly spread.
_FILES = 16


class RemoteFiller(Filler):
    """Has the fillers of a Ray cluster make the batches.

    Args:
        crew: the fillers, not started.
        resources: `workers` is the number of fillers.
        in_order: batches are handed out in the sampler's order.
    """

    def __init__(self, crew: FillerCrew, resources: PassResources, *, in_order: bool) -> None:
        super().__init__(resources)
        self._crew, self._in_order, self._pid = crew, in_order, os.getpid()
        self._deepest = IN_FLIGHT
        self.ended = crew.ended

    def start(self) -> None:
        self._crew.start()

    def open(self, pass_input: PassInput) -> None:
        super().open(pass_input)
        self._crew.begin()

    def rest(self) -> bool:
        return True

    def close(self) -> None:
        self._crew.close()

    @property
    def reusable(self) -> bool:
        return os.getpid() == self._pid and not self.ended.is_set() and not self._crew.failed

    def __repr__(self) -> str:
        return f"{self.workers} fillers of a Ray cluster"

    def new_batch(self) -> FillerBatch:
        return FillerBatch()

    def prepare(self, queue: deque[FillerBatch]) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError("the fillers of this iterator answer to the process that this one was forked off from")

    def begin(self, batch: FillerBatch) -> None:
        if batch.number < 0:
            batch.number = self._crew.next_number()
        self._crew.submit(batch, (self._input.seed, self._input.epoch))

    def depth(self, queue: deque[FillerBatch]) -> int:
        if not self.reads_ahead:
            return 1
        if self.resources.in_flight is not None:
            return max(1, self.resources.in_flight)
        if len(queue) > self._deepest:
            self._deepest = len(queue)
            self.resources.buffers.keep_times((self._deepest + 2) / (IN_FLIGHT + 2))
        return len(queue) + (1 if not queue or self._crew.room() else -1)  # a batch that is handed out still counts

    def ready(self, queue: deque[FillerBatch]) -> FillerBatch:
        timeout = self.resources.timeout
        batch = self._crew.wait([queue[0]] if self._in_order else list(queue), timeout)
        if batch is None:
            raise WorkerStuck(
                f"DataLoader timed out after {timeout} seconds: no batch came from {self.workers} fillers "
                f"of a Ray cluster. Raise timeout= if samples may take as long.\n{self._crew.describe()}"
            )
        return batch

    def assemble(self, batch: FillerBatch) -> Any:
        assert batch.filled is not None
        out = in_callers_mode(batch.filled.batch)
        return pinned(out) if self.resources.buffers.pinned else out

    def delivery(self, batch: FillerBatch, out: Any) -> Delivery:
        filled = batch.filled
        assert filled is not None
        return Delivery(out, filled.samples, read_by_python=filled.rescued, bad=filled.bad)

    def drop(self, batch: FillerBatch) -> None:
        self._crew.forget(batch)


class RemoteExecutor:
    """Fillers of a Ray cluster, where worker_method= asks for them."""

    def open(self, job: Job) -> Pass:
        """Return an iterator of the batches.

        Raises:
            InvalidOption: Ray is not installed; the dataset has a state of its own.
            ClusterUnreachable, ClusterError: the cluster, or a node of it, cannot do its part.
        """
        settings, resources = job.settings, job.resources
        if job.streams is not None:
            raise InvalidOption(
                f"worker_method='ray' cannot keep the state_dict() of a {type(settings.dataset).__name__}: each filler "
                "has a copy of the dataset, and what a lost one did is done again elsewhere"
            )
        assert resources.fillers is not None
        connected(settings.cluster)  # what is missing here is said before the dataset is pickled
        crew = FillerCrew(
            settings.cluster,
            pickled(_fill_job(job), type(settings.dataset).__qualname__, settings.dataset),
            _files(settings.dataset),
            settings.num_workers,
            buffers=resources.buffers,
            meter=resources.meter,
            report=resources.fillers,
        )
        filler = RemoteFiller(crew, resources, in_order=settings.in_order)
        made = Pass(filler, job.pass_input(), eager=job.eager)
        made.arrivals = job.progress.arrivals
        return made

    def restart(self, held: Pass, job: Job) -> None:
        """Let the same fillers make another pass, of the dataset that they have."""
        held.begin(job.pass_input(), eager=job.eager)
        held.arrivals = job.progress.arrivals


def _fill_job(job: Job) -> FillJob:
    settings, chosen = job.settings, job.plan
    native = isinstance(chosen, NativePlan)
    return FillJob(
        dataset=settings.dataset,
        fetch=fetcher(settings, job.substitutes, here=True),
        read=None if isinstance(chosen, NativePlan) else chosen.assisted,
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
    size = len(dataset) if hasattr(dataset, "__len__") else 0
    chosen = range(0, size, max(1, -(-size // _FILES)))
    return files_of(path for _, path in names_of(dataset, chosen))
