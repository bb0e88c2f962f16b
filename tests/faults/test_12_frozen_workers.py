"""Row 12: a worker that is frozen (SIGSTOP), an endless loop in a sample, a disk of 200 ms a read.

`timeout=` is raised within a second of its time, for processes and threads; a slow disk changes neither order nor data.
"""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import penstock
from penstock import _native
from tests.data import tensor_files
from tests.faults.conftest import Count
from tests.faults.test_11_dead_workers import Slow, all_gone, worker_pids
from tests.native_testing import SlowTable
from tests.same import assert_same
from tests.waiting import wait_until

TIMEOUT = 0.5


def stuck(batches: Iterator[Any]) -> str:
    """Return what the error says that ends a pass, and assert that it came in its time."""
    while True:
        begun = time.monotonic()
        try:
            next(batches)
        except penstock.WorkerStuck as error:
            assert time.monotonic() - begun < TIMEOUT + 1
            return str(error)


def names(batches: Iterator[Any], pid: int) -> bool:
    return re.search(rf"pid {pid}\) .*, and is stopped by a signal\.", stuck(batches)) is not None


@pytest.mark.timeout(900)
@pytest.mark.parametrize("pin", [False, True], ids=["", "pin_memory"])
@pytest.mark.filterwarnings("ignore:.*pin_memory.*")
def test_a_stopped_process(pin: bool, tries: Count) -> None:
    chance = random.Random(12)
    for _ in range(tries(1, 15)):
        loader: Any = penstock.DataLoader(
            Slow(), 8, num_workers=2, worker_method="process", timeout=TIMEOUT, pin_memory=pin
        )
        batches = iter(loader)
        pids = worker_pids(batches)
        for _ in range(chance.randrange(1, 20)):
            next(batches)
        os.kill(pids[0], signal.SIGSTOP)
        wait_until(partial(names, batches, pids[0]))  # the other may be late, too
        del batches
        wait_until(partial(all_gone, pids))


class Endless(Slow):
    def __init__(self, moment: int, ended: Any) -> None:
        super().__init__("", moment)
        self.ended = ended

    def __getitem__(self, index: int) -> Any:
        while index == self.moment and not self.ended.is_set():
            pass
        return torch.full((3,), index)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("method", ["process", "thread"])
def test_an_endless_loop(method: Any, tries: Count) -> None:
    chance = random.Random(13)
    for _ in range(tries(1, 10)):
        ended = threading.Event() if method == "thread" else torch.multiprocessing.Event()
        dataset = Endless(chance.randrange(50), ended)
        options: Any = {"share_dataset": True} if method == "thread" else {}
        batches = iter(penstock.DataLoader(dataset, 4, num_workers=2, worker_method=method, timeout=TIMEOUT, **options))
        assert "__getitem__" in stuck(batches)
        ended.set()
        del batches


def test_a_slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool) -> None:
    dataset = penstock.TensorFolder(tensor_files(tmp_path, 40 if full else 8))
    wanted = list(penstock.DataLoader(dataset, 4, seed=3, shuffle=True))
    make = _native.TensorFileFiller
    monkeypatch.setattr(_native, "TensorFileFiller", lambda table, *given: make(SlowTable(table, 0.2), *given))
    for workers in (1, 2, 4):
        assert_same(list(penstock.DataLoader(dataset, 4, seed=3, shuffle=True, num_workers=workers)), wanted)
