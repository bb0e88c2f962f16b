"""The seams of the design: an executor and an observer of this file's own run through DataLoader as Penstock's do."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import pytest
import torch
import torch.utils.data as tud

import penstock
from penstock.executors import selection
from penstock.executors.filler import Batch, Filler
from penstock.executors.iterator import FillerExecutor
from penstock.executors.job import Job
from penstock.observe import Delivery, Observer
from tests.same import outcomes
from tests.sample_datasets import Made
from tests.values import resumed

# --- an executor ------------------------------------------------------------------------------------------------------


class Squares(Made):
    """Samples that are functions of their index; one is bad where that is said."""

    def __init__(self, bad: int | None = None) -> None:
        super().__init__(self.square)
        self.bad = bad

    def square(self, index: int) -> torch.Tensor:
        if index == self.bad:
            raise KeyError(index)
        return torch.tensor(index * index)


class Computing(Filler):
    """Computes whole batches at once."""

    ended = threading.Event()

    def close(self) -> None:
        """It has no threads."""

    def depth(self, queue: deque[Any]) -> int:
        return 2

    def ready(self, queue: deque[Any]) -> Batch:
        batch: Batch = queue[0]
        return batch

    def assemble(self, batch: Batch) -> Any:
        assert batch.given is not None
        return torch.tensor(batch.given[0]) ** 2

    def delivery(self, batch: Batch, out: Any) -> Delivery:
        return Delivery(out, len(out))


def accepts_squares(job: Job) -> bool:
    return type(job.settings.dataset) is Squares


class Computer(FillerExecutor):
    def filler(self, job: Job, held: Filler | None, drawn: Any) -> Filler:
        return held or Computing(job.resources)


@pytest.fixture
def computer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "EXECUTORS", ((accepts_squares, Computer), *selection.EXECUTORS))


def values(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}], ids=str)
def test_an_executor_is_one_more_in_the_tuple(computer: None, options: dict[str, Any]) -> None:
    loader = penstock.DataLoader(Squares(), 4, shuffle=True, generator=torch.Generator().manual_seed(3), **options)
    theirs = tud.DataLoader(Squares(), 4, shuffle=True, generator=torch.Generator().manual_seed(3), **options)
    for _ in range(2):
        batches = iter(loader)
        assert type(batches.filler) is Computing
        assert values(batches) == values(theirs)
    assert (loader.stats().batches, loader.stats().samples) == (12, 46)
    assert "Squares" in loader.explain()


def test_its_passes_are_cut_among_ranks_and_go_on_from_states(computer: None) -> None:
    def made(rank: int, world: int = 2) -> penstock.DataLoader[Any]:
        return penstock.DataLoader(Squares(), 4, shuffle=True, seed=7, shard=(rank, world))

    whole = values(made(0, 1))
    one, other = values(made(0)), values(made(1))
    assert sorted({value for batch in one + other for value in batch}) == sorted(i * i for i in range(23))
    assert one[0] + other[0] == whole[0] + whole[1]
    first, rest = resumed(made(0), made(0), 1)
    assert values(first) + values(rest) == one


# --- an observer ------------------------------------------------------------------------------------------------------


class Watching(Observer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def delivered(self, delivery: Delivery) -> None:
        assert delivery.waited >= 0
        self.seen.append(delivery.samples)

    def failed(self, error: Exception) -> None:
        self.seen.append(type(error))

    def ended(self) -> None:
        self.seen.append("end")


WAYS: dict[str, dict[str, Any]] = {
    "inline": {"num_workers": 0},
    "processes": {"num_workers": 2},
    "threads": {"num_workers": 2, "worker_method": "thread"},
    "seeded": {"num_workers": 0, "seed": 1},
    "device": {"num_workers": 0, "device": "cpu"},
}


@pytest.mark.parametrize("way", WAYS)
def test_an_observer_knows_of_every_batch_error_and_end(way: str) -> None:
    loader = penstock.DataLoader(Squares(bad=9), 4, **WAYS[way])
    watching = Watching()
    loader._executors.observers += (watching,)
    assert [isinstance(one, torch.Tensor) for one in outcomes(loader)] == [True, True, False, True, True, True]
    assert watching.seen == [4, 4, KeyError, 4, 4, 3, "end"]
    assert (loader.stats().batches, loader.stats().samples) == (5, 19)


def test_an_observer_of_the_native_core() -> None:
    loader = penstock.DataLoader(tud.TensorDataset(torch.arange(10)), 4, num_workers=2)
    watching = Watching()
    loader._executors.observers += (watching,)
    assert len(list(loader)) == 3
    assert watching.seen == [4, 4, 2, "end"]
