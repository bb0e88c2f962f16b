"""Files that Python is about to read are brought into the page cache ahead of it, where storage is read from."""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.passes.job import Job
from penstock.storage import advice
from penstock.storage.advice import AdvisedBatches
from tests.data import photo_files
from tests.waiting import wait_until


@pytest.fixture
def advised(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Return what the kernel is advised of; looks at whether storage is read from come with each batch."""
    found: list[tuple[int, int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda descriptor, *given: found.append(given))
    monkeypatch.setattr(advice, "LOOK_SECONDS", 0.0)
    return found


def files(folder: Path, count: int) -> list[str | None]:
    for number in range(count):
        (folder / str(number)).write_bytes(b"x")
    return [*(str(folder / str(number)) for number in range(count)), str(folder / "missing"), None, "a\0b"]


def threads() -> int:
    return sum(thread.name.startswith("penstock-advice") for thread in threading.enumerate())


def test_the_files_of_coming_samples_where_storage_is_read_from(tmp_path: Path, advised: list[Any]) -> None:
    paths, reads = files(tmp_path, 40), iter([0, 0, 10, 10, 20, 20])
    before = len(os.listdir("/proc/self/fd"))
    batches: Any = [*[(range(len(paths)), None)] * 4, (7, None), ([1, 2], None)]
    given: Any = AdvisedBatches(iter(batches), lambda indices: (paths[index] for index in indices), lambda: next(reads))
    assert [next(given), next(given)] == batches[:2]
    assert not advised and not threads()
    assert next(given) == batches[2]
    wait_until(lambda: len(advised) == 40)
    assert set(advised) == {(0, 0, os.POSIX_FADV_WILLNEED)}
    assert next(given) == batches[3]  # nothing was read from storage since
    assert [*given] == batches[4:]
    wait_until(lambda: len(advised) == 41)
    del given
    wait_until(lambda: not threads())
    assert len(advised) == 41 and len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("options", [{}, {"worker_method": "thread"}], ids=["processes", "threads"])
def test_workers_have_their_files_read_ahead(
    tmp_path: Path, advised: list[Any], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = photo_files(tmp_path, 12, (24, 31))
    counts = itertools.count()
    monkeypatch.setattr(Job, "_bytes_read", lambda self: next(counts))
    dataset = penstock.ImageFolder(str(photos), np.asarray)
    loader = penstock.DataLoader(dataset, batch_size=2, num_workers=2, collate_fn=len, **options)
    assert list(loader) == [2] * (len(dataset) // 2)
    wait_until(lambda: len(advised) >= len(dataset) - 2)
    wait_until(lambda: not threads())
