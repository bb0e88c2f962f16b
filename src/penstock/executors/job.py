"""What a pass is made from, and what makes it: one protocol for all executors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Protocol

from penstock.executors.fetch import Fetch
from penstock.executors.filler import PassInput, PassResources
from penstock.executors.filling import Filling
from penstock.observe import Meter
from penstock.order.batches import BatchOrder
from penstock.order.permutations import Epochs
from penstock.plan import NativePlan, Plan, PythonPlan
from penstock.recipe.unseeded_generators import SeedWarnings
from penstock.settings import Method, Settings
from penstock.state.progress import PassBatches, Progress
from penstock.state.streams import Streams, with_first_drawn
from penstock.state.substitutes import Substitutes


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
    meter: Meter
    """Adds up what all passes of the loader do."""
    reach: SeedWarnings
    """Warns of samplers that the seed does not reach."""
    sends: bool
    """The batches go to an accelerator."""
    in_threads: bool
    """Python threads of this process read the dataset, where Python reads it."""
    pins: bool = False
    """Torch's own iterator pins its batches."""
    found: dict[str, Any] = field(default_factory=dict)
    """What the first of the passes has found out for all of them: its executor, and what that keeps."""
    progress: Progress = field(init=False)
    substitutes: Substitutes | None = field(init=False)
    """How bad samples are replaced; None raises their errors."""
    key: Callable[[], tuple[int, int]] = field(init=False)
    """Returns (seed, epoch) of the pass, and advances the generators as torch's iterator would. Called once."""
    make_resources: Callable[[], PassResources] = field(init=False)

    def of_pass(self, **own: Any) -> Job:
        """Return the job of a pass that begins: with these fields of its own."""
        job = object.__new__(Job)
        vars(job).update(vars(self), **own)  # a fifth of what copy() takes
        return job

    @property
    def batches(self) -> PassBatches:
        """What the sampler gives in the pass."""
        return PassBatches(self.order, self.progress, self.reach, isinstance(self.plan, NativePlan))

    @cached_property
    def resources(self) -> PassResources:
        """What a pass of threads, or with batch memory, works with."""
        return self.make_resources()

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
        seed, epoch = self.key()
        given = batches(seed, epoch) if drawn is None else drawn
        if self.streams is not None and any(self.streams.counts):
            given = with_first_drawn(given)
        if drawn is not None or not self.order.cuts_itself():
            return PassInput(given, length, seed, epoch)
        coming = partial(batches.coming, seed, epoch)
        return PassInput(given, length, seed, epoch, coming=coming, samples=batches.samples_left())

    def fetch(self, *, here: bool) -> Fetch:
        """Return what calls the dataset; here: in a process whose global generators it may set."""
        assert isinstance(self.plan, PythonPlan)
        return fetch_of(self.settings, self.substitutes, self.plan, here=here)


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


class Executor(Protocol):
    """Fills the batches of a pass in one way."""

    def open(self, job: Job) -> Any:
        """Return an iterator of the batches."""

    def restart(self, held: Any, job: Job) -> None:
        """Let an iterator that is kept between passes make this one too."""
