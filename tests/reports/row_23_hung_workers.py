"""Reports: pytorch/pytorch#21554, pytorch/pytorch#43502, pytorch/pytorch#1355.

A worker hangs in a sample: `timeout=` raises an error that names neither the sample nor the line, and leaves processes.

The error names worker, sample and function, with its stack; the next pass works, and no process is left.
"""

from __future__ import annotations

import time
from typing import Any

from torch.utils.data import Dataset

from tests.reports.report import Found


class Hanging(Dataset[Any]):
    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        if index == 13:
            self.wait_for_a_server()
        return index

    def wait_for_a_server(self) -> None:
        time.sleep(3600)


def trouble(loader: Any, *, short: bool) -> Found:
    try:
        for _ in loader(Hanging(), batch_size=4, num_workers=2, timeout=2):
            pass
        text = ""
    except RuntimeError as error:
        text = str(error)
    named = "13" in text and "wait_for_a_server" in text
    return Found(int(not named), 1, "errors that do not name the sample and the line")


def answered(found: Found) -> bool:
    return found.bad == 0
