"""The shuffle of samples in blocks: every sample once, any position at once."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.errors import InvalidOption
from penstock.order.blocks import Blocks, BlockShuffle, checked_window, grouped, joined
from penstock.order.permutations import KeyedShuffle


def blocks_of(sizes: list[int], window: int) -> Blocks:
    return Blocks(np.array(sizes, dtype=np.int64), window)


def test_blocks_are_open_within_a_window() -> None:
    blocks = blocks_of([50] * 40, 4)
    order = blocks.order(7, 0)
    assert isinstance(order, BlockShuffle)
    of_position = blocks.of_samples(order.take(0, 2000))
    first = np.array([np.flatnonzero(of_position == block)[0] for block in range(40)])
    last = np.array([np.flatnonzero(of_position == block)[-1] for block in range(40)])
    opened = [int(((first <= position) & (last >= position)).sum()) for position in range(2000)]
    assert max(opened) <= 2 * 4  # at most the window of a slot and of the next one


def test_orders_of_epochs_and_seeds_differ() -> None:
    blocks = blocks_of([20] * 10, 3)
    orders = [blocks.order(seed, epoch).take(0, 200).tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
    assert blocks.order(1 << 64, 0).take(0, 200).tolist() == orders[0]


def test_a_window_of_all_blocks_is_the_full_shuffle() -> None:
    blocks = blocks_of([5, 6, 7], 3)
    assert np.array_equal(blocks.order(1, 2).take(0, 18), KeyedShuffle(18, 1, 2).take(0, 18))
    assert blocks.kind() == ""
    assert "windows of 2 of 3" in blocks_of([5, 6, 7], 2).kind()


def test_grouped_and_joined_blocks() -> None:
    found = grouped(np.array([2, 0, 2, 0, 4]), 1)
    assert found.sizes.tolist() == [2, 2, 1]
    assert found.of_samples(np.array([0, 1, 2, 3, 4])).tolist() == [1, 0, 1, 0, 2]
    order = found.order(0, 0).take(0, 5)
    assert sorted(order.tolist()) == [0, 1, 2, 3, 4]
    both = joined([found, blocks_of([3, 3], 2)])
    assert both.window == 2
    assert sorted(both.order(0, 0).take(0, 11).tolist()) == list(range(11))
    assert both.of_samples(np.array([5, 10])).tolist() == [3, 4]


@pytest.mark.parametrize("window", [0, -1, True, 1.5, "8"])
def test_a_window_is_a_positive_number(window: object) -> None:
    with pytest.raises(InvalidOption, match="number of shards"):
        checked_window(window)
