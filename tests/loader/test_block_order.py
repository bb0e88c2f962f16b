"""Datasets whose samples lie in shards: the loader shuffles within a window of shards, whoever reads and resumes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset

import penstock
from penstock.order.blocks import Blocks
from penstock.sources.blocks import blocks_of
from tests.sample_datasets import Made
from tests.values import flat as numbers
from tests.values import resumed

SHARDS, EACH = 12, 20


class InShards(Made):
    """Numbers in shards."""

    def __init__(self, window: int = 3, each: int = EACH) -> None:
        super().__init__(int, SHARDS * each)
        self.shuffle_blocks = Blocks(np.full(SHARDS, each, dtype=np.int64), window)


def loader(dataset: Any = None, **options: Any) -> Any:
    options = {"batch_size": 8, "shuffle": True, "num_workers": 0, "seed": 5, **options}
    return penstock.DataLoader(InShards() if dataset is None else dataset, **options)


def test_every_sample_comes_within_the_window() -> None:
    epoch = numbers(loader())
    assert sorted(epoch) == list(range(SHARDS * EACH))
    shards = [number // EACH for number in epoch]
    assert len(set(shards[:40])) == 3, "the first slot holds samples of one window"
    assert epoch == numbers(loader(worker_method="thread", num_workers=2)) and epoch != numbers(loader(seed=6))


def test_ranks_cut_one_order() -> None:
    ranks = [list(loader(shard=(rank, 2))) for rank in range(2)]
    together = numbers(batch for pair in zip(*ranks, strict=True) for batch in pair)
    assert together == numbers(loader(batch_size=16))


def test_a_state_goes_on_at_any_position_and_refuses_another_window() -> None:
    first = loader()
    begun, second = resumed(first, loader(batch_size=5), 7)
    assert numbers(begun) + numbers(second) == numbers(loader())
    state = first.state_dict()
    with pytest.raises(penstock.InvalidOption, match=r"windows of 3 .* cannot go on shuffled in windows of 4"):
        loader(InShards(4)).load_state_dict(state)
    with pytest.raises(penstock.InvalidOption, match="cannot go on shuffled"):
        loader(InShards(SHARDS)).load_state_dict(state)


def test_without_a_seed_torchs_generator_gives_the_key() -> None:
    orders = []
    for _ in range(2):
        torch.manual_seed(3)
        unseeded = loader(seed=None)
        orders.append([numbers(unseeded), numbers(unseeded)])
    assert orders[0] == orders[1] and orders[0][0] != orders[0][1]
    assert sorted(orders[0][0]) == list(range(SHARDS * EACH))


def test_subsets_and_concatenations_keep_the_blocks() -> None:
    dataset = InShards()
    chosen = list(range(60, 180))
    epoch = numbers(loader(Subset(dataset, chosen)))
    assert sorted(epoch) == chosen and len({number // EACH for number in epoch[:40]}) == 3
    blocks = blocks_of(Subset(dataset, chosen))
    assert blocks is not None and blocks.sizes.tolist() == [EACH] * 6
    subset = Subset(dataset, torch.arange(100).tolist())
    assert blocks_of(subset) is blocks_of(subset)
    parts: list[Any] = [dataset, list(range(50)), Subset(dataset, chosen)]
    both: Any = ConcatDataset(parts)
    found = blocks_of(both)
    assert found is not None and found.samples == len(both) and found.sizes.tolist()[12:15] == [20, 20, 10]
    assert len(numbers(loader(both))) == len(both)
    assert blocks_of(ConcatDataset([[1, 2], [3]])) is None  # type: ignore[list-item]


def test_samplers_of_ones_own_are_followed() -> None:
    given = list(range(SHARDS * EACH))[::-1]
    assert numbers(loader(shuffle=None, sampler=given, seed=None)) == given
