"""stats() counts what every kind of pass hands out: batches, their samples, and the time of next()."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset, get_worker_info

import penstock
from penstock.device.feeding import prefetch


class Samples(Dataset[Any]):
    """Ten samples that Python reads."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return {"pair": (torch.full((3, 2), float(index)), str(index))}


class Whole(Samples):
    """Gives whole batches."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Stream(IterableDataset[Any]):
    """Ten samples in all, in order."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        for index in range(0 if info is None else info.id, 10, 1 if info is None else info.num_workers):
            yield f"{index}", torch.zeros(3, 2)


class Stated(Stream):
    """Says where it is."""

    def __iter__(self) -> Iterator[Any]:
        yield from super().__iter__()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Bad(Samples):
    """Some samples cannot be read."""

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise ValueError(f"sample {index}")
        return index


WAYS: dict[str, dict[str, Any]] = {
    "caller": {"num_workers": 0},
    "caller, plain torch": {"num_workers": 0, "worker_method": "process"},
    "caller, seed": {"num_workers": 0, "seed": 1},
    "processes": {"num_workers": 2},
    "processes, persistent": {"num_workers": 2, "persistent_workers": True},
    "processes, out of order": {"num_workers": 2, "in_order": False},
    "threads": {"num_workers": 2, "worker_method": "thread"},
    "device": {"num_workers": 0, "device": "cpu"},
    "device, processes": {"num_workers": 2, "device": "cpu"},
}


@pytest.mark.parametrize("dataset", [Samples(), Whole(), TensorDataset(torch.zeros(10, 3))], ids=["one", "all", "rows"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("collate", [None, list])
def test_a_map_style_dataset(dataset: Any, way: str, collate: Any) -> None:
    loader = penstock.DataLoader(dataset, 4, collate_fn=collate, **WAYS[way])
    for epochs in (1, 2):
        for _ in loader:
            pass
        stats = loader.stats()
        assert (stats.batches, stats.samples) == (3 * epochs, 10 * epochs)
        assert stats.wait_seconds > 0
    assert "20 samples in 6 batches" in loader.explain()


@pytest.mark.parametrize("way", WAYS)
def test_single_samples(way: str) -> None:
    loader = penstock.DataLoader(Samples(), None, **WAYS[way])
    for _ in loader:
        pass
    assert (loader.stats().batches, loader.stats().samples) == (10, 10)


ITERABLE = [way for way in WAYS if "seed" not in way]


@pytest.mark.parametrize("way", ITERABLE)
@pytest.mark.parametrize("dataset", [Stream(), Stated()], ids=["plain", "stated"])
def test_an_iterable_dataset(dataset: Any, way: str) -> None:
    loader = penstock.DataLoader(dataset, 3, **WAYS[way])
    batches = list(loader)
    assert sum(len(names) for names, _ in batches) == 10
    assert (loader.stats().batches, loader.stats().samples) == (len(batches), 10)
    single = penstock.DataLoader(dataset, None, **WAYS[way])
    assert len(list(single)) == 10
    assert (single.stats().batches, single.stats().samples) == (10, 10)


@pytest.mark.parametrize("way", ITERABLE)
def test_an_iterable_dataset_with_a_collate_fn_counts_full_batches(way: str) -> None:
    loader = penstock.DataLoader(Stream(), 3, collate_fn=list, **WAYS[way])
    batches = len(list(loader))
    assert (loader.stats().batches, loader.stats().samples) == (batches, 3 * batches)


@pytest.mark.parametrize("way", [way for way in WAYS if "order" not in way])
def test_a_batch_that_fails_is_not_counted(way: str) -> None:
    loader = penstock.DataLoader(Bad(), batch_sampler=[[0, 1, 2], [4, 5, 6, 7], [8]], **WAYS[way])
    batches = iter(loader)
    next(batches)
    with pytest.raises(ValueError, match="sample 5"):
        next(batches)
    next(batches)
    assert (loader.stats().batches, loader.stats().samples) == (2, 4)


def test_the_time_of_next_is_what_was_waited() -> None:
    gate = threading.Event()

    class Slow(Samples):
        def __getitem__(self, index: int) -> Any:
            return gate.wait(0.05)

    loader = penstock.DataLoader(Slow(), 10)
    list(loader)
    assert loader.stats().wait_seconds >= 0.5


@pytest.mark.parametrize("way", ["caller", "processes", "threads"])
def test_prefetch_around_a_loader_counts_once(way: str) -> None:
    loader = penstock.DataLoader(Samples(), 4, **WAYS[way])
    assert len(list(prefetch(loader, "cpu"))) == 3
    assert (loader.stats().batches, loader.stats().samples) == (3, 10)
