"""What goes to whoever fetches a batch, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from torch.utils.data._utils.pin_memory import pin_memory

from penstock.order.permutations import Positions
from penstock.state.manifest import BadSample


@dataclass(frozen=True, slots=True)
class Task:
    """What a sampler gave for one batch (for one sample, with batch_size=None), and the pass it belongs to."""

    given: Any
    seed: int
    epoch: int
    positions: Positions = range(0)
    """Where its samples stand in the order of the epoch."""

    @property
    def first(self) -> int:
        """Where the first of them stands."""
        return self.positions[0] if self.positions else 0


@dataclass(slots=True)
class Delivered:
    """A batch with news for the loader: samples that were bad, or where the iterable dataset is behind it."""

    batch: Any
    bad: list[BadSample] = field(default_factory=list)
    state: Any = None

    def pin_memory(self) -> Delivered:
        """Pin the batch, where torch's pinning thread meets this."""
        return replace(self, batch=pin_memory(self.batch))  # type: ignore[no-untyped-call]
