"""Seeds, epochs, and samplers whose indices are an order: a function of (seed, epoch, position)."""

from __future__ import annotations

import copy
import operator
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import Sampler

from penstock.errors import InvalidOption
from penstock.order.permutations import Order

#: How many indices of an order an iterator takes at once.
_INDICES_PER_CALL = 1024


class KeyedSampler(Sampler[int], ABC):
    """The base of samplers whose order is a function of seed and epoch; a loader takes the order and does not iterate.

    Iterated by itself, or by torch's loader, it draws the seed of each pass from `generator` (None: torch's global
    one) with the first index, as torch's samplers do.

    Args:
        generator: where the seeds of passes come from.
    """

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.generator = generator
        self.epoch = 0

    #: Whether the draws are independent: what was drawn then says nothing of what is left of an epoch.
    independent = False

    @property
    def random(self) -> bool:
        """Whether the order depends on the seed."""
        return True

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a hash that differs between samplers of one class whose orders differ."""

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
        yield from indices_one_by_one(self.order(draw_seed(self.generator), self.epoch), len(self))


def draw_seed(generator: torch.Generator | None) -> int:
    """Draw a seed of 63 bits, as torch's samplers and iterators do. None: from torch's global generator."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def indices_one_by_one(order: Order, size: int) -> Iterator[int]:
    """Yield the indices at the first positions of an order."""
    for begin in range(0, size, _INDICES_PER_CALL):
        yield from order.take(begin, min(_INDICES_PER_CALL, size - begin)).tolist()


def checked_seed(seed: object) -> int:
    """Return a seed as torch.Generator.manual_seed takes it. Raises TypeError, InvalidOption."""
    return _whole_number("seed", seed, -(1 << 63), 1 << 64, "64 bits are used, -2**63 to 2**64 - 1")


def checked_epoch(epoch: object) -> int:
    """Return the number of an epoch. Raises TypeError, InvalidOption."""
    return _whole_number("epoch", epoch, 0, 1 << 63, "epochs are counted from 0")


def checked_count(name: str, value: object) -> int:
    """Return a number of samples, at least one. Raises TypeError, InvalidOption."""
    return _whole_number(name, value, 1, 1 << 62, "1 to 2**62 - 1")


def _whole_number(name: str, value: object, least: int, end: int, allowed: str) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, not {value!r}")
    number = operator.index(value)
    if not least <= number < end:
        raise InvalidOption(f"{name}={number} is out of range: {allowed}")
    return number


def check_positions(begin: int, count: int, size: int) -> None:
    """Raise IndexError for positions that an order of `size` samples does not have."""
    if begin < 0 or count < 0 or begin + count > size:
        raise IndexError(f"positions {begin} to {begin + count} are past the end: the order has {size}")


class Epochs:
    """The number of the epoch that comes next, and the seed."""

    def __init__(self, seed: int | None) -> None:
        self.seed = seed
        self.number = 0

    def copy(self) -> Epochs:
        """Return a copy that counts on by itself."""
        return copy.copy(self)

    def next(self, *, counted: bool) -> tuple[int | None, int]:
        """Return (seed, epoch) of the pass that begins.

        Without a seed each pass has a base seed of its own and is epoch 0 of that, unless passes are counted.
        """
        epoch, self.number = self.number, self.number + 1
        return self.seed, epoch if counted or self.seed is not None else 0


class SetEpoch:
    """The set_epoch of a sampler whose order its loader makes: Lightning and others look for it on samplers.

    Args:
        loader: the loader whose set_epoch is called. It is held weakly, because the loader holds the sampler.
    """

    def __init__(self, loader: Any = None) -> None:
        self._loader = None if loader is None else weakref.ref(loader)

    def __call__(self, epoch: int) -> None:
        loader = None if self._loader is None else self._loader()
        if loader is not None:
            loader.set_epoch(epoch)

    def __reduce__(self) -> tuple[Any, ...]:
        return SetEpoch, ()  # a loader that is unpickled puts its own in the place of this one
