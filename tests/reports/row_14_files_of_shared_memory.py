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

from tests.data import Made
from tests.reports.report import Found


@cache
def is_child(pid: int) -> bool:
    """Return whether a process is a worker of this program: the files of other programs are left to them."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == os.getpid()
    except OSError:
        return False


def trouble(loader: Any, *, short: bool) -> Found:
    done, passes, failed = threading.Event(), 2 if short else 20, 0
    rows = Made(lambda index: torch.full((64,), index), 2_000)

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
                assert sum(len(batch) for batch in loader(rows, batch_size=4, num_workers=2, timeout=60)) == 2_000
            except RuntimeError:
                failed += 1
    finally:
        done.set()
        cleaner.join()
    return Found(failed, passes, "passes that fail while files of /dev/shm are removed")
