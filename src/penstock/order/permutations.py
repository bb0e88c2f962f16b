"""Orders: the dataset index at each position of an epoch; samplers whose indices are such an order; seeds, epochs."""

from __future__ import annotations

import copy
import operator
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Sampler

import penstock._native as _native
from penstock.errors import InvalidOption
from penstock.system.randomness import digest

#: Positions of samples in an epoch's order: a range, unless a sampler cuts the order among ranks by itself.
Positions: TypeAlias = range | list[int]

Indices = NDArray[np.int64]

#: How many indices of an order an iterator takes at once.
_INDICES_PER_CALL = 1024


class Order(Protocol):
    """The dataset indices of an epoch, by position."""

    def take(self, begin: int, count: int) -> Indices:
        """Return the indices at positions begin to begin + count - 1: int64, shape (count,)."""


class InSequence:
    """The identity: position i holds sample i."""

    def take(self, begin: int, count: int) -> Indices:
        return np.arange(begin, begin + count, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Listed:
    """An order whose indices lie in memory."""

    indices: Indices
    ends: Indices | None = None
    """The number of positions up to the end of each batch, where the order says where its batches end."""

    def take(self, begin: int, count: int) -> Indices:
        """Return the indices at positions begin to begin + count - 1. Raises IndexError."""
        check_positions(begin, count, len(self.indices))
        return self.indices[begin : begin + count].copy()


def torch_shuffle(size: int, seed: int) -> Listed:
    """Return the permutation that torch's RandomSampler draws for a seed."""
    generator = torch.Generator("cpu").manual_seed(seed)  # whatever the default device is
    return Listed(torch.randperm(size, generator=generator, device="cpu").numpy())


class KeyedShuffle:
    """A permutation that is a function of (seed, epoch, position): constant memory, any position at once."""

    def __init__(self, size: int, seed: int, epoch: int) -> None:
        self._permutation = _native.KeyedPermutation(size, seed & 0xFFFFFFFFFFFFFFFF, epoch)

    def take(self, begin: int, count: int) -> Indices:
        out = np.empty(count, dtype=np.int64)
        self._permutation.take(begin, out)
        return out


def derived_seed(*key: int | bytes) -> int:
    """Return a seed of 64 bits for a part of an order; a name of up to 8 bytes in the key sets it apart from others."""
    numbers = (int.from_bytes(part, "little") if isinstance(part, bytes) else part for part in key)
    return int.from_bytes(digest(*numbers)[:8], "little")


def check_positions(begin: int, count: int, size: int) -> None:
    """Raise IndexError for positions that an order of `size` samples does not have."""
    if begin < 0 or count < 0 or begin + count > size:
        raise IndexError(f"positions {begin} to {begin + count} are past the end: the order has {size}")


class KeyedSampler(Sampler[int]):  # not an ABC: each pass asks isinstance(), which takes a microsecond then
    """The base of samplers whose order is a function of seed and epoch; a loader takes the order and does not iterate.

    Iterated by itself, or by torch's loader, it draws the seed of each pass from `generator` (None: torch's global
    one) with the first index, as torch's samplers do.
    """

    #: Whether the draws are independent: what was drawn then says nothing of what is left of an epoch.
    independent = False
    #: Whether the order depends on the seed.
    random = True

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.generator = generator
        self.epoch = 0

    def fingerprint(self) -> str:
        """Return a hash that differs between samplers of one class whose orders differ."""
        raise NotImplementedError

    def drawn_from(self) -> Sequence[int]:
        """Return the indices that can come."""
        return range(len(self))

    def order(self, seed: int, epoch: int) -> Order:
        """Return the indices of an epoch, by position. Only the low 64 bits of the seed count."""
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

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


# --- arguments --------------------------------------------------------------------------------------------------------


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


def checked_column(name: str, values: object) -> NDArray[Any]:
    """Return one entry a sample as an array of one dimension. Raises InvalidOption."""
    if isinstance(values, torch.Tensor):
        column: NDArray[Any] = (values.double() if values.is_floating_point() else values).numpy(force=True)
    else:
        try:
            column = np.asarray(values)
        except ValueError as error:  # rows of different lengths
            raise InvalidOption(f"{name} are not of one dimension: {error}") from error
    if column.ndim != 1 or not len(column):
        raise InvalidOption(f"{name} are of shape {column.shape}: one for each sample is needed, shape (N,)")
    return column


def check_one_each(name: str, count: int, size: int) -> None:
    """Raise InvalidOption where there are not as many of something as a dataset has samples."""
    if count != size:
        raise InvalidOption(f"there are {count} {name}, but the dataset has {size} samples: give one for each")


# --- epochs -----------------------------------------------------------------------------------------------------------


@dataclass
class Epochs:
    """The seed, and the number of the epoch that comes next."""

    seed: int | None
    number: int = 0

    def copy(self) -> Epochs:
        """Return a copy that counts on by itself."""
        return copy.copy(self)

    def next(self, *, counted: bool) -> tuple[int | None, int]:
        """Return (seed, epoch) of the pass that begins.

        Without a seed each pass has its own base seed and is epoch 0 of that, unless passes are counted.
        """
        epoch, self.number = self.number, self.number + 1
        return self.seed, epoch if counted or self.seed is not None else 0


class SetEpoch:
    """The set_epoch of a sampler whose order its loader makes: Lightning and others look for it on samplers.

    The loader, whose set_epoch is called, is held weakly: it holds the sampler.
    """

    def __init__(self, loader: Any = None) -> None:
        self._loader: Callable[[], Any] = (lambda: None) if loader is None else weakref.ref(loader)

    def __call__(self, epoch: int) -> None:
        loader = self._loader()
        if loader is not None:
            loader.set_epoch(epoch)

    def __reduce__(self) -> tuple[Any, ...]:
        return SetEpoch, ()  # a loader that is unpickled puts its own in the place of this one
