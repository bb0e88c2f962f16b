"""What is left of an epoch: without what was handed out early (in_order=False), or of a dataset that has changed.

Numbers are positions of an epoch's order, or numbers of batches where a sampler makes the order. Everything before some
number was handed out, and behind it a few ranges: these came early. What is "left" is counted without these ranges.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from penstock.order.permutations import Indices, Order, Positions

T = TypeVar("T")


@dataclass(frozen=True)
class Early:
    """Ranges of numbers that were handed out early: ascending, disjoint, none of them empty."""

    ranges: tuple[tuple[int, int], ...] = ()
    """The first number of each range, and the number behind its last."""

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int]]) -> Early:
        """Return these ranges sorted, and joined where they touch."""
        joined: list[tuple[int, int]] = []
        for begin, end in sorted(ranges):
            if joined and begin <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(end, joined[-1][1])
            elif begin < end:
                joined.append((begin, end))
        return cls(tuple(joined))

    @property
    def count(self) -> int:
        """Return how many numbers the ranges hold."""
        return sum(end - begin for begin, end in self.ranges) if self.ranges else 0

    def spans(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the ranges of numbers that the `begin`-th to `end`-th number left are."""
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
        """Return the number of each of some that are left, given by their counts."""
        if not self.ranges:
            return left
        return [number for span in self.spans(left.start, left.stop) for number in range(*span)]

    def number(self, left: int) -> int:
        """Return the number of one that is left, given by its count."""
        return self.spans(left, left + 1)[0][0]

    def order(self, make: Callable[[], Order]) -> Callable[[], Order]:
        """Return what makes the order of the positions that are left."""
        return (lambda: _OrderOfTheLeft(self, make())) if self.ranges else make

    def leave_out(self, items: Iterator[T], first: int) -> Iterator[T]:
        """Yield those of the items, numbered from `first` on, that are left."""
        if not self.ranges:
            return items
        taken = [range(*one) for one in self.ranges]
        return (item for number, item in enumerate(items, first) if not any(number in one for one in taken))


NONE_EARLY = Early()


class _OrderOfTheLeft:
    def __init__(self, early: Early, order: Order) -> None:
        self._early = early
        self._order = order

    @property
    def ends(self) -> Indices:
        """Return where the batches end that are left, of an order that has batches of its own."""
        ends: Indices = self._order.ends  # type: ignore[attr-defined]
        for first, behind in reversed(self._early.ranges):  # of whole batches
            ends = np.where(ends >= behind, ends - (behind - first), np.minimum(ends, first))
        return np.unique(ends[ends > 0])

    def take(self, begin: int, count: int) -> Indices:
        parts = [self._order.take(first, behind - first) for first, behind in self._early.spans(begin, begin + count)]
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int64), *parts])


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
class Remainder:
    """What is left of an epoch whose dataset has changed; it has an order of its own."""

    begin: int
    """The first position of the rest."""
    indices: Indices
    """The samples that were not handed out, ascending."""
    past: tuple[Mapping[str, Any], ...]
    """The datasets before the change, in turn: "data", a fingerprint, and "to", the position up to which it held."""

    @property
    def end(self) -> int:
        """Return the number of positions of the epoch."""
        return self.begin + len(self.indices)

    def order(self, among: Callable[[], Order]) -> Order:
        """Return the order of the rest; `among` makes an order of len(indices) positions."""
        return _RemainderOrder(self, among())


class _RemainderOrder:
    def __init__(self, rest: Remainder, among: Order) -> None:
        self._rest = rest
        self._among = among

    def take(self, begin: int, count: int) -> Indices:
        return self._rest.indices[self._among.take(begin - self._rest.begin, count)]


@dataclass(frozen=True)
class Leftover:
    """What a pass that goes on in the middle of an epoch has to hand out; by default all of it."""

    start: int = 0
    """The position of the epoch that the pass begins at."""
    early: Early = NONE_EARLY
    """What was handed out behind it."""
    rest: Remainder | None = None
    """None: the dataset is what it was when the epoch began."""


WHOLE = Leftover()
