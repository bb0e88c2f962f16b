"""Reports: pytorch/pytorch#8805, pytorch/pytorch#5736, pytorch/pytorch#26072.

The program is killed: worker processes stay, with their memory.

Worker processes end after their present sample when their parent is gone: docs/reliability.md, row 13.
"""

from __future__ import annotations

import os
import signal
import time
from itertools import islice
from pathlib import Path
from typing import Any

from tests.data import Made
from tests.reports.report import Found
from tests.reports.row_12_lists_of_dicts import children


def row(index: int) -> int:
    time.sleep(1e-5)
    return index


def trouble(loader: Any, *, short: bool) -> Found:
    receiving, sending = os.pipe()
    pid = os.fork()
    if pid == 0:
        batches = iter(loader(Made(row, 100_000), batch_size=4, num_workers=2, prefetch_factor=50))
        list(islice(batches, 3))
        os.write(sending, " ".join(map(str, children())).encode())
        time.sleep(60)
        os._exit(0)
    workers = [int(one) for one in os.read(receiving, 1_000).split()]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and any(map(is_alive, workers)):
        time.sleep(0.05)
    left = sum(map(is_alive, workers))
    for worker in filter(is_alive, workers):
        os.kill(worker, signal.SIGKILL)
    return Found(left, 2, "worker processes that live 5 s after their program was killed")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
