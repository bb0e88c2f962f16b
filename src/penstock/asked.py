"""What a sampler gave for one batch, as the passes that resolve its indices themselves hold it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.order import Indices
from penstock.tree import LeafNumbers


def _no_indices() -> Indices:
    return np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class Asked:
    """A batch that was asked for, or the error that came in its place."""

    indices: Indices = field(default_factory=_no_indices)
    wanted: Indices = field(default_factory=_no_indices)
    """The indices that the sampler gave; others stand in `indices` where bad samples are replaced."""
    leaves: LeafNumbers | None = None
    local: Indices = field(default_factory=_no_indices)
    """In their leaf."""
    rescued: list[str] = field(default_factory=list)
    """Why Python read a sample, once for each."""
    other: list[Any] | None = None
    """What a sampler gave that is no list of indices."""
    error: Exception | None = None
    given: tuple[Any] | None = None
    """What the sampler gave, as the pass keeps it."""
    settled: bool = False
    """It was asked for, or submitted, without an interrupt."""

    @property
    def count(self) -> int:
        """Return the number of samples."""
        return len(self.indices if self.other is None else self.other)

    def settle(self, submit: Callable[[], None]) -> None:
        """Submit what the sampler gave where it is indices; again after an interrupt.

        An error of the user's dataset is kept: it is raised when this batch's turn has come.
        """
        try:
            given = None if self.given is None else self.given[0]
            if isinstance(given, list):
                self.other = given
            elif given is not None:
                self.indices = self.wanted = given
                submit()
        except Exception as error:
            self.error = error
        self.settled = True
