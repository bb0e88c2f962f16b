"""What workers know of a dataset that its program changes; the generators and handles that their copies have."""

from __future__ import annotations

import random
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

import penstock
from penstock.carriers.copy_trouble import not_picklable
from penstock.workers.changes import Copied, apply

METHODS = [
    pytest.param({"worker_method": "process"}, id="processes"),
    pytest.param({"worker_method": "thread"}, id="threads"),
    pytest.param({"worker_method": "process", "multiprocessing_context": "spawn"}, id="spawn"),
]


class Added:
    """A transform of the user's own."""

    def __init__(self, amount: int) -> None:
        self.amount = amount

    def __call__(self, value: int) -> int:
        return value + self.amount


class Changing(Dataset[Any]):
    """Samples that show each of its attributes."""

    def __init__(self) -> None:
        self.epoch, self.name, self.transform, self.steps = 0, "a", Added(0), [Added(0), Added(0)]

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        time.sleep(0)  # it does more than index
        return self.epoch, ord(self.name), self.transform(0), self.steps[1](0)


class Collating:
    def __init__(self) -> None:
        self.mask = 0

    def __call__(self, samples: list[Any]) -> Any:
        return [(*sample, self.mask) for sample in samples]


def shown(loader: Any) -> set[Any]:
    """Return what the samples of a pass show."""
    return {tuple(sample) for batch in loader for sample in batch}


@pytest.mark.parametrize("given", METHODS)
def test_small_changes_reach_workers_that_persist(given: dict[str, Any]) -> None:
    dataset, collate = Changing(), Collating()
    loader: Any = penstock.DataLoader(
        Subset(ConcatDataset([dataset]), range(8)),
        2,
        num_workers=2,
        persistent_workers=True,
        collate_fn=collate,
        **given,
    )
    assert shown(loader) == {(0, 97, 0, 0, 0)}
    workers = getattr(loader._iterator, "_workers", None)
    dataset.epoch, dataset.name, dataset.transform.amount, dataset.steps[1].amount, collate.mask = 1, "b", 2, 3, 4
    assert shown(loader) == {(1, 98, 2, 3, 4)}
    assert shown(loader) == {(1, 98, 2, 3, 4)}
    dataset.epoch = 5
    assert shown(loader) == {(5, 98, 2, 3, 4)}
    assert getattr(loader._iterator, "_workers", None) is workers


@pytest.mark.parametrize("given", METHODS)
def test_a_larger_change_starts_workers_anew(given: dict[str, Any]) -> None:
    dataset = Changing()
    loader: Any = penstock.DataLoader(
        dataset, 2, num_workers=2, persistent_workers=True, collate_fn=Collating(), **given
    )
    assert shown(loader) == {(0, 97, 0, 0, 0)}
    dataset.transform = Added(7)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert shown(loader) == {(0, 97, 7, 0, 0)}
    said = [str(one.message) for one in caught if "another object" in str(one.message)]
    assert len(said) == (given["worker_method"] == "process")
    assert all(text.startswith("dataset.transform is another object") for text in said)
    assert shown(loader) == {(0, 97, 7, 0, 0)}


@pytest.mark.parametrize("given", METHODS[:2])
@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("change", ["small", "large"])
def test_a_change_behind_iter_is_in_the_first_batch(change: str, persistent: bool, given: dict[str, Any]) -> None:
    dataset = Changing()
    loader: Any = penstock.DataLoader(
        dataset, 2, num_workers=2, persistent_workers=persistent, collate_fn=Collating(), **given
    )
    for turn in range(3):
        batches = iter(loader)
        if change == "small":
            dataset.epoch = turn + 1
        else:
            dataset.transform = Added(turn + 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = shown(batches)
        assert found == {(turn + 1, 97, 0, 0, 0) if change == "small" else (0, 97, turn + 1, 0, 0)}


def test_the_orders_and_draws_of_workers_that_persist_are_torchs_where_nothing_large_changes() -> None:
    loaders: list[Any] = [
        kind(Changing(), 2, shuffle=True, num_workers=2, persistent_workers=True)
        for kind in (torch.utils.data.DataLoader, penstock.DataLoader)
    ]
    states = []
    for loader in loaders:
        torch.manual_seed(3)
        for _ in range(2):
            list(loader)
            loader.dataset.epoch += loader is loaders[1]
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_what_is_compared() -> None:
    dataset: Any = Changing()
    copied = Copied(dataset, shown)
    assert copied.changes() == ([], "")
    dataset.new, dataset.count, dataset.pair = [1], 3, (1, "x", (None, 2.5))
    dataset.steps.append(Added(1))  # in place
    assert copied.changes() == ([((0, "count"), 3), ((0, "pair"), (1, "x", (None, 2.5)))], "")
    copied.sent()
    assert copied.changes() == ([], "")
    dataset.file = open(__file__)  # noqa: SIM115
    dataset.name = 1.0
    dataset.epoch = True
    assert copied.changes().small == [((0, "epoch"), True), ((0, "name"), 1.0)]
    dataset.file.close()
    dataset.pair = [1]
    assert copied.changes().large == "dataset.pair"
    other = Changing()
    apply((other, shown), [((0, "epoch"), 4), ((0, "steps", 1, "amount"), 9), ((0, "gone", "x"), 1), ((1, "x", 3), 2)])
    assert (other.epoch, other.steps[1].amount) == (4, 9)
    del dataset.transform
    assert Copied(dataset).changes() == ([], "")


class Drawing(Dataset[Any]):
    def __init__(self, generator: Any, draw: Callable[[Any], Any]) -> None:
        self.generator, self.draw = [generator], draw

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> int:
        return int(self.draw(self.generator[0]))


GENERATORS: list[Any] = [
    pytest.param(lambda: np.random.default_rng(0), lambda one: one.integers(1 << 40), id="numpy"),
    pytest.param(lambda: np.random.RandomState(0), lambda one: one.randint(1 << 30), id="RandomState"),
    pytest.param(lambda: random.Random(0), lambda one: one.getrandbits(40), id="random"),
    pytest.param(
        lambda: torch.Generator().manual_seed(0), lambda one: torch.randint(1 << 40, (), generator=one), id="torch"
    ),
]


@pytest.mark.parametrize(("make", "draw"), GENERATORS)
@pytest.mark.parametrize("method", ["process", "thread"])
def test_each_worker_and_pass_draws_anew_and_alike_in_each_run(make: Any, draw: Any, method: Any) -> None:
    runs = []
    for _ in range(2):
        loader = penstock.DataLoader(Drawing(make(), draw), None, num_workers=2, worker_method=method)
        runs.append([int(one) for _ in range(3) for one in loader])
    assert len(set(runs[0])) == 96
    assert method == "thread" or runs[0] == runs[1]  # which thread makes a sample is not settled


def test_the_first_worker_of_the_first_pass_has_the_generator_as_it_is() -> None:
    expected, came = (
        [int(one) for one in kind(Drawing(random.Random(1), lambda one: one.getrandbits(40)), None, num_workers=1)]
        for kind in (torch.utils.data.DataLoader, penstock.DataLoader)
    )
    assert came == expected


class Reading(Dataset[Any]):
    def __init__(self, file: Any) -> None:
        self.file = file

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index + len(self.file.name) * 0


class Aware(Reading):
    def __getitem__(self, index: int) -> int:
        torch.utils.data.get_worker_info()
        return index


def said_of(loader: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(loader)
    return [str(one.message) for one in caught if "share with each other" in str(one.message)]


def test_shared_handles_are_warned_of_once_and_where_they_are_shared(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"x")
    with path.open("rb") as file:
        loader = penstock.DataLoader(Reading(file), num_workers=2)
        (said,) = said_of(loader)
        assert said.startswith("dataset.file is an open file") and "self.file = None in __init__" in said
        assert said_of(loader) == []
        assert said_of(penstock.DataLoader(Reading(file), num_workers=1)) == []
        assert said_of(penstock.DataLoader(Reading(file), num_workers=2, worker_init_fn=id)) == []
        assert said_of(penstock.DataLoader(Aware(file), num_workers=2)) == []
        assert said_of(penstock.DataLoader(Reading(file))) == []
    with path.open("ab") as log:
        assert said_of(penstock.DataLoader(Reading(log), num_workers=2)) == []


def test_what_cannot_be_pickled_is_named() -> None:
    def local() -> None: ...

    dataset: Any = Changing()
    assert not_picklable(dataset=dataset, collate_fn=None) == ""
    dataset.steps[1] = lambda value: value
    assert not_picklable(dataset=dataset).startswith("dataset.steps[1] (a lambda) cannot be pickled")
    assert "collate_fn (the function" in not_picklable(dataset=Changing(), collate_fn=local)


def test_a_waking_thread_keeps_the_share_of_a_process_that_waits_for_cpus() -> None:
    """Another program on the one CPU: the process waits half of the time."""
    program = """
import os, subprocess, sys, time
import penstock._native as native
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
try:
    share, until = native.CpuShare(), time.monotonic() + 20
    while not share.keeps and time.monotonic() < until:
        share.look()
    if os.fork() == 0:  # the child has no such thread, and does not wait for it
        del share
        os._exit(0)
    assert os.wait()[1] == 0
    print(share.keeps, len(os.listdir("/proc/self/task")))
    del share
    print(len(os.listdir("/proc/self/task")))
finally:
    other.kill()
    other.wait()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["True", "2", "1"], done.stderr
