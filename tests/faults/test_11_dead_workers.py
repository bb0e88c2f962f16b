"""Row 11: a worker that is killed (SIGKILL, SIGSEGV), ends (`os._exit`) or lacks memory, at a random moment.

An error within a second each time, with worker, signal, samples in flight and memory; no process is left.
"""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import get_worker_info

import penstock
from tests.faults.conftest import Count
from tests.waiting import wait_until


class Slow(torch.utils.data.Dataset[Any]):
    """Samples of a millisecond, which end their process where they are asked to."""

    def __init__(self, ends: str = "", moment: int = -1) -> None:
        self.ends, self.moment = ends, moment

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.001)
        if index == self.moment:
            if self.ends == "exit":
                os._exit(3)
            if self.ends == "memory":
                raise MemoryError("no memory for this sample")
        return torch.full((100,), index)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def all_gone(pids: list[int]) -> bool:
    return all(map(is_gone, pids))


def worker_pids(batches: Any) -> list[int]:
    return [worker.pid for worker in batches._workers]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV], ids=["SIGKILL", "SIGSEGV"])
def test_a_signal(number: signal.Signals, tries: Count) -> None:
    chance = random.Random(11)
    for _ in range(tries(3, 30)):
        batches = iter(penstock.DataLoader(Slow(), 8, num_workers=2, worker_method="process"))
        pids = worker_pids(batches)
        victim = chance.choice(pids)
        moment: list[float] = []

        def kill(victim: int = victim, moment: list[float] = moment) -> None:
            moment.append(time.monotonic())
            os.kill(victim, number)

        killer = threading.Timer(chance.random() * 0.3, kill)
        killer.start()
        with pytest.raises(penstock.WorkerDied) as raised:
            for _ in batches:
                pass
        assert time.monotonic() - moment[0] < 1
        killer.join()
        text = str(raised.value)
        assert f"pid {victim}" in text and number.name in text, text
        assert re.search("sample|sending a batch or waiting for work|starting", text) and "memory in use" in text, text
        del batches
        wait_until(partial(all_gone, pids))


@pytest.mark.timeout(900)
def test_an_exit(tries: Count) -> None:
    chance = random.Random(12)
    for _ in range(tries(3, 20)):
        moment = chance.randrange(200)
        batches = iter(penstock.DataLoader(Slow("exit", moment), 8, num_workers=2, worker_method="process"))
        pids = worker_pids(batches)
        with pytest.raises(penstock.WorkerDied) as raised:
            for _ in batches:
                pass
        text = str(raised.value)
        assert "exit code 3" in text and f"{moment}" in text and "memory in use" in text, text
        del batches
        wait_until(partial(all_gone, pids))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("options", [{"worker_method": "process"}, {"worker_method": "thread"}], ids=str)
def test_no_memory(options: dict[str, Any], tries: Count) -> None:
    """MemoryError in a sample is raised as it is, with the sample; the pass goes on behind it, as torch's does."""
    chance = random.Random(13)
    for _ in range(tries(3, 10)):
        moment = chance.randrange(100)
        batches = iter(penstock.DataLoader(Slow("memory", moment), 8, num_workers=2, **options))
        with pytest.raises(MemoryError) as raised:
            for _ in batches:
                pass
        assert f"{moment}" in "".join([str(raised.value), *getattr(raised.value, "__notes__", [])])
        assert torch.is_tensor(next(batches))


def test_killed_by_the_kernel(tries: Count) -> None:
    """A worker that may have no more memory ends with a MemoryError or is named, and the program goes on."""
    resource = pytest.importorskip("resource")

    class Greedy(Slow):
        def __getitem__(self, index: int) -> Any:
            assert get_worker_info() is not None
            if index == self.moment:
                resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
                return torch.ones(1 << 33)
            return super().__getitem__(index)

    for number in range(tries(1, 10)):
        batches = iter(penstock.DataLoader(Greedy("", 20 + number), 4, num_workers=2, worker_method="process"))
        with pytest.raises((RuntimeError, MemoryError)) as raised:
            for _ in batches:
                pass
        assert f"{20 + number}" in str(raised.value) or "memory" in str(raised.value)
