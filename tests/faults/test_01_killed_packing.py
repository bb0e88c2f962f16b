"""Row 1: `kill -9` while packing, at random times, and at every write, rename and fsync in turn.

The same call continues and writes the same bytes; a reader finds the whole dataset or none; no temporary file stays.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import penstock
from tests.data import write_photos
from tests.faults import injection
from tests.faults.conftest import Count
from tests.packing.packed import contents

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def pack(root: Path, out: Path, workers: int = 2) -> None:
    penstock.pack(penstock.ImageFolder(root), out, shard_size=20_000, workers=workers)


def assert_whole_or_none(out: Path, reference: dict[str, bytes]) -> None:
    """Assert that what has its final name is whole, and that a reader finds all of the dataset or nothing."""
    held = contents(out) if out.exists() else {}
    final = {name: data for name, data in held.items() if ".packing" not in name}
    assert all(reference[name] == data for name, data in final.items()), "a final name with other bytes"
    if "dataset.json" in final:
        assert len(penstock.Shards(out, verify=True)) > 0
    else:
        with pytest.raises(FileNotFoundError):
            penstock.Shards(out)


@pytest.mark.timeout(900)
def test_at_any_moment(tmp_path: Path, tries: Count) -> None:
    root = write_photos(tmp_path / "photos", count=100)
    context = multiprocessing.get_context("fork")
    began = time.monotonic()
    pack(root, tmp_path / "whole")
    lasted = time.monotonic() - began
    reference = contents(tmp_path / "whole")
    random = np.random.default_rng(os.getpid())
    wanted, kills, number = tries(10, 200), 0, 0
    while kills < wanted:
        out, killed = tmp_path / f"out{number}", 0
        number += 1
        while True:
            child = context.Process(target=pack, args=(root, out))
            child.start()
            child.join(lasted * random.uniform(0, 1) if killed < 6 else None)
            if child.is_alive() and child.pid is not None:
                os.kill(child.pid, signal.SIGKILL)
                killed += 1
            child.join()
            assert_whole_or_none(out, reference)
            if child.exitcode == 0:
                break
        assert contents(out) == reference
        kills += killed


@pytest.mark.parametrize("call", ["write", "rename", "fsync"])
@pytest.mark.timeout(900)
def test_at_each_call(call: str, tmp_path: Path, full: bool, cases: Callable[[int], None]) -> None:
    root = write_photos(tmp_path / "photos", count=8)
    pack(root, tmp_path / "whole", 1)
    reference, out = contents(tmp_path / "whole"), tmp_path / "out"
    kills = 0
    kill, step = f"{call}:signal=SIGKILL", (lambda number: number + 1 if full else number + 1 + number // 2)
    for _ in injection.each_fault(lambda: pack(root, out, 1), kill, -signal.SIGKILL, step=step):
        assert_whole_or_none(out, reference)
        pack(root, out, 1)
        assert contents(out) == reference
        for file in out.iterdir():
            file.unlink()
        kills += 1
    assert contents(out) == reference and kills > 2
    cases(kills)
