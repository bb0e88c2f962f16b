"""Row 18: thousands of small epochs, early breaks, errors and new loaders, for 10 minutes.

The slopes of memory, descriptors, threads, memory maps and shared memory are zero (Theil-Sen): over the run below
4 MiB, and one of the others.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import theilslopes

import penstock
from tests.resources import collect
from tests.sample_datasets import tensor_files

#: What a quantity may grow by over all of a run.
BOUNDS = {"memory": 4 << 20, "descriptors": 1, "threads": 1, "maps": 4, "shared": 1}


class Failing(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        if index == 33:
            raise ValueError("a sample that fails")
        return torch.full((50,), index)


def measured() -> dict[str, int]:
    collect()
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return {
        "memory": next(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_Dirty")),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "maps": len(Path("/proc/self/maps").read_text().splitlines()),
        "shared": len(os.listdir("/dev/shm")),
    }


def passes(root: Path) -> Iterator[Callable[[], None]]:
    """Yield what is done: whole passes, passes that are left, passes that fail, in every kind of worker."""
    folder = penstock.TensorFolder(root)
    kept = [
        penstock.DataLoader(folder, 8, shuffle=True, num_workers=2),
        penstock.DataLoader(Failing(), 8, num_workers=2, worker_method="thread", persistent_workers=True),
    ]
    hows: list[dict[str, Any]] = [
        {"num_workers": 0},
        {"num_workers": 2},
        {"num_workers": 2, "worker_method": "thread"},
        {"num_workers": 1, "worker_method": "process"},
    ]

    def whole(loader: Any) -> None:
        for _ in loader:
            pass

    def left(loader: Any) -> None:
        next(iter(loader))

    def failing(loader: Any) -> None:
        with pytest.raises(ValueError, match="a sample that fails"):
            for _ in loader:
                pass

    def act_on(act: Callable[[Any], None], dataset: Any, how: dict[str, Any]) -> None:
        act(penstock.DataLoader(dataset, 8, **how))

    while True:
        for how in hows:
            for act, dataset in ((whole, folder), (left, folder), (failing, Failing()), (left, Failing())):
                yield partial(act_on, act, dataset, how)
        yield lambda: whole(kept[0])
        yield lambda: failing(kept[1])


@pytest.mark.timeout(1200)
def test_nothing_grows(tmp_path: Path, full: bool, cases: Callable[[int], None]) -> None:
    seconds = 600 if full else 20
    work = passes(tensor_files(tmp_path, 40))
    begun, done, samples = time.monotonic(), 0, []
    gc.collect()
    while (now := time.monotonic() - begun) < seconds:
        for _ in range(18):
            next(work)()
            done += 1
        if now > seconds / 4:  # what is made once is made by then
            samples.append((now, measured()))
    cases(done)
    times = [at for at, _ in samples]
    for name, bound in BOUNDS.items():
        slope = theilslopes([one[name] for _, one in samples], times).slope
        assert slope * (times[-1] - times[0]) < bound, (name, [one[name] for _, one in samples])
