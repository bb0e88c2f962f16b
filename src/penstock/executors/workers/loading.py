"""A batch that Python threads fetch, and what each of them is doing."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.executors.batch import Batch
from penstock.executors.collating import Build
from penstock.state.delivery import Task


@dataclass(slots=True, eq=False)
class Loading(Batch):
    """A batch that threads fetch."""

    task: Task | None = None
    """None: nothing was prepared for it."""
    indices: list[Any] | None = None
    """Of the samples, to be fetched one by one; None: the task is done in one go."""
    owner: int | None = None
    """The thread that must do it; None: any."""
    taken: int = 0
    unfinished: int = 0
    build: Build | None = None
    samples: list[Any] = field(default_factory=list)
    result: Any = None
    in_place: bool = False
    """The result is what was built in place."""
    failed: tuple[int, BaseException] | None = None
    """The first sample's error, and its position in the batch: while threads are at work another one may become it."""
    ended: bool = False
    """An iterable dataset had nothing left for it."""
    done: bool = False
    number: int = 0
    """Of the pass, in the sampler's order."""
    state: Any = None
    """Where the iterable dataset was behind it, in its thread, where it says so itself."""
    told: bool = False
    """Those who follow the pass have been told of it."""

    def let_go(self) -> None:
        self.result = None


@dataclass(slots=True)
class At:
    """What a thread is doing."""

    stage: str = ""
    part: Sequence[Any] = ()
    """The indices of the samples that it fetches now."""
    left: Any = field(default_factory=lambda: iter(()))
    """A list's iterator over them: it knows how far it is, at no cost to the thread."""
    since: float = 0.0

    def position(self) -> int:
        """Return which of them it is at."""
        return max(0, len(self.part) - operator.length_hint(self.left) - 1)

    def sample(self) -> Any:
        """Return the index of the sample that it is at."""
        return self.part[self.position()] if self.part else None


def stage_of(at: At) -> str:
    """Return what a thread is doing, for messages."""
    return f"__getitem__ of sample {at.sample()!r}" if at.stage == "getitem" else at.stage
