"""Worker processes, of torch's own."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch.multiprocessing

from penstock.errors import InvalidOption
from penstock.executors.job import Job
from penstock.executors.staging import Staging
from penstock.executors.torch_pass import LoaderView, view_of
from penstock.executors.workers.processes import ProcessPass
from penstock.executors.workers.tasks import MakeStaging
from penstock.settings import Method
from penstock.sources.naming import name_of
from penstock.sources.tree import remote_leaves


class ProcessExecutor:
    """Torch's worker processes, where Python reads the dataset, unless worker_method= says threads."""

    def open(self, job: Job, held: ProcessPass | None) -> ProcessPass:
        """Return an iterator of the batches: the one that is held, whose workers make this pass too, or a new one."""
        settings, staging = job.settings, _staging(job)
        if held is not None:
            held.batches, held.staging = job.batches, staging
            held._reset(view_of(job))
            return self._follow(held, job)
        job.loader().check_worker_number_rationality()
        made = ProcessPass(
            view_of(job) if staging is None else _spawning(view_of(job)),
            None if settings.iterable else job.fetch(here=True),
            key=partial(job.epochs.next, counted=settings.persistent_workers),
            composes=settings.method is not Method.PROCESS,
            batches=job.batches,
            streams=job.streams,
            base_seed=job.progress.drawn.get("base"),
            identify=partial(name_of, settings.dataset),
            meter=job.resources.meter,
            shared=job.resources.shared,
            staging=staging,
        )
        return self._follow(made, job)

    def _follow(self, made: ProcessPass, job: Job) -> ProcessPass:
        if made.streams is not job.streams:
            made.follow(job.streams)  # the workers came with those of the pass before
        job.progress.drawn.setdefault("base", made.base_seed)
        made.arrivals = job.progress.arrivals
        return made


def _spawning(loader: Any) -> Any:
    """Return a loader whose workers can use the client of object stores, which has no threads in a forked process.

    Raises InvalidOption where they are to be forked.
    """
    context = loader.multiprocessing_context
    if context is None and torch.multiprocessing.get_start_method(allow_none=True) in (None, "fork"):
        return LoaderView(loader, multiprocessing_context=torch.multiprocessing.get_context("spawn"))
    if context is not None and context.get_start_method() == "fork":
        raise InvalidOption(
            "shards in an object store cannot be read by forked processes: give multiprocessing_context='spawn' or "
            "'forkserver', or worker_method='thread'"
        )
    return loader


def _staging(job: Job) -> MakeStaging | None:
    """Return what makes the staging of the pass, which brings whole shards for the workers; None: all is local."""
    remote = None if job.settings.iterable else remote_leaves(job.settings.dataset)
    if remote is None:
        return None
    batches, known = job.batches, job.batches.order.cuts_itself() and not job.batches.drawn_first()

    def make(seed: int, epoch: int) -> Staging:
        coming = partial(batches.coming, seed, epoch) if known else None
        return Staging(remote, coming, batches.samples_left() if known else 0, elsewhere=True)

    return make
