"""Reports: pytorch/pytorch#21554, pytorch/pytorch#43502, pytorch/pytorch#1355.

A worker hangs in a sample: `timeout=` raises an error that names neither the sample nor the line, and leaves processes.

The error names worker, sample and function, with its stack; the next pass works, and no process is left.
"""

from __future__ import annotations

import time
from typing import Any

from tests.data import Made
from tests.reports.report import Found


def hanging(index: int) -> int:
    if index == 13:
        wait_for_a_server()
    return index


def wait_for_a_server() -> None:
    time.sleep(3600)


def trouble(loader: Any, *, short: bool) -> Found:
    try:
        for _ in loader(Made(hanging, 100), batch_size=4, num_workers=2, timeout=2):
            pass
        text = ""
    except RuntimeError as error:
        text = str(error)
    named = "13" in text and "wait_for_a_server" in text
    return Found(int(not named), 1, "errors that do not name the sample and the line")
