"""DataLoader: torch's class, with the native core underneath where the plan allows it."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeVar

import torch
import torch.utils.data
from torch.utils.data import (
    Dataset,
    IterableDataset,
    IterDataPipe,
    MapDataPipe,
    RandomSampler,
    SequentialSampler,
)

from penstock.device.feed import Device, Feed, feed_of, told
from penstock.device.feeding import Turns
from penstock.errors import InvalidOption
from penstock.executors.method import Method, and_join, method_of, shares
from penstock.executors.native import Filling
from penstock.executors.passing import Course, Pass
from penstock.executors.threads import Fetching
from penstock.executors.workers.own_fetch import copies_told
from penstock.order.batches import Epochs, checked_seed
from penstock.order.keyed import KeyedSampler
from penstock.order.mix import Mix
from penstock.order.schedule import Shard, share_of
from penstock.order.weighted import Weighted
from penstock.passes import Passes, default_workers
from penstock.plan import NativePlan, Plan, PythonPlan, Setting, explain, plan
from penstock.recipe.reach import Reach, missed
from penstock.recipe.reader import DRAWING
from penstock.sources.compose_places import composes_in
from penstock.state.progress import Progress, Rest, is_count
from penstock.state.quarantine import Replace
from penstock.state.substitutes import register_of
from penstock.stats import Counters, Stats
from penstock.system.arguments import check_numbers, naming_empty
from penstock.system.cpus import usable_cpus
from penstock.system.warn_user import warn_user

T_co = TypeVar("T_co", covariant=True)

# torch's arguments that say which samples are read, and in which batches.
_CHOOSING = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")


class DataLoader(Passes, torch.utils.data.DataLoader[T_co]):
    """torch.utils.data.DataLoader, with batches filled by native threads where the dataset is recognised.

    All arguments are torch's and mean what they mean there, with these additions:

    Args:
        num_workers: native threads, or workers of `worker_method` where Python reads the dataset. None (the
            default): as many threads as CPUs this process may use, and 0 worker processes, torch's
            default. 0: the caller's thread.
        seed: makes the order a function of (seed, epoch), and every random draw one of (seed, epoch, sample, position),
            where position is the sample's place in the epoch's order: the same batches for any number of workers and
            ranks and after any resume; a sample that comes several times draws anew. torchvision's RandomResizedCrop,
            RandomCrop and flips draw the same whoever calls them. For other draws of Python code ``random``,
            ``numpy.random`` and torch's generator (and the pipelines of Albumentations) are set for each sample, in
            worker processes and in the caller's thread; threads, and samplers and generators of one's own, are warned
            of where that does not reach. torch's own samplers without a generator follow the seed too. None: all this
            follows torch's global generator, or `generator`, as torch's loader does, and the shuffle is the one that
            torch's loader would draw; native random transforms are functions of a seed drawn for the pass.
        worker_method: who reads a dataset that only Python can read. None: torch's worker processes, where a Compose of
            torchvision's transforms that the dataset calls runs natively. "process": the same, with nothing native.
            "thread": threads of this process, which write each sample into its row of the batch. Each has a copy of the
            dataset's Python objects and of its transforms, made when a pass begins; tensors, arrays and other data are
            shared. "auto": both fetch a few batches for a moment, and the faster method is taken; threads where they
            are as fast. explain() says what was chosen and why.
        share_dataset: True: all threads of worker_method="thread" or "auto" use the one dataset object, not a copy
            each. Its code must be safe to call from several threads at once.
        on_error: "raise": the error of a bad sample is raised at its batch. "replace", or a penstock.Replace: a good
            sample, a function of (seed, epoch, sample, position), stands in for it.
        device: where batches arrive, a few ahead of the one in use: "cuda" (cuda:LOCAL_RANK under torchrun), or a
            penstock.Feed, which says more. None: they stay in host memory. With num_workers=0 one batch is read ahead.
        shard: which of several ranks this is: (rank, ranks), or "auto", which asks torch.distributed when a pass
            begins, or, before a process group runs, RANK and WORLD_SIZE of torchrun. Every global batch of one order,
            the same for any number of ranks, is cut among them; all deliver the same number of batches. Where the last
            one does not go round, samples of it are repeated: `padded` says how many. None, or a DistributedSampler: as
            torch's loader.
        ledger: a file that each batch handed out is written to, as a hash over its IDs: `penstock ledger diff` says at
            which step two runs parted. "{rank}" in the path is the rank's number.
        snapshot_every_n_steps: of torchdata's StatefulDataLoader, and taken for its programs. It changes nothing: a
            state is that of the batch that was handed out last, at every step.

    Raises:
        InvalidOption: seed together with generator, an unknown worker_method, share_dataset or on_error or device,
            share_dataset=True without threads, a dataset of threads that holds an open file or a lock (from iter()),
            on_error="replace" or
            shard= for an iterable dataset, shard= with a shuffle without seed= or with a sampler of one's own; from
            iter(), a device that is not there.
        TooManyBadSamples: more samples are bad than on_error=Replace(max_share=) allows (while iterating).
        WorkerDied, WorkerStuck: a worker ended, or gave nothing for `timeout` seconds (while iterating).
        ValueError: arguments that torch refuses.
    """

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
        worker_method: Literal["process", "thread", "auto", "multiprocessing"] | None = None,
        share_dataset: bool = False,
        on_error: Literal["raise", "replace"] | Replace = "raise",
        device: Device | Feed | None = None,
        shard: Shard = None,
        ledger: str | os.PathLike[str] | None = None,
        snapshot_every_n_steps: int | None = 1,
    ) -> None:
        check_numbers(num_workers=num_workers, batch_size=batch_size, timeout=timeout, prefetch_factor=prefetch_factor)
        feed_of(device)  # refuses what makes no sense
        self.device = device
        self._station, self._there = None, None
        self._turns = Turns()
        if seed is not None:
            if generator is not None:
                raise InvalidOption("seed= and generator= exclude each other: both say where randomness comes from")
            seed = checked_seed(seed)
        self.seed = seed
        if type(dataset) is Mix and sampler is None and batch_sampler is None:
            sampler, shuffle = dataset.sampler(shuffle=bool(shuffle)), None
        if isinstance(sampler, Weighted):
            sampler.check_size(len(dataset))  # type: ignore[arg-type]
        self._own_order = sampler is None and batch_sampler is None
        self._prefetch_given = prefetch_factor is not None
        self.shard = shard
        self.ledger = ledger
        if snapshot_every_n_steps is not None and not is_count(snapshot_every_n_steps):
            raise InvalidOption(
                f"snapshot_every_n_steps={snapshot_every_n_steps!r}: it is a number of steps, 0 or more, or None"
            )
        self.snapshot_every_n_steps = snapshot_every_n_steps
        self._ledger = None
        self._epochs = Epochs(seed)
        self._progress: Progress | None = None  # of the pass that began last
        self._resume: Mapping[str, Any] | None = None  # the state that the next pass goes on from
        self._rest: Rest | None = None  # of that state
        self._fingerprint: tuple[object, dict[str, Any]] | None = None
        self._base_seed = None
        self.on_error = on_error
        self._register = register_of(on_error, dataset)
        self.worker_method = worker_method
        self._method = method_of(worker_method)
        if self._method is Method.THREAD and isinstance(dataset, (IterDataPipe, MapDataPipe)):
            raise InvalidOption("worker_method='thread' cannot read DataPipes, which keep one state: use 'process'")
        self.share_dataset = shares(share_dataset, self._method)
        self._choice, self._draws, self._reach = None, None, Reach()
        self._plan: Plan = plan(
            dataset,
            batched=batch_size is not None or batch_sampler is not None,
            collate_fn=collate_fn,
            worker_init_fn=worker_init_fn,
            processes=self._method is Method.PROCESS,
        )
        self._chosen_workers = None
        if num_workers is None:
            num_workers = self._chosen_workers = default_workers(dataset, self._plan, self._method)
        self._counters = Counters()
        self._buffers = None
        with naming_empty(dataset, shuffle=shuffle):
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
            if shard != "auto":  # which is asked when a pass begins: the process group may run by then
                share_of(shard)
            self._refuse_shard()
        # torch's own iterator draws from here, where it reads the dataset of a loader with a seed.
        self._seeded = None if seed is None else torch.Generator().manual_seed(seed)
        if self._seeded is not None and self._own_order and type(self.sampler) is RandomSampler:
            self.sampler.generator = self._seeded
        self._offer_set_epoch()
        self.meet_accelerate()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what another process, or a copy, makes anew: the plan, the memory, the counters, the iterator."""
        state = self.__dict__.copy()
        for own in ("_plan", "_buffers", "_counters", "_turns", "_station", "_there", "_fingerprint", "_ledger"):
            del state[own]
        return {**state, "_iterator": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._buffers, self._counters, self._base_seed = None, Counters(), None
        self._turns, self._station, self._there, self._fingerprint, self._ledger = Turns(), None, None, None, None
        self._epochs = self._epochs.again()
        self._offer_set_epoch()
        self._make_plan()

    def check_worker_number_rationality(self) -> None:
        """Warn of more worker processes than CPUs, as torch does, and of more than 4 threads to a CPU."""
        native = isinstance(self._plan, NativePlan)
        if not native and self._method is not Method.THREAD:
            super().check_worker_number_rationality()
        elif self.num_workers > 4 * (cpus := usable_cpus()):
            warn_user(
                f"num_workers={self.num_workers:,}: this DataLoader will start as many {'native ' * native}threads, "
                f"and the process may use {cpus} CPU{'s' * (cpus != 1)}; more than 4 to a CPU take turns and memory, "
                "and make nothing faster: lower num_workers, or leave it out"
            )

    def explain(self) -> str:
        """Return the plan as text: each step and who does it; last, as advice, what would make the rest native."""
        feed = feed_of(self.device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a device that is not there: the pass says it
            self._station = self._stationed(feed)
        self._make_plan()
        python = isinstance(self._plan, PythonPlan)
        setting = Setting(
            self.num_workers,
            self.batch_size,
            self._order_name() + self._rest_name() + self._share_name(),
            self._can_pin(),
            threads=python and self._in_threads(),
            advice=tuple(self._advice()) if python else (),
            remarks=(
                *(self._of_python() if python else self._of_native()),
                *([self._register.explain()] if self._register else []),
                *self._of_device(feed),
            ),
        )
        return explain(self._plan, setting, self.stats())

    def _of_device(self, feed: Feed | None) -> Iterator[str]:
        if feed is not None and self._station is not None:
            yield told(feed, self._station.device)
            yield from self._station.told(feed, self._plan)

    def _of_native(self) -> Iterator[str]:
        recipes = [leaf.recipe for leaf in self._plan.leaves] if isinstance(self._plan, NativePlan) else []
        if any(operation["op"] in DRAWING for recipe in recipes if recipe for operation in recipe.operations):
            key = "seed" if self.seed is not None else "a seed drawn for the pass"
            yield f"random   the transforms' draws are functions of ({key}, epoch, sample, position)"

    def _of_python(self) -> Iterator[str]:
        if self._method is Method.AUTO:
            yield f"chosen   {self._chosen().why}"
        if self._method is not Method.PROCESS and (places := composes_in(self.dataset)):
            yield (
                f"native   the Compose at {and_join(places)}, where the dataset calls it on a PIL image, as far as its "
                "transforms are known: same elements, same draws"
            )
        threads = bool(self.num_workers) and self._in_threads()
        iterable = isinstance(self.dataset, IterableDataset)
        if threads:
            yield copies_told(self._fetch(here=False), self.worker_init_fn, shared=self.share_dataset)
        if self.seed is not None and not iterable:
            yield (
                "random   torchvision's RandomResizedCrop, RandomCrop and flips are functions of (seed, epoch, sample, "
                "position), whoever calls them"
            )
        if threads and (draws := self._global_draws()):
            yield (
                f"random   the dataset draws from the global generators of {and_join(draws)}: in threads the draws "
                "depend on timing. torch.random.thread_safe_generator() or get_worker_info().rng draw by sample; so do "
                "worker processes with seed="
            )
        elif self.seed is not None and not iterable and not threads:
            yield "random   the global generators are functions of (seed, epoch, sample, position), set for each sample"
        if (
            self.seed is not None
            and not iterable
            and (held := missed(self.dataset, shared=threads and self.share_dataset))
        ):
            yield f"random   seed= does not reach {', '.join(held)}, which the dataset keeps"

    def _advice(self) -> Iterator[str]:
        """Yield what might make it faster where Python reads the dataset."""
        if self._method is not None or isinstance(self.dataset, (IterableDataset, IterDataPipe, MapDataPipe)):
            return
        workers = "" if self.num_workers or self._chosen_workers is not None else " with num_workers above 0"
        than = "worker processes" if self.num_workers else "the caller's thread"
        yield f"worker_method='auto'{workers} would measure whether threads of this process are faster than {than}"

    def _order_name(self) -> str:
        if not self._cuts_itself():
            name = type(self.sampler if self.batch_size is not None else self.batch_sampler).__name__
            asked = "" if self._reads_ahead() else ", asked for one batch at a time; with num_workers= given, ahead"
            return f"by {name}{asked}"
        if isinstance(self.sampler, KeyedSampler):
            return f"by {type(self.sampler).__name__}, any position at once"
        if type(self.sampler) is SequentialSampler:
            return "in sequence"
        if self.seed is not None:
            return f"shuffled by (seed {self.seed}, epoch), any position at once"
        return "shuffled as torch's loader would, evaluated as far as needed"

    def _rest_name(self) -> str:
        """Return what is said of an epoch that goes on with a dataset that has changed."""
        rest = self._rest if self._progress is None or self._progress.done else self._progress.rest
        if rest is None:
            return ""
        return f"; of the {len(rest.indices):,} samples that this epoch had not handed out when its dataset changed"

    def _share_name(self) -> str:
        share = self._share()
        if share is None or share.world == 1:
            return ""
        drop = "the last ones dropped" if self.drop_last else "the last ones padded where they do not go round"
        return f"; rank {share.rank} of {share.world} gets its part of each global batch, {drop}"

    def again(self, dataset: Dataset[Any], **samples: Any) -> DataLoader[Any]:
        """Return a loader of other samples (dataset, batch_size, sampler, batch_sampler, drop_last), else as this one.

        It counts its epochs on from this one's.
        """
        arguments = {name: getattr(self, name) for name in (*_READING, *_OWN)}
        if self.num_workers == self._chosen_workers:
            arguments["num_workers"] = None
        if not self._prefetch_given:
            del arguments["prefetch_factor"]
        twin: DataLoader[Any] = DataLoader(dataset, **samples, **arguments)
        twin._epochs, twin._reach = self._epochs.again(), self._reach
        return twin

    @staticmethod
    def meet_accelerate() -> bool:
        """Let Accelerate keep loaders of this class; return whether it does. penstock.frameworks puts its own here."""
        return False

    def own_options(self) -> dict[str, Any]:
        """Return the arguments in use that torch's loader does not know."""
        return {name: getattr(self, name) for name in _OWN if getattr(self, name) != _OWN[name]}

    @property
    def _is_accelerate_prepared(self) -> bool:
        """What Accelerator.prepare asks before it builds a loader from the attributes of this one.

        Raises:
            InvalidOption: an argument of our own is in use and would be lost, because the class is a derived one.
        """
        if self.meet_accelerate() and type(self) is DataLoader:
            return False
        if given := self.own_options():
            raise InvalidOption(
                f"Accelerator.prepare builds a torch loader in the place of a {type(self).__name__}, without "
                f"{', '.join(f'{name}={value!r}' for name, value in given.items())}; "
                f"a penstock.DataLoader, of that very class, is kept"
            )
        if isinstance(self._plan, NativePlan):
            warn_user(
                f"Accelerator.prepare builds a torch loader in the place of a {type(self).__name__}, which reads "
                "without native threads; a penstock.DataLoader, of that very class, is kept",
                through=("accelerate",),
            )
        if self._chosen_workers:  # native threads; torch's loader would start as many processes
            self.num_workers, self.prefetch_factor = 0, None
        return False

    def batch_at(
        self, epoch: int, step: int, rank: int | None = None, *, state: Mapping[str, Any] | None = None
    ) -> Any:
        """Return a batch as a pass would give it, in host memory, without going through what comes before it.

        Args, Raises: as `ids`; and what reading the samples raises.
        """
        indices, positions = self._replayed(epoch, step, rank, state)
        assert self.seed is not None
        station, self._station = self._station, None  # the host's plan
        try:
            self._make_plan()
        finally:
            self._station = station
        course = Course(iter([(indices, positions)]), 1, self.seed, epoch)
        means = replace(
            self._means(), workers=0, in_flight=1, ahead=False, persistent=False, counters=Counters(), timeout=0
        )
        made: Pass
        if isinstance(self._plan, NativePlan):
            made = Filling(self._plan, course, means, substitutes=self._replacing())
        else:
            course = replace(course, batches=iter([(indices.tolist(), positions)]))
            made = Fetching(self._fetch(here=True), course, means, eager=False)
        return next(made)

    def stats(self) -> Stats:
        """Return the counters of all epochs so far."""
        return self._counters.snapshot((0, 0, 0) if self._buffers is None else self._buffers.counts())


_THEIRS = inspect.signature(torch.utils.data.DataLoader).parameters
# The arguments that say how samples are read, not which: attributes of the same name.
_READING = [name for name in _THEIRS if name not in _CHOOSING]
# Our own arguments, attributes of the same name too, and their defaults.
_OWN = {name: p.default for name, p in inspect.signature(DataLoader).parameters.items() if name not in _THEIRS}
