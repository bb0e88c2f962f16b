"""Batch samplers that pack rows by their lengths, as axolotl's: a batch is a list of bins, each a list of indices.

They come with a class in the place of torch's fetcher, which reads a bin at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, Dataset, RandomSampler, SequentialSampler, TensorDataset
from torch.utils.data._utils import fetch

import penstock
from tests.same import assert_same, outcomes
from tests.values import loaded

SIZE = 50
LENGTHS = np.array([1 + number * 7 % 11 for number in range(SIZE)])


class Multipack(BatchSampler):
    """Fills bins up to a number of tokens; its length is an estimate, and it draws when it begins."""

    def __init__(self, sampler: Any, batch_size: int, capacity: int) -> None:
        super().__init__(sampler, batch_size, drop_last=False)
        self.capacity = capacity
        self.epoch = 0
        self.estimated: int | None = None

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def batches(self) -> list[list[list[int]]]:
        bins: list[list[int]] = []
        room = 0
        for index in self.sampler:
            if LENGTHS[index] > room:
                bins.append([])
                room = self.capacity
            bins[-1].append(index)
            room -= LENGTHS[index]
        return [bins[begin : begin + self.batch_size] for begin in range(0, len(bins), self.batch_size)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches()[: self.estimated])

    def __len__(self) -> int:
        if self.estimated is None:
            self.estimated = min(len(self.batches()) for _ in range(3))
        return self.estimated


class BinFetcher(fetch._BaseDatasetFetcher):
    """Reads each bin of a batch."""

    def fetch(self, possibly_batched_index: Any) -> Any:
        if not isinstance(possibly_batched_index[0], list):
            return self.collate_fn(self._rows(possibly_batched_index))
        return self.collate_fn([self._rows(one) for one in possibly_batched_index])

    def _rows(self, indices: list[int]) -> Any:
        whole = getattr(self.dataset, "__getitems__", None)
        return whole(indices) if whole else [self.dataset[index] for index in indices]


def laid_out(bins: Any) -> Any:
    """Return the tokens of each bin one behind another, as a collator of packed rows does."""
    rows = [row if isinstance(row, list) else [row] for row in bins]
    return [[np.concatenate([np.ravel(next(iter(_values(one)))) for one in row]).tolist() for row in rows]]


def _values(row: Any) -> Any:
    return row.values() if isinstance(row, dict) else row if isinstance(row, tuple) else (row,)


class Tokens(Dataset[Any]):
    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        if index == 33:
            raise ValueError("bad sample 33")
        return {"input_ids": [index] * LENGTHS[index]}


def table() -> Any:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")
    return datasets.Dataset.from_dict({"input_ids": [[number] * LENGTHS[number] for number in range(SIZE)]})


DATASETS = {"a table": table, "a class": Tokens, "rows": lambda: TensorDataset(torch.arange(SIZE))}


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_MapDatasetFetcher", BinFetcher)


def made(kind: Any, dataset: Any, sampler: Any = RandomSampler, **options: Any) -> Any:
    torch.manual_seed(3)
    return kind(dataset, batch_sampler=Multipack(sampler(dataset), 2, 30), collate_fn=laid_out, **options)


def passes(loader: Any) -> Any:
    """Return the length, two passes' batches and errors, and what the generator draws next."""
    length, found = len(loader), []
    for epoch in range(2):
        loader.batch_sampler.set_epoch(epoch)
        found.append([one[0] if isinstance(one[0], str) else one for one in outcomes(loader)])
    return length, found, int(torch.randint(10**6, ()))


OPTIONS: dict[str, dict[str, Any]] = {
    "without workers": {},
    "workers": {"num_workers": 2},
    "persistent workers": {"num_workers": 2, "persistent_workers": True},
}


@pytest.mark.usefixtures("replaced")
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dataset", DATASETS)
def test_bins_are_fetched_by_the_programs_own_class(dataset: str, options: str) -> None:
    data = DATASETS[dataset]()
    ours = made(penstock.DataLoader, data, **OPTIONS[options])
    assert "BinFetcher" in ours.explain()
    assert_same(passes(ours), passes(made(torch.utils.data.DataLoader, data, **OPTIONS[options])))


@pytest.mark.usefixtures("replaced")
def test_threads_and_states() -> None:
    data = table()
    whole = list(made(torch.utils.data.DataLoader, data, SequentialSampler))
    for options in ({}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}):
        loader = made(penstock.DataLoader, data, SequentialSampler, **options)
        batches = iter(loader)
        first = [next(batches), next(batches)]
        resumed = loaded(made(penstock.DataLoader, data, SequentialSampler, **options), loader.state_dict())
        assert_same([*first, *resumed], whole)


@pytest.mark.usefixtures("replaced")
def test_the_default_collate_fn() -> None:
    data = TensorDataset(torch.arange(SIZE))
    for workers in (0, 2):
        wanted = list(torch.utils.data.DataLoader(data, 4))
        assert_same(list(penstock.DataLoader(data, 4, num_workers=workers)), wanted)


@pytest.mark.parametrize("dataset", DATASETS)
def test_bins_are_an_error_of_torchs_fetcher(dataset: str) -> None:
    data = DATASETS[dataset]()
    theirs, ours = (outcomes(made(kind, data)) for kind in (torch.utils.data.DataLoader, penstock.DataLoader))
    assert_same([one[0] for one in ours], [one[0] for one in theirs])


@pytest.mark.parametrize("options", OPTIONS)
def test_a_sampler_that_draws_as_it_begins_draws_where_torch_begins_it(options: str) -> None:
    class Eager:
        def __init__(self) -> None:
            self.begun: list[int] = []

        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Iterator[list[int]]:
            self.begun.append(int(torch.randint(10**6, ())))
            return iter([[self.begun[-1] % SIZE], [1, 2], [3]])

    found = []
    for kind in (torch.utils.data.DataLoader, penstock.DataLoader):
        sampler: Any = Eager()
        dataset: Any = range(SIZE)
        torch.manual_seed(5)
        loader: Any = kind(dataset, batch_sampler=sampler, collate_fn=list, **OPTIONS[options])
        found.append([[list(loader) for _ in range(2)], sampler.begun, int(torch.randint(10**6, ()))])
    assert_same(found[1], found[0])
