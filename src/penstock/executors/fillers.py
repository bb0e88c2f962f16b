"""One pass whose batches are filled on the nodes of a Ray cluster, and handed out here: worker_method="ray"."""

from __future__ import annotations

import os
from collections import deque
from typing import Any

from penstock.cluster.connection import connected, files_of, pickled
from penstock.errors import InvalidOption, WorkerStuck
from penstock.executors.iterator import IN_FLIGHT, Handed, Pass, PassInput, PassResources, pinned
from penstock.executors.job import Job, fetcher
from penstock.executors.workers.filler import FillJob
from penstock.executors.workers.filler_crew import FillerCrew
from penstock.executors.workers.filler_link import FillerBatch
from penstock.observe import Delivery
from penstock.order.leftover import Arrivals
from penstock.plan import NativePlan
from penstock.sources.naming import names_of
from penstock.system.modes import in_callers_mode

#: Files of a dataset that each node is asked for when a pass begins, evenly spread.
_FILES = 16


class FillerPass(Pass):
    """One pass over batches that fillers make.

    Args:
        crew: the fillers; the pass ends them.
        pass_input: what the sampler gives.
        resources: `workers` is the number of fillers.
        in_order: batches are handed out in the sampler's order.
        eager: ask for batches now, not when the first one is asked for.
    """

    arrivals: Arrivals | None = None
    """Told which batches come, where they come out of order."""

    def __init__(
        self, crew: FillerCrew, pass_input: PassInput, resources: PassResources, *, in_order: bool, eager: bool
    ) -> None:
        super().__init__(resources)
        self._crew, self._in_order, self._pid = crew, in_order, os.getpid()
        self._deepest = IN_FLIGHT
        self._hold(crew)  # before the fillers start: an interrupt in any line leaves none behind
        try:
            crew.start()
        except BaseException:
            self.close()
            raise
        self.begin(pass_input, eager=eager)

    def begin(self, pass_input: PassInput, *, eager: bool) -> None:
        """Begin a pass with the same fillers."""
        self._crew.begin()
        self._start(pass_input, eager=eager)

    def _prepare(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError("the fillers of this iterator answer to the process that this one was forked off from")

    def _new_batch(self) -> FillerBatch:
        return FillerBatch()

    def _begin(self, batch: FillerBatch) -> None:
        if batch.number < 0:
            batch.place = self._cursor.count - 1
            batch.number = self._crew.next_number()
        self._crew.submit(batch, (self._input.seed, self._input.epoch))

    def _depth(self, queue: deque[FillerBatch]) -> int:
        if not self._reads_ahead:
            return 1
        if self._resources.in_flight is not None:
            return max(1, self._resources.in_flight)
        if len(queue) > self._deepest:
            self._deepest = len(queue)
            self._resources.buffers.keep_times((self._deepest + 2) / (IN_FLIGHT + 2))
        return len(queue) + (1 if not queue or self._crew.room() else -1)  # a batch that is handed out still counts

    def _ready(self, queue: deque[FillerBatch]) -> FillerBatch:
        batches = [queue[0]] if self._in_order else list(queue)
        batch = self._crew.wait(batches, self._timeout)
        if batch is None:
            raise WorkerStuck(
                f"DataLoader timed out after {self._timeout} seconds: no batch came from {self._num_workers} fillers "
                f"of a Ray cluster. Raise timeout= if samples may take as long.\n{self._crew.describe()}"
            )
        return batch

    def _hand_out(self, handed: Handed) -> Delivery:
        self._came: FillerBatch | None = None
        try:
            return super()._hand_out(handed)
        except (StopIteration, WorkerStuck):
            raise
        except Exception:
            self._report()
            raise

    def _report(self) -> None:
        """Tell of the batch that came, or of the error in its place."""
        came, self._came = self._came, None
        if self.arrivals is None or (came is not None and came.reported):
            return
        if came is not None:
            came.reported = True
        self.arrivals.read(None if came is None else came.place)

    def _assemble(self, batch: FillerBatch) -> Any:
        assert batch.filled is not None
        out = in_callers_mode(batch.filled.batch)
        return pinned(out) if self._resources.buffers.pinned else out

    def _delivery(self, batch: FillerBatch, out: Any, waited: float) -> Delivery:
        self._came = batch
        self._report()
        filled = batch.filled
        assert filled is not None
        return Delivery(out, filled.samples, waited, filled.rescued, filled.bad)

    def _drop(self, batch: Any) -> None:
        if batch in self._queue:
            self._queue.remove(batch)
        if batch is not None:
            self._crew.forget(batch)

    def _end_pass(self) -> None:
        if self._persistent_workers:
            self._open = False
        else:
            self.close()

    @property
    def reusable(self) -> bool:
        """Whether another pass can be made with these fillers."""
        return os.getpid() == self._pid and not self._ended.is_set() and not self._crew.failed

    def __repr__(self) -> str:
        state = "open" if self._open else "closed"
        return f"<FillerPass: {state}, {self._num_workers} fillers, {len(self._queue)} batches in flight>"


class FillerExecutor:
    """Fillers of a Ray cluster, where worker_method= asks for them."""

    kind = FillerPass

    def accepts(self, job: Job) -> bool:
        """Return whether fillers are asked for."""
        return job.settings.cluster is not None and job.settings.num_workers > 0

    def open(self, job: Job) -> FillerPass:
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
        made = FillerPass(crew, job.pass_input(), resources, in_order=settings.in_order, eager=job.eager)
        made.arrivals = job.progress.arrivals
        return made

    def restart(self, held: FillerPass, job: Job) -> None:
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
