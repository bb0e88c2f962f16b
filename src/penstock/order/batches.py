"""Which samples each batch of a loader holds: its order, cut into batches and among ranks, or a user's sampler."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial, wraps
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from penstock.errors import InvalidOption
from penstock.order.blocks import Blocks
from penstock.order.buckets import CutBatches, CutSampler
from penstock.order.permutations import (
    Indices,
    InSequence,
    KeyedSampler,
    KeyedShuffle,
    Order,
    Positions,
    checked_epoch,
    draw_seed,
    torch_shuffle,
)
from penstock.order.schedule import (
    WHOLE,
    BucketSchedule,
    Leftover,
    Schedule,
    Share,
    Steps,
    indices_of,
    share_of,
    step_of,
)
from penstock.settings import Settings
from penstock.system.randomness import digest, torch_seed
from penstock.system.words import there_are

_ALONE = Share()
#: The kind of an order that comes from a sampler of the user's.
BY_SAMPLER = "by a sampler"


def _found_once(method: Callable[[BatchOrder], bool]) -> Callable[[BatchOrder], bool]:
    """Return a method whose result is kept with the settings that it follows from."""

    @wraps(method)
    def kept(self: BatchOrder) -> bool:
        known: dict[str, bool] = self.settings.known
        if method.__name__ not in known:
            known[method.__name__] = method(self)
        return known[method.__name__]

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
        if self.settings.shard is None or self.settings.iterable:
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
        self, left: Leftover = WHOLE, share: Share | None = None, order: Callable[[], Order] | None = None
    ) -> Steps:
        """Return which positions the batches of an epoch, or of what is left of one, hold; share: None for this rank's.

        order: returns the order, the same at each call; None: only the number of batches or samples is asked for.
        """
        settings, size = self.settings, self.size()
        share = share or self.share() or _ALONE
        if not settings.own_order and isinstance(settings.sampler, CutSampler):
            return BucketSchedule(size, settings.sampler.batches, order, share, left.start)
        drop_last = settings.drop_last and settings.batch_size is not None
        return Schedule(size, settings.batch_size or 1, drop_last, share, left.start)

    def order(self, seed: int, epoch: int, drawn: dict[str, int]) -> Callable[[], Order]:
        """Return what makes the order of an epoch; drawn: see `order_of`."""
        sampler, keyed = self.settings.sampler, self.settings.seed is not None
        return partial(order_of, sampler, keyed, self.size(), seed, epoch, drawn, self.blocks())

    def blocks(self) -> Blocks | None:
        """Return the blocks that the samples are shuffled in; None: they are not shuffled, or as a whole."""
        blocks = self.settings.blocks
        return (
            blocks if blocks is None or (type(self.settings.sampler) is RandomSampler and self.draws_itself()) else None
        )

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

        Steps are counted from the start of what was left when the pass began. rank: another rank; None: this one.
        Raises InvalidOption: the order is not a function of (seed, epoch), or there is no such rank. IndexError.
        """
        seed = self.settings.seed
        if seed is None or not self.cuts_itself():
            raise InvalidOption("the order is a function of (seed, epoch) with seed= and without your own sampler")
        share = self.share() or Share()
        if rank is not None:
            if not 0 <= rank < share.world:
                raise InvalidOption(f"rank={rank}: {there_are(share.world, 'rank')}")
            share = Share(rank, share.world)
        order = cache(self.order(seed, checked_epoch(epoch), {}))
        part = self.schedule(left, share, order).part(step_of(left.early, step))
        return indices_of(order(), part), part.positions

    # --- whose order it is ------------------------------------------------------------------------------------------

    @_found_once
    def cuts_itself(self) -> bool:
        """Return whether the batch sampler is torch's own, as torch made it, and of an order that Penstock makes."""
        settings, batches = self.settings, self.settings.batch_sampler
        if isinstance(settings.sampler, CutSampler):
            return batches is settings.index_sampler
        asked = settings.batch_size, settings.drop_last
        as_made = self.is_cut_by_torch() and (batches.batch_size, batches.drop_last) == asked
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
        # With a generator of the user's, torch's sampler advances the generator as torch's loader would.
        return not sampler.replacement and sampler._num_samples is None and sampler.generator is settings.seeded

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
            return  # its own .shard() cuts it
        if isinstance(inner, DistributedSampler):
            return  # its share is respected, and not cut a second time
        if not self.settings.own_order and not isinstance(inner, KeyedSampler):
            raise InvalidOption(
                "shard= cuts the loader's own order: give shuffle= instead of the sampler, or shard=None"
            )
        drawn = inner.random if isinstance(inner, KeyedSampler) else isinstance(inner, RandomSampler)
        if drawn and self.settings.seed is None:
            raise InvalidOption("shard= with a random order needs seed=, the same on every rank: all cut one order")


def settled_at_start(sampler: Any) -> bool:
    """Return whether all indices that a sampler gives in a pass are settled when its first index is taken.

    They are with torch's samplers, but for draws with replacement. A sampler of the user's may depend on when each
    index is taken.
    """
    if type(sampler) is BatchSampler:
        return settled_at_start(sampler.sampler)
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples <= len(sampler.data_source)
    settled = (SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler, list, tuple, range)
    return type(sampler) in settled


def order_of(
    sampler: Any, keyed: bool, size: int, seed: int, epoch: int, drawn: dict[str, int], blocks: Blocks | None = None
) -> Order:
    """Return the order of an epoch of so many samples, whose sampler is torch's own, or keyed.

    Args:
        keyed: the order is a function of seed and epoch.
        drawn: without a key, holds the seed that the sampler draws for the order, as "order". A seed that it holds
            already is taken, and one is drawn from the generator all the same where the seed was "foretold".
        blocks: what a shuffled dataset is shuffled in; None: it is shuffled as a whole.
    """
    if type(sampler) is SequentialSampler:
        return InSequence()
    if keyed:
        if isinstance(sampler, KeyedSampler):
            return sampler.order(seed, epoch)
        return KeyedShuffle(size, seed, epoch) if blocks is None else blocks.order(seed, epoch)
    if "order" not in drawn or drawn.pop("foretold", 0):
        drawn.setdefault("order", draw_seed(sampler.generator if isinstance(sampler, KeyedSampler) else None))
    if isinstance(sampler, KeyedSampler):
        return sampler.order(drawn["order"], sampler.epoch)
    return torch_shuffle(size, drawn["order"]) if blocks is None or blocks.full else blocks.order(drawn["order"], 0)


def length(sampler: Any) -> int | None:
    try:
        return len(sampler)
    except TypeError:
        return None


def seeded(batches: Any, own: torch.Generator | None, seed: int, epoch: int) -> Any:
    """Return a copy of a sampler, or of a sampler of batches, whose order is a function of seed and epoch.

    The sampler itself is returned where it has a generator other than `own`, or is neither torch's nor keyed.
    """
    changed: Any
    if type(batches) is BatchSampler or isinstance(batches, CutBatches) or _of_accelerate(batches, "BatchSamplerShard"):
        name = "batch_sampler" if _of_accelerate(batches, "BatchSamplerShard") else "sampler"
        inner = getattr(batches, name)
        changed = seeded(inner, own, seed, epoch)
        if changed is inner:
            return batches
    elif type(batches) in SHUFFLING or isinstance(batches, KeyedSampler):
        if batches.generator is not None and batches.generator is not own:
            return batches
        name = "generator"
        changed = torch.Generator().manual_seed(torch_seed(digest(seed, epoch, _SAMPLERS)))
    else:
        return batches
    twin = copy.copy(batches)
    vars(twin)[name] = changed
    return twin


#: Torch's samplers that draw from a generator.
SHUFFLING = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
#: Sets the digests of samplers apart from other digests of three numbers.
_SAMPLERS = int.from_bytes(b"samplers", "little")


def without_skip(batches: Any) -> tuple[Any, int]:
    """Return a sampler of batches, and how many of its batches Accelerate's skip_first_batches leaves out."""
    if _of_accelerate(batches, "SkipBatchSampler"):
        inner, skipped = without_skip(batches.batch_sampler)
        return inner, skipped + batches.skip_batches
    return batches, 0


def share_of_sampler(batches: Any, inner: Any) -> range:
    """Return which positions in the order of all ranks the samples of a rank's sampler have: k-th at start + k * step.

    inner: the sampler of indices below `batches`. A sampler that does not know its rank counts by itself, from 0.
    """
    if isinstance(inner, DistributedSampler) and (batches is inner or type(batches) is BatchSampler):
        return range(inner.rank, inner.rank + inner.num_replicas, inner.num_replicas)
    if _of_accelerate(batches, "BatchSamplerShard"):  # another position for each sample of any process
        return range(batches.process_index, batches.process_index + batches.num_processes, batches.num_processes)
    return range(1)


def _of_accelerate(sampler: object, name: str) -> bool:
    return (type(sampler).__module__, type(sampler).__name__) == ("accelerate.data_loader", name)


def with_sample_numbers(items: Iterator[Any], before: int, *, batched: bool) -> Iterator[tuple[Any, range]]:
    """Yield what a sampler gives, and the numbers of these samples, counted from `before` on.

    batched: the sampler gives batches; a batch without a length is made a list.
    """
    for given in items:
        samples = 1
        if batched:
            try:
                samples = len(given)
            except TypeError:
                given = list(given)
                samples = len(given)
        yield given, range(before, before + samples)
        before += samples


def as_indices(batch: Any) -> Indices | list[Any]:
    """Return a batch of a sampler: as an array where it holds whole numbers, else as a list."""
    given = list(batch)  # a generator can be read once only
    scalars: list[Any] = [one.item() if isinstance(one, torch.Tensor) and not one.ndim else one for one in given]
    if not given or any(isinstance(one, bool | torch.Tensor) for one in scalars):
        return given  # masks, and tensors with dimensions
    try:
        return np.array([operator.index(one) for one in scalars], dtype=np.int64)
    except (TypeError, OverflowError):
        return given


def as_array(positions: Positions) -> Indices:
    """Return positions as the native core takes them."""
    if isinstance(positions, range):
        return np.arange(positions.start, positions.stop, positions.step, dtype=np.int64)
    return np.array(positions, dtype=np.int64)


def samplers_of(sampler: Any) -> list[Any]:
    """Return a sampler, and those below it: samplers that group, cut and skip what another one gives."""
    for name in ("batch_sampler", "sampler"):
        inner = getattr(sampler, name, None)
        if inner is not None and inner is not sampler:
            return [sampler, *samplers_of(inner)]
    return [sampler]


def deepest(sampler: Any) -> Any:
    """Return the sampler of indices below any number of samplers that group, cut and skip."""
    return samplers_of(sampler)[-1]
