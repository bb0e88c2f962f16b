"""DataLoader: torch's class, with the native core underneath where the plan allows it."""

from __future__ import annotations

import inspect
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
import torch.utils.data
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, RandomSampler, SequentialSampler, Subset

from penstock import announcements, settings as options
from penstock.carriers.choice import PassFactory
from penstock.cluster.option import Ray, ray_of
from penstock.device.feed import Device, Feed, feed_of
from penstock.errors import InvalidOption
from penstock.loop_times import LoopClock, LoopLabel, LoopMeter
from penstock.observe import Observers, SpanSink, watching
from penstock.order.batches import BatchOrder, deepest
from penstock.order.buckets import Buckets, CutBatches
from penstock.order.mix import Mix
from penstock.order.permutations import SetEpoch, checked_seed
from penstock.order.schedule import Shard
from penstock.order.weighted import Weighted
from penstock.passes.job import Open, default_workers, planned, warn_of_many_threads
from penstock.plan import NativePlan, Plan, PythonPlan, plan
from penstock.recipe.originals import own_class
from penstock.recipe.unseeded_generators import SeedWarnings
from penstock.settings import Given, Method, Settings
from penstock.sources.blocks import blocks_of
from penstock.sources.naming import ids_of
from penstock.state.checkpoint import Checkpoint, OnChange
from penstock.state.dropped import dropped_states
from penstock.state.ledger import LoaderLedger
from penstock.state.progress import Progress
from penstock.state.substitutes import Replace, register_of
from penstock.stats import Stats
from penstock.storage.jpeg_index import JpegIndexes
from penstock.storage.tiers import CacheOption, caches_of
from penstock.system.deferred import deferred
from penstock.system.tracebacks import shorten, shortens
from penstock.workers.rows import holds_rows, is_native

if TYPE_CHECKING:
    from penstock import explain
    from penstock.device import target as targets
    from penstock.sources import stream_parts
else:
    (stream_parts,) = deferred("penstock.sources", "stream_parts")
    (explain,) = deferred("penstock", "explain")
    (targets,) = deferred("penstock.device", "target")

T_co = TypeVar("T_co", covariant=True)

# torch's arguments that say which samples are read, and in which batches.
_CHOOSING = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")


class DataLoader(torch.utils.data.DataLoader[T_co]):
    """torch.utils.data.DataLoader, with batches filled by native threads where the dataset is recognised.

    It takes torch's arguments with torch's meaning, and those below; docs/options.md describes each in detail.

    Args:
        num_workers: native threads, or workers of `worker_method` where Python reads the dataset. None (the default):
            as many threads as CPUs this process may use, and 0 worker processes, as in torch. 0: the caller's thread.
        seed: makes the order a function of (seed, epoch), and every random draw a function of (seed, epoch, sample,
            position), where position is the sample's place in the epoch's order. The batches are the same for any
            number of workers and ranks, and after any resume. A warning names draws of the dataset that the seed does
            not reach. None: order and draws follow torch's global generator, or `generator`, as in torch's loader;
            native random transforms are functions of a seed drawn for the pass.
        worker_method: who reads a dataset that only Python can read. None: torch's worker processes, with
            known transforms done natively. "process": the same, with nothing native. "thread": threads of this
            process, each with a copy of the dataset's Python objects; tensors and arrays are shared. "auto": the faster
            of the two, by a short trial. "ray", or a penstock.Ray: actors of a Ray cluster make all batches.
        share_dataset: True: all threads use the one dataset object, whose code must be safe for that.
        on_error: "raise": the error of a bad sample is raised at its batch. "replace", or a penstock.Replace: a good
            sample, a function of (seed, epoch, sample, position), replaces it.
        device: where batches arrive, a few ahead of the one in use: "cuda" (cuda:LOCAL_RANK under torchrun), or a
            penstock.Feed. None: they stay in host memory.
        shard: this rank and the number of ranks: (rank, ranks), or "auto", which takes them from torch.distributed, or
            torchrun's variables, when a pass begins. Each global batch of one order is divided among the ranks, and
            all ranks get the same number of batches. An iterable dataset is shared out by its .shard(num_shards,
            index), also among worker processes. None, or a DistributedSampler: as in torch's loader.
        ledger: a file with a line for each batch handed out: a hash over its IDs. "{rank}" in it is the rank's number.
        cache: where the bytes of recognised files are kept for later epochs: memory of this process ("8GiB"), a folder
            ("/dev/shm/penstock"), a folder with its limit (("/nvme/penstock", "500GiB")), or a list of these, in order.
        cache_decoded: True: the cache keeps images as pixels after the first transforms, where that saves time.
        snapshot_every_n_steps: an argument of torchdata's StatefulDataLoader, accepted without effect.

    Raises:
        InvalidOption: seed together with generator, an unknown worker_method, share_dataset or on_error or device,
            share_dataset=True without threads, on_error="replace" for an iterable dataset, shard= for one without a
            .shard(num_shards, index), shard= with a shuffle without seed= or with your own sampler; from iter(), a
            device that does not exist, and threads with a dataset that holds an open file or a lock.
        TooManyBadSamples: more samples are bad than on_error=Replace(max_share=) allows (while iterating).
        WorkerDied, WorkerStuck: a worker ended, or no batch came within `timeout` seconds (while iterating).
        ValueError: arguments that torch refuses.
    """

    # Over 25 methods and 15 attributes: most attributes are arguments that programs read, as torch's are. __init__ has
    # over 60 lines for its signature.

    dataset: Any
    sampler: Any
    batch_sampler: Any
    seed: int | None
    shard: Shard
    ledger: str | os.PathLike[str] | None
    device: Device | Feed | None
    on_error: Any
    worker_method: Any
    snapshot_every_n_steps: int | None
    cache: CacheOption
    cache_decoded: bool
    share_dataset: bool
    _given: Given
    _pass_factory: PassFactory
    _checkpoint: Checkpoint
    _iterator: Any
    _kept_settings: Settings | None = None
    """Of the latest question or pass: they hold while nothing that they were taken from has changed."""
    _plan: Plan | None = None
    """Of the latest pass; None: the rows of tensors are gathered, and nothing else has needed a plan."""
    _planned_for: tuple[Settings, bool] | None = None
    """What the plan was made for: the settings of the latest pass, and whether images stay pixels for a device."""
    _begins: bool = False
    """A call of __iter__ has begun no pass yet."""
    _device_feed: targets.DeviceFeed | None = None
    _recording: LoaderLedger | None = None

    @shortens
    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int | None = None,
        collate_fn: Any = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Any = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        worker_method: Literal["process", "thread", "auto", "ray", "multiprocessing"] | Ray | None = None,
        share_dataset: bool = False,
        on_error: Literal["raise", "replace"] | Replace = "raise",
        device: Device | Feed | None = None,
        shard: Shard = None,
        ledger: str | os.PathLike[str] | None = None,
        cache: CacheOption = None,
        cache_decoded: bool = False,
        snapshot_every_n_steps: int | None = 1,
    ) -> None:
        options.check_numbers(
            num_workers=num_workers,
            batch_size=batch_size,
            timeout=timeout,
            prefetch_factor=prefetch_factor,
            snapshot_every_n_steps=snapshot_every_n_steps,
        )
        switches = {"shuffle": shuffle, "pin_memory": pin_memory, "in_order": in_order}
        options.check_kinds(dataset, collate_fn, persistent_workers=persistent_workers, **switches)
        feed = feed_of(device)  # refuses what makes no sense
        if seed is not None:
            if generator is not None:
                raise InvalidOption("seed= and generator= exclude each other: both say where randomness comes from")
            seed = checked_seed(seed)
        if type(dataset) is Mix:
            mixing = dataset.sampler(shuffle=bool(shuffle), generator=generator)
            if sampler is None and batch_sampler is None:
                sampler, shuffle = mixing, None
        if isinstance(sampler, Buckets) and batch_size is not None:
            raise InvalidOption("sampler=Buckets(...): Buckets makes batches; write batch_sampler=Buckets(...)")
        packed = own_class("penstock.tables.packed", "Packed")  # which is imported where there is one
        if packed is not None and isinstance(collate_fn, packed) and batch_sampler is None:
            others = {"batch_size": batch_size, "sampler": sampler, "drop_last": drop_last, "on_error": on_error}
            batch_sampler = collate_fn.batches(dataset, bool(shuffle), generator, others)
            shuffle = None
        for sized in (sampler, batch_sampler):
            if isinstance(sized, Weighted | CutBatches):
                sized.check_size(len(dataset))  # type: ignore[arg-type]
        cluster = ray_of(worker_method)
        method = options.method_for(worker_method, cluster, dataset, num_workers)
        if cluster is not None and feed is not None and (feed.cache is not None or feed.decode != "cpu"):
            raise InvalidOption("worker_method='ray' fills batches elsewhere: Feed(cache=) and Feed(decode=) read here")
        given = Given(
            own_order=sampler is None and batch_sampler is None,
            prefetch_given=prefetch_factor is not None,
            method=method,
            seeded=None if seed is None else torch.Generator().manual_seed(seed),
            caches=caches_of(cache, cache_decoded),
            indexes=JpegIndexes(),
            cluster=cluster,
        )
        executors = PassFactory(register_of(on_error, dataset), SeedWarnings(), given.caches, given.indexes)
        # torch's __setattr__ looks each name up in a list.
        vars(self).update(
            seed=seed,
            shard=shard,
            ledger=ledger,
            device=device,
            on_error=on_error,
            worker_method=worker_method,
            snapshot_every_n_steps=snapshot_every_n_steps,
            cache=cache,
            cache_decoded=cache_decoded,
            share_dataset=options.shares(share_dataset, method),
            _given=given,
            _pass_factory=executors,
            _checkpoint=Checkpoint(seed, executors.in_threads),
        )
        batched = batch_size is not None or batch_sampler is not None
        if not (holds_rows(dataset) and is_native(batched, collate_fn, worker_init_fn, method)):
            vars(self)["_plan"] = plan(
                dataset,
                batched=batched,
                collate_fn=collate_fn,
                worker_init_fn=worker_init_fn,
                processes=method is Method.PROCESS,
            )
        if num_workers is None:
            native = not isinstance(self._plan, PythonPlan)
            num_workers = given.workers = default_workers(dataset, native=native, method=method)
        own_order = given.own_order and not isinstance(dataset, IterableDataset)
        if shuffle and own_order and len(dataset) == 0:  # type: ignore[arg-type]
            raise InvalidOption(f"{type(dataset).__name__} has no samples, and shuffle=True needs one at least")
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        if shard is not None:
            self._order().refuse_shard()
            if isinstance(dataset, IterableDataset):
                stream_parts.refuse_parts(dataset)
        if given.seeded is not None and given.own_order and type(self.sampler) is RandomSampler:
            self.sampler.generator = given.seeded
        self._offer_set_epoch()
        for tell in announcements.made:
            tell(self)
        if isinstance(self._plan, NativePlan):
            self._planned_for = self._settings(), False

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what another process, or a copy, makes anew: the plan, the device, the ledger, the iterator."""
        made = ("_plan", "_planned_for", "_kept_settings", "_device_feed", "_recording")
        return {name: value for name, value in vars(self).items() if name not in made} | {"_iterator": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        for tell in announcements.made:
            tell(self)
        self._pass_factory = copy(self._pass_factory)
        self._checkpoint = self._checkpoint.copied(self._pass_factory.in_threads)
        self._offer_set_epoch()
        settings = self._settings()
        if not self._pass_factory.gathers(settings):
            self._plan = planned(settings)
        self._choose_workers()

    # --- passes -----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Any:
        held = vars(self)  # torch's __setattr__ takes a third of a microsecond
        held["_begins"] = True
        try:
            return self._get_iterator()
        except Exception as error:
            shorten(error)
            raise
        finally:
            held["_begins"] = False

    def _get_iterator(self) -> Any:
        """Return a new pass, as torch's method does; the first in a call of __iter__ has the workers that are kept."""
        begins, vars(self)["_begins"] = self._begins, False
        feed = target = None
        if self.device is not None or self._device_feed is not None:
            feed = feed_of(self.device)
            target = self._feeder().begin(feed)
        sends = target is not None and target.sends
        settings = self._settings()
        checkpoint, executors = self._checkpoint, self._pass_factory
        rows = executors.gathers(settings)
        if not (rows or self._plan_serves(settings, sends)):
            self._plan = planned(settings, raw=sends)
            self._choose_workers()
            settings = self._settings()
            self._planned_for = settings, sends
        chosen = None if rows or self._plan is None else executors.with_kept(self._plan)
        kept = begins and self._iterator is not None
        if settings.num_workers and settings.seed is None and not (kept or settings.on_demand or settings.iterable):
            iter(settings.index_sampler)  # torch's new iterators with workers begin it twice: some samplers draw then
        progress = checkpoint.next_progress(settings)
        followers: Observers = ()
        if settings.ledger is not None:
            self._recording = self._recording or LoaderLedger()
            followers = (self._recording.of_pass(settings, progress, checkpoint.fingerprint),)
        checkpoint.progress = progress
        if settings.seed is not None:
            executors.warn_of_unreached(settings, chosen)
        loop = executors.counters.loop
        if loop.label is None:
            kind, owner = type(settings.dataset).__name__, weakref.ref(executors)
            facts = settings.batch_size, settings.num_workers, reader_of(chosen)
            loop.label = LoopLabel(kind, *facts, owner, PassFactory.stats)
        followers += (progress, LoopClock(loop), *dropped_states(), *watching(self))
        if feed is None or target is None:
            batches = self._batches(settings, chosen, progress, begins=begins)
            batches.observers = (*executors.observers, *followers)
            return batches
        with target.current(stream := target.copy_stream()):
            read_by = chosen or planned(settings, raw=sends)  # rows are gathered without one
            on_device = target.prepare(feed, read_by, stream, replaces=self.on_error != "raise")
            batches = self._batches(settings, chosen, progress, on_device, begins=begins, sends=sends)
            batches.observers = executors.observers
        feeding = self._feeder().feeding(batches, feed, target, stream, settings, read_by, executors.counters)
        feeding.observers = followers
        return feeding

    def _batches(
        self,
        settings: Settings,
        chosen: Plan | None,
        progress: Progress,
        on_device: Open | None = None,
        *,
        begins: bool,
        sends: bool = False,
    ) -> Any:
        """Return the pass that begins, before it goes to a device."""
        checkpoint, executors = self._checkpoint, self._pass_factory
        job = executors.job(self, settings, chosen, progress, checkpoint.epochs, sends=sends)
        held = None
        if not begins:
            executors.base_seed.latest = None  # torch's new iterators draw one
        elif self._iterator is not None:
            held, self._iterator = self._iterator, None
        batches = executors.begin(job, held, on_device)
        if begins and settings.persistent_workers and settings.num_workers:
            self._iterator = batches
        return checkpoint.forwarded(settings, batches, progress)

    def _plan_serves(self, settings: Settings, sends: bool) -> bool:
        """Return whether the plan that was made last is that of the pass that begins."""
        made = self._plan
        if isinstance(made, PythonPlan):  # whatever the settings are
            dataset, kind = made.foreign or (None, None)
            return dataset is settings.dataset and kind is type(dataset)
        return made is not None and self._planned_for == (settings, sends) and made.reusable()

    def _choose_workers(self) -> None:
        """Choose the number of workers for the plan, where it was not given."""
        given = self._given
        if given.workers is not None and self.num_workers == given.workers:
            native = not isinstance(self._plan, PythonPlan)
            self.num_workers = given.workers = default_workers(self.dataset, native=native, method=given.method)
            if not given.prefetch_given:
                self.prefetch_factor = 2 if self.num_workers else None  # as torch's __init__ has it

    def _settings(self) -> Settings:
        dataset, batches = self.dataset, self.batch_sampler
        # Beside a CutBatches torch puts a sampler of all samples in sequence.
        sampler = batches.sampler if isinstance(batches, CutBatches) else self.sampler
        in_blocks = isinstance(dataset, _COMPOUND) or hasattr(dataset, "shuffle_blocks")
        blocks = blocks_of(dataset) if in_blocks else None
        kept = options.settings_now(self, self._given, sampler, blocks, self._kept_settings)
        vars(self)["_kept_settings"] = kept
        return kept

    def _feeder(self) -> targets.DeviceFeed:
        self._device_feed = self._device_feed or targets.DeviceFeed()
        return self._device_feed

    def _order(self) -> BatchOrder:
        return BatchOrder(self._settings())

    def check_worker_number_rationality(self) -> None:
        """Warn of more worker processes than CPUs, as torch does, and of native threads far beyond them."""
        if not isinstance(self._plan, PythonPlan):
            warn_of_many_threads(self.num_workers, self._given.method)
        elif self._given.method not in (Method.THREAD, Method.RAY):
            super().check_worker_number_rationality()

    # --- the order --------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        order = self._order()
        steps = None if order.share() is None else order.length()
        return super().__len__() if steps is None else steps

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass epoch number `epoch`. Without this call each pass is the next epoch.

        The call reaches a sampler of your own too.

        A pass that has begun, and has handed out nothing, becomes one of that epoch: Lightning calls iter() first.
        Raises InvalidOption for a negative epoch, TypeError for anything but an integer.
        """
        self._checkpoint.begin_with(epoch)
        given = self.sampler if self.batch_sampler is None else self.batch_sampler
        theirs = getattr(deepest(given), "set_epoch", None)
        reached = False
        if callable(theirs) and not isinstance(theirs, SetEpoch):
            reached = True
            theirs(self._checkpoint.epochs.number)
        self._pass_factory.begin_anew(partial(self._checkpoint.begins_anew, reached=reached))

    def _offer_set_epoch(self) -> None:
        """Give the sampler that torch's __init__ made a set_epoch."""
        own = type(self.sampler) in (SequentialSampler, RandomSampler)
        if self.seed is not None and self._given.own_order and own:
            self.sampler.set_epoch = SetEpoch(self)

    @property
    def padded(self) -> int:
        """How many samples at the end of the latest batch repeat others, to give all ranks the same number."""
        return self._checkpoint.padded

    # --- the state --------------------------------------------------------------------------------------------------

    @shortens
    def state_dict(self) -> dict[str, Any]:
        """Return where the latest pass is, as its user sees it: JSON-able, under 1 KB, or 5 KB with a generator.

        It counts the batches that were handed out, not those that were read ahead; a batch whose error was raised
        counts once a later one was handed out. A dataset with a state_dict() of its own adds its states. The first call
        reads the IDs of the dataset, for its fingerprint.
        """
        kept = self._iterator is not None and self.persistent_workers
        return self._checkpoint.state_dict(self._settings(), iterator_kept=kept)

    @shortens
    def load_state_dict(
        self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], on_change: OnChange = "raise"
    ) -> None:
        """Let the next pass continue from a state_dict(), with any number of ranks and workers and any batch size.

        What was read before is not read again. No sample is read by this call.

        Args:
            state: of state_dict(). Of a Hugging Face IterableDataset also the list of the states of all ranks.
            on_change: what happens where the dataset has changed since. "raise": an error says how it differs.
                "continue": the epoch continues with the present dataset, from its start, or in the middle where it is
                known which samples are left.

        Raises:
            InvalidOption: a state of another seed, another order or another format; on_change="continue" where it is
                not known which samples are left of the epoch.
            DatasetChanged: the dataset is not what it was; the message says how it differs.
        """
        self._checkpoint.load_state_dict(self._settings(), state, on_change)

    @shortens
    def ids(
        self, epoch: int, step: int, rank: int | None = None, *, state: Mapping[str, Any] | None = None
    ) -> list[str]:
        """Return the IDs of the samples of a batch, padding included, without reading anything.

        The batches are those of an epoch that was begun at its start, with this batch size and these ranks.

        Args:
            epoch: its number.
            step: the batch of that epoch, from 0 on.
            rank: another rank of shard=; None: this one.
            state: of a pass that began in the middle of the epoch, what state_dict() returned before its first batch:
                steps count from there too.

        Raises:
            InvalidOption: the order is not a function of (seed, epoch), or the state is not of that epoch.
            DatasetChanged: the dataset is not that of the state.
            IndexError: there is no such step.
        """
        indices, _ = self._checkpoint.replayed(self._settings(), epoch, step, rank, state)
        return ids_of(self.dataset, indices.tolist())

    @shortens
    def batch_at(
        self, epoch: int, step: int, rank: int | None = None, *, state: Mapping[str, Any] | None = None
    ) -> Any:
        """Return a batch as a pass would give it, in host memory, without reading the batches before it.

        Args, Raises: as `ids`; and what reading the samples raises.
        """
        settings = replace(self._settings(), num_workers=0, persistent_workers=False, timeout=0)
        return self._pass_factory.read_batch(
            settings, epoch, *self._checkpoint.replayed(settings, epoch, step, rank, state)
        )

    # --- questions --------------------------------------------------------------------------------------------------

    def explain(self) -> str:
        """Return the plan as text: each step and who does it, and the calls of the dataset's code that were counted.

        What would make the rest native, and what might be faster, comes last, as advice.
        """
        feed, settings = feed_of(self.device), self._settings()
        sends = feed is not None and self._feeder().sends(feed)
        chosen = planned(settings, raw=sends)
        if settings.workers_chosen:
            native = isinstance(chosen, NativePlan)
            settings = replace(
                settings, num_workers=default_workers(self.dataset, native=native, method=settings.method)
            )
        replaces = self.on_error != "raise"
        device = () if feed is None else tuple(self._feeder().explain(feed, chosen, replaces=replaces))
        return explain.Explained(settings, chosen, self._pass_factory, device, sends).text(self.stats())

    def stats(self) -> Stats:
        """Return the counters of all epochs so far."""
        return self._pass_factory.stats()

    def stats_reader(self) -> Callable[[], Stats]:
        """Return what returns stats() and does not keep the loader: a bound method."""
        return self._pass_factory.stats

    @property
    def read_by(self) -> str:
        """Who reads the dataset: "native threads" or "Python"."""
        return reader_of(self._plan)

    @property
    def loop_meter(self) -> LoopMeter:
        """What adds up the times of the loops over this loader."""
        return self._pass_factory.counters.loop

    def record_spans(self, sink: SpanSink) -> Callable[[], None]:
        """Have a sink called for each piece of work of this process's workers; return what ends that."""
        return self._pass_factory.counters.meter.add_sink(sink)

    def silence_verdict(self) -> None:
        """Let nothing be logged of why the loop waited: whoever measures the loader says so."""
        self._pass_factory.silence_verdict()

    def __repr__(self) -> str:
        return (
            f"<penstock.DataLoader of {type(self.dataset).__name__}: batch_size={self.batch_size}, "
            f"num_workers={self.num_workers}, read by {self.read_by}>"
        )

    # --- for frameworks ---------------------------------------------------------------------------------------------

    def with_samples(self, dataset: Dataset[Any], **samples: Any) -> DataLoader[Any]:
        """Return a loader of other samples (dataset, batch_size, sampler, batch_sampler, drop_last), else as this one.

        It counts its epochs on from this one's.
        """
        arguments = {name: getattr(self, name) for name in (*_READING, *OWN)}
        if self.num_workers == self._given.workers:
            arguments["num_workers"] = None
        if not self._given.prefetch_given:
            del arguments["prefetch_factor"]
        twin: DataLoader[Any] = DataLoader(dataset, **samples, **arguments)
        twin._checkpoint.epochs = self._checkpoint.epochs.copy()
        twin._pass_factory.seed_warnings = self._pass_factory.seed_warnings
        return twin

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Whether Accelerator.prepare leaves this loader as it is. It asks before it builds another one: it may."""
        for tell in announcements.copied:
            tell(self)
        return False

    @property
    def resumes(self) -> bool:
        """Whether a loaded state lets the next pass begin behind the start of its epoch."""
        return self._checkpoint.resumes

    def order_key(self) -> tuple[int, int] | None:
        """Return (seed, epoch) that the next epoch's order is a function of; None: the sampler has its own order."""
        if self.seed is None or not self._order().cuts_itself():
            return None
        return self.seed, self._checkpoint.epochs.number

    def own_options(self) -> dict[str, Any]:
        """Return the arguments in use that torch's loader does not know."""
        return {name: getattr(self, name) for name in OWN if getattr(self, name) != OWN[name]}


def reader_of(chosen: Plan | None) -> str:
    """Return what reads by a plan. None: torch gathers rows."""
    return "Python" if isinstance(chosen, PythonPlan) else "native threads"


_COMPOUND = (Subset, ConcatDataset)
THEIRS = inspect.signature(torch.utils.data.DataLoader).parameters
# The arguments that say how samples are read, not which: attributes of the same name.
_READING = [name for name in THEIRS if name not in _CHOOSING]
# Our own arguments, attributes of the same name too, and their defaults.
OWN = {name: p.default for name, p in inspect.signature(DataLoader).parameters.items() if name not in THEIRS}
