"""Weighted and class-balanced drawing, keyed by (seed, epoch, position)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import penstock._native as _native
from penstock.errors import InvalidOption
from penstock.order.permutations import (
    Indices,
    KeyedSampler,
    Listed,
    Order,
    check_one_each,
    check_positions,
    checked_column,
    checked_count,
)

# Weights become whole numbers with about this sum: cumulative sums are then exact, and no draw is biased by them.
_TOTAL = 1 << 62
_MASK = 0xFFFFFFFFFFFFFFFF


class Weighted(KeyedSampler):
    """A sampler that draws sample i with a probability proportional to weights[i].

    With replacement, the draw at any position is a function of (seed, epoch, position), made in O(log N) from a table
    of 8 bytes a weight: it is the same for any number of ranks and workers. Without replacement, the first draw of an
    epoch takes O(N log N), and 16 bytes a weight, for all draws of the epoch; the order is that of successive draws
    from the remaining samples. Source: Efraimidis and Spirakis, "Weighted random sampling with a reservoir",
    Information Processing Letters 97 (2006).

    Args:
        weights: numbers of any sum, shape (N,); a weight of 0 is never drawn. Weights are rounded to multiples of 2^-62
            of their sum, positive weights never to 0.
        num_samples: draws in an epoch; None: N.
        replacement: whether a sample may come more than once in an epoch.
        generator: see KeyedSampler.

    Raises InvalidOption, TypeError: see docs/order.md.
    """

    def __init__(
        self,
        weights: Sequence[float] | NDArray[Any] | torch.Tensor,
        num_samples: int | None = None,
        *,
        replacement: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(generator)
        if not isinstance(replacement, bool):
            raise TypeError(f"replacement must be True or False, not {replacement!r}")
        checked = _checked(weights)
        self.replacement = self.independent = replacement
        self._fingerprint: str | None = None
        self.size = len(checked)
        self.num_samples = self.size if num_samples is None else checked_count("num_samples", num_samples)
        if replacement:
            self._table: NDArray[Any] = _cumulative(checked)
            return
        drawable = int(np.count_nonzero(checked))
        if self.num_samples > drawable:
            raise InvalidOption(
                f"num_samples={self.num_samples} without replacement, but only {drawable} of {self.size} weights are "
                "positive: draw fewer, or with replacement=True"
            )
        self._table = checked.copy()  # the user's own may change

    @classmethod
    def balanced(
        cls,
        labels: Sequence[Any] | NDArray[Any] | torch.Tensor,
        num_samples: int | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Weighted:
        """Return a sampler that draws each class equally often, and each sample of a class, with replacement.

        labels: the class of each sample, shape (N,): whole numbers, strings, or anything hashable. Raises
        InvalidOption: no labels, labels of more than one dimension, or NaN among them.
        """
        column = checked_column("labels", labels)
        if column.dtype.kind == "f" and np.isnan(column).any():
            raise InvalidOption(f"labels[{int(np.isnan(column).argmax())}] is NaN, which is not a class")
        if column.dtype.kind == "O":
            numbers: dict[Any, int] = {}
            column = np.array([numbers.setdefault(label, len(numbers)) for label in column], dtype=np.int64)
        _, classes, counts = np.unique(column, return_inverse=True, return_counts=True)
        return cls(1.0 / counts[classes], num_samples, generator=generator)

    def __len__(self) -> int:
        return self.num_samples

    def __repr__(self) -> str:
        how = "with" if self.replacement else "without"
        return f"Weighted({self.num_samples} draws from {self.size} samples, {how} replacement)"

    def check_size(self, size: int) -> None:
        """Raise InvalidOption where there are not as many weights as a dataset has samples."""
        check_one_each("weights", self.size, size)

    def fingerprint(self) -> str:
        if self._fingerprint is None:
            hashed = hashlib.blake2b(f"{self.num_samples} {self.replacement}".encode(), digest_size=8)
            hashed.update(self._table.tobytes())
            self._fingerprint = hashed.hexdigest()
        return self._fingerprint

    def drawn_from(self) -> Sequence[int]:
        weights = np.diff(self._table, prepend=0) if self.replacement else self._table
        drawable = np.flatnonzero(weights)
        return range(self.size) if len(drawable) == self.size else drawable.tolist()

    def order(self, seed: int, epoch: int) -> Order:
        if self.replacement:
            return _Independent(self._table, self.num_samples, seed, epoch)
        return Listed(_successive(self._table, seed, epoch)[: self.num_samples])


class _Independent:
    """Independent draws: where a uniform draw falls among the cumulative weights."""

    def __init__(self, cumulative: NDArray[np.int64], count: int, seed: int, epoch: int) -> None:
        self._cumulative = cumulative
        self._count = count
        self._draws = _native.KeyedDraws(int(cumulative[-1]), seed & _MASK, epoch)

    def take(self, begin: int, count: int) -> Indices:
        check_positions(begin, count, self._count)
        drawn = np.empty(count, dtype=np.int64)
        self._draws.take(begin, drawn)
        return np.searchsorted(self._cumulative, drawn, side="right").astype(np.int64, copy=False)


def _successive(weights: NDArray[np.float64], seed: int, epoch: int) -> Indices:
    """Return the samples in the order of their times: sample i comes at an exponential time of rate weights[i]."""
    drawn = np.empty(len(weights), dtype=np.int64)
    _native.KeyedDraws(1 << 53, seed & _MASK, epoch).take(0, drawn)
    times: NDArray[np.float64] = -_log((drawn + 0.5) * 2.0**-53)
    positive = weights > 0
    np.divide(times, weights, out=times, where=positive)
    times[~positive] = np.inf
    return np.argsort(times, kind="stable").astype(np.int64, copy=False)


def _log(x: NDArray[Any]) -> NDArray[np.float64]:
    """Return the logarithm of numbers above 0, by exactly rounded operations: the same bits on every machine.

    numpy's own differs in the last bit from one processor to another.
    """
    mantissa, exponent = np.frexp(x)
    low = mantissa < 0.7071067811865476
    mantissa[low] *= 2.0
    z = (mantissa - 1.0) / (mantissa + 1.0)  # |z| < 0.172; log m = 2 (z + z^3 / 3 + z^5 / 5 + ...)
    square = z * z
    series = np.zeros_like(z)
    for power in range(21, 0, -2):
        series = series * square + 1.0 / power
    result: NDArray[np.float64] = (exponent - low) * 0.6931471805599453 + 2.0 * z * series
    return result


def _checked(weights: Any) -> NDArray[np.float64]:
    """Return weights as float64, the user's own memory where it is that already."""
    given = checked_column("weights", weights)
    if given.dtype.kind not in "biuf":
        for i, weight in enumerate(weights):  # as given: numpy makes strings of a mixture
            if not isinstance(weight, Real):
                raise TypeError(f"weights[{i}] is {weight!r}, which is not a number")
    try:
        checked = given.astype(np.float64, copy=False)
    except OverflowError as error:
        raise InvalidOption(f"a weight is too large for a float: {error}") from error
    bad = ~(np.isfinite(checked) & (checked >= 0))
    if bad.any():
        i = int(bad.argmax())
        raise InvalidOption(f"weights[{i}] is {checked[i]}: weights are finite and not negative")
    if not checked.any():
        raise InvalidOption(f"all {len(checked)} weights are zero: nothing can be drawn")
    return checked


def _cumulative(weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the cumulative sums of weights in units of about 2^-62 of their sum."""
    scaled = weights / weights.max()  # the sum of the greatest floats is infinite
    scaled *= _TOTAL / scaled.sum()
    units = np.rint(scaled).astype(np.int64)
    units[(weights > 0) & (units == 0)] = 1
    return np.cumsum(units, out=units)
