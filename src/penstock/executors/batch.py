"""A batch that is being made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.order.permutations import Indices, Positions
from penstock.sources.tree import LeafNumbers

_NONE: Indices = np.empty(0, dtype=np.int64)


def no_indices() -> Indices:
    """Return an empty array of indices."""
    return _NONE


@dataclass(slots=True, eq=False)
class Batch:
    """What a sampler gave for a batch, or the error that came in its place."""

    given: tuple[Any, Positions] | None = None
    """What the sampler gave and its positions, as the pass keeps them."""
    error: BaseException | None = None
    """It is raised when the batch's turn has come."""
    settled: bool = False
    """Its making has begun without an interrupt."""
    begun: float = 0.0
    """When that was, by time.perf_counter()."""

    def let_go(self) -> None:
        """Drop the memory that an error's traceback would keep."""


@dataclass(slots=True, eq=False)
class IndexedBatch(Batch):
    """A batch of indices into a native plan."""

    indices: Indices = field(default_factory=no_indices)
    positions: Positions = range(0)
    """Where its samples stand in the order of the epoch."""
    wanted: Indices = field(default_factory=no_indices)
    """The indices that the sampler gave; others stand in `indices` where bad samples are replaced."""
    leaves: LeafNumbers | None = None
    local: Indices = field(default_factory=no_indices)
    """In their leaf."""
    rescued: list[str] = field(default_factory=list)
    """Why Python read a sample, one reason a sample."""
    other: list[Any] | None = None
    """What a sampler gave that is no list of indices, or that only the dataset knows what to make of."""

    @property
    def count(self) -> int:
        """Return the number of samples."""
        return len(self.indices if self.other is None else self.other)

    def place(self, position: int) -> int:
        """Return where the sample at a position of this batch stands in the order of the epoch."""
        return self.positions[position]
