"""Reports: RolnickLab/ami-data-companion#140, KatherLab/MediSwarm#574, mlcommons/storage#528, pytorch/pytorch#73644.

Somebody removes files in /dev/shm (a session that ends, another job's cleaning): a worker cannot unlink the file of a
batch, and the run ends, or waits for hours.

Batches lie in memory without a name in any file system: there is nothing to remove.
"""

from __future__ import annotations

import contextlib
import os
import threading
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from tests.reports.report import Found


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return 2_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((64,), index)


@cache
def is_child(pid: int) -> bool:
    """Return whether a process is a worker of this program: the files of other programs are left to them."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == os.getpid()
    except OSError:
        return False


def trouble(loader: Any, *, short: bool) -> Found:
    done, passes, failed = threading.Event(), 2 if short else 20, 0

    def clean() -> None:
        while not done.is_set():
            for name in os.listdir("/dev/shm"):
                if name.startswith("torch_") and is_child(int(name.split("_")[1])):
                    with contextlib.suppress(OSError):
                        os.unlink(f"/dev/shm/{name}")

    cleaner = threading.Thread(target=clean)
    cleaner.start()
    try:
        for _ in range(passes):
            try:
                assert sum(len(batch) for batch in loader(Rows(), batch_size=4, num_workers=2, timeout=60)) == 2_000
            except RuntimeError:
                failed += 1
    finally:
        done.set()
        cleaner.join()
    return Found(failed, passes, "passes that fail while files of /dev/shm are removed")


def answered(found: Found) -> bool:
    return found.bad == 0
