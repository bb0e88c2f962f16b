"""Tests that need a CUDA device. Each is skipped, and says so, where there is none."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.waiting import wait_until

HERE = Path(__file__).parent


def _has_cuda() -> bool:
    with warnings.catch_warnings():  # torch warns of a driver that does not answer
        warnings.simplefilter("ignore")
        return torch.cuda.is_available()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marks = [
        # Libraries of CUDA warn of what depends on the machine; errors that nobody caught stay errors.
        pytest.mark.filterwarnings(
            "default",
            "error::pytest.PytestUnraisableExceptionWarning",
            "error::pytest.PytestUnhandledThreadExceptionWarning",
        ),
        pytest.mark.timeout(300),
    ]
    if not _has_cuda():
        marks.append(pytest.mark.skip(reason="no CUDA device"))
    for item in items:
        if HERE in item.path.parents:
            for mark in marks:
                item.add_marker(mark)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    gc.collect()
    wait_until(lambda: all(thread.name != "penstock-feed" for thread in threading.enumerate()))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
