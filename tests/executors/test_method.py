"""worker_method="auto": what it takes and leaves as it was."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as tud

import penstock
from penstock.executors.method import LIMIT_SECONDS, Choice, Measurement, choose
from penstock.settings import Method
from penstock.system.randomness import generator_states, generators_drawn_from
from tests.same import assert_same
from tests.sample_datasets import Made, Opening
from tests.waiting import wait_until


def chosen(loader: Any) -> str:
    """Return what "auto" came to, and why, as explain() says it."""
    (line,) = [line for line in loader.explain().splitlines() if line.startswith("chosen")]
    return str(line.removeprefix("chosen").strip())


PAIRS = Made(lambda index: (torch.zeros(10), index), 9)
OF_LOADER = 2, 64  # workers, and samples of a batch


def found(one: float, every: float, draws: tuple[str, ...] = ()) -> Measurement:
    """Return what a trial found: seconds a sample of one thread and of two."""
    return Measurement(draws, one, every)


@pytest.mark.parametrize(
    ("measured", "samples", "wanted"),
    [
        (found(1e-6, 2e-6), 4_000, Method.THREAD),  # the start of processes does not pay
        (found(1e-6, 2e-6), None, Method.PROCESS),  # their way here is no longer than what a batch costs in threads
        (found(1e-3, 1.2e-3), 10_000, Method.PROCESS),  # Python's lock
        (found(1e-3, 1.2e-3), 20, Method.THREAD),
        (found(1e-3, 0.55e-3), None, Method.PROCESS),  # code may do in threads what no trial shows
        (found(1e-3, 0.3e-3), None, Method.THREAD),
    ],
)
def test_the_faster_method_is_taken(
    measured: Measurement, samples: int | None, wanted: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.executors.method.usable_cpus", lambda: 4)
    choice = choose(measured, *OF_LOADER, samples, seeded=False)
    assert choice.method is wanted
    assert f"one thread fetched {1 / measured.one:,.0f} samples/s and 2 threads {1 / measured.all:,.0f}" in choice.why
    assert "after a start of 50 ms" in choice.why
    assert choice.why.endswith(" times as fast") == (wanted is Method.THREAD)


def test_with_a_seed_global_draws_need_processes() -> None:
    facts = found(1e-3, 0.3e-3, ("torch", "random", "numpy.random"))
    assert choose(facts, *OF_LOADER, None, seeded=False).method is Method.THREAD
    choice = choose(facts, *OF_LOADER, None, seeded=True)
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
    before = generator_states()
    dataset = Drawing()
    loader = penstock.DataLoader(dataset, 4, num_workers=2, worker_method="auto", seed=1)
    text = loader.explain()
    assert "chosen   processes: with seed= the draws from random, numpy.random and torch must follow" in text
    assert generators_drawn_from(before) == ()
    assert not dataset.threads  # a child tried them: what a dataset opens or counts there ends there


def test_it_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fake(*given: Any, **more: Any) -> Choice:
        calls.append(given)
        return choose(found(1e-5, 1e-5), *OF_LOADER, 100, seeded=False)

    monkeypatch.setattr("penstock.executors.method.try_out", fake)
    dataset: Any = list(range(40))
    loader: Any = penstock.DataLoader(dataset, 4, num_workers=2, worker_method="auto")
    assert not calls  # not before somebody iterates or asks
    assert_same(list(loader), list(tud.DataLoader(dataset, 4)))
    list(loader)
    assert (
        "in 2 threads" in loader.explain()
        and "chosen   threads: tried for a moment, one thread fetched 100,000" in loader.explain()
    )
    assert len(calls) == 1


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_a_file_that_the_dataset_opens_is_not_shared_by_the_workers(tmp_path: Path) -> None:
    dataset = Opening(tmp_path / "numbers", 2000, lambda: sum(range(2000)))  # so that processes are chosen
    loader = penstock.DataLoader(dataset, 50, num_workers=2, worker_method="auto")
    loader.explain()
    assert dataset.file is None
    if chosen(loader).startswith("processes"):
        assert torch.cat(list(loader)).tolist() == list(range(2000))


class Waiting(tud.Dataset[Any]):
    """Has some samples that take for ever."""

    def __init__(self, *slow: int) -> None:
        self.slow = slow

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        if index in self.slow:
            threading.Event().wait()
        return index


@pytest.mark.parametrize("slow", [(5,), (0,), (1,), tuple(range(10))], ids=str)
def test_a_trial_takes_no_longer_than_its_limit(slow: tuple[int, ...]) -> None:
    began = time.monotonic()
    why = chosen(penstock.DataLoader(Waiting(*slow), 2, num_workers=2, worker_method="auto"))
    assert time.monotonic() - began < LIMIT_SECONDS + 10  # on a machine that does other things, too
    assert why.startswith("processes") and "a trial of threads was not over after 1.0 s" in why


def test_what_a_trial_has_started_ends_with_it(tmp_path: Path) -> None:
    class Noting(Waiting):
        def __getitem__(self, index: int) -> int:
            (tmp_path / str(os.getpid())).touch()
            return super().__getitem__(index)

    chosen(penstock.DataLoader(Noting(7), 2, num_workers=2, worker_method="auto"))
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert pids and os.getpid() not in pids
    wait_until(lambda: not any(map(is_running, pids)))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 4},
        {"batch_size": None},
        {"batch_size": 4, "collate_fn": len},
        {"batch_size": 4, "persistent_workers": True, "prefetch_factor": 3},
        {"batch_sampler": [[1, 2], [3]]},
        {"batch_size": 2, "seed": 3, "on_error": "replace"},
        {"batch_size": 2, "share_dataset": True},
    ],
    ids=str,
)
def test_threads_are_timed(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.executors.method.LIMIT_SECONDS", 60.0)  # of a busy machine
    loader = penstock.DataLoader(PAIRS, num_workers=2, worker_method="auto", **options)
    why = chosen(loader)
    assert "tried for a moment, one thread fetched" in why and "processes would fetch about" in why
    assert ("an epoch of" in why) == (not options.get("persistent_workers"))
    assert len(list(loader)) == len(loader)
    if options.get("persistent_workers"):
        loader._iterator._shutdown_workers()


@pytest.mark.parametrize("fails_in", ["worker_init_fn", "sample"])
def test_an_error_of_one_thread_ends_the_trial(fails_in: str) -> None:
    def make(index: int) -> int:
        if fails_in == "sample" and (info := tud.get_worker_info()) is not None and info.id == 1:
            raise KeyError("sample")
        return index

    def init(number: int) -> None:
        if fails_in == "worker_init_fn" and number == 1:
            raise KeyError("init")

    options: Any = {"num_workers": 2, "worker_init_fn": init}
    why = chosen(penstock.DataLoader(Made(make, 9), 4, worker_method="auto", **options))
    assert why.startswith("processes: trying a few samples failed, KeyError: ")


@pytest.mark.parametrize(
    ("dataset", "workers", "why"),
    [
        (list(range(9)), 0, "num_workers=0"),
        ({"a": 1, "b": 2}, 2, "KeyError"),
        ([], 2, "empty"),
    ],
)
def test_what_cannot_be_tried_goes_as_torch_would(dataset: Any, workers: int, why: str) -> None:
    text = chosen(penstock.DataLoader(dataset, num_workers=workers, worker_method="auto"))
    assert why in text
    assert text.startswith("processes") == ("Error" in why)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_auto_over_a_native_dataset_tries_nothing(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.executors.method.try_out", None)
    loader = penstock.DataLoader(
        tud.TensorDataset(torch.arange(8)), 4, num_workers=workers, worker_method="auto", persistent_workers=workers > 0
    )
    for _ in range(2):
        assert [batch.tolist() for (batch,) in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert loader.state_dict()["position"] == 0
    assert "native" in loader.explain()
