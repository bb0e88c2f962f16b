"""worker_method="auto": what it takes for what it measured, and what measuring leaves as it was."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as tud

import penstock
from penstock.measure import Measured, measure, some_indices
from penstock.method import Choice, Method, choose
from penstock.randomness import drawn_from, states
from tests.same import assert_same

US = 1e-6


def measured(one: float, two: float, cpu: float, transport: float = 0.0, draws: tuple[str, ...] = ()) -> Measured:
    return Measured(one, two, cpu, transport, draws)


@pytest.mark.parametrize(
    ("facts", "workers", "cpus", "wanted"),
    [
        (measured(100e3, 80e3, 10 * US, 40 * US), 2, 2, Method.THREAD),  # cheap samples: the way costs more
        (measured(1e3, 1e3, 1e-3, 10 * US), 2, 2, Method.PROCESS),  # Python's lock all the time
        (measured(1e3, 1e3, 1e-3, 10 * US), 1, 2, Method.THREAD),  # nothing to share
        (measured(400, 790, 2.5e-3, 200 * US), 2, 2, Method.THREAD),  # Pillow lets the lock go
        (measured(400, 500, 2.5e-3, 200 * US), 8, 8, Method.PROCESS),
        (measured(10, 20, 1e-4), 16, 2, Method.THREAD),  # waits for a server
    ],
)
def test_the_faster_method_is_taken(facts: Measured, workers: int, cpus: int, wanted: Method) -> None:
    assert choose(facts, workers, cpus, seeded=False).method is wanted


def test_foretold_rates() -> None:
    scales, stays = measured(100, 200, 0.01), measured(100, 100, 0.01)
    assert scales.threads(4, 8) == pytest.approx(400) == scales.processes(4, 8)
    assert scales.threads(4, 2) == pytest.approx(200) == scales.processes(4, 2)  # of two CPUs
    assert stays.threads(4, 8) == pytest.approx(100)
    half = measured(100, 400 / 3, 0.01)  # two threads: half of a sample's time is serial
    assert half.threads(4, 8) == pytest.approx(160)
    sent = measured(100, 200, 0.01, transport=0.02)
    assert sent.processes(4, 8) == pytest.approx(100)  # this process receives no faster


def test_with_a_seed_global_draws_need_processes() -> None:
    facts = measured(100e3, 100e3, 10 * US, 40 * US, ("torch", "random", "numpy.random"))
    assert choose(facts, 2, 2, seeded=False).method is Method.THREAD
    choice = choose(facts, 2, 2, seeded=True)
    assert choice.method is Method.PROCESS
    assert "torch, random and numpy.random" in choice.why


class Drawing(tud.Dataset[Any]):
    """Samples drawn from all global generators."""

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        self.threads.add(threading.get_ident())
        return torch.rand(2) + random.random() + float(np.random.rand())


def test_measuring_leaves_the_generators_as_they_were() -> None:
    before = states()
    dataset = Drawing()
    loader = penstock.DataLoader(dataset, 4, num_workers=2, worker_method="auto", seed=1)
    text = loader.explain()
    assert "chosen   processes: with seed= the draws from random, numpy.random and torch must follow" in text
    assert drawn_from(before) == ()
    assert not dataset.threads  # a child tried them: what a dataset opens or counts there ends there


def test_it_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fake(*given: Any, **more: Any) -> Choice:
        calls.append(given)
        return choose(measured(100e3, 100e3, 10 * US, 40 * US), 2, 2, seeded=False)

    monkeypatch.setattr("penstock.passes.try_out", fake)
    dataset: Any = list(range(40))
    loader: Any = penstock.DataLoader(dataset, 4, num_workers=2, worker_method="auto")
    assert not calls  # not before somebody iterates or asks
    assert_same(list(loader), list(tud.DataLoader(dataset, 4)))
    list(loader)
    assert "in 2 threads" in loader.explain() and "chosen   threads: one thread" in loader.explain()
    assert len(calls) == 1


class Opening(tud.Dataset[Any]):
    """Opens its file at the first sample, as is usual; two processes must not share the file's position."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: Any = None

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = self.path.open("rb", buffering=0)
        self.file.seek(8 * index)
        sum(range(2000))  # so that processes are chosen
        return int.from_bytes(self.file.read(8), "little")


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_a_file_that_the_dataset_opens_is_not_shared_by_the_workers(tmp_path: Path) -> None:
    (tmp_path / "numbers").write_bytes(np.arange(2000, dtype="<i8").tobytes())
    dataset = Opening(tmp_path / "numbers")
    loader = penstock.DataLoader(dataset, 50, num_workers=2, worker_method="auto")
    loader.explain()
    assert dataset.file is None
    if loader._chosen().method is Method.PROCESS:
        assert torch.cat(list(loader)).tolist() == list(range(2000))


def test_a_real_measurement() -> None:
    fetch = penstock.fetch.Fetch([torch.zeros(10) for _ in range(9)], batched=True, collate_fn=tud.default_collate)
    facts = measure(fetch, penstock.fetch.Task(None, 0, 0), some_indices(9), 4)
    assert facts.one > 0 and facts.two > 0 and facts.cpu_seconds > 0 and facts.transport_seconds > 0
    assert facts.draws == ()


@pytest.mark.parametrize(
    ("dataset", "workers", "why"),
    [
        (list(range(9)), 0, "num_workers=0"),
        ({"a": 1, "b": 2}, 2, "KeyError"),
        ([], 2, "empty"),
    ],
)
def test_what_cannot_be_tried_goes_as_torch_would(dataset: Any, workers: int, why: str) -> None:
    choice: Choice = penstock.DataLoader(dataset, num_workers=workers, worker_method="auto")._chosen()
    assert why in choice.why
    assert choice.method is (Method.PROCESS if "Error" in why else Method.THREAD)
