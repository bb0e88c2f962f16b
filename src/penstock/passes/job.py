"""One pass to be made, and what follows from a loader's settings and plan for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset, default_collate

from penstock.observe import Meter
from penstock.order.batches import BatchOrder, settled_at_start
from penstock.order.permutations import Epochs, draw_seed
from penstock.passes.values import PassInput, PassResources
from penstock.plan import NativePlan, Plan, PythonPlan, plan
from penstock.recipe.unseeded_generators import SeedWarnings
from penstock.settings import Method, Settings
from penstock.sources.naming import name_of, names_of
from penstock.sources.unchanged import replaced_fetcher
from penstock.state.progress import PassBatches, Progress
from penstock.state.streams import Streams, with_first_drawn
from penstock.state.substitutes import Substitutes
from penstock.storage.advice import AdvisedBatches
from penstock.system.deferred import deferred
from penstock.system.limits import host_cpus, usable_cpus
from penstock.system.warn_user import warn_user
from penstock.system.words import counted
from penstock.workers.batch import BatchRequest
from penstock.workers.native_batches import NativeBatches
from penstock.workers.rows import CACHE_LINE, SMALL_BATCH, fits_small
from penstock.workers.worker import Worker

if TYPE_CHECKING:
    from penstock.tables import collated as table_batches
    from penstock.workers import collated
else:
    (table_batches,) = deferred("penstock.tables", "collated")
    (collated,) = deferred("penstock.workers", "collated")

#: Native threads for each CPU, and for two at least, beyond which a number is a mistake: verdicts advise fewer. torch
#: warns of more than one process a CPU: a thread costs less.
MOST_THREADS = 4


class BaseSeed:
    """The base seed of torch's iterators, as a loader's passes draw it."""

    def __init__(self) -> None:
        self.latest: int | None = None
        """Of the latest pass; None: the next one draws another."""


@dataclass(eq=False)
class Job:
    """One pass to be made. An iterator may keep it: the loader, which may hold the iterator, is held weakly.

    What does not differ between the passes of a loader is found out once, in a job of no pass: see `of_pass`.
    """

    loader: Callable[[], Any]
    """Returns the loader, whose warnings of too many workers may be overridden."""
    settings: Settings
    plan: Plan | None
    """None: torch gathers the rows of the batches, for which no plan is needed."""
    order: BatchOrder
    epochs: Epochs
    sends: bool
    """The batches go to an accelerator."""
    in_threads: bool
    """Python threads of this process read the dataset, where Python reads it."""
    # What all passes of the loader share.
    meter: Meter
    seed_warnings: SeedWarnings
    base_seed: BaseSeed

    # Of one pass.
    pins: bool = False
    """Batches are pinned as torch's own iterators pin them."""
    progress: Progress = field(init=False)
    substitutes: Substitutes | None = field(init=False)
    """How bad samples are replaced; None raises their errors."""
    make_resources: Callable[[], PassResources] = field(init=False)
    """Returns what a pass of threads, or with batch memory, works with."""

    def of_pass(self, **own: Any) -> Job:
        job = object.__new__(Job)
        vars(job).update(vars(self), **own)  # a fifth of what copy() takes
        return job

    @property
    def batches(self) -> PassBatches:
        """What the sampler gives in the pass."""
        return PassBatches(self.order, self.progress, self.seed_warnings, not isinstance(self.plan, PythonPlan))

    @cached_property
    def resources(self) -> PassResources:
        return self.make_resources()

    @property
    def plain(self) -> bool:
        """Whether Python reads the samples, and does no more than torch's own fetcher."""
        plan, seeded = self.plan, self.settings.seed is not None
        as_torch = isinstance(plan, PythonPlan) and plan.filled is None
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
            drawn = batches(0, 0)
        seed, epoch = self._key()
        given = self._advised(batches(seed, epoch) if drawn is None else drawn)
        # A sampler may tell the dataset its epoch: workers that are forked afterwards know it.
        tells = bool(self.settings.num_workers) and not self.settings.own_order and not self.settings.iterable
        if tells or (self.streams is not None and any(self.streams.counts)):
            given = with_first_drawn(given)
        if drawn is not None or not self.order.cuts_itself():
            return PassInput(given, length, seed, epoch)
        coming = partial(batches.coming, seed, epoch)
        return PassInput(given, length, seed, epoch, coming=coming, samples=batches.samples_left())

    def _advised(self, batches: Iterator[BatchRequest]) -> Iterator[BatchRequest]:
        """Return what the sampler gives; where Python workers read files that are known, they are read ahead."""
        dataset, plan = self.settings.dataset, self.plan
        # A class that no adapter knows may do anything when it is asked for its files.
        reads = isinstance(plan, PythonPlan) and plan.filled is None and plan.foreign is None
        if not (reads and self.settings.num_workers) or name_of(dataset, 0)[1] is None:
            return batches
        return AdvisedBatches(batches, lambda given: (path for _, path in names_of(dataset, given)), self._bytes_read)

    def _bytes_read(self) -> int:
        return sum(stage.bytes for stage in self.meter.stages().values())

    def _key(self) -> tuple[int, int]:
        """Return (seed, epoch) of the pass, and advance the generators as torch's iterator would."""
        seed, epoch = self.epochs.next(counted=self.settings.persistent_workers)
        if seed is None:
            seed = self.base_seed.latest = self.progress.drawn.setdefault("base", self.draw_base())
        return seed, epoch

    def draw_base(self) -> int:
        """Return the base seed of the pass, as torch's iterator draws it."""
        settings, base = self.settings, self.base_seed
        if base.latest is None or not (settings.persistent_workers and settings.num_workers):
            base.latest = draw_seed(settings.draws_from)  # torch's persistent workers keep the first
        return base.latest

    def worker(self, *, here: bool) -> Worker:
        """Return what calls the dataset; here: in a process whose global generators it may set."""
        assert isinstance(self.plan, PythonPlan)
        return worker_of(self.settings, self.substitutes, self.plan, here=here)


Open = Callable[[Job, Any], Any]
"""Returns an iterator of the batches of a pass: the one of the pass before, where that can make them, or a new one."""


def planned(settings: Settings, *, raw: bool = False) -> Plan:
    """Return the plan for a loader's dataset as it is now. raw: images stay pixels for a device to convert."""
    return plan(
        settings.dataset,
        batched=settings.batched,
        collate_fn=settings.collate_fn,
        worker_init_fn=settings.worker_init_fn,
        processes=settings.method is Method.PROCESS,
        raw=raw,
    )


def default_workers(dataset: object, *, native: bool, method: Method | None) -> int:
    """Return the number of workers where num_workers= is not given. native: the native core can read the dataset."""
    if isinstance(dataset, IterableDataset):
        return 0  # as torch's default: each worker would go through all of it
    return usable_cpus() if native or method in (Method.THREAD, Method.AUTO) else 0


def warn_of_many_threads(number: int, method: Method | None) -> None:
    """Warn of more native threads than can be meant."""
    if number > 2 * MOST_THREADS and number > MOST_THREADS * (cpus := host_cpus()) and method is not Method.RAY:
        warn_user(
            f"num_workers={number}: native threads read this dataset, and so many are of no use where the process has "
            f"{counted(cpus, 'CPU')}; files that must be waited for have threads of their own. Leave num_workers= out: "
            "one thread a CPU reads it then"
        )


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


def is_small(settings: Settings, chosen: Plan) -> bool:
    """Return whether the native core fills a batch from memory in less time than it takes to wake threads."""
    if not isinstance(chosen, NativePlan) or any(leaf.memory is None for leaf in chosen.leaves):
        return False
    row = sum(max(CACHE_LINE, field.spec.nbytes) if field.spec else SMALL_BATCH for field in chosen.leaves[0].fields)
    return fits_small(row, settings.batch_size)


def worker_maker(settings: Settings, substitutes: Substitutes | None, *, here: bool) -> Callable[..., Worker]:
    """Return what makes a Worker; here: in a process whose global generators it may set."""
    return partial(
        Worker,
        settings.dataset,
        batched=settings.batched,
        collate_fn=settings.collate_fn,
        seeded=here and settings.seed is not None,
        keyed=settings.seed is not None,
        replacing=substitutes,
        composes=settings.method is not Method.PROCESS,
        fetcher=replaced_fetcher(),
    )


def worker_of(settings: Settings, substitutes: Substitutes | None, plan: PythonPlan, *, here: bool) -> Worker:
    """Return what makes samples by a plan; here: in a process whose global generators it may set."""
    native: NativeBatches | table_batches.TableBatches | None = None
    if plan.filled is not None:
        native = NativeBatches(settings.dataset, plan.kept, plan.filled, unseen=plan.unseen)
    elif settings.collate_fn is default_collate and type(settings.dataset).__module__ == "penstock.tables.table":
        native = table_batches.batches_of(settings.dataset)
    made = worker_maker(settings, substitutes, here=here)(native=native)
    rows = None
    if substitutes is None and settings.collate_fn is not default_collate:
        rows = collated.rows_of(settings)
    if rows is not None:
        rows.try_out()
        made.dataset, made.collate_fn = rows, rows.collate
    return made
