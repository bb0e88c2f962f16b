"""Reports: pytorch/pytorch#973, pytorch/pytorch#41465, pytorch/pytorch#11201.

A loop that keeps its batches (for a validation at the end) runs out of file descriptors: "received 0 items of ancdata",
"Too many open files".

Small tensors come by value, and batches that are kept hold no descriptors: a loop keeps as many as memory holds.
"""

from __future__ import annotations

import resource
from typing import Any

import numpy as np

from tests.data import Made
from tests.reports.report import Found, found_in_child


def row(index: int) -> dict[str, Any]:
    return {"number": np.full((50, 2), index), "row": index}


def kept(loader: Any) -> Found:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    try:
        batches = list(loader(Made(row, 4_000), batch_size=4, num_workers=2))
        return Found(1_000 - len(batches), 1_000, "batches that are lost")
    except RuntimeError:
        return Found(1_000, 1_000, "batches that are lost")


def trouble(loader: Any, *, short: bool) -> Found:
    return found_in_child(lambda: kept(loader), 60.0, "runs that hang")
