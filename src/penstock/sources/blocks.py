"""The blocks that a dataset is shuffled in: the shards of remote datasets, also within Subset and ConcatDataset."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Subset

from penstock.errors import InvalidOption
from penstock.order.blocks import Blocks, grouped, joined
from penstock.sources.labels import chosen_of
from penstock.storage.description import Shard
from penstock.storage.index import Index
from penstock.system.words import counted, size_of

#: The blocks of a Subset, with the indices that they were made of: there may be millions.
_OF_SUBSETS: weakref.WeakKeyDictionary[Any, tuple[Any, int, Blocks, Blocks]] = weakref.WeakKeyDictionary()


def blocks_of(dataset: Any) -> Blocks | None:
    """Return the blocks that a dataset is shuffled in by shuffle=True; None: it is shuffled as a whole.

    A dataset says so by its attribute `shuffle_blocks`.
    """
    if type(dataset) is Subset:
        return _of_subset(dataset)
    if type(dataset) is ConcatDataset:
        return _of_parts(dataset)
    blocks = getattr(dataset, "shuffle_blocks", None)
    return blocks if isinstance(blocks, Blocks) and blocks.samples == len(dataset) else None


def _of_subset(subset: Subset[Any]) -> Blocks | None:
    inner = blocks_of(subset.dataset)
    if inner is None:
        return None
    chosen: Any = subset.indices
    kept = _OF_SUBSETS.get(subset)
    if kept is not None and kept[0] is chosen and kept[1] == len(chosen) and kept[2] is inner:
        return kept[3]
    try:
        indices = chosen_of(chosen)
        blocks = grouped(inner.of_samples(np.where(indices < 0, indices + inner.samples, indices)), inner.window)
        blocks = replace(blocks, noun=inner.noun)
    except (TypeError, ValueError, IndexError):  # the dataset itself refuses them when they are read
        return None
    _OF_SUBSETS[subset] = (chosen, len(chosen), inner, blocks)
    return blocks


def _of_parts(dataset: ConcatDataset[Any]) -> Blocks | None:
    parts = [blocks_of(part) for part in dataset.datasets]
    known = [part for part in parts if part is not None and part.samples]
    if not known:
        return None
    # Samples of other datasets are cut into blocks of a common size, so that they come all through the epoch.
    size = max(1, sum(part.samples for part in known) // sum(len(part.sizes) for part in known))
    return joined(
        [
            Blocks(np.bincount(np.arange(len(one)) // size), 1) if part is None else part  # type: ignore[arg-type]
            for part, one in zip(parts, dataset.datasets, strict=True)
        ]
    )


# --- the blocks of packed shards --------------------------------------------------------------------------------------


def blocks_of_shards(index: Index, shards: Sequence[Shard], window: int) -> Blocks:
    """Return the shards as blocks of samples; empty ones are left out."""
    sizes = np.array([shard.samples for shard in shards if shard.samples], dtype=np.int64)
    numbers = np.array([number for number, shard in enumerate(shards) if shard.samples], dtype=np.int64)
    ends = np.cumsum(sizes)
    if len(sizes) and ends[-1] == len(index):
        first, last = index.rows(ends - sizes)["shard"], index.rows(ends - 1)["shard"]
        if np.array_equal(first, numbers) and np.array_equal(last, numbers):
            return Blocks(sizes, window)
    return grouped(index.column("shard").astype(np.int64), window)


def check_window(window: int, shards: Sequence[Shard], limit: int) -> None:
    """Raise InvalidOption where the shards of a window, and the next one, do not fit into the cache."""
    largest = max((shard.bytes for shard in shards), default=0)
    needed = min(window + 1, len(shards))
    if needed * largest > limit:
        fits = limit // largest - 1
        lower = f"lower window= to {fits:,}" if fits >= 1 else "pack smaller shards"
        raise InvalidOption(
            f"cache_limit={limit:,} ({size_of(limit)}) does not hold a window of {counted(window, 'shard')} and the "
            f"next one, {size_of(largest)} each: {lower}, or raise cache_limit= to {needed * largest:,}"
        )
