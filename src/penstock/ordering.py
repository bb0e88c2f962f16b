"""Which samples each batch of a loader holds: its order, its ranks, its epochs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset, RandomSampler, SequentialSampler

from penstock.errors import InvalidOption
from penstock.order.batches import (
    Epochs,
    as_indices,
    as_list,
    length,
    order_of,
    placed,
    seeded,
    share_of_sampler,
    without_skip,
)
from penstock.order.keyed import KeyedSampler, checked_epoch
from penstock.order.permutations import Indices, Order, Positions, TorchShuffle
from penstock.order.schedule import Schedule, Shard, Share, cut, indices_of, positions_of, share_of
from penstock.plan import Plan, PythonPlan
from penstock.recipe.reach import Reach
from penstock.state.ahead import NONE_AHEAD, Ahead
from penstock.state.progress import Progress, Rest
from penstock.state.sampler_states import SamplerStates

# Of a sampler whose draws nobody but itself can know.
BY_SAMPLER = "by a sampler"


class Ordered:
    """The part of the loader that says which samples each of its batches holds."""

    dataset: Any
    sampler: Any
    batch_sampler: Any
    batch_size: int | None
    drop_last: bool
    seed: int | None
    shard: Shard
    _own_order: bool
    _seeded: Any
    _epochs: Epochs
    _plan: Plan
    _reach: Reach
    _progress: Progress | None
    """Of the pass that began last."""
    _resume: Mapping[str, Any] | None
    """The state that the next pass goes on from."""
    _rest: Rest | None
    """Of that state."""

    if TYPE_CHECKING:

        @property
        def _index_sampler(self) -> Any: ...

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass epoch number `epoch`; without it each pass is the next one. Reaches a user's sampler too.

        With a seed the sampler that the loader makes has a set_epoch too, where Lightning and others look for one.

        Raises:
            InvalidOption: a negative epoch.
            TypeError: no integer.
        """
        number = checked_epoch(epoch)
        self._begin_with(number)
        given = self.sampler if self.batch_sampler is None else self.batch_sampler
        theirs = getattr(deepest(given), "set_epoch", None)
        if callable(theirs) and not isinstance(theirs, _SetEpoch):
            theirs(number)

    def _begin_with(self, epoch: int) -> None:
        self._epochs.number = epoch
        if self._resume is not None and self._resume["epoch"] != epoch:
            self._resume = self._rest = None

    def _offer_set_epoch(self) -> None:
        """Give the sampler that torch's __init__ made a set_epoch."""
        if self.seed is not None and self._own_order and type(self.sampler) in (SequentialSampler, RandomSampler):
            self.sampler.set_epoch = _SetEpoch(self)

    @property
    def padded(self) -> int:
        """How many samples at the end of the latest batch repeat others, so that all ranks have as many."""
        progress = self._progress
        if progress is None or progress.schedule is None or not progress.handed:
            return 0
        return progress.schedule.part(progress.latest).padding

    def __len__(self) -> int:
        steps = None if self._share() is None else self._length()
        return super().__len__() if steps is None else steps  # type: ignore[misc]

    def _size(self) -> int:
        """Return the number of positions of an epoch's order."""
        return len(self.sampler if isinstance(self.sampler, KeyedSampler) else self.dataset)

    def _index_batches(self, seed: int, epoch: int) -> Iterator[tuple[Any, Positions]]:
        """Return what the sampler gives for each batch, and where its samples stand in the order of the epoch."""
        if isinstance(self._plan, PythonPlan):
            if self._cuts_itself():
                return ((as_list(indices), positions) for indices, positions in self._cut(seed, epoch))
            if self._one_by_one():
                return _singly(self._cut(seed, epoch))
            return self._asked(seed, epoch)
        if not self._cuts_itself():
            return ((as_indices(batch), positions) for batch, positions in self._asked(seed, epoch))
        return self._cut(seed, epoch)

    def _asked(self, seed: int = 0, epoch: int = 0) -> Iterator[tuple[Any, Positions]]:
        """Return what a user's sampler gives for each batch, from where the pass begins on, and the samples' positions.

        seed, epoch: of the pass, where the loader has a seed.
        """
        inner = innermost(self.sampler, self.batch_sampler)
        if self._share() is not None and not isinstance(inner, DistributedSampler):
            raise InvalidOption("shard= cuts the loader's own order, and a sampler was set since: give shard=None")
        if isinstance(self.dataset, IterableDataset):
            return ((given, range(0)) for given in iter(self._index_sampler))
        progress = self._progress or Progress(0)
        states = progress.samplers = progress.samplers or SamplerStates()
        batches, left_out = without_skip(self._index_sampler)
        share = share_of_sampler(batches, inner)
        cut_here = self._is_cut_by_torch()
        given = self.sampler if cut_here else batches
        if self.seed is not None:
            given = seeded(given, self._seeded, seed, epoch)
        # torch's BatchSampler asks the sampler when the first batch is asked for; another is asked as a pass begins.
        items = states.begun_later(given) if cut_here else states.begin(given)
        if self.seed is not None:
            items = self._reach.watched(items, inner if type(batches) is BatchSampler else batches)
        skipped = left_out if states.resumes else left_out + progress.skipped
        placed_items: Iterator[tuple[Any, Positions]]
        if self._counts_samples():
            items = progress.ahead.leave_out(islice(items, skipped, None), progress.skipped)
            if cut_here:
                progress.unit = self.batch_sampler.batch_size
                items = iter(BatchSampler(items, progress.unit, self.batch_sampler.drop_last))
            found = placed(items, progress.skipped, batched=cut_here)
            placed_items = ((item, progress.ahead.numbers(count)) for item, count in found)
        else:
            found = placed(items, states.samples, batched=True)
            placed_items = progress.ahead.leave_out(islice(found, skipped, None), progress.skipped)
        followed = states.followed(placed_items)
        if (share.start, share.step) == (0, 1):
            return followed
        return ((item, [share.start + share.step * number for number in numbers]) for item, numbers in followed)

    def _is_cut_by_torch(self) -> bool:
        """Return whether torch's BatchSampler cuts what the loader's sampler gives."""
        batches = self.batch_sampler
        return type(batches) is BatchSampler and self._index_sampler is batches and batches.sampler is self.sampler

    def _counts_samples(self) -> bool:
        """Return whether what a user's sampler gave is counted in samples, whatever the batch size."""
        if isinstance(self.dataset, IterableDataset):
            return False
        return self._is_cut_by_torch() or self._index_sampler is self.sampler

    def _one_by_one(self) -> bool:
        """Return whether batch_size is None and the order is our own to make."""
        return self._index_sampler is self.sampler and self._draws_itself()

    def _cut(self, seed: int, epoch: int) -> Iterator[tuple[Indices, Positions]]:
        progress = self._progress or Progress(epoch)
        progress.schedule = self._schedule(progress.start, rest=progress.rest, ahead=progress.ahead)
        batches = cut(self._order(seed, epoch, progress.drawn, progress.rest, progress.ahead), progress.schedule)
        if not progress.ahead.ranges:
            return batches
        return ((indices, progress.ahead.numbers(positions)) for indices, positions in batches)

    def _order(
        self, seed: int, epoch: int, drawn: dict[str, int], rest: Rest | None = None, ahead: Ahead = NONE_AHEAD
    ) -> Callable[[], Order]:
        """Return what makes the order of an epoch, or of the rest of one, without what was handed out ahead."""
        # Not methods of this loader: an iterator that a loader holds must not hold the loader.
        if rest is None:
            return ahead.order(partial(order_of, self.sampler, self.seed is not None, self._size(), seed, epoch, drawn))
        key = drawn.get("order", 0) if self.seed is None else self.seed
        among = partial(order_of, self.sampler, True, len(rest.indices), key, epoch, {})
        return ahead.order(partial(rest.order, among))

    def _order_kind(self) -> str:
        """Return what tells this order from others, but for seed and epoch."""
        inner = innermost(self.sampler, self.batch_sampler)
        if isinstance(inner, KeyedSampler):
            return f"{type(inner).__name__} {inner.fingerprint()}"
        kinds = {SequentialSampler: "in sequence", RandomSampler: "shuffled"}
        return kinds.get(type(inner), BY_SAMPLER) if self._own_order else BY_SAMPLER

    def _schedule(
        self, start: int = 0, share: Share | None = None, rest: Rest | None = None, ahead: Ahead = NONE_AHEAD
    ) -> Schedule:
        """Return which positions each batch of an epoch, or of the rest of one, holds on this rank, or another.

        They are counted without those that were handed out ahead.
        """
        share = share or self._share() or Share()
        size = (self._size() if rest is None else rest.end) - ahead.count
        return Schedule(size, self.batch_size or 1, self.drop_last and self.batch_size is not None, share, start)

    def _share(self) -> Share | None:
        """Return this rank's share, None where the loader does not cut."""
        share = share_of(self.shard)
        return None if isinstance(innermost(self.sampler, self.batch_sampler), DistributedSampler) else share

    def _length(self) -> int | None:
        """Return the number of batches of a pass, None where the sampler has no length."""
        if self._share() is not None:
            return self._schedule().steps
        return length(self._index_sampler)

    def _cuts_itself(self) -> bool:
        """Return whether the batch sampler is torch's own, as it made it, and of an order that is ours to make."""
        sampler, batches = self.sampler, self.batch_sampler
        if type(batches) is not BatchSampler or self._index_sampler is not batches:
            return False
        if (batches.sampler, batches.batch_size, batches.drop_last) != (sampler, self.batch_size, self.drop_last):
            return False
        return self._draws_itself()

    def _draws_itself(self) -> bool:
        """Return whether the order is ours to make: of a sampler that torch made, as it made it, or a keyed one."""
        sampler = self.sampler
        if isinstance(sampler, KeyedSampler):
            return True
        if not self._own_order:
            return False
        if type(sampler) is SequentialSampler:
            return self._draws_from(sampler.data_source)
        if type(sampler) is not RandomSampler or not self._draws_from(sampler.data_source):
            return False
        as_made = not sampler.replacement and sampler._num_samples is None and sampler.generator is self._seeded
        # With a generator of the user's, torch's sampler advances it as torch's loader would.
        return as_made and (self.seed is not None or len(sampler) < TorchShuffle.max_size)

    def _draws_from(self, source: object) -> bool:
        return source is self.dataset

    def _refuse_shard(self) -> None:
        """Raise InvalidOption where shard= cannot be."""
        inner = innermost(self.sampler, self.batch_sampler)
        if isinstance(self.dataset, IterableDataset):
            raise InvalidOption("shard= needs a map-style dataset: an iterable one is cut by itself")
        if isinstance(inner, DistributedSampler):
            return  # which is respected, and not cut again
        if not self._own_order and not isinstance(inner, KeyedSampler):
            raise InvalidOption(
                "shard= cuts the loader's own order: give shuffle= in place of the sampler, or shard=None"
            )
        if isinstance(inner, RandomSampler | KeyedSampler) and self.seed is None:
            raise InvalidOption("shard= with a random order needs seed=, the same on every rank: all cut one order")

    def _indices_at(
        self,
        epoch: int,
        step: int,
        rank: int | None,
        start: int = 0,
        rest: Rest | None = None,
        ahead: Ahead = NONE_AHEAD,
    ) -> tuple[Indices, Positions]:
        """Return the indices of a batch of an epoch that begins at `start`, of its `rest` where its dataset changed.

        And their positions in the epoch's order.
        """
        if self.seed is None or not (self._cuts_itself() and self.batch_size is not None):
            raise InvalidOption(
                "the order is a function of (seed, epoch) with seed= and without a sampler of one's own"
            )
        share = self._share() or Share()
        if rank is not None:
            if not 0 <= rank < share.world:
                raise InvalidOption(f"rank={rank}: there are {share.world} ranks")
            share = Share(rank, share.world)
        order = self._order(self.seed, checked_epoch(epoch), {}, rest, ahead)
        part = self._schedule(start, share, rest, ahead).part(step)
        return indices_of(order(), part), ahead.numbers(positions_of(part))


def _singly(batches: Iterator[tuple[Indices, Positions]]) -> Iterator[tuple[int, range]]:
    """Yield the samples of batches one by one."""
    for indices, positions in batches:
        for index, position in zip(as_list(indices), positions, strict=True):
            yield index, range(position, position + 1)


class _SetEpoch:
    """The set_epoch of a sampler whose order is its loader's."""

    def __init__(self, loader: Ordered | None = None) -> None:
        self._loader = None if loader is None else weakref.ref(loader)

    def __call__(self, epoch: int) -> None:
        loader = None if self._loader is None else self._loader()
        if loader is not None:
            loader.set_epoch(epoch)

    def __reduce__(self) -> tuple[Any, ...]:
        return _SetEpoch, ()  # a loader that is unpickled puts its own in this one's place


def innermost(sampler: Any, batch_sampler: Any) -> Any:
    """Return the sampler that says which samples come."""
    return getattr(batch_sampler, "sampler", sampler) if batch_sampler is not None else sampler


def deepest(sampler: Any) -> Any:
    """Return the sampler that says which samples come, below any number of others that group, cut and skip."""
    for name in ("batch_sampler", "sampler"):
        inner = getattr(sampler, name, None)
        if inner is not None and inner is not sampler:
            return deepest(inner)
    return sampler
