"""With seed=, every draw in a sample is a function of (seed, epoch, sample), for unmodified code of the user's."""

from __future__ import annotations

import random
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as tud

import penstock
from penstock.system.randomness import generator_states, generators_drawn_from, sample_number, seed_globals
from tests.data import Drawing
from tests.same import assert_same
from tests.values import flat

WORKERS: list[dict[str, Any]] = [
    {"num_workers": 1}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True},
    {"num_workers": 2, "prefetch_factor": 7}, {"num_workers": 0, "worker_method": "thread"},
]  # fmt: skip


def draw() -> tuple[float, float, torch.Tensor]:
    return random.random(), float(np.random.rand()), torch.rand(2)


class Whole(Drawing):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        drawn = draw()
        return [(index, *drawn) for index in indices]


def collate_drawing(samples: list[Any]) -> Any:
    return tud.default_collate(samples), draw()


def epochs(dataset: Any, **options: Any) -> list[list[Any]]:
    loader = penstock.DataLoader(dataset, batch_size=4, shuffle=True, seed=11, **options)
    return [list(loader) for _ in range(3)]


@pytest.mark.parametrize("collate_fn", [None, collate_drawing])
@pytest.mark.parametrize(
    "dataset", [Drawing(23), Whole(23), tud.Subset(Drawing(23), range(20))], ids=["drawing", "whole", "subset"]
)
def test_the_same_batches_for_any_number_of_workers(dataset: Any, collate_fn: Any) -> None:
    before = generator_states()
    wanted = epochs(dataset, num_workers=0, collate_fn=collate_fn)
    assert generators_drawn_from(before) == ()  # the program's own draws go on as if nothing had been
    for options in WORKERS:
        torch.manual_seed(random.randrange(1000))  # what other seeds are in force does not matter
        assert_same(epochs(dataset, collate_fn=collate_fn, **options), wanted)


def permuted(samples: list[int]) -> Any:
    return tud.default_collate([samples[i] for i in torch.randperm(len(samples))])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("dataset", [range(9), [object(), object()]], ids=["good", "refused"])
def test_a_collate_fn_that_draws_in_threads_is_warned_of(dataset: Any) -> None:
    """Threads share what it draws from; what it raises is raised at its batch."""
    loader: Any = penstock.DataLoader(dataset, 3, collate_fn=permuted, num_workers=2, worker_method="thread", seed=1)
    with pytest.warns(UserWarning, match="seed= does not reach the draws of the dataset or the collate_fn from"):
        batches = iter(loader)
    with nullcontext() if dataset == range(9) else pytest.raises(TypeError):
        assert sorted(flat(batches)) == list(range(9))


def test_a_sample_draws_the_same_in_any_batch_and_another_at_each_position_and_in_each_epoch() -> None:
    def by_index(batches: list[Any]) -> dict[int, float]:
        return {int(i): float(x) for index, x, *_ in batches for i, x in zip(index, x, strict=True)}

    shuffled, again, _ = epochs(Drawing(23), num_workers=0)
    other_batches = list(penstock.DataLoader(Drawing(23), batch_size=7, shuffle=True, seed=11, num_workers=1))
    assert by_index(shuffled) == by_index(other_batches)
    straight = by_index(list(penstock.DataLoader(Drawing(23), batch_size=7, seed=11)))
    assert sum(straight[i] == x for i, x in by_index(shuffled).items()) < 5  # those that stand at the same position
    assert not set(by_index(shuffled).values()) & set(by_index(again).values())
    assert len(set(by_index(shuffled).values())) == 23
    other = list(penstock.DataLoader(Drawing(23), batch_size=7, seed=12))
    assert not set(by_index(other).values()) & set(straight.values())


def test_without_a_seed_worker_processes_draw_as_torchs() -> None:
    def runs(kind: Any) -> list[Any]:
        torch.manual_seed(4)
        loader = kind(Drawing(23), batch_size=4, shuffle=True, num_workers=2)
        return [list(loader), list(loader)]

    assert_same(runs(penstock.DataLoader), runs(tud.DataLoader))


def test_any_index_can_be_a_key() -> None:
    assert sample_number(-1) == 2**64 - 1 and sample_number(np.int32(7)) == 7
    numbers = {sample_number(index) for index in ("a", "b", ("a", 1), 1.5, None)}
    assert len(numbers) == 5 and all(0 <= number < 2**64 for number in numbers)
    before = generator_states()
    seed_globals(2**64 - 1, 2**40, sample_number("a"), 2**41)
    first = draw()
    seed_globals(2**64 - 1, 2**40, sample_number("a"), 2**41)
    assert_same(draw(), first)
    assert generators_drawn_from(before) == ("random", "numpy.random", "torch")
