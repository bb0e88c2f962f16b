"""How a loader makes a pass over its data: who reads, with what, and where the batches go."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset

from penstock.device.feed import Device, Feed, feed_of
from penstock.device.feeding import Feeding, Turns
from penstock.device.lane import Lane
from penstock.device.station import Station, There
from penstock.errors import InvalidOption, pair
from penstock.executors.buffers import Buffers
from penstock.executors.copies import NotCopied
from penstock.executors.fetch import Fetch
from penstock.executors.measure import Trial
from penstock.executors.method import Choice, Method, draws_in_threads, not_copied, try_out
from penstock.executors.native import Filling
from penstock.executors.passing import IN_FLIGHT, Course, Means, Pass, Pinning
from penstock.executors.threads import Fetching, InTurn
from penstock.executors.workers.own_fetch import OwnFetches
from penstock.executors.workers.processes import Processes
from penstock.order.batches import settled_at_start
from penstock.order.permutations import Positions
from penstock.order.schedule import Share
from penstock.plan import NativePlan, Plan, PythonPlan, plan
from penstock.resumable import Resumable
from penstock.sources.naming import name_of
from penstock.state.ledger import Ledger
from penstock.state.progress import Progress
from penstock.state.recording import Recorder, open_ledger
from penstock.state.substitutes import Register, Substitutes, population
from penstock.stats import Counters
from penstock.system.cpus import usable_cpus
from penstock.system.warn_user import warn_user


class Passes(Resumable):
    """The part of the loader that makes its passes."""

    if TYPE_CHECKING:  # torch's
        _auto_collation: bool
        _iterator: Any
        collate_fn: Any
        generator: torch.Generator | None
        in_order: bool
        persistent_workers: bool
        pin_memory: bool
        pin_memory_device: str
        prefetch_factor: int | None
        timeout: float
        worker_init_fn: Any

        def check_worker_number_rationality(self) -> None: ...

    device: Device | Feed | None
    ledger: str | os.PathLike[str] | None
    _station: Station | None
    """Where the batches of the last pass went."""
    _there: There | None
    """What makes batches on the device, in the pass that begins."""
    _turns: Turns
    _ledger: Ledger | None
    _base_seed: int | None
    """torch's, of the last pass."""
    _register: Register | None
    _method: Method | None
    _choice: Choice | None
    """Of worker_method="auto"."""
    _draws: tuple[str, ...] | None
    """Global generators that the dataset draws from, once looked for."""
    _chosen_workers: int | None
    """What was chosen because num_workers was None; a program that sets the attribute has the last word."""
    _prefetch_given: bool
    share_dataset: bool
    _counters: Counters
    _buffers: Buffers | None

    def __iter__(self) -> Any:
        progress = self._progress = self._next_progress()
        progress.record = self._recorder(progress)
        feed, self._there = feed_of(self.device), None
        station = self._station = self._stationed(feed)
        self._turns.end()
        self._counters.ahead = self._sends()
        self._make_plan()
        self._tell_what_the_seed_does_not_reach()
        if feed is None or station is None:
            batches = self._forwarded(self._batches(), progress)
            batches.progress = progress
            return batches
        lane = station.lane()
        with station.current(lane):
            self._there = station.prepare(feed, self._plan, lane)
            batches = self._forwarded(self._batches(), progress)
        batches.progress = None
        feeding = self._feeding(batches, feed, station, lane)
        feeding.progress = progress
        return feeding

    def _recorder(self, progress: Progress) -> Recorder | None:
        """Return what writes the pass that begins to the ledger. Raises InvalidOption, OSError."""
        if self.ledger is None:
            return None
        if isinstance(self.dataset, IterableDataset) or not (self._cuts_itself() or self._one_by_one()):
            raise InvalidOption("ledger= needs the loader's own order, without a sampler or an iterable dataset")
        if self._ledger is None:
            facts = {"seed": self.seed, "batch_size": self.batch_size, "data": self._data()}
            self._ledger = open_ledger(os.fspath(self.ledger), self._share() or Share(), facts)
        order = self._order(self.seed or 0, progress.epoch, progress.drawn, progress.rest, progress.ahead)
        before = progress.start + progress.ahead.count
        return Recorder(self._ledger, self.dataset, order, progress.epoch, before, progress.chain)

    def _feeding(self, batches: Any, feed: Feed, station: Station, lane: Lane | None) -> Feeding[Any]:
        """Return the pass that brings batches to their device."""
        end = getattr(batches, "_shutdown_workers", None)
        feeding: Feeding[Any] = Feeding(
            batches,
            feed,
            station.device,
            lane,
            finish=station.finish(self._plan),
            in_thread=self.num_workers > 0,
            end_source=None if self.persistent_workers else end,
            waited=self._waited if station.sends else None,
            ended=station.ended,
        )
        if self.persistent_workers:
            self._turns.begin(feeding)
        return feeding

    def _waited(self, seconds: float) -> None:
        self._counters.waited(seconds)
        if self._station is not None:
            self._station.waited(seconds)

    def _stationed(self, feed: Feed | None) -> Station | None:
        """Return what is kept of the device of the pass that begins. Raises InvalidOption."""
        device = None if feed is None else feed.resolve()
        if device is None:
            return None
        return self._station if self._station is not None and self._station.device == device else Station(device)

    def _sends(self) -> bool:
        """Return whether batches are sent to an accelerator on a stream of its own."""
        return self._station is not None and self._station.sends

    def _batches(self) -> Any:
        """Return the pass in host memory."""
        held = self._iterator
        elsewhere = self._progress is not None and self._progress.streams is not None and self._progress.streams.resumed
        if held is not None and (
            type(held) is not self._kind() or not getattr(held, "reusable", True) or elsewhere  # with other states
        ):
            held._shutdown_workers()  # it was made for something else, or its workers died
            self._iterator = None
        if not self.num_workers and self._progress is not None and self._progress.streams is not None:
            self._progress.streams.tell_between(self.dataset)
        given, self.generator = self.generator, self.generator or self._seeded
        try:
            batches = super().__iter__()  # type: ignore[misc]
        finally:
            self.generator = given
        if isinstance(batches, Processes | InTurn):
            batches.counters = self._counters
        if isinstance(batches, Processes) and self._progress is not None:
            if batches.streams is not self._progress.streams:
                batches.follow(self._progress.streams)  # persistent workers came with those of the pass before
            self._progress.drawn.setdefault("base", batches.base_seed)
        if isinstance(batches, Processes | Fetching):
            batches.arrivals = None if self._progress is None else self._progress.arrivals
        elif self._progress is not None:
            self._progress.arrivals = None  # these come in order
        return batches

    def _make_plan(self) -> None:
        """Plan anew: the dataset may have changed since the last pass."""
        self._plan = plan(
            self.dataset,
            batched=self._auto_collation,
            collate_fn=self.collate_fn,
            worker_init_fn=self.worker_init_fn,
            processes=self._method is Method.PROCESS,
            raw=self._sends(),
        )
        if self._chosen_workers is not None and self.num_workers == self._chosen_workers:
            self.num_workers = self._chosen_workers = default_workers(self.dataset, self._plan, self._method)
            if not self._prefetch_given:
                self.prefetch_factor = 2 if self.num_workers else None  # as torch's __init__ has it

    def _kind(self) -> type:
        """Return the class of the iterator that the plan and the arguments ask for."""
        if isinstance(self._plan, NativePlan):
            return Filling if self._there is None else self._there.kind
        if self.num_workers and not self._in_threads():
            return Processes
        iterable = isinstance(self.dataset, IterableDataset)
        if self._in_threads() and (self.num_workers or not iterable):
            return Fetching
        if not iterable and not self._fetch(here=True).plain:
            return Fetching
        return InTurn

    def _get_iterator(self) -> Any:
        kind = self._kind()
        if self._there is not None:
            return self._there.make(self._course(), self._means(), self._replacing(), not self._on_demand())
        if kind is Filling:
            assert isinstance(self._plan, NativePlan)
            return Filling(
                self._plan,
                self._course(),
                self._means(),
                substitutes=self._replacing(),
                eager=not self._on_demand(),
                live=self._on_demand(),
                fetch=self._fetcher(here=self.num_workers == 0),
            )
        if kind is Fetching:
            fetch = self._fetch(here=self.num_workers == 0)
            try:  # before anything is drawn for the pass
                own = OwnFetches(fetch, self.worker_init_fn, shared=self.share_dataset or self.num_workers == 0)
            except NotCopied as error:
                if self._method is not Method.AUTO:
                    raise
                self._choice = not_copied(error)  # the loop has opened something since it was chosen
                return self._get_iterator()
            return Fetching(
                fetch,
                self._promised(self._course()),
                self._means(),
                init=self.worker_init_fn,
                iterable=isinstance(self.dataset, IterableDataset),
                in_order=self.in_order,
                drop_last=self.drop_last,
                eager=not self._on_demand(),
                streams=None if self._progress is None else self._progress.streams,
                own=own,
            )
        if kind is Processes:
            self.check_worker_number_rationality()
            iterable = isinstance(self.dataset, IterableDataset)
            return Processes(
                Pinning(self, pin=self._pins()),
                None if iterable else self._fetch(here=True),
                key=partial(self._epochs.next, counted=self.persistent_workers),
                composes=self._method is not Method.PROCESS,
                # By a proxy, for the iterator must not keep the loader alive, which may hold it.
                batches=partial(_index_batches_of, weakref.proxy(self)),
                streams=None if self._progress is None else self._progress.streams,
                base_seed=None if self._progress is None else self._progress.drawn.get("base"),
                identify=partial(name_of, self.dataset),
                deliver=self._deliver(),
            )
        self._epochs.next(counted=True)
        return InTurn(
            Pinning(self, pin=self._pins()),
            None if isinstance(self.dataset, IterableDataset) else map(itemgetter(0), self._index_batches(0, 0)),
            composes=self._method is not Method.PROCESS,
            streams=None if self._progress is None else self._progress.streams,
            ahead=self.device is not None,
        )

    def _begin(self, held: Pass) -> None:
        """Let a persistent iterator go through the data again."""
        if self._there is not None:
            self._there.begin(held, self._course(), not self._on_demand())
        elif isinstance(held, Filling):
            assert isinstance(self._plan, NativePlan)
            held.begin(self._plan, self._course(), eager=not self._on_demand())
        elif isinstance(held, Fetching):
            streams = None if self._progress is None else self._progress.streams
            course = self._promised(self._course())
            held.begin(self._fetch(here=False), course, eager=not self._on_demand(), streams=streams)

    def _in_threads(self) -> bool:
        """Return whether Python threads of this process read the dataset."""
        if self._method is Method.AUTO:
            return self._chosen().method is Method.THREAD
        return self._method is Method.THREAD

    def _chosen(self) -> Choice:
        """Return what worker_method="auto" comes to: measured once."""
        if self._choice is None:
            self._choice = self._tried()
        return self._choice

    def _tried(self) -> Choice:
        trial = Trial(
            self._fetch(here=False),
            self.batch_size or 1,
            self.num_workers,
            init=self.worker_init_fn,
            in_flight=self._in_flight(),
            prefetch_factor=self.prefetch_factor,
            shared=self.share_dataset,
        )
        batches = None if self.persistent_workers else self._length()
        samples = None if batches is None else batches * trial.batch_size
        return try_out(trial, samples, seeded=self.seed is not None)

    def _global_draws(self) -> tuple[str, ...]:
        """Return which global generators the dataset draws from, as its first sample shows; looked for once."""
        if self._draws is None:
            self._draws = draws_in_threads(self._fetch(here=False))
        return self._draws

    def _tell_what_the_seed_does_not_reach(self) -> None:
        """Warn once of draws of the dataset's that do not follow the seed."""
        if self.seed is None or isinstance(self._plan, NativePlan) or isinstance(self.dataset, IterableDataset):
            return
        threads = self.num_workers and self._in_threads()
        draws = self._global_draws if threads else None
        self._reach.tell_of_dataset(self.dataset, draws, shared=bool(threads) and self.share_dataset)

    def _fetch(self, *, here: bool) -> Fetch:
        """Return what calls the dataset; here: in a process whose global generators it may set."""
        assert isinstance(self._plan, PythonPlan)
        return self._fetcher(here=here)(read=self._plan.assisted)

    def _fetcher(self, *, here: bool) -> Callable[..., Fetch]:
        """Return what makes a Fetch, with read=."""
        return partial(
            Fetch,
            self.dataset,
            batched=self._auto_collation,
            collate_fn=self.collate_fn,
            seeded=here and self.seed is not None,
            keyed=self.seed is not None,
            replacing=self._replacing(),
            composes=self._method is not Method.PROCESS,
        )

    def _replacing(self) -> Substitutes | None:
        """Return what replaces bad samples in the pass that begins."""
        if self._register is None:
            return None
        drawn_from = population(self.sampler, self.batch_sampler, len(self.dataset))
        self._register.substitutes.population = drawn_from
        return self._register.substitutes

    def _deliver(self) -> Callable[[Any], Any]:
        """Return what takes the news of bad samples out of a batch."""
        return _as_it_is if self._register is None else self._register.deliver

    def _means(self) -> Means:
        if self.num_workers == 0 and self.timeout:
            raise pair(InvalidOption, AssertionError)(  # torch asserts it
                "timeout= needs num_workers > 0: the caller's thread cannot wait for itself"
            )
        return Means(
            workers=self.num_workers,
            in_flight=self._in_flight(),
            buffers=self._memory(),
            counters=self._counters,
            deliver=self._deliver(),
            timeout=self.timeout,
            ahead=self._reads_ahead(),
            persistent=self.persistent_workers,
        )

    def _reads_ahead(self) -> bool:
        """Return whether the sampler may be asked for batches ahead of the user: not where torch would not."""
        if self._chosen_workers is None or isinstance(self.dataset, IterableDataset):
            return True
        return settled_at_start(self.sampler if self.batch_sampler is None else self.batch_sampler)

    def _memory(self) -> Buffers:
        """Return the batch memory: made once, and anew where pinning has changed."""
        pinned = self._pinned()
        if self._buffers is None or self._buffers.pinned != pinned:
            # Each field of each batch in flight, and of the two that a loop holds when it asks for the next.
            fields = self._plan.fields if isinstance(self._plan, NativePlan) else 2
            self._buffers = Buffers(pinned=pinned, keep=fields * ((self._in_flight() or IN_FLIGHT) + 2))
        return self._buffers

    def _course(self) -> Course:
        if self.seed is None and isinstance(self._plan, PythonPlan) and not (self._cuts_itself() or self._one_by_one()):
            batches = self._asked()  # before the key, as torch's iterator has it: both may draw
            return Course(batches, self._length(), *self._key())
        seed, epoch = self._key()
        return Course(self._index_batches(seed, epoch), self._length(), seed, epoch)

    def _promised(self, course: Course) -> Course:
        """Return a course with what an iterable dataset said of its length, as the loader's len() has noted it."""
        said: int | None = getattr(self, "_IterableDataset_len_called", None)
        return course if said is None else replace(course, promised=said, dataset=str(self.dataset))

    def _key(self) -> tuple[int, int]:
        """Return (seed, epoch) of the pass that begins, and advance the generators as torch's iterator would."""
        seed, epoch = self._epochs.next(counted=self.persistent_workers)
        if seed is not None:
            return seed, epoch
        if self._base_seed is None or not self.persistent_workers:  # torch's persistent workers keep the first
            self._base_seed = int(torch.empty((), dtype=torch.int64).random_(generator=self.generator).item())
        if self._progress is not None:
            self._base_seed = self._progress.drawn.setdefault("base", self._base_seed)
        return self._base_seed, epoch

    def _on_demand(self) -> bool:
        """Return whether torch's loader would do nothing before the first batch is asked for."""
        return self.num_workers == 0 or self._chosen_workers is not None

    def _in_flight(self) -> int | None:
        if not self._prefetch_given:
            return None
        return (self.prefetch_factor or 0) * self.num_workers

    def _pinned(self) -> bool:
        """Return whether batches are page-locked, with torch's warnings where that cannot be."""
        self._pins()
        return self._can_pin()

    def _pins(self) -> bool:
        """Return whether torch's iterator is to pin, with its warnings where it cannot."""
        if self.pin_memory and self.pin_memory_device:
            warn_user(
                "pin_memory_device is deprecated, the current accelerator will be used as the device,"
                f"ignore pin_memory_device='{self.pin_memory_device}'.",
            )
        if self.pin_memory and not torch.accelerator.is_available():
            warn_user(
                "'pin_memory' argument is set as true but no accelerator is found, "
                "then device pinned memory won't be used.",
            )
        return self.pin_memory and torch.accelerator.is_available()

    def _can_pin(self) -> bool:
        if self._sends():
            return True
        device = torch.accelerator.current_accelerator(check_available=True) if self.pin_memory else None
        return device is not None and device.type != "mps"  # where torch's loader does not pin either


def _index_batches_of(loader: Passes, seed: int, epoch: int) -> Iterator[tuple[Any, Positions]]:
    return loader._index_batches(seed, epoch)


def _as_it_is(batch: Any) -> Any:
    return batch


def default_workers(dataset: object, chosen: Plan, method: Method | None) -> int:
    if isinstance(dataset, IterableDataset):
        return 0  # as torch's default: each worker would go through all of it
    return usable_cpus() if isinstance(chosen, NativePlan) or method in (Method.THREAD, Method.AUTO) else 0
