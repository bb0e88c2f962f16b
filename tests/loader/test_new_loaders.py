"""A small loader that is made anew for each client or task, and small loaders over subsets of rows."""

from __future__ import annotations

import gc
import sys
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
