"""The keyed shuffle's statistics over many seeds, beside those of torch.randperm.

Each test states what uniform permutations give, and holds our shuffle and torch's to it. Seeds are fixed: the p-values
are the same in every run. Sizes up to 1024 are sorted by keys, greater ones go through a Feistel network over the next
power of two, of even and odd width. Below: what holds for every order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from scipy import stats

import penstock
from penstock.errors import InvalidOption
from penstock.order.blocks import Blocks, checked_window
from penstock.order.permutations import KeyedShuffle, torch_shuffle
from tests.data import rows

pytestmark = pytest.mark.native

SEEDS, BLOCKS, ALPHA = 300, 16, 1e-3
Permutations = Callable[[int], NDArray[np.int64]]


def stacked(draw: Callable[[int, int], Any]) -> Permutations:
    """Return a function of a size, which returns SEEDS permutations, shape (SEEDS, size)."""
    return cache(lambda size: np.stack([draw(size, number) for number in range(SEEDS)]))


keyed = stacked(lambda size, seed: KeyedShuffle(size, seed, 0).take(0, size))
keyed_epochs = stacked(lambda size, epoch: KeyedShuffle(size, 1, epoch).take(0, size))
torchs = stacked(lambda size, seed: torch.randperm(size, generator=torch.Generator().manual_seed(seed)).numpy())
sized = pytest.mark.parametrize("size", [1000, 1025, 4096, 6000])


def table_pvalue(rows: NDArray[np.int64], columns: NDArray[np.int64], size: int) -> float:
    """Return the p-value of the chi-square test of independence of two numbers below size, in blocks of values.

    Both take each value once in every permutation, so that the margins are fixed: (BLOCKS - 1)^2 degrees of freedom,
    and a variance of n / (n - 1) times that of independent draws.
    """
    row, column = rows * BLOCKS // size, columns * BLOCKS // size
    counts = np.bincount((row * BLOCKS + column).ravel(), minlength=BLOCKS**2).reshape(BLOCKS, BLOCKS)
    margins = counts.sum(axis=1)
    expected = margins[:, None] * counts.sum(axis=0) / margins.sum()
    chi_square = float(((counts - expected) ** 2 / expected).sum()) * (size - 1) / size
    # Two-sided: too even is as wrong as too uneven.
    tail = float(stats.chi2.cdf(chi_square, (BLOCKS - 1) ** 2))
    return 2 * min(tail, 1 - tail)


def position_and_value(values: NDArray[np.int64], size: int) -> float:
    """Chi-square of blocks of positions against blocks of values, over many seeds."""
    return table_pvalue(np.broadcast_to(np.arange(size), values.shape), values, size)


def adjacent_values(values: NDArray[np.int64], size: int) -> float:
    """Adjacent pairs: chi-square of a value's block against that of the next (the first follows the last)."""
    return table_pvalue(values, np.roll(values, -1, axis=1), size)


def neighbours_together(values: NDArray[np.int64], size: int) -> float:
    """Adjacent pairs (v, v + 1) and (v, v - 1): their number over all seeds is Poisson, 2 (n - 1) / n a permutation.

    Wolfowitz, "Note on runs of consecutive elements", Annals of Mathematical Statistics 15 (1944).
    """
    pairs = int((np.abs(np.diff(values, axis=1)) == 1).sum())
    mean = SEEDS * 2 * (size - 1) / size
    return float(abs(pairs - mean) < 4 * np.sqrt(mean))


@sized
@pytest.mark.parametrize("permutations", [keyed, keyed_epochs, torchs], ids=["keyed", "keyed_epochs", "torchs"])
@pytest.mark.parametrize("pvalue", [position_and_value, adjacent_values, neighbours_together])
def test_as_uniform_permutations(pvalue: Any, size: int, permutations: Permutations) -> None:
    assert pvalue(permutations(size), size) > ALPHA


@sized
def test_each_position_takes_each_value(size: int) -> None:
    """Chi-square over many seeds: the blocks of the values at the first, a middle and the last position."""
    for position in (0, 1, size // 2, size - 1):
        drawn = [int(KeyedShuffle(size, seed, 3).take(position, 1)[0]) * 20 // size for seed in range(2000)]
        expected = np.bincount(np.arange(size) * 20 // size, minlength=20) * (2000 / size)
        assert stats.chisquare(np.bincount(drawn, minlength=20), expected).pvalue > ALPHA


@sized
def test_epochs_and_seeds_are_independent(size: int) -> None:
    """Chi-square of a position's values under adjacent epochs, and under adjacent seeds."""
    for values in (keyed(size), keyed_epochs(size)):
        assert table_pvalue(values[:-1], values[1:], size) > ALPHA


def test_permutations_of_five_are_equally_likely() -> None:
    """Chi-square of all 120 permutations over 12,000 seeds, and over as many epochs."""
    for keys in ([(seed, 0) for seed in range(12_000)], [(0, epoch) for epoch in range(12_000)]):
        orders = np.stack([KeyedShuffle(5, *key).take(0, 5) for key in keys])
        counts = np.unique(orders @ 5 ** np.arange(5), return_counts=True)[1]
        assert len(counts) == 120 and stats.chisquare(counts).pvalue > ALPHA


def test_a_billion_samples_need_no_memory_and_no_loop() -> None:
    """Any position at once: distinct values, uniform (Kolmogorov-Smirnov), not correlated with their neighbours."""

    def pages_held() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1])

    size = 10**9
    KeyedShuffle(size, 1, 0).take(0, 1000)
    before = pages_held()
    drawn = []
    for order in [KeyedShuffle(size, 1, epoch) for epoch in range(20)]:
        for begin in (0, 123_456_789, size // 2, size - 1000):
            drawn.append(order.take(begin, 1000))
            assert np.array_equal(order.take(begin + 500, 10), drawn[-1][500:510])
    assert (pages_held() - before) * 4096 < 8 << 20  # a list would take 4 GB
    every = np.stack(drawn)
    assert all(len(np.unique(values)) == 1000 for values in every)
    assert every.min() >= 0 and every.max() < size
    assert stats.kstest(every.ravel() / size, "uniform").pvalue > ALPHA
    assert abs(np.corrcoef(every[:, :-1].ravel(), every[:, 1:].ravel())[0, 1]) < 4 / np.sqrt(every.size)


@pytest.mark.parametrize("size", [1, 2, 1024, 1025, 2**20, 2**20 + 1, 2**31, 10**12, 2**62])
def test_each_size_has_a_permutation(size: int) -> None:
    count = min(size, 2000)
    for begin in {0, (size - count) // 2, size - count}:
        values = KeyedShuffle(size, 5, 1).take(begin, count)
        assert len(np.unique(values)) == count and 0 <= values.min() <= values.max() < size


#: Returns the order of an epoch, called with (seed, epoch), its size, and whether it is a permutation.
Orders = tuple[Callable[[int, int], Any], int, bool]


def shuffled(data: st.DataObject) -> Orders:
    size = data.draw(st.sampled_from([0, 1, 2, 3, 17, 1024, 1025, 4096]))
    return (lambda seed, epoch: KeyedShuffle(size, seed, epoch)), size, True


def of_torch(data: st.DataObject) -> Orders:
    size = data.draw(st.integers(0, 3000))
    return (lambda seed, epoch: torch_shuffle(size, seed)), size, True


def blocks(data: st.DataObject) -> Orders:
    sizes = data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=12))
    made = Blocks(np.array(sizes, dtype=np.int64), data.draw(st.integers(1, 14)))
    return made.order, made.samples, True


def mixed(data: st.DataObject) -> Orders:
    shares = data.draw(st.lists(st.one_of(st.integers(1, 12), st.floats(1e-6, 1.0)), min_size=1, max_size=9))
    parts: Any = {f"d{i}": (rows(7 + i), share) for i, share in enumerate(shares)}
    return penstock.Mix(parts, length=150).order, 150, False


def weighted(data: st.DataObject) -> Orders:
    weights = data.draw(st.lists(st.floats(0.001, 1000), min_size=1, max_size=50))
    replacement = data.draw(st.booleans())
    return penstock.Weighted(weights, replacement=replacement).order, len(weights), not replacement


@pytest.mark.parametrize("kind", [shuffled, of_torch, blocks, mixed, weighted])
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_any_part_is_that_of_the_whole(kind: Callable[[st.DataObject], Orders], data: st.DataObject) -> None:
    order, size, once = kind(data)
    key = data.draw(st.integers(-(2**63), 2**64 - 1)), data.draw(st.integers(0, 2**40))
    whole = order(*key).take(0, size)
    assert not once or np.array_equal(np.sort(whole), np.arange(size))
    begin = data.draw(st.integers(0, size))
    count = data.draw(st.integers(0, size - begin))
    part = order(*key).take(begin, count)
    assert part.dtype == np.int64 and np.array_equal(part, whole[begin : begin + count])
    backwards = order(*key)
    assert [backwards.take(p, 1)[0] for p in range(size - 1, -1, -1)][:200] == whole[::-1][:200].tolist()
    for begin, count in ((size, 1), (0, size + 1), (-1, 1), (2**63, 1)):
        with pytest.raises((IndexError, TypeError)):
            order(*key).take(begin, count)


def test_blocks_are_open_within_a_window() -> None:
    blocks = Blocks(np.full(40, 50), 4)
    of_position = blocks.of_samples(blocks.order(7, 0).take(0, 2000))
    places = [np.flatnonzero(of_position == block) for block in range(40)]
    opened = [sum(int(each[0] <= position <= each[-1]) for each in places) for position in range(2000)]
    assert max(opened) <= 2 * 4  # at most the window of a slot and of the next one


def test_windows() -> None:
    blocks = Blocks(np.array([5, 6, 7]), 3)  # a window of all blocks is the full shuffle
    assert np.array_equal(blocks.order(1, 2).take(0, 18), KeyedShuffle(18, 1, 2).take(0, 18))
    assert blocks.kind() == ""
    for window in (0, -1, True, 1.5, "8"):
        with pytest.raises(InvalidOption, match="number of shards"):
            checked_window(window)
