"""What packed shards in an object store are shuffled in, and what their cache must hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.errors import InvalidOption
from penstock.order.blocks import Blocks, grouped
from penstock.storage.description import Shard
from penstock.storage.index import Index
from penstock.system.words import counted, size_of


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


def checked_limit(limit: object) -> int | None:
    """Return a cache_limit= argument. Raises InvalidOption."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InvalidOption(f"cache_limit={limit!r}: it is a number of bytes, 1 or more, or None")
    return limit


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
