"""Row 16: a fork amid passes, after OpenMP and OpenCV have started threads; spawn, forkserver; nested loaders.

No deadlock: loaders that a child inherits work there, and an open pass continues or raises an error that names the
fork.
"""

from __future__ import annotations

import multiprocessing
import random
import re
import threading
from collections.abc import Iterable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data as tud

import penstock
from tests import python_processes
from tests.carriers_under_test import EXECUTORS
from tests.data import Made, tensor_files
from tests.faults.conftest import Count
from tests.forking import assert_in_child
from tests.values import taken

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

SIZE, BATCH, WIDTH = 40, 8, 8192  # torch makes a batch in several threads, and its memory is used again
NATIVE = "native, caller", "native, 2", "native, persistent", "native, fed"
OTHERS = "caller", "threads, 2", "threads, persistent", "processes, 2", "processes, persistent", "processes, fed"


def row(index: int) -> torch.Tensor:
    return torch.full((WIDTH,), float(index))


def resized(index: int) -> torch.Tensor:
    cv2 = import_module("cv2")
    return torch.from_numpy(cv2.resize(row(index).reshape(64, 128).numpy(), (512, 256))).flatten()


def assert_right(batches: Iterable[Any], first: int = 0, end: int = SIZE // BATCH) -> None:
    """Assert that these are all batches from one number on, looking at elements: torch may lack its threads."""
    found = [(batch[:, 0].tolist(), batch[:, -1].tolist()) for batch in batches]
    wanted = [[float(index) for index in range(BATCH * number, BATCH * number + BATCH)] for number in range(first, end)]
    assert found == [(numbers, numbers) for numbers in wanted]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tensor_files(tmp_path_factory.mktemp("tensors"), SIZE, (WIDTH,))


def go_on(batches: Any, number: int) -> None:
    """Go on with a parent's pass behind its first batches."""
    try:
        assert_right(batches, number)
    except RuntimeError as error:
        assert re.search("of this fork|another process", str(error)), error


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [*(pytest.param(name, marks=pytest.mark.native) for name in NATIVE), *OTHERS])
def test_amid_a_pass(name: str, folder: Path, tries: Count) -> None:
    chance, executor = random.Random(16), EXECUTORS[name]
    dataset: Any = penstock.TensorFolder(folder) if executor.native else Made(row, SIZE)
    for turn in range(tries(2, 30)):
        loader = penstock.DataLoader(dataset, BATCH, **executor.options)
        batches, number = iter(loader), chance.randrange(1, SIZE // BATCH)
        held = taken(batches, number)
        works = [partial(go_on, batches, number), partial(assert_right, loader), partial(assert_right, loader)]
        if turn % 2 and not loader.persistent_workers:  # whose next pass takes the place of the one before
            works.reverse()

        def check(works: Any = works, held: Any = held, number: int = number) -> None:
            assert_right(held, 0, number)
            held.clear()
            for work in works:
                work()

        assert_in_child(check)
        assert_right(held, 0, number)
        assert_right(batches, number)


@pytest.mark.parametrize("name", ["threads, 2", "caller, fed"])
def test_while_another_thread_counts(name: str, tries: Count) -> None:
    """Threads that make batches, and the one that feeds a device, take the locks of the counters."""
    loader = penstock.DataLoader(Made(row, SIZE), BATCH, **EXECUTORS[name].options)
    counters = loader._pass_factory.counters
    locks = [counters._lock, counters.meter._stages._merging, counters.meter.calls.workers._merging]
    for turn in range(tries(3, 30)):
        held, done = threading.Event(), threading.Event()

        def hold(lock: Any = locks[turn % 3], held: Any = held, done: Any = done) -> None:
            with lock:
                held.set()
                done.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()

        def check() -> None:
            assert_right(loader)
            assert loader.stats().batches == SIZE // BATCH

        try:
            assert_in_child(check)
        finally:
            done.set()
            thread.join()


def in_program(work: str, folder: Path, number: int) -> None:
    """Call a function of this module in a program of its own, with the folder and how many times it runs."""
    done = python_processes.run(f"import sys; from tests.faults.test_16_forks import *; {work}", folder, number)
    assert done.returncode == 0, done.stderr


def fork_after(what: str, folder: str, number: str) -> None:
    """Fork children that read, after the threads of a library have started."""
    if what == "OpenMP":
        torch.set_num_threads(2)
        make = row
    else:
        import_module("cv2").setNumThreads(2)
        make = resized
        make(0)
    made = Made(make, SIZE)
    loaders: list[penstock.DataLoader[Any]] = [
        penstock.DataLoader(penstock.TensorFolder(folder), BATCH, num_workers=2),
        *(penstock.DataLoader(made, BATCH, num_workers=2, worker_method=method) for method in ("thread", "process")),
        penstock.DataLoader(made, BATCH),
    ]
    for loader in loaders:
        assert_right(loader)

    for turn in range(int(number)):
        torch.ones(1 << 18).add_(1)  # the threads that a fork ended are there
        assert_in_child(partial(assert_right, loaders[turn % len(loaders)]))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("what", ["OpenMP", "OpenCV"])
def test_after_the_threads_of(what: str, folder: Path, tries: Count) -> None:
    if what == "OpenCV":
        pytest.importorskip("cv2", reason="OpenCV is not installed")
    in_program(f"fork_after({what!r}, *sys.argv[1:])", folder, tries(4, 200))


def start(method: str, folder: str, number: str) -> None:
    """Start workers, and processes that are given a loader, after Penstock's threads have run."""
    context: Any = multiprocessing.get_context(method)
    context.set_forkserver_preload([__name__])
    used: Any = penstock.DataLoader(penstock.TensorFolder(folder), BATCH, num_workers=2)
    assert_right(used)
    for turn in range(int(number)):
        if turn % 2:
            process = context.Process(target=assert_right, args=(used,))
            process.start()
            process.join(60)
            assert process.exitcode == 0
            continue
        loader = penstock.DataLoader(
            Made(row, SIZE), BATCH, num_workers=1, multiprocessing_context=method, persistent_workers=True
        )
        for _ in range(2):
            assert_right(loader)


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_other_start_methods(method: str, folder: Path, tries: Count) -> None:
    in_program(f"start({method!r}, *sys.argv[1:])", folder, tries(1, 200))


def test_inside_torchs_workers(folder: Path, tries: Count) -> None:
    """A dataset of ours is a plain dataset too: torch's own loader reads it in forked workers."""
    dataset = penstock.TensorFolder(folder)
    assert_right(penstock.DataLoader(dataset, BATCH, num_workers=2))  # our threads have run in this process
    for _ in range(tries(1, 200)):
        assert_right(tud.DataLoader(dataset, BATCH, num_workers=2))


class Nested(tud.Dataset[torch.Tensor]):
    """Each sample goes through a loader."""

    def __init__(self, inner: Any, size: int) -> None:
        self.inner, self.size = inner, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        assert_right(self.inner)
        return row(index)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("outer", ["caller", "threads, 2", "processes, 2"])
@pytest.mark.parametrize("inner", ["caller", "native, 2", "threads, 2", "processes, 2"])
def test_nested(inner: str, outer: str, folder: Path, tries: Count) -> None:
    dataset: Any = penstock.TensorFolder(folder) if EXECUTORS[inner].native else Made(row, SIZE)
    options: Any = {"share_dataset": True} if outer == "threads, 2" else {}
    method: Any = {"worker_method": "process"} if inner == "processes, 2" else {}
    size = tries(BATCH, SIZE)
    nested = Nested(penstock.DataLoader(dataset, BATCH, **EXECUTORS[inner].options, **method), size)
    loader = penstock.DataLoader(nested, BATCH, **EXECUTORS[outer].options, **options)
    if inner == outer == "processes, 2":
        with pytest.raises(AssertionError, match="daemonic processes are not allowed to have children"):
            next(iter(loader))
    else:
        assert_right(loader, 0, size // BATCH)
