"""What is left of an epoch, without what was handed out early (in_order=False)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


def step_of(early: Sequence[int], number: int) -> int:
    """Return the step that a batch is of, which has a number in a pass without some steps, given in ascending order."""
    for step in early:
        number += step <= number
    return number


def without(early: Sequence[int], batches: Iterator[T]) -> Iterator[T]:
    """Yield the batches of a pass, but for those of some steps."""
    return (batch for step, batch in enumerate(batches) if step not in early) if early else batches


class Arrivals:
    """Which of its batches, counted from 0, a pass has handed out. One thread reads them, another hands them out."""

    def __init__(self) -> None:
        self._read: deque[int | None] = deque()
        self._failed: list[int] = []
        self._handed: set[int] = set()
        self.prefix = 0
        """All batches before this one were handed out."""
        self.latest = -1
        """The batch that was handed out last."""

    def read(self, number: int | None) -> None:
        """Note that a batch, or its error, was read; None: an error of no batch."""
        self._read.append(number)

    @property
    def coming(self) -> int:
        """Return the batch that was read and is handed out next; -1: it is not known."""
        number = self._read[0] if self._read else None
        return -1 if number is None else number

    def took(self, *, handed: bool) -> None:
        """Note that the user was given the next batch read, or its error: that counts once a later batch was given."""
        number = self._read.popleft() if self._read else None
        if number is None:
            return
        if not handed:
            self._failed.append(number)
            return
        self.latest = number
        self._handed.update(self._failed, (number,))
        self._failed.clear()
        while self.prefix in self._handed:
            self._handed.remove(self.prefix)
            self.prefix += 1

    def early(self) -> list[int]:
        """Return the batches that were handed out behind one that was not."""
        return sorted(self._handed)


@dataclass(frozen=True)
class Leftover:
    """What a pass that goes on in the middle of an epoch has to hand out; by default all of it."""

    start: int = 0
    """The position of the epoch that the pass begins at."""
    early: tuple[int, ...] = ()
    """Which steps of what comes behind it were handed out, in ascending order."""


WHOLE = Leftover()
