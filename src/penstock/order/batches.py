"""The indices of each batch of a pass: from an order, or from a sampler of the user's."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator
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

from penstock.order.blocks import Blocks
from penstock.order.buckets import Buckets
from penstock.order.keyed import KeyedSampler, draw_seed
from penstock.order.permutations import Indices, InSequence, KeyedShuffle, Order, Positions, TorchShuffle
from penstock.system.randomness import digest, torch_seed


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
    """Return the order of an epoch whose sampler is torch's own, or keyed.

    Args:
        sampler, size: the sampler, and the number of samples.
        keyed: the order is a function of seed and epoch.
        seed, epoch: these.
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
    return TorchShuffle(size, drawn["order"]) if blocks is None or blocks.full else blocks.order(drawn["order"], 0)


def length(sampler: Any) -> int | None:
    """Return the length of a sampler, None where it has none."""
    try:
        return len(sampler)
    except TypeError:
        return None


def seeded(batches: Any, own: torch.Generator | None, seed: int, epoch: int) -> Any:
    """Return a copy of a sampler, or of a sampler of batches, whose order is a function of seed and epoch.

    The sampler itself is returned where it has a generator other than `own`, or is neither torch's nor keyed.
    """
    if type(batches) is BatchSampler:
        inner = seeded(batches.sampler, own, seed, epoch)
        return batches if inner is batches.sampler else _with(batches, sampler=inner)
    if isinstance(batches, Buckets):
        inner = seeded(batches.sampler, own, seed, epoch)
        return batches if inner is batches.sampler else _with(batches, sampler=inner)
    if _of_accelerate(batches, "BatchSamplerShard"):
        inner = seeded(batches.batch_sampler, own, seed, epoch)
        return batches if inner is batches.batch_sampler else _with(batches, batch_sampler=inner)
    if type(batches) not in _SEEDABLE and not isinstance(batches, KeyedSampler):
        return batches
    if batches.generator is not None and batches.generator is not own:
        return batches
    generator = torch.Generator().manual_seed(torch_seed(digest(seed, epoch, _SAMPLERS)))
    return _with(batches, generator=generator)


_SEEDABLE = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
#: Sets the digests of samplers apart from other digests of three numbers.
_SAMPLERS = int.from_bytes(b"samplers", "little")


def _with(twinned: Any, **attributes: Any) -> Any:
    """Return a copy of a sampler with other attributes."""
    twin = copy.copy(twinned)
    vars(twin).update(attributes)
    return twin


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
    try:
        indices = np.array([operator.index(_scalar(i)) for i in given], dtype=np.int64)
    except (TypeError, OverflowError):
        return given
    return indices if len(indices) else []


def _scalar(index: Any) -> Any:
    """Return a tensor without dimensions as a number. Raises TypeError for other tensors, and bool: they are masks."""
    if isinstance(index, bool):
        raise TypeError("a mask")
    if isinstance(index, torch.Tensor):
        if index.ndim:
            raise TypeError("a tensor with dimensions")
        return _scalar(index.item())
    return index


def as_array(positions: Positions) -> Indices:
    """Return positions as the native core takes them."""
    if isinstance(positions, range):
        return np.arange(positions.start, positions.stop, positions.step, dtype=np.int64)
    return np.array(positions, dtype=np.int64)


def as_list(indices: Indices) -> list[int]:
    """Return indices as torch's samplers give them."""
    listed: list[int] = indices.tolist()
    return listed


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
