"""What a sampler gave for one batch, as the passes that resolve its indices themselves hold it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.order.permutations import Indices, Positions
from penstock.sources.tree import LeafNumbers

_NONE: Indices = np.empty(0, dtype=np.int64)


def _no_indices() -> Indices:
    return _NONE


@dataclass(slots=True)
class Asked:
    """A batch that was asked for, or the error that came in its place."""

    indices: Indices = field(default_factory=_no_indices)
    positions: Positions = range(0)
    """Where its samples stand in the order of the epoch."""
    wanted: Indices = field(default_factory=_no_indices)
    """The indices that the sampler gave; others stand in `indices` where bad samples are replaced."""
    leaves: LeafNumbers | None = None
    local: Indices = field(default_factory=_no_indices)
    """In their leaf."""
    rescued: list[str] = field(default_factory=list)
    """Why Python read a sample, once for each."""
    other: list[Any] | None = None
    """What a sampler gave that is no list of indices, or that only the dataset knows what to make of."""
    error: Exception | None = None
    given: tuple[Any, Positions] | None = None
    """What the sampler gave and its positions, as the pass keeps them."""
    settled: bool = False
    """It was asked for, or submitted, without an interrupt."""

    @property
    def count(self) -> int:
        """Return the number of samples."""
        return len(self.indices if self.other is None else self.other)

    def place(self, position: int) -> int:
        """Return where the sample at a position of this batch stands in the order of the epoch."""
        return self.positions[position]
