"""A small loader that is made anew for each client or task, and small loaders over subsets of rows."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

import penstock
from tests.data import Made
from tests.resources import collect

ROWS = TensorDataset(torch.arange(60.0).view(20, 3), torch.arange(20))


def passes(kind: Any, dataset: Dataset[Any], **options: Any) -> list[Any]:
    torch.manual_seed(3)
    return list(kind(dataset, 8, shuffle=True, **options))


_opened: list[Any] | None = None


def note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _opened is not None:
        _opened.append(arguments[0])


@pytest.fixture(scope="module")
def watch_files() -> None:
    sys.addaudithook(note)  # for the life of the process: it cannot be taken away


@pytest.mark.parametrize("dataset", [ROWS, Subset(ROWS, [*range(0, 20, 2)]), Made(lambda index: index, 20)])
def test_a_loader_that_is_made_anew_reads_no_file(
    watch_files: None, dataset: Dataset[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    global _opened
    monkeypatch.setattr("penstock.loop_times.SHORT_PASS", 3600.0)  # however busy the machine is
    passes(penstock.DataLoader, dataset)
    collect()  # the verdicts of other tests' loaders
    gc.disable()
    _opened = []
    try:
        for _ in range(3):
            passes(penstock.DataLoader, dataset)
        assert _opened == []
    finally:
        _opened = None
        gc.enable()


def cpu_and_time(first: float) -> tuple[float, float]:
    """Return the CPU time that a new loader counted in its only pass, and how long that took.

    first: seconds until its first sample is there.
    """
    begun = perf_counter()

    def sample(index: int) -> int:
        while perf_counter() < begun + first:
            pass
        return index

    loader = penstock.DataLoader(Made(sample, 4))
    list(loader)
    took = perf_counter() - begun
    return sum(stage.cpu_seconds for stage in loader.stats().stages.values()), took


def test_a_loader_that_is_soon_gone_looks_at_no_clock_of_its_thread() -> None:
    tried = (cpu_and_time(0.0) for _ in range(1000))
    assert next(cpu for cpu, took in tried if took < 0.009) == 0.0
    assert cpu_and_time(0.02)[0] > 0.0


INDICES: list[Any] = [[3, 1, 4, 1, 5], [-1, 0], [True, 2], list(torch.tensor([2, 7])), [19, 18.0], [2, 40]]


@pytest.mark.parametrize("indices", INDICES)
@pytest.mark.parametrize("inner", [[*range(20)], range(20), torch.arange(20)])
def test_rows_of_subsets_are_those_of_torch(indices: list[Any], inner: Any) -> None:
    def outcome(kind: Any) -> str:
        try:
            return repr(passes(kind, Subset(Subset(ROWS, inner), indices)))
        except Exception as error:
            return type(error).__name__

    assert outcome(penstock.DataLoader) == outcome(torch.utils.data.DataLoader)


def exchange_indices(subset: Any) -> None:
    subset.indices[:] = [*reversed(subset.indices)]


def exchange_dataset(subset: Subset[Any]) -> None:
    subset.dataset = TensorDataset(torch.arange(20), torch.arange(40.0).view(20, 2))


def exchange_rows(subset: Subset[Any]) -> None:
    inner: Any = subset.dataset
    inner.tensors = tuple(-tensor for tensor in inner.tensors)


@pytest.mark.parametrize("change", [exchange_indices, exchange_dataset, exchange_rows])
@pytest.mark.parametrize("between", [False, True])
def test_a_subset_that_is_changed_is_read_as_it_is(change: Callable[[Subset[Any]], None], between: bool) -> None:
    def read(kind: Any) -> list[Any]:
        subset = Subset(TensorDataset(*ROWS.tensors), [*range(20)])
        loader, batches = kind(subset, 5), []
        for _ in range(2):
            for step, batch in enumerate(loader):
                batches.append(batch)
                if step == 1 and not between:
                    change(subset)
            change(subset)
        return batches

    assert repr(read(penstock.DataLoader)) == repr(read(torch.utils.data.DataLoader))
