"""Row 16: a fork after our threads, OpenMP's or OpenCV's; spawn, forkserver, nested loaders, use after the fork.

No deadlock; the child gets a clear error or a loader that works, and the parent's pass is not disturbed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penstock
from tests.faults.conftest import Count
from tests.sample_datasets import tensor_files

pytestmark = [pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"), pytest.mark.timeout(1200)]
SECONDS = 30


class Squares(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(index * index)


class Nested(Squares):
    """Reads through a loader of its own in each sample."""

    def __getitem__(self, index: int) -> Any:
        return torch.cat(list(penstock.DataLoader(Squares(), 6, num_workers=index % 2)))[index]


WANTED = [index * index for index in range(24)]


def in_child(work: Callable[[], None]) -> None:
    """Run some work in a forked child; one that does not end in time fails the test."""
    child = os.fork()
    if not child:
        ended = 1
        try:
            work()
            ended = 0
        finally:
            os._exit(ended)
    deadline = time.monotonic() + SECONDS
    while not (waited := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGABRT)  # which prints the stacks
            os.waitpid(child, 0)
            pytest.fail("the child hangs")
        time.sleep(0.001)
    assert os.waitstatus_to_exitcode(waited[1]) == 0


def numbers(loader: Any) -> list[int]:
    return [int(number) for batch in loader for number in batch.flatten()]


LOADERS: dict[str, dict[str, Any]] = {
    "native": {"num_workers": 2},
    "thread": {"num_workers": 2, "worker_method": "thread"},
    "process": {"num_workers": 2, "worker_method": "process"},
    "caller": {"num_workers": 0},
    "persistent": {"num_workers": 1, "worker_method": "thread", "persistent_workers": True},
}


@pytest.mark.parametrize("kind", LOADERS)
def test_a_fork_in_the_middle_of_a_pass(kind: str, tmp_path: Path, tries: Count) -> None:
    dataset: Any = penstock.TensorFolder(tensor_files(tmp_path, 24, ())) if kind == "native" else Squares()
    loader = penstock.DataLoader(dataset, 4, **LOADERS[kind])
    wanted = numbers(loader)
    for number in range(tries(2, 40)):
        batches = iter(loader)
        first = [next(batches) for _ in range(number % 3)]

        def use(batches: Any = batches) -> None:
            assert numbers(loader) == wanted
            try:
                list(batches)
            except RuntimeError as error:
                assert "fork" in str(error) or "process" in str(error)

        in_child(use)
        assert numbers(first) + numbers(batches) == wanted


@pytest.mark.parametrize("library", ["openmp", "opencv"])
def test_a_fork_after_threads_of_others(library: str, tries: Count) -> None:
    if library == "opencv":
        cv2 = pytest.importorskip("cv2", reason="OpenCV is not installed")
        cv2.GaussianBlur(np.zeros((500, 500, 3), np.uint8), (5, 5), 0)
    else:
        torch.mm(torch.ones(300, 300), torch.ones(300, 300)).sum()
    for number in range(tries(2, 50)):
        kind = list(LOADERS)[1 + number % 4]
        in_child(partial(_assert_right, kind))


def _assert_right(kind: str) -> None:
    assert numbers(penstock.DataLoader(Squares(), 4, **LOADERS[kind])) == WANTED


@pytest.mark.parametrize("method", ["process", "thread", None])
def test_nested_loaders(method: Any, tries: Count) -> None:
    for _ in range(tries(1, 10)):
        loader = penstock.DataLoader(Nested(), 4, num_workers=2 if method else 0, worker_method=method)
        assert numbers(loader) == WANTED


def test_a_loader_in_a_pool(tries: Count) -> None:
    """A loader that has run, used in the workers of multiprocessing's pool."""
    loader = penstock.DataLoader(Squares(), 4, num_workers=1, worker_method="thread")
    assert numbers(loader) == WANTED
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for found in pool.map(_numbers_of, [Squares()] * tries(2, 50)):
            assert found == WANTED


def _numbers_of(dataset: Any) -> list[int]:
    return numbers(penstock.DataLoader(dataset, 4, num_workers=1, worker_method="thread"))


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_other_start_methods(context: Any, tries: Count) -> None:
    for _ in range(tries(1, 8)):
        loader = penstock.DataLoader(
            Squares(), 4, num_workers=2, worker_method="process", multiprocessing_context=context
        )
        assert numbers(loader) == WANTED
