"""The dataset index at each position of an epoch, from the number of samples, a seed and the epoch's number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

import penstock._native as _native

#: Positions of samples in an epoch's order: a range, unless a sampler cuts the order among ranks by itself.
Positions: TypeAlias = range | list[int]

Indices = NDArray[np.int64]


class Order(Protocol):
    """The dataset indices of an epoch, by position."""

    def take(self, begin: int, count: int) -> Indices:
        """Return the indices at positions begin to begin + count - 1: int64, shape (count,)."""


def once(make: Callable[[], Order]) -> Callable[[], Order]:
    """Return what makes an order at its first call, and returns the same one from then on."""
    made: list[Order] = []

    def order() -> Order:
        if not made:
            made.append(make())
        return made[0]

    return order


class InSequence:
    """The identity: position i holds sample i."""

    def take(self, begin: int, count: int) -> Indices:
        return np.arange(begin, begin + count, dtype=np.int64)


class TorchShuffle:
    """The permutation that torch's RandomSampler draws for a seed, evaluated as far as indices are taken.

    Equals ``torch.randperm(size, generator=torch.Generator().manual_seed(seed))``.
    """

    #: torch.randperm changes its algorithm at this size.
    max_size: int = _native.TorchPermutation.max_size

    def __init__(self, size: int, seed: int) -> None:
        self._permutation = _native.TorchPermutation(size, seed & 0xFFFFFFFFFFFFFFFF)

    def take(self, begin: int, count: int) -> Indices:
        out = np.empty(count, dtype=np.int64)
        self._permutation.take(begin, out)
        return out


class KeyedShuffle:
    """A permutation that is a function of (seed, epoch, position): constant memory, any position at once."""

    def __init__(self, size: int, seed: int, epoch: int) -> None:
        self._permutation = _native.KeyedPermutation(size, seed & 0xFFFFFFFFFFFFFFFF, epoch)

    def take(self, begin: int, count: int) -> Indices:
        out = np.empty(count, dtype=np.int64)
        self._permutation.take(begin, out)
        return out
