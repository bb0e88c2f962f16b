"""Which positions of an epoch's order each batch holds, on each rank.

The order is one for all ranks: global batch g is the positions from g x (batch size x ranks) on, and is cut among the
ranks. What comes after a position does not depend on how what came before it was cut, so that an epoch can go on with
other ranks and another batch size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch.distributed

from penstock.errors import InvalidOption
from penstock.order.permutations import Indices, InSequence, Order
from penstock.system.launched import launched_as
from penstock.system.words import counted


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
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(type(number) is int for number in pair):
        raise InvalidOption(f"shard={shard!r}: 'auto', or (rank, number of ranks)")
    if not 0 <= pair[0] < pair[1]:
        raise InvalidOption(f"shard={shard!r}: the rank is 0 or more, and less than the number of ranks")
    return Share(*pair)


@dataclass(frozen=True)
class Part:
    """A rank's part of one global batch."""

    begin: int
    """The first position of the part."""
    count: int
    """The number of samples in the part, padding included."""
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
    def regular(self) -> int:
        """Return the number of steps whose global batches are full."""
        return max(0, self.size - self.start) // self.step_size

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
            return Part(start + rank * self.batch_size, self.batch_size, 0, self.step_size, start)
        count = -(-left // world)
        real = min(count, max(0, left - rank * count))
        return Part(start + rank * count, count, count - real, left, start)


@dataclass(frozen=True)
class BucketSchedule:
    """The batches of one rank in one epoch of an order that has batches of its own, from a position on.

    Args:
        size: samples of the epoch.
        batches: of the epoch from its start on.
        order: returns the order, the same at each call. It is asked for with the first batch.
        share: this rank.
        start: the position to begin at: what comes before it was handed out before.
    """

    size: int
    batches: int
    order: Callable[[], Any]
    share: Share
    start: int

    #: No step is cut by its number alone.
    regular = 0

    @cached_property
    def _ends(self) -> Indices:
        ends: Indices = self.order().ends
        return ends

    @cached_property
    def _first(self) -> int:
        """The first batch that is left."""
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
            return Part(begin, count, 0, count, begin)
        # Behind the end of the epoch, as far as its turn of the batch: its samples come in their order.
        beyond = self.size + self.share.rank * int(self._ends[-1])
        return Part(beyond + (begin - beyond) % count, count, count, count, begin)


Steps = Schedule | BucketSchedule
"""The batches of one rank in one epoch, from a position on."""


def indices_of(order: Order, part: Part) -> Indices:
    """Return the dataset indices of a part."""
    if not part.padding:
        return order.take(part.begin, part.count)
    real = part.count - part.padding
    taken = order.take(part.begin, real) if real else np.empty(0, dtype=np.int64)
    first = part.begin + real - part.start
    rounds = [order.take(part.start + (first + i) % part.turn, 1) for i in range(part.padding)]
    return np.concatenate([taken, *rounds])


def positions_of(part: Part) -> range:
    """Return the positions of a part. Padding stands behind the end of the epoch, where nothing else does."""
    return range(part.begin, part.begin + part.count)


def cut_to_lists(order: Callable[[], Order], schedule: Steps) -> Iterator[list[int]]:
    """Yield the indices of each batch, as torch's samplers give them."""
    if not isinstance(schedule, Schedule) or type(order()) is not InSequence:
        yield from (indices.tolist() for indices, _ in cut(order, schedule))
        return
    size, step_size = schedule.batch_size, schedule.step_size
    first = schedule.start + schedule.share.rank * size
    for begin in range(first, first + schedule.regular * step_size, step_size):
        yield [*range(begin, begin + size)]
    for step in range(schedule.regular, schedule.steps):
        yield indices_of(order(), schedule.part(step)).tolist()


def cut(order: Callable[[], Order], schedule: Steps) -> Iterator[tuple[Indices, range]]:
    """Yield indices and positions of each batch; the order is drawn with the first batch, as torch does."""
    positions = order()
    if isinstance(schedule, Schedule):
        size, step_size = schedule.batch_size, schedule.step_size
        first = schedule.start + schedule.share.rank * size
        for begin in range(first, first + schedule.regular * step_size, step_size):
            yield positions.take(begin, size), range(begin, begin + size)
    for step in range(schedule.regular, schedule.steps):  # the last one, or each of its own size
        part = schedule.part(step)
        yield indices_of(positions, part), positions_of(part)
