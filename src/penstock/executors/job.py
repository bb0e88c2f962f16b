"""One pass to be made, and what follows from a loader's settings and plan for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.utils.data import IterableDataset, Subset, TensorDataset

from penstock.executors.fetch import Fetch
from penstock.executors.filler import PassInput, PassResources
from penstock.executors.filling import Filling
from penstock.order.batches import BatchOrder, settled_at_start
from penstock.order.permutations import Epochs, draw_seed
from penstock.plan import NativePlan, Plan, PythonPlan, plan
from penstock.settings import Method, Settings
from penstock.state.progress import PassBatches, Progress
from penstock.state.streams import Streams, with_first_drawn
from penstock.state.substitutes import Substitutes
from penstock.system.limits import usable_cpus

if TYPE_CHECKING:
    from penstock.executors.selection import Executors

#: Bytes of a batch that one thread fills from memory, cache line by cache line, while others would be woken.
SMALL_BATCH, CACHE_LINE = 64 << 10, 64


class Executor(Protocol):
    """Fills the batches of a pass in one way."""

    def open(self, job: Job, held: Any) -> Any:
        """Return an iterator of the batches: the one that is held, where that is not None, or a new one."""


@dataclass(eq=False)
class Job:
    """One pass to be made. An iterator may keep it: the loader, which may hold the iterator, is held weakly.

    What does not differ between the passes of a loader is found out once, in a job of no pass: see `of_pass`.
    """

    loader: Callable[[], Any]
    """Returns the loader: torch's own iterators read its attributes while they are made."""
    settings: Settings
    plan: Plan
    order: BatchOrder
    epochs: Epochs
    sends: bool
    """The batches go to an accelerator."""
    in_threads: bool
    """Python threads of this process read the dataset, where Python reads it."""
    pins: bool = False
    """Batches are pinned as torch's own iterators pin them."""
    progress: Progress = field(init=False)
    substitutes: Substitutes | None = field(init=False)
    """How bad samples are replaced; None raises their errors."""
    shared: Executors = field(init=False)

    def of_pass(self, **own: Any) -> Job:
        job = object.__new__(Job)
        vars(job).update(vars(self), **own)  # a fifth of what copy() takes
        return job

    @property
    def batches(self) -> PassBatches:
        """What the sampler gives in the pass."""
        return PassBatches(self.order, self.progress, self.shared.reach, isinstance(self.plan, NativePlan))

    @cached_property
    def resources(self) -> PassResources:
        """What a pass of threads, or with batch memory, works with."""
        return self.shared.resources(self.settings, self.plan, sends=self.sends)

    @property
    def plain(self) -> bool:
        """Whether Python reads the samples, and does no more than torch's own fetcher."""
        plan, seeded = self.plan, self.settings.seed is not None
        as_torch = isinstance(plan, PythonPlan) and plan.assisted is None and plan.filled is None
        return as_torch and not seeded and self.substitutes is None

    @property
    def eager(self) -> bool:
        """Whether work begins before the first next()."""
        return not self.settings.on_demand

    @property
    def streams(self) -> Streams | None:
        """The states of a dataset that has a state_dict(), by worker."""
        return self.progress.streams

    def pass_input(self) -> PassInput:
        """Return what the pass goes through; called once, for it draws."""
        batches, length, drawn = self.batches, self.order.length(), None
        if batches.drawn_first():
            drawn = batches.sampled()
        seed, epoch = self._key()
        given = batches(seed, epoch) if drawn is None else drawn
        if self.streams is not None and any(self.streams.counts):
            given = with_first_drawn(given)
        if drawn is not None or not self.order.cuts_itself():
            return PassInput(given, length, seed, epoch)
        coming = partial(batches.coming, seed, epoch)
        return PassInput(given, length, seed, epoch, coming=coming, samples=batches.samples_left())

    def _key(self) -> tuple[int, int]:
        """Return (seed, epoch) of the pass, and advance the generators as torch's iterator would."""
        settings, shared = self.settings, self.shared
        seed, epoch = self.epochs.next(counted=settings.persistent_workers)
        if seed is None:
            if shared.base_seed is None or not settings.persistent_workers:  # torch's persistent workers keep the first
                shared.base_seed = draw_seed(settings.draws_from)
            seed = shared.base_seed = self.progress.drawn.setdefault("base", shared.base_seed)
        return seed, epoch

    def fetch(self, *, here: bool) -> Fetch:
        """Return what calls the dataset; here: in a process whose global generators it may set."""
        assert isinstance(self.plan, PythonPlan)
        return fetch_of(self.settings, self.substitutes, self.plan, here=here)


def planned(settings: Settings, *, raw: bool = False, begins: bool = False) -> Plan:
    """Return the plan for a loader's dataset as it is now.

    raw: images stay pixels for a device to convert. begins: of a pass that begins, which fills the loader's caches
    and indexes.
    """
    return plan(
        settings.dataset,
        batched=settings.batched,
        collate_fn=settings.collate_fn,
        worker_init_fn=settings.worker_init_fn,
        processes=settings.method is Method.PROCESS,
        raw=raw,
        caches=settings.caches if begins else None,
        indexes=settings.indexes if begins else None,
    )


def default_workers(dataset: object, chosen: Plan, method: Method | None) -> int:
    """Return the number of workers where num_workers= is not given."""
    if isinstance(dataset, IterableDataset):
        return 0  # as torch's default: each worker would go through all of it
    return usable_cpus() if isinstance(chosen, NativePlan) or method in (Method.THREAD, Method.AUTO) else 0


def can_pin(settings: Settings, *, sends: bool) -> bool:
    if sends:
        return True
    if not settings.pin_memory or not torch.accelerator.is_available():
        return False
    device = torch.accelerator.current_accelerator()
    return device is not None and device.type != "mps"  # where torch's loader does not pin either


def settled(settings: Settings) -> bool:
    """Return whether the indices of a pass are settled when it begins."""
    return not settings.iterable and (BatchOrder(settings).cuts_itself() or settled_at_start(settings.index_sampler))


def reads_ahead(settings: Settings) -> bool:
    """Return whether the sampler may be asked for batches ahead of the user: not where torch would not."""
    return not settings.workers_chosen or settings.iterable or settled_at_start(settings.index_sampler)


def gathers_rows(settings: Settings, chosen: Plan) -> bool:
    """Return whether a pass is one over small batches of rows to which nothing else is done."""
    return (
        _holds_rows(settings.dataset)
        and settings.seed is None
        and settings.on_demand
        and settings.batched
        and settings.device is None
        and not (settings.persistent_workers or settings.timeout or settings.prefetch_given)
        and is_small(settings, chosen)
    )


def _holds_rows(dataset: object) -> bool:
    """Return whether a dataset is a TensorDataset, or a Subset of one by lists."""
    while type(dataset) is Subset and type(dataset.indices) is list:
        dataset = dataset.dataset
    return type(dataset) is TensorDataset


def is_small(settings: Settings, chosen: Plan) -> bool:
    """Return whether the native core fills a batch from memory in less time than it takes to wake threads."""
    if not isinstance(chosen, NativePlan) or any(leaf.memory is None for leaf in chosen.leaves):
        return False
    row = sum(max(CACHE_LINE, field.spec.nbytes) if field.spec else SMALL_BATCH for field in chosen.leaves[0].fields)
    return row * (settings.batch_size or SMALL_BATCH) <= SMALL_BATCH


def fetcher(settings: Settings, substitutes: Substitutes | None, *, here: bool) -> Callable[..., Fetch]:
    """Return what makes a Fetch, called with read=; here: in a process whose global generators it may set."""
    return partial(
        Fetch,
        settings.dataset,
        batched=settings.batched,
        collate_fn=settings.collate_fn,
        seeded=here and settings.seed is not None,
        keyed=settings.seed is not None,
        replacing=substitutes,
        composes=settings.method is not Method.PROCESS,
    )


def fetch_of(settings: Settings, substitutes: Substitutes | None, plan: PythonPlan, *, here: bool) -> Fetch:
    """Return what fetches by a plan; here: in a process whose global generators it may set."""
    filling = None if plan.filled is None else Filling(settings.dataset, plan.kept, plan.filled, unseen=plan.unseen)
    return fetcher(settings, substitutes, here=here)(read=plan.assisted, filling=filling)


class LoaderView:
    """A loader as torch's own iterators are to see it: with some attributes replaced."""

    def __init__(self, loader: Any, **replaced: Any) -> None:
        self.__dict__.update(replaced)
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def view_of(job: Job, **seen: Any) -> Any:
    """Return the loader of a pass, with these attributes. Torch would warn of a pin_memory_device at our own line."""
    loader, generator = job.loader(), job.settings.draws_from
    if not seen and loader.pin_memory == job.pins and loader.generator is generator and not loader.pin_memory_device:
        return loader
    return LoaderView(loader, pin_memory_device="", pin_memory=job.pins, generator=generator, **seen)
