"""Files that Python is about to read are brought into the page cache ahead of it, where storage is read from."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.storage import advice
from penstock.storage.advice import FileAdvice
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
    paths, reads = files(tmp_path, 40), iter([0, 0, 10, 10, 10])
    before = len(os.listdir("/proc/self/fd"))
    given = FileAdvice(lambda indices: (paths[index] for index in indices), lambda: next(reads))
    for _ in range(2):
        given.expect(range(len(paths)))
    assert not advised and not threads()
    given.expect(range(len(paths)))
    wait_until(lambda: len(advised) == 40)
    assert set(advised) == {(0, 0, os.POSIX_FADV_WILLNEED)}
    given.expect(range(len(paths)))  # nothing was read from storage since
    given.close()
    wait_until(lambda: not threads())
    assert len(advised) == 40 and len(os.listdir("/proc/self/fd")) == before
