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

from penstock.errors import InvalidOption
from penstock.order.keyed import KeyedSampler
from penstock.order.permutations import Indices, InSequence, KeyedShuffle, Order, Positions, TorchShuffle
from penstock.system.randomness import digest, torch_seed


def settled_at_start(sampler: Any) -> bool:
    """Return whether all that a sampler gives in a pass is settled when its first index is asked for.

    Those of torch are, but for draws with replacement. Any other one may give something else when asked early.
    """
    if type(sampler) is BatchSampler:
        return settled_at_start(sampler.sampler)
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples <= len(sampler.data_source)
    return type(sampler) in _SETTLED


_SETTLED = (SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler, list, tuple, range)


def checked_seed(seed: object) -> int:
    """Return a seed as torch.Generator.manual_seed takes it. Raises TypeError, InvalidOption."""
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise TypeError(f"seed must be an integer, not {seed!r}")
    number = operator.index(seed)
    if not -(1 << 63) <= number < 1 << 64:
        raise InvalidOption(f"seed={number} is out of range: 64 bits are used, -2**63 to 2**64 - 1")
    return number


def order_of(sampler: Any, keyed: bool, size: int, seed: int, epoch: int, drawn: dict[str, int]) -> Order:
    """Return the order of an epoch whose sampler is torch's own, or keyed.

    keyed: it is a function of seed and epoch. drawn: else, where the seed is kept that the sampler itself would draw;
    one that is there is taken instead, and drawn all the same where it was "foretold".
    """
    if type(sampler) is SequentialSampler:
        return InSequence()
    own = isinstance(sampler, KeyedSampler)
    if keyed:
        return sampler.order(seed, epoch) if own else KeyedShuffle(size, seed, epoch)
    if "order" not in drawn or drawn.pop("foretold", 0):
        drawn.setdefault("order", draw(sampler.generator if own else None))
    return sampler.order(drawn["order"], sampler.epoch) if own else TorchShuffle(size, drawn["order"])


def draw(generator: torch.Generator | None) -> int:
    """Draw a seed of 63 bits, as torch's samplers and iterators do. None: from torch's global generator."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def foretell(base: torch.Generator | None, order: torch.Generator | None, *, base_first: bool) -> dict[str, int]:
    """Return what a pass that began now would draw, "base" and "order", without drawing it.

    Args:
        base, order: the generators that they are drawn from; None: torch's global one.
        base_first: a base seed is drawn at all.
    """
    copies: dict[int, torch.Generator] = {}

    def drawn(generator: torch.Generator | None) -> int:
        if id(generator) not in copies:
            state = torch.get_rng_state() if generator is None else generator.get_state()
            copies[id(generator)] = torch.Generator("cpu" if generator is None else generator.device)
            copies[id(generator)].set_state(state)
        return draw(copies[id(generator)])

    return {**({"base": drawn(base)} if base_first else {}), "order": drawn(order)}


def length(sampler: Any) -> int | None:
    """Return the length of a sampler, None where it has none."""
    try:
        return len(sampler)
    except TypeError:
        return None


def seeded(batches: Any, own: torch.Generator | None, seed: int, epoch: int) -> Any:
    """Return a sampler, or one of batches, whose order is a function of seed and epoch, where it is torch's or keyed.

    The one given is left as it is, and returned where it has a generator of its own, other than `own`, or is of another
    class.
    """
    if type(batches) is BatchSampler:
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
# Sets their digests apart from others of as many numbers.
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
    """Return where samples of a sampler of batches stand in the order of all ranks: sample k at start + k * step.

    inner: the sampler of indices below it. Ranks whose sampler does not say which they are have positions of their own.
    """
    if isinstance(inner, DistributedSampler) and (batches is inner or type(batches) is BatchSampler):
        return range(inner.rank, inner.rank + inner.num_replicas, inner.num_replicas)
    if _of_accelerate(batches, "BatchSamplerShard"):  # another position for each sample of any process
        return range(batches.process_index, batches.process_index + batches.num_processes, batches.num_processes)
    return range(1)


def _of_accelerate(sampler: object, name: str) -> bool:
    return (type(sampler).__module__, type(sampler).__name__) == ("accelerate.data_loader", name)


def placed(items: Iterator[Any], before: int, *, batched: bool) -> Iterator[tuple[Any, range]]:
    """Yield what a sampler gives, and which of its samples these are, counted from `before` on.

    batched: it gives batches, which are made lists where they can be gone through but have no length.
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
    """Return what a sampler of batches gave: as an array where it is indices, else as the list that it is."""
    given = list(batch)  # it may be a generator, to be read once
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
