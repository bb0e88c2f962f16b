"""Weighted: frequencies, equality for any split into parts, torch's DataLoader, and what is refused."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch.utils.data import DataLoader, Sampler, WeightedRandomSampler

from penstock import Weighted
from penstock.errors import InvalidOption
from tests.data import rows
from tests.values import flat

pytestmark = pytest.mark.native


def uniform(values: Any, size: int) -> bool:
    """Return whether numbers below size are equally frequent, by the chi-square test."""
    return bool(stats.chisquare(np.bincount(values, minlength=size)).pvalue > 1e-3)


@pytest.mark.parametrize("weights", [[1, 2, 3, 4], [0.5, 0, 1e-3, 0.2], [1e300, 3e300, 1e308], [5e-324, 5e-324]])
def test_frequencies_are_the_weights(weights: list[float]) -> None:
    """Chi-square of 40,000 draws, over epochs, against the weights."""
    sampler = Weighted(weights, 10_000)
    counts = np.bincount(np.concatenate([sampler.order(3, epoch).take(0, 10_000) for epoch in range(4)]))
    total = sum(Fraction(weight) for weight in weights)
    expected = np.array([float(Fraction(weight) / total) for weight in weights]) * 40_000
    assert len(counts) == len(weights) and (counts[expected == 0] == 0).all()
    assert stats.chisquare(counts[expected > 0], expected[expected > 0]).pvalue > 1e-3


def test_draws_are_independent() -> None:
    """Chi-square of adjacent pairs, and of the draws at one position in adjacent epochs and for adjacent seeds."""
    sampler = Weighted([1, 1, 1, 1], 20_000)
    first, epoch, seed = (sampler.order(*key).take(0, 20_000) for key in ((1, 0), (1, 1), (2, 0)))
    assert all(uniform(first * 4 + other, 16) for other in (np.roll(first, 1), epoch, seed))


def test_any_position_of_a_long_epoch() -> None:
    order = Weighted(np.arange(1, 1001), 1 << 60).order(1, 2)
    far = order.take((1 << 60) - 1000, 1000)
    assert np.array_equal(far[-5:], order.take((1 << 60) - 5, 5))
    assert stats.kstest((far / 1000) ** 2, "uniform").pvalue > 1e-3  # the share of samples below i is as i squared


def test_draws_stay_what_they_are() -> None:
    """A checkpoint continues under a later version: these numbers are part of the format of a state."""
    assert Weighted([1, 2, 3, 4]).order(7, 3).take(0, 4).tolist() == [2, 0, 3, 3]
    assert Weighted(range(1, 9), replacement=False).order(7, 3).take(0, 8).tolist() == [6, 4, 5, 3, 2, 7, 0, 1]


def test_without_replacement_draws_from_what_is_left() -> None:
    """Chi-square of the ordered pairs that 6,000 epochs begin with, against successive draws."""
    p = np.array([1.0, 2.0, 3.0, 6.0]) / 12
    sampler = Weighted(p * 12, 2, replacement=False)
    i, j = np.stack([sampler.order(5, epoch).take(0, 2) for epoch in range(6000)]).T
    counts = np.bincount(i * 4 + j, minlength=16).reshape(4, 4)
    expected, off = 6000 * p[:, None] * p[None, :] / (1 - p)[:, None], ~np.eye(4, dtype=bool)
    assert (np.diag(counts) == 0).all()
    assert stats.chisquare(counts[off], expected[off]).pvalue > 1e-3


def test_without_replacement_each_comes_once_and_weight_zero_never() -> None:
    weights = np.random.default_rng(0).random(3000)
    weights[::3] = 0
    drawn = Weighted(weights, 2000, replacement=False).order(1, 0).take(0, 2000)
    assert np.array_equal(np.sort(drawn), np.nonzero(weights)[0])
    with pytest.raises(InvalidOption, match="num_samples=3000 without replacement, but only 2000 of 3000"):
        Weighted(weights, replacement=False)


def test_the_users_weights_may_change_later() -> None:
    weights = np.ones(100)
    for replacement in (True, False):
        sampler = Weighted(weights, replacement=replacement)
        before = sampler.order(1, 0).take(0, 100)
        weights[:50] = 0
        assert np.array_equal(sampler.order(1, 0).take(0, 100), before)
        weights[:50] = 1


@pytest.mark.parametrize("names", [(0, 1, 7), (0, -1, 7), ("cat", "dog", "a long name"), (None, "dog", 3)])
def test_balanced_draws_each_class_equally(names: tuple[Any, ...]) -> None:
    """Chi-square of the classes drawn, and of the samples within the smallest."""
    labels: Any = [names[0]] * 900 + [names[1]] * 90 + [names[2]] * 10
    labels = torch.tensor(labels) if -1 in names else labels
    sampler = Weighted.balanced(labels, 30_000)
    drawn = sampler.order(2, 0).take(0, 30_000)
    assert uniform(np.digitize(drawn, [900, 990]), 3) and uniform(drawn[drawn >= 990] - 990, 10)
    assert (len(sampler), len(Weighted.balanced(labels))) == (30_000, 1000)


def test_like_torchs_sampler_in_torchs_loader() -> None:
    weights = [0.1, 0.9, 0.4, 0.7, 3.0, 0.6]
    sampler = Weighted(weights, 5000)
    assert isinstance(sampler, Sampler)
    assert repr(sampler) == "Weighted(5000 draws from 6 samples, with replacement)"
    ours, theirs = flat(DataLoader(rows(6), 64, sampler=sampler)), list(WeightedRandomSampler(weights, 5000))
    assert len(ours) == 5000
    assert stats.chi2_contingency([np.bincount(drawn, minlength=6) for drawn in (ours, theirs)]).pvalue > 1e-3


BAD_WEIGHTS: list[tuple[Any, str]] = [
    ([1, -2, -3], r"weights\[1\] is -2.0"),
    ([1, 2, float("nan")], r"weights\[2\] is nan"),
    ([1, float("inf")], r"weights\[1\] is inf"),
    (torch.tensor([1.0, 2.0, -float("inf")], dtype=torch.bfloat16), r"weights\[2\] is -inf"),
    ([0, 0.0], "all 2 weights are zero"),
    ([], r"weights are of shape \(0,\)"),
    ([[1, 2], [3, 4]], r"weights are of shape \(2, 2\)"),
    ([[1, 2], [3]], "weights are not of one dimension"),
    (3.0, r"weights are of shape \(\)"),
    ([1, 10**400], "too large for a float"),
    ([1, "a"], r"weights\[1\] is 'a', which is not a number"),
    ([1, None], r"weights\[1\] is None, which is not a number"),
    ([1, 2j], r"weights\[1\] is 2j, which is not a number"),
    (torch.tensor([1j]), r"weights\[0\] is .*, which is not a number"),
]
BAD: list[tuple[Any, str]] = [
    *((lambda weights=weights: Weighted(weights), words) for weights, words in BAD_WEIGHTS),
    *((lambda n=n: Weighted([1], n), f"num_samples={n}") for n in (0, -1, 1 << 62)),
    *((lambda n=n: Weighted([1], n), "num_samples must be an integer") for n in (True, 2.0, "3")),
    (lambda: Weighted([1], replacement=0), "replacement must be True or False"),  # type: ignore[arg-type]
    (lambda: Weighted.balanced([0.0, float("nan")]), r"labels\[1\] is NaN"),
    (lambda: Weighted.balanced([]), r"labels are of shape \(0,\)"),
    (lambda: Weighted.balanced([[1, 2]]), r"labels are of shape \(1, 2\)"),
    (lambda: Weighted([1, 2, 3]).check_size(4), "3 weights, but the dataset has 4 samples"),
]


@pytest.mark.parametrize(("call", "words"), BAD)
def test_bad_arguments(call: Any, words: str) -> None:
    with pytest.raises(TypeError if "not a number" in words or "must be" in words else InvalidOption, match=words):
        call()
    Weighted([1, 2, 3]).check_size(3)
