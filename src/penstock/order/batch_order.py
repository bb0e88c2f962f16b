"""Which samples each batch of a loader holds: its order, cut into batches, cut among ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial, wraps
from typing import Any

from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

from penstock.errors import InvalidOption
from penstock.order.batches import length, order_of
from penstock.order.blocks import Blocks
from penstock.order.buckets import LengthBuckets
from penstock.order.keyed import KeyedSampler, checked_epoch
from penstock.order.leftover import WHOLE, Leftover, step_of
from penstock.order.permutations import Indices, Order, Positions, TorchShuffle
from penstock.order.schedule import BucketSchedule, Schedule, Share, Steps, indices_of, positions_of, share_of
from penstock.settings import Settings
from penstock.system.words import there_are

#: The kind of an order that comes from a sampler of the user's.
BY_SAMPLER = "by a sampler"


def _found_once(method: Callable[[BatchOrder], bool]) -> Callable[[BatchOrder], bool]:
    """Return a method whose result is kept with the settings that it follows from."""
    name = method.__name__

    @wraps(method)
    def kept(self: BatchOrder) -> bool:
        known: dict[str, bool] = self.settings.known
        found = known.get(name)
        if found is None:
            found = known[name] = method(self)
        return found

    return kept


@dataclass(frozen=True)
class BatchOrder:
    """The order of a loader's batches, as far as its settings say it."""

    settings: Settings

    def size(self) -> int:
        """Return the number of positions of an epoch's order."""
        settings = self.settings
        if settings.size is not None:
            return settings.size
        return len(settings.sampler if isinstance(settings.sampler, KeyedSampler) else settings.dataset)

    def share(self) -> Share | None:
        """Return this rank's share, None where the loader does not cut. Raises InvalidOption."""
        if self.settings.shard is None:
            return None
        share = share_of(self.settings.shard)
        return None if isinstance(self.innermost(), DistributedSampler) else share

    def innermost(self) -> Any:
        """Return the sampler that says which samples come."""
        return getattr(self.settings.batch_sampler, "sampler", self.settings.sampler)

    def length(self) -> int | None:
        """Return the number of batches of a pass, None where the sampler has no length."""
        return length(self.settings.index_sampler) if self.share() is None else self.schedule().steps

    def schedule(
        self,
        left: Leftover = WHOLE,
        share: Share | None = None,
        order: Callable[[], Order] | None = None,
    ) -> Steps:
        """Return which positions the batches of an epoch, or of what is left of one, hold; share: None for this rank's.

        order: returns the order, the same at each call; None: only the number of batches from the start of an epoch on
        is asked for.
        """
        settings = self.settings
        size = self.size()
        share = share or self.share() or Share()
        if not settings.own_order and isinstance(settings.sampler, LengthBuckets):
            return BucketSchedule(size, settings.sampler.cut.count, order or _no_order, share, left.start)
        drop_last = settings.drop_last and settings.batch_size is not None
        return Schedule(size, settings.batch_size or 1, drop_last, share, left.start)

    def order(self, seed: int, epoch: int, drawn: dict[str, int]) -> Callable[[], Order]:
        """Return what makes the order of an epoch.

        drawn: without a seed, holds the seed that the sampler draws for the order; see `order_of`.
        """
        settings = self.settings
        return partial(
            order_of, settings.sampler, settings.seed is not None, self.size(), seed, epoch, drawn, self.blocks()
        )

    def blocks(self) -> Blocks | None:
        """Return the blocks that the samples are shuffled in; None: they are not shuffled, or as a whole."""
        return self.settings.blocks if type(self.settings.sampler) is RandomSampler and self.draws_itself() else None

    def kind(self) -> str:
        """Return what tells the order from orders of other loaders, but for seed and epoch."""
        inner = self.innermost()
        if isinstance(inner, KeyedSampler):
            return f"{type(inner).__name__} {inner.fingerprint()}"
        blocks = self.blocks()
        shuffled = "shuffled" if blocks is None else f"shuffled{blocks.kind()}"
        kinds: dict[type, str] = {SequentialSampler: "in sequence", RandomSampler: shuffled}
        return kinds.get(type(inner), BY_SAMPLER) if self.settings.own_order else BY_SAMPLER

    def indices_at(self, epoch: int, step: int, rank: int | None, left: Leftover = WHOLE) -> tuple[Indices, Positions]:
        """Return the indices of a batch of an epoch, and their positions in the epoch's order.

        Args:
            epoch: the number of the epoch.
            step: the number of the batch, counted from the start of what is left.
            rank: another rank; None: this one.
            left: of the epoch, as the pass began.

        Raises:
            InvalidOption: the order is not a function of (seed, epoch), or there is no such rank.
        """
        seed = self.settings.seed
        if seed is None or not self.cuts_itself():
            raise InvalidOption(
                "the order is a function of (seed, epoch) with seed= and without a sampler of one's own"
            )
        share = self.share() or Share()
        if rank is not None:
            if not 0 <= rank < share.world:
                raise InvalidOption(f"rank={rank}: {there_are(share.world, 'rank')}")
            share = Share(rank, share.world)
        order = cache(self.order(seed, checked_epoch(epoch), {}))
        part = self.schedule(left, share, order).part(step_of(left.early, step))
        return indices_of(order(), part), positions_of(part)

    # --- whose order it is ------------------------------------------------------------------------------------------

    @_found_once
    def cuts_itself(self) -> bool:
        """Return whether the batch sampler is torch's own, as torch made it, and of an order that Penstock makes."""
        settings, batches = self.settings, self.settings.batch_sampler
        if isinstance(settings.sampler, LengthBuckets):
            return batches is settings.index_sampler
        as_made = self.is_cut_by_torch() and (batches.batch_size, batches.drop_last) == (
            settings.batch_size,
            settings.drop_last,
        )
        return as_made and self.draws_itself()

    @_found_once
    def draws_itself(self) -> bool:
        """Return whether Penstock makes the order: of a sampler that torch made, as torch made it, or a keyed one."""
        settings, sampler = self.settings, self.settings.sampler
        if isinstance(sampler, KeyedSampler):
            return True
        if not settings.own_order:
            return False
        if type(sampler) is SequentialSampler:
            return sampler.data_source is settings.dataset
        if type(sampler) is not RandomSampler or sampler.data_source is not settings.dataset:
            return False
        as_made = not sampler.replacement and sampler._num_samples is None and sampler.generator is settings.seeded
        # With a generator of the user's, torch's sampler advances the generator as torch's loader would.
        return as_made and (settings.seed is not None or self.size() < TorchShuffle.max_size)

    def one_by_one(self) -> bool:
        """Return whether batch_size is None and Penstock makes the order."""
        return self.settings.index_sampler is self.settings.sampler and self.draws_itself()

    def is_cut_by_torch(self) -> bool:
        """Return whether torch's BatchSampler cuts what the loader's sampler gives."""
        settings, batches = self.settings, self.settings.batch_sampler
        return (
            type(batches) is BatchSampler and settings.index_sampler is batches and batches.sampler is settings.sampler
        )

    def counts_samples(self) -> bool:
        """Return whether what a user's sampler gave is counted in samples, whatever the batch size."""
        if self.settings.iterable:
            return False
        return self.is_cut_by_torch() or self.settings.index_sampler is self.settings.sampler

    def refuse_shard(self) -> None:
        """Raise InvalidOption where shard= cannot be."""
        if self.settings.shard is None:
            return
        if self.settings.shard != "auto":  # "auto" is resolved when a pass begins: the process group may run by then
            share_of(self.settings.shard)
        inner = self.innermost()
        if self.settings.iterable:
            raise InvalidOption("shard= needs a map-style dataset: an iterable one is cut by itself")
        if isinstance(inner, DistributedSampler):
            return  # its share is respected, and not cut a second time
        if not self.settings.own_order and not isinstance(inner, KeyedSampler):
            raise InvalidOption(
                "shard= cuts the loader's own order: give shuffle= in place of the sampler, or shard=None"
            )
        drawn = inner.random if isinstance(inner, KeyedSampler) else isinstance(inner, RandomSampler)
        if drawn and self.settings.seed is None:
            raise InvalidOption("shard= with a random order needs seed=, the same on every rank: all cut one order")


def _no_order() -> Order:
    raise AssertionError("the batches of an order were asked for without it")
