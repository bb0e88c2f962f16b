"""A sampler whose indices are an order: a function of (seed, epoch, position)."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import Sampler

from penstock.errors import InvalidOption
from penstock.order.permutations import Order

# Indices that are made at once where they are asked for one by one.
_AT_ONCE = 1024


class KeyedSampler(Sampler[int], ABC):
    """The base of samplers that a loader with a seed asks for an order instead of iterating.

    Iterated by itself, or by torch's loader, it draws the seed of each pass from `generator` (None: torch's global
    one) when the first index is asked for, as torch's samplers do.

    Args:
        generator: where the seeds of passes come from.
    """

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.generator = generator
        self.epoch = 0

    #: Whether a draw says nothing of another: then there is no rest of an epoch, but any number of further draws.
    independent = False

    @abstractmethod
    def fingerprint(self) -> str:
        """Return what tells the orders of this sampler from those of another of its class: a hash."""

    @abstractmethod
    def drawn_from(self) -> Sequence[int]:
        """Return the indices that can come."""

    @abstractmethod
    def order(self, seed: int, epoch: int) -> Order:
        """Return the indices of an epoch, by position. Only the low 64 bits of the seed count."""

    @abstractmethod
    def __len__(self) -> int: ...

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the passes from now on are. Raises TypeError, InvalidOption."""
        self.epoch = checked_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        seed = int(torch.empty((), dtype=torch.int64).random_(generator=self.generator).item())
        yield from one_by_one(self.order(seed, self.epoch), len(self))


def one_by_one(order: Order, size: int) -> Iterator[int]:
    """Yield the indices at the first positions of an order."""
    for begin in range(0, size, _AT_ONCE):
        yield from order.take(begin, min(_AT_ONCE, size - begin)).tolist()


def checked_epoch(epoch: object) -> int:
    """Return the number of an epoch. Raises TypeError, InvalidOption."""
    if isinstance(epoch, bool) or not hasattr(epoch, "__index__"):
        raise TypeError(f"epoch must be an integer, not {epoch!r}")
    number = operator.index(epoch)
    if not 0 <= number < 1 << 63:
        raise InvalidOption(f"epoch={number} is out of range: epochs are counted from 0")
    return number


def checked_count(name: str, value: object) -> int:
    """Return a number of samples, at least one. Raises TypeError, InvalidOption."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, not {value!r}")
    count = operator.index(value)
    if not 0 < count < 1 << 62:
        raise InvalidOption(f"{name}={count} is out of range: 1 to 2**62 - 1")
    return count


def check_positions(begin: int, count: int, size: int) -> None:
    """Raise IndexError for positions that an order of `size` has not."""
    if begin < 0 or count < 0 or begin + count > size:
        raise IndexError(f"positions {begin} to {begin + count} are past the end: the order has {size}")
