"""A tier of cache= in the memory of this process, which its forked children share."""

from __future__ import annotations

from dataclasses import dataclass, field

import penstock._native as _native
from penstock.system.limits import available_bytes

#: The share of memory that a tier leaves to others.
LEFT_OF_MEMORY = 0.2


@dataclass(frozen=True)
class MemoryTier:
    """See tiers.Tier."""

    limit: int
    """In bytes."""
    name: str = field(default="memory", init=False)
    outlives: bool = field(default=False, init=False)

    def open(self, key: str, samples: int, share: float) -> _native.CacheTier:
        limit = min(self.limit, int(available_bytes() * (1 - LEFT_OF_MEMORY)))
        return _native.CacheTier.in_memory(samples, int(limit * share))
