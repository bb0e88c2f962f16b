"""Chooses the carrier of a pass; owns what the passes of a loader share."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch

from penstock.cluster.option import Ray
from penstock.errors import InvalidOption, pair
from penstock.loop_model import Measured, Workers, measured, tells
from penstock.memory.buffers import Buffers
from penstock.memory.shared_memory import SharedBuffers
from penstock.observe import Meter, Observers
from penstock.order.batches import BatchOrder
from penstock.order.permutations import Epochs, Indices, Positions
from penstock.passes.carrier import Carrier
from penstock.passes.job import BaseSeed, Job, Open, can_pin, is_small, planned, reads_ahead, settled, worker_of
from penstock.passes.values import IN_FLIGHT, ActorReport, PassInput, PassResources
from penstock.plan import Kept, NativePlan, Plan, PythonPlan
from penstock.recipe.unseeded_generators import SeedWarnings
from penstock.settings import Method, Settings
from penstock.state.progress import Progress
from penstock.state.substitutes import Register, Substitutes, population
from penstock.stats import Counters, Stats
from penstock.storage.jpeg_index import JpegIndexes
from penstock.storage.tiers import Caches
from penstock.system.deferred import deferred
from penstock.system.limits import cpu_quota, host_cpus
from penstock.system.process_events import end_openmp_at_forks, is_new_child
from penstock.system.randomness import sample_number
from penstock.system.warn_user import warn_user
from penstock.verdict import log_verdict
from penstock.workers.rows import gathers_rows
from penstock.workers.worker import Worker

if TYPE_CHECKING:
    from penstock.carriers import actors, auto, here, native, processes, threads
    from penstock.carriers.auto import Choice
    from penstock.passes import iterator
    from penstock.workers import copies
else:
    actors, auto, here, native, processes, threads = deferred(
        "penstock.carriers", "actors", "auto", "here", "native", "processes", "threads"
    )
    (iterator,) = deferred("penstock.passes", "iterator")
    (copies,) = deferred("penstock.workers", "copies")


def _in_threads(job: Job) -> bool:
    """Return whether threads read the dataset, or samples are seeded or replaced in the caller's thread."""
    return not job.settings.iterable and (job.in_threads or not job.plain)


#: What makes a pass: the first whose test is true. The modules are imported when they are first needed.
CARRIERS: tuple[tuple[Callable[[Job], bool], Open], ...] = (
    (
        lambda job: job.settings.cluster is not None and job.settings.num_workers > 0,
        lambda job, held: iterator.open_pass(actors.actor_carrier, job, held),
    ),
    (lambda job: job.plan is None, lambda job, held: here.open_here(job, held, rows=True)),
    (
        lambda job: isinstance(job.plan, NativePlan),
        lambda job, held: iterator.open_pass(native.native_carrier, job, held),
    ),
    (
        lambda job: job.settings.num_workers > 0 and not job.in_threads,
        lambda job, held: iterator.open_pass(processes.process_carrier, job, held),
    ),
    (_in_threads, lambda job, held: iterator.open_pass(threads.thread_carrier, job, held)),
    (lambda job: True, lambda job, held: here.open_here(job, held)),
)


class PassFactory:
    """Chooses the carrier of a loader's passes, and owns what these share: batch memory, choices, counters.

    Args:
        register: what is known of bad samples; None: their errors are raised.
        seed_warnings: warns of draws that the seed does not reach.
        caches: of cache=; None: the loader has none.
        indexes: of the loader's photos.
    """

    def __init__(
        self,
        register: Register | None,
        seed_warnings: SeedWarnings,
        caches: Caches | None = None,
        indexes: JpegIndexes | None = None,
    ) -> None:
        self.register = register
        self.seed_warnings = seed_warnings
        self.caches = caches
        self.indexes = JpegIndexes() if indexes is None else indexes
        self.counters = Counters()
        self.observers: Observers = (self.counters,) if register is None else (register, self.counters)
        """Know of each batch that an executor delivers, on whatever way it goes on to its user."""
        self.buffers: Buffers | None = None
        self._choice: Choice | None = None  # of worker_method="auto"
        self._draws: tuple[str, ...] | None = None  # global generators that the dataset draws from
        self.base_seed = BaseSeed()
        self._workers = 0, Workers.CALLER  # how many made the latest pass, and who they are
        self._cluster: Ray | None = None  # whose fillers made it
        self._files = False  # a cache could keep the files of that pass
        self._code = ""  # the dataset's own method that made its samples
        self._may_thread = False  # threads could make its samples too, for all that is known
        self._logs = False  # why the loop waited is logged when the loader is gone
        self._job: Job | None = None  # what the passes have in common, while settings and plan are what they were
        self._open: Open | None = None  # opens them
        self._opened: tuple[Plan, Plan] | None = None  # a plan, and the same with what is kept of its files
        self._latest: Callable[[], Any] = lambda: None  # returns the iterator of the latest pass; None: it is gone

    @cached_property
    def shared(self) -> SharedBuffers:
        """Batch memory that worker processes fill."""
        return SharedBuffers()

    @cached_property
    def fillers(self) -> ActorReport:
        """Where the fillers of a Ray cluster are."""
        return ActorReport()

    def __reduce__(self) -> tuple[Any, ...]:
        given = self.register, self.seed_warnings, self.caches, self.indexes
        return PassFactory, given  # a copy counts, and chooses, anew

    def stats(self) -> Stats:
        """Return the counters of all passes so far."""
        cache = {} if self.caches is None else self.caches.counts()
        buffers = (0, 0, 0) if self.buffers is None else self.buffers.counts()
        fillers = None
        if self._cluster is not None:  # the tiers are those of the fillers' nodes
            cache, fillers = {}, self.fillers.counts()
        return self.counters.snapshot(buffers, cache, self.measured(), self.indexes.counts(), fillers)

    def silence_verdict(self) -> None:
        """Let nothing be logged of why the loop waited: whoever measures it says so."""
        self._logs = True

    def measured(self) -> Measured | None:
        """Return what the passes so far have shown of why their loops wait; None: they were too short to tell."""
        workers, kind = self._workers
        counters, times = self.counters, self.counters.loop.times()
        if not tells(times):
            return None
        found = measured(
            times,
            counters.meter.stages(),
            samples=counters.samples,
            workers=workers,
            kind=kind,
            cpus=min(host_cpus(), cpu_quota() or math.inf),
            host_cpus=host_cpus(),
            cacheable=self._files and self.caches is None,
            code=self._code,
        )
        calls = counters.meter.calls.counts().values() if self._may_thread else ()
        return found and replace(found, answered=bool(calls) and not any(one.refused for one in calls))

    def log_verdict(self, process: int) -> None:
        """Log why the loop waited: the loader is gone, or the process ends, but for one that was forked off."""
        if os.getpid() == process and (found := self.measured()) is not None:
            log_verdict(found)

    # --- making a pass ----------------------------------------------------------------------------------------------

    def gathers(self, settings: Settings) -> bool:
        """Return whether torch gathers the rows of a pass with these settings, which needs no plan."""
        return self.register is None and gathers_rows(settings)

    def with_kept(self, made: Plan) -> Plan:
        """Return a plan as the pass that begins goes by it: with what the loader keeps of its files.

        Caches are opened for each pass; indexes learn of what other processes have kept.
        """
        if self._opened is None or made is not self._opened[0] or self.caches is not None:
            self._opened = made, made.keeping(Kept(self.caches, self.indexes))
        else:
            for index in self.indexes.opened:
                index.refresh()
        return self._opened[1]

    def job(
        self, loader: Any, settings: Settings, chosen: Plan | None, progress: Progress, epochs: Epochs, *, sends: bool
    ) -> Job:
        """Return the pass that begins. Raises InvalidOption.

        Args:
            chosen: None where the settings `gathers`.
            sends: its batches go to an accelerator.
        """
        job = self._job
        if job is None or job.settings is not settings or job.plan is not chosen or job.sends is not sends:
            job = self._job = self._job_of(loader, settings, chosen, epochs, sends=sends)
        if settings.pin_memory:
            job.pins = self.pins(settings)  # which warns, once a pass
        if sends:
            job.pins = can_pin(settings, sends=True)
        return job.of_pass(
            progress=progress,
            substitutes=self.substitutes(settings),
            make_resources=partial(self.resources, settings, chosen, sends=sends),
        )

    def _job_of(self, loader: Any, settings: Settings, chosen: Plan | None, epochs: Epochs, *, sends: bool) -> Job:
        """Return what all passes have in common that begin with these settings and this plan."""
        if settings.num_workers == 0 and settings.timeout:
            raise pair(InvalidOption, AssertionError)(  # torch asserts it
                "timeout= needs num_workers > 0: the caller's thread cannot wait for itself"
            )
        if settings.num_workers and settings.prefetch_factor == 0:  # torch asserts it, too
            raise pair(InvalidOption, AssertionError)("prefetch_factor=0: it is 1 at least, or None for the default")
        end_openmp_at_forks()
        self._open, native = None, not isinstance(chosen, PythonPlan)
        in_threads = not native and self.in_threads(settings, chosen)
        kind = Workers.NATIVE if native else Workers.THREADS if in_threads else Workers.PROCESSES
        kind = kind if settings.cluster is None else Workers.FILLERS
        self._workers, self._cluster = (0 if chosen is None else settings.num_workers, kind), settings.cluster
        own = isinstance(chosen, PythonPlan) and chosen.filled is None
        self._code = f"{type(settings.dataset).__name__}.{'__iter__' if settings.iterable else '__getitem__'}" * own
        self._may_thread = own and settings.method is None and settings.seed is None and not settings.iterable
        filled = chosen.filled if isinstance(chosen, PythonPlan) and in_threads else chosen
        self._files = isinstance(filled, NativePlan) and any(leaf.files is not None for leaf in filled.leaves)
        if not self._logs:
            self._logs = True
            self.counters.loop.when_long = partial(_log_at_end, weakref.ref(loader), weakref.ref(self), os.getpid())
        return Job(
            weakref.ref(loader),
            settings,
            chosen,
            BatchOrder(settings),
            epochs,
            sends,
            in_threads,
            self.counters.meter,
            self.seed_warnings,
            self.base_seed,
        )

    def begin(self, job: Job, held: Any, on_device: Open | None) -> Any:
        """Return the iterator of a pass: the one that is held, where it can make this pass too, or a new one.

        Args:
            held: the iterator of the pass before, where it is kept; it is ended where it cannot make this one.
            on_device: opens a pass whose batches are made on the device; None: the host makes them.
        """
        settings, streams = job.settings, job.streams
        if is_new_child():
            # Each thread's first operation uses torch's pool, and two at once may find none ("Invalid thread pool!"):
            # it is made anew in a forked child, before threads are started.
            torch.set_num_threads(torch.get_num_threads())
        if self._open is None:
            self._open = next(opens for accepts, opens in CARRIERS if accepts(job))
        opens = on_device or self._open
        elsewhere = streams is not None and streams.resumed  # its workers are where no state says
        if held is not None and (elsewhere or not held.reusable):
            held.close()
            if isinstance(held, iterator.Pass) and self.base_seed.latest is not None:
                # New workers draw other numbers than those before them; the order is drawn as with workers that stay.
                self.base_seed.latest = sample_number(("workers", self.base_seed.latest)) >> 1
            held = None
        if not settings.num_workers and streams is not None:
            streams.restore_between_passes(settings.dataset)
        try:
            made = opens(job, held)
        except copies.NotCopied as error:
            if settings.method is not Method.AUTO:
                raise
            self._choice = auto.not_copied(error)  # the loop has opened something since threads were chosen
            self._job = self._open = None
            return self.begin(job.of_pass(in_threads=False), None, on_device)
        made.made_by = opens, job
        self._latest = weakref.ref(made)
        return made

    def begin_anew(self, follows: Callable[[Settings], bool]) -> None:
        """Begin the latest pass anew, where it is there and follows() says so of its settings."""
        held = self._latest()
        if held is not None:
            opens, job = held.made_by
            if follows(job.settings):
                opens(job, held)
                held.observers = held.observers  # who reads what the pass counts reads it anew

    def read_batch(self, settings: Settings, epoch: int, indices: Indices, positions: Positions) -> Any:
        """Return the batch of these samples, read in the calling thread; not counted."""
        chosen, seed = planned(settings), settings.seed
        assert seed is not None
        self.pins(settings)  # which warns
        resources = replace(self.resources(settings, chosen, sends=False), in_flight=1, ahead=False, meter=Meter())
        carrier: Carrier
        if isinstance(chosen, NativePlan):
            given: Any = indices
            carrier = native.NativeCarrier(chosen, resources, substitutes=self.substitutes(settings))
        else:
            given = indices.tolist()
            carrier = threads.ThreadCarrier(self.worker(settings, chosen, here=True), resources, seed)
        made = iterator.Pass(carrier, PassInput(iter([(given, positions)]), 1, seed, epoch))
        if self.register is not None:
            made.observers = (self.register,)
        return next(made)

    def substitutes(self, settings: Settings) -> Substitutes | None:
        """Return what replaces bad samples in the pass that begins."""
        if self.register is None:
            return None
        drawn_from = population(settings.sampler, settings.batch_sampler, len(settings.dataset))
        self.register.substitutes.population = drawn_from
        return self.register.substitutes

    def resources(self, settings: Settings, chosen: Plan | None, *, sends: bool) -> PassResources:
        """Return what a pass works with. sends: its batches go to an accelerator."""
        assert chosen is not None
        workers = 0 if settings.workers_chosen and is_small(settings, chosen) else settings.num_workers
        if isinstance(chosen, NativePlan) and settings.batch_size:  # more threads than samples in flight would wait
            workers = min(workers, settings.batch_size * (1 if chosen.gathers else settings.in_flight or IN_FLIGHT))
        return PassResources(
            workers=workers,
            in_flight=settings.in_flight,
            buffers=self._memory(settings, chosen, pinned=can_pin(settings, sends=sends)),
            meter=self.counters.meter,
            shared=None if isinstance(chosen, NativePlan) else self.shared,
            fillers=None if settings.cluster is None else self.fillers,
            timeout=settings.timeout,
            ahead=reads_ahead(settings),
            settled=settled(settings),
            persistent=settings.persistent_workers,
        )

    def _memory(self, settings: Settings, chosen: Plan, *, pinned: bool) -> Buffers:
        """Return the batch memory: made once, and anew where pinning has changed."""
        if self.buffers is None or self.buffers.pinned != pinned:
            # Each field of each batch in flight, and of the two that a loop holds when it asks for the next.
            fields = chosen.fields if isinstance(chosen, NativePlan) else 2
            self.buffers = Buffers(pinned=pinned, keep=fields * ((settings.in_flight or IN_FLIGHT) + 2))
        return self.buffers

    def pins(self, settings: Settings) -> bool:
        """Return whether torch's iterator is to pin, with its warnings where it cannot."""
        if settings.pin_memory and settings.pin_memory_device:
            warn_user(
                "pin_memory_device is deprecated, the current accelerator will be used as the device,"
                f"ignore pin_memory_device='{settings.pin_memory_device}'."
            )
        if settings.pin_memory and not torch.accelerator.is_available():
            warn_user(
                "'pin_memory' argument is set as true but no accelerator is found, "
                "then device pinned memory won't be used."
            )
        if not settings.pin_memory or not torch.accelerator.is_available():
            return False
        device = torch.accelerator.current_accelerator()
        if device is not None and device.type == "mps":
            warn_user(
                "'pin_memory' argument is set as true but not supported on MPS now, device pinned memory won't be used."
            )
            return False
        return True

    # --- threads or processes ---------------------------------------------------------------------------------------

    def in_threads(self, settings: Settings, chosen: Plan | None = None) -> bool:
        """Return whether Python threads of this process read the dataset, where Python reads it.

        worker_method="auto" is measured once. Worker processes go through an iterable dataset.
        """
        if settings.iterable:
            return False
        if settings.method is not Method.AUTO:
            return settings.method is Method.THREAD
        chosen = chosen or planned(settings)
        return isinstance(chosen, PythonPlan) and self.choice(settings, chosen).method is Method.THREAD

    def choice(self, settings: Settings, chosen: PythonPlan) -> Choice:
        """Return what worker_method="auto" comes to: measured once."""
        if self._choice is None:
            batches = None if settings.persistent_workers else BatchOrder(settings).length()
            samples = None if batches is None else batches * (settings.batch_size or 1)
            self._choice = auto.try_out(settings, self.worker(settings, chosen), samples)
        return self._choice

    def global_draws(self, settings: Settings, chosen: PythonPlan) -> tuple[str, ...]:
        """Return which global generators the dataset draws from, as its first sample shows; looked for once."""
        if self._draws is None:  # "auto" has looked, and takes threads where there are none
            tried = settings.method is Method.AUTO
            self._draws = () if tried else auto.draws_in_threads(self.worker(settings, chosen))
        return self._draws

    def warn_of_unreached(self, settings: Settings, chosen: Plan | None) -> None:
        """Warn once of draws of the dataset's that do not follow the seed that there is."""
        if not isinstance(chosen, PythonPlan) or settings.iterable:
            return
        threads = bool(settings.num_workers) and self.in_threads(settings, chosen)
        draws = (lambda: self.global_draws(settings, chosen)) if threads else None
        self.seed_warnings.warn_of_dataset(settings.dataset, draws, shared=threads and settings.share_dataset)

    def worker(self, settings: Settings, chosen: PythonPlan, *, here: bool = False) -> Worker:
        """Return what calls the dataset; here: in a process whose global generators it may set."""
        return worker_of(settings, self.substitutes(settings), chosen, here=here)


def _log_at_end(loader: Callable[[], Any], executors: Callable[[], PassFactory | None], process: int) -> None:
    """Have the verdict of a loader logged when it is gone, where it still is there."""
    if (made := loader()) is not None:
        weakref.finalize(made, _log_verdict, executors, process)


def _log_verdict(executors: Callable[[], PassFactory | None], process: int) -> None:
    if (owner := executors()) is not None:  # held strongly it would keep a loader whose collate_fn holds the loader
        owner.log_verdict(process)
