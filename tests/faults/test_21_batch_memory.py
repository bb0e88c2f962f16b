"""Row 21: the memory of batches: random datasets, options and loops (tests/differential) that keep, change, share, send
and fork batches, and pin them by a stand-in.

No difference from torch's loader, no batch that changes after it was handed out, no more memory than is stated: for
worker processes a block for each batch in flight and six more; for threads the blocks lent and in flight, and two more.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import penstock
from tests import python_processes
from tests.data import Made
from tests.differential.making import case_of

MINUTES = 5
LIGHT = 100_000


HOW = {
    (True, "of all kinds"): [f"--minutes={MINUTES}", "--seed=21000000", "--jobs=2"],
    (True, "light"): ["--light", f"--cases={LIGHT}", "--seed=22000000", "--jobs=2"],
    (False, "of all kinds"): ["--cases=10", "--jobs=1", "--quick"],
    (False, "light"): ["--light", "--cases=100", "--jobs=1"],
}


@pytest.mark.timeout(6000)
@pytest.mark.parametrize("kind", ["of all kinds", "light"])
def test_random_cases(kind: str, full: bool, cases: Callable[[int], None]) -> None:
    ended = python_processes.run_main("tests.differential.__main__", *HOW[full, kind])
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = re.search(r"^([\d,]+) cases", ended.stdout, re.MULTILINE)
    assert found is not None, ended.stdout
    cases(int(found[1].replace(",", "")))


def test_what_the_cases_are() -> None:
    drawn = [case_of(seed) for seed in range(2000)]
    loops = Counter(case.loop for case in drawn)
    assert loops["fork"] > 20 and loops["hold"] > 200 and loops["reset"] > 20 and loops["to_process"] > 20, loops
    assert sum(case.pins for case in drawn) > 100 and sum("Keeping()" in str(case) for case in drawn) > 10


SAMPLES, BATCH, WIDTH, WORKERS, AHEAD = 400, 4, 5000, 2, 2
BYTES = BATCH * WIDTH * 4
KEPT = 6  # blocks without a batch, at the most


def large(index: int) -> torch.Tensor:
    return torch.full((WIDTH,), float(index))


def kept_right(loader: Any, kept: int, check: Callable[[], None]) -> None:
    """Go through two passes and keep the last batches, which are right when they are let go."""
    held: deque[tuple[int, torch.Tensor]] = deque()
    for number, batch in enumerate(itertools.chain(loader, loader)):
        held.append((number % (SAMPLES // BATCH), batch))
        del batch
        while len(held) > kept:
            first, old = held.popleft()
            assert old[:, -1].tolist() == [float(BATCH * first + i) for i in range(BATCH)]
            del old
        check()


@pytest.mark.parametrize("kept", [0, 1, 5, 1000])
def test_memory_of_worker_processes(kept: int) -> None:
    def blocks() -> dict[int, int]:
        files = [Path(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
        shared = [file.stat() for file in files if file.is_symlink() and "penstock-batch" in os.readlink(file)]
        return {file.st_ino: file.st_size for file in shared}

    before = blocks()

    def check() -> None:
        # A block is larger than its batch; a batch that came before any block has a file of its own.
        sizes = [size for number, size in blocks().items() if number not in before and size > BYTES]
        assert len(sizes) <= WORKERS * AHEAD + KEPT and max(sizes, default=0) <= BYTES * 9 / 8, sizes

    kept_right(
        penstock.DataLoader(Made(large, SAMPLES), BATCH, num_workers=WORKERS, prefetch_factor=AHEAD), kept, check
    )


@pytest.mark.parametrize("kept", [0, 1, 5, 1000])
def test_memory_of_threads(kept: int) -> None:
    loader = penstock.DataLoader(
        Made(large, SAMPLES), BATCH, num_workers=WORKERS, prefetch_factor=AHEAD, worker_method="thread"
    )
    most = WORKERS * AHEAD + 2

    def check() -> None:
        stats = loader.stats()
        assert stats.buffers_lent <= min(kept, 2 * SAMPLES // BATCH) + most and stats.buffers_free <= most, stats

    kept_right(loader, kept, check)
