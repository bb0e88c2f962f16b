"""Samplers whose iterators begin anew at iter(), as those of Lightning in prediction: it is called once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, SequentialSampler

import penstock
from tests.sample_datasets import Made, rows


class Anew:
    """Gives batches, itself the iterator, and remembers what it gave since iter()."""

    def __init__(self) -> None:
        self.batches = BatchSampler(SequentialSampler(range(13)), 4, False)
        self.given: list[Any] = []

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        self.given, self.left = [], iter(self.batches)
        return self

    def __next__(self) -> list[int]:
        self.given.append(next(self.left))
        return self.given[-1]


class Stated(Anew):
    """The same with a state."""

    def state_dict(self) -> dict[str, Any]:
        return {"given": len(self.given)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.skip = state["given"]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_workers": 0},
    {"seed": 5},
    {"seed": 5, "num_workers": 0},
    {"worker_method": "thread", "num_workers": 1},
    {"seed": 5, "worker_method": "thread", "num_workers": 1},
]


@pytest.mark.parametrize("kind", [Anew, Stated])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dataset", [Made(torch.tensor, 13), rows(13)], ids=["python", "native"])
def test_each_batch_comes_once(dataset: Any, options: dict[str, Any], kind: type[Anew]) -> None:
    sampler = kind()
    loader: Any = penstock.DataLoader(dataset, batch_sampler=sampler, **options)
    wanted = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12]]
    for _ in range(2):
        got = [(batch[0] if isinstance(batch, list) else batch).tolist() for batch in loader]
        assert got == wanted
        assert sampler.given == wanted  # as Lightning asks which samples its predictions are of
