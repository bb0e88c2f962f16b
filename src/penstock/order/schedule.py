"""Which positions of an epoch's order each batch holds, on each rank.

The order is one for all ranks: global batch g is the positions from g x (batch size x ranks) on, and is cut among the
ranks. What comes after a position does not depend on how what came before it was cut, so that an epoch can continue
with other ranks and another batch size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch.distributed

from penstock.errors import InvalidOption
from penstock.order.permutations import Indices, InSequence, Listed, Order
from penstock.system.launched import launched_as
from penstock.system.words import counted

T = TypeVar("T")


class Share(NamedTuple):
    """This rank's part of every global batch."""

    rank: int = 0
    world: int = 1


Shard = str | tuple[int, int] | None


def share_of(shard: Shard) -> Share | None:
    """Return what shard= means now; "auto" is what torch.distributed says or, before that runs, torchrun.

    Raises:
        InvalidOption: anything else than None, "auto" or (rank, world) with 0 <= rank < world; "auto" where processes
            were launched and nothing says which this one is.
    """
    if shard is None:
        return None
    if shard == "auto":
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return Share(torch.distributed.get_rank(), torch.distributed.get_world_size())
        return Share(*(launched_as() or (0, 1)))
    pair: Any = shard
    sound = isinstance(pair, tuple | list) and len(pair) == 2 and all(type(number) is int for number in pair)
    if not sound or not 0 <= pair[0] < pair[1]:
        raise InvalidOption(f"shard={shard!r}: it is 'auto', or (rank, number of ranks) with 0 <= rank < ranks")
    return Share(*pair)


@dataclass(frozen=True)
class Part:
    """A rank's part of one global batch."""

    positions: range
    """Of its samples. Padding stands behind the end of the epoch, where nothing else does."""
    padding: int
    """How many samples at the end of the part repeat others of the global batch, so that all ranks have as many."""
    turn: int
    """The number of positions of the global batch, from `start` on, over which a padded part goes round."""
    start: int
    """The first position of the global batch."""


class Schedule(NamedTuple):
    """The batches of one rank in one epoch, from a position on.

    Args:
        size: samples of the epoch.
        batch_size: of each rank.
        drop_last: the last global batch is left out where it is not full. Else its samples are shared out evenly, and
            repeated from its beginning where they do not go round.
        share: this rank.
        start: the position to begin at, of the whole epoch: what comes before it was handed out before.
    """

    size: int
    batch_size: int
    drop_last: bool
    share: Share = Share()
    start: int = 0

    @property
    def step_size(self) -> int:
        """Return the number of positions of a full global batch."""
        return self.batch_size * self.share.world

    @property
    def full(self) -> range:
        """Return where this rank's batches begin in the steps whose global batches are full."""
        first = self.start + self.share.rank * self.batch_size
        return range(first, first + max(0, self.size - self.start) // self.step_size * self.step_size, self.step_size)

    def step_at(self, position: int) -> int:
        """Return how many of the epoch's steps lie before a position, where they are of one size."""
        return -(-position // self.step_size)

    @property
    def steps(self) -> int:
        """Return the number of batches, the same on every rank."""
        left = max(0, self.size - self.start)
        return left // self.step_size if self.drop_last else -(-left // self.step_size)

    def position_after(self, steps: int) -> int:
        """Return the position behind so many steps, which all ranks have taken."""
        return min(self.start + steps * self.step_size, max(self.size, self.start))

    def part(self, step: int) -> Part:
        """Return this rank's part of a step. Raises IndexError where there is no such step."""
        if not 0 <= step < self.steps:
            raise IndexError(f"there is no step {step}: the pass has {counted(self.steps, 'step')}, counted from 0")
        rank, world = self.share.rank, self.share.world
        start = self.start + step * self.step_size
        left = self.size - start
        if left >= self.step_size:
            begin = start + rank * self.batch_size
            return Part(range(begin, begin + self.batch_size), 0, self.step_size, start)
        count = -(-left // world)
        begin, real = start + rank * count, min(count, max(0, left - rank * count))
        return Part(range(begin, begin + count), count - real, left, start)


@dataclass(frozen=True)
class BucketSchedule:
    """The batches of one rank in one epoch of an order that has its own batches, from a position on.

    Args:
        size: samples of the epoch.
        batches: of the epoch from its start on.
        order: returns the order, the same at each call; None: only the number of all batches is asked for.
        share: this rank.
        start: the position to begin at: what comes before it was handed out before.
    """

    size: int
    batches: int
    order: Callable[[], Any] | None
    share: Share
    start: int

    #: No step is cut only by its number.
    batch_size, full = 0, range(0)

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep where the batches end: what makes the order may hold what cannot be pickled."""
        order = None if self.order is None else partial(Listed, self._ends, self._ends)
        return BucketSchedule, (self.size, self.batches, order, self.share, self.start)

    @cached_property
    def _ends(self) -> Indices:
        assert self.order is not None
        ends: Indices = self.order().ends
        return ends

    @cached_property
    def _first(self) -> int:
        return int(np.searchsorted(self._ends, self.start, side="right")) if self.start else 0

    @property
    def steps(self) -> int:
        """Return the number of batches, the same on every rank."""
        return -(-(self.batches - self._first) // self.share.world)

    def step_at(self, position: int) -> int:
        """Return how many of the epoch's steps lie before a position, where its ranks were as many all the time."""
        return -(-int(np.searchsorted(self._ends, position, side="right")) // self.share.world) if position else 0

    def position_after(self, steps: int) -> int:
        """Return the position behind so many steps, which all ranks have taken."""
        behind = min(self._first + steps * self.share.world, len(self._ends)) if steps else 0
        return int(self._ends[behind - 1]) if behind else self.start

    def part(self, step: int) -> Part:
        """Return this rank's part of a step. Raises IndexError where there is no such step."""
        if not 0 <= step < self.steps:
            raise IndexError(f"there is no step {step}: the pass has {counted(self.steps, 'step')}, counted from 0")
        batch = first = self._first + step * self.share.world
        batch += self.share.rank
        padding = batch >= len(self._ends)
        if padding:  # a batch of this step once more
            batch = first + (batch - first) % (len(self._ends) - first)
        begin = int(self._ends[batch - 1]) if batch else 0
        count = int(self._ends[batch]) - begin
        if not padding:
            return Part(range(begin, begin + count), 0, count, begin)
        # Behind the end of the epoch, as far as its turn of the batch: its samples come in their order.
        beyond = self.size + self.share.rank * int(self._ends[-1])
        beyond += (begin - beyond) % count
        return Part(range(beyond, beyond + count), count, count, begin)


Steps = Schedule | BucketSchedule
"""The batches of one rank in one epoch, from a position on."""


def indices_of(order: Order, part: Part) -> Indices:
    if not part.padding:
        return order.take(part.positions.start, len(part.positions))
    places: Indices = (np.array(part.positions) - part.start) % part.turn
    return order.take(part.start, part.turn)[places]


def cut_to_lists(order: Callable[[], Order], schedule: Steps) -> Iterator[list[int]]:
    """Yield the indices of each batch, as torch's samplers give them."""
    positions, size, full = order(), schedule.batch_size, schedule.full
    in_sequence = type(positions) is InSequence
    for begin in full:
        yield [*range(begin, begin + size)] if in_sequence else positions.take(begin, size).tolist()
    for step in range(len(full), schedule.steps):
        yield indices_of(positions, schedule.part(step)).tolist()


def cut(order: Callable[[], Order], schedule: Steps) -> Iterator[tuple[Indices, range]]:
    """Yield indices and positions of each batch; the order is drawn with the first batch, as torch does."""
    positions = order()
    size, full = schedule.batch_size, schedule.full
    for begin in full:
        yield positions.take(begin, size), range(begin, begin + size)
    for step in range(len(full), schedule.steps):  # the last one, or each, has its own size
        part = schedule.part(step)
        yield indices_of(positions, part), part.positions


# --- what is left of an epoch, without what was handed out early (in_order=False) -------------------------------------


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
    """What a pass that continues in the middle of an epoch has to hand out; by default all of it."""

    start: int = 0
    """The position of the epoch that the pass begins at."""
    early: tuple[int, ...] = ()
    """Which steps of what comes behind it were handed out, in ascending order."""


WHOLE = Leftover()
