"""What was handed out ahead of what is still missing, where batches are handed out as they come (in_order=False).

Numbers are positions of an epoch's order, or of batches where a sampler says what comes. Everything before a first
number was handed out; behind it a few ranges were handed out as well. What is left is counted without these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from penstock.order.permutations import Indices, Order, Positions

T = TypeVar("T")


@dataclass(frozen=True)
class Ahead:
    """Ranges of numbers that were handed out ahead: ascending, disjoint, none of them empty."""

    ranges: tuple[tuple[int, int], ...] = ()
    """First number of each, and the one behind its last."""

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int]]) -> Ahead:
        """Return these ranges in order, those that touch joined."""
        joined: list[tuple[int, int]] = []
        for begin, end in sorted(ranges):
            if joined and begin <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(end, joined[-1][1])
            elif begin < end:
                joined.append((begin, end))
        return cls(tuple(joined))

    @property
    def count(self) -> int:
        """Return how many numbers they hold."""
        return sum(end - begin for begin, end in self.ranges)

    def spans(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the ranges of numbers that `begin` to `end` are, of those that are left."""
        found = []
        shift = 0
        for first, behind in self.ranges:
            edge = first - shift
            if begin < edge:
                found.append((begin + shift, min(end, edge) + shift))
                begin = min(end, edge)
            if begin >= end:
                return found
            shift += behind - first
        return [*found, (begin + shift, end + shift)]

    def numbers(self, left: range) -> Positions:
        """Return the numbers that some of those left are."""
        if not self.ranges:
            return left
        return [number for span in self.spans(left.start, left.stop) for number in range(*span)]

    def number(self, left: int) -> int:
        """Return the number that one of those left is."""
        return self.spans(left, left + 1)[0][0]

    def order(self, make: Callable[[], Order]) -> Callable[[], Order]:
        """Return what makes the order of the positions that are left."""
        return (lambda: _OrderOfTheLeft(self, make())) if self.ranges else make

    def leave_out(self, items: Iterator[T], first: int) -> Iterator[T]:
        """Return those of the items, numbered from `first` on, that are left."""
        if not self.ranges:
            return items
        taken = [range(*one) for one in self.ranges]
        return (item for number, item in enumerate(items, first) if not any(number in one for one in taken))


NONE_AHEAD = Ahead()


class _OrderOfTheLeft:
    def __init__(self, ahead: Ahead, order: Order) -> None:
        self._ahead = ahead
        self._order = order

    def take(self, begin: int, count: int) -> Indices:
        parts = [self._order.take(first, behind - first) for first, behind in self._ahead.spans(begin, begin + count)]
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int64), *parts])


class Arrivals:
    """Which of its batches, counted from 0, a pass has handed out. Read by one thread, handed out by another."""

    def __init__(self) -> None:
        self._read: deque[int | None] = deque()
        self._failed: list[int] = []
        self._handed: set[int] = set()
        self.prefix = 0
        """All batches before this one were handed out."""
        self.latest = -1
        """The one that was handed out last."""

    def read(self, number: int | None) -> None:
        """Note a batch that came, or whose error did; None: an error that is of no batch."""
        self._read.append(number)

    def took(self, *, handed: bool) -> None:
        """Note that the user was given the next of these. One that failed counts once a later one was handed out."""
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

    def ahead(self) -> list[int]:
        """Return those that were handed out behind one that was not."""
        return sorted(self._handed)
