"""Reports: ultralytics/ultralytics#26085, pytorch/pytorch#130610.

The thread that pins batches of one loader is inside libc (it registers a destructor, or page-locks memory) at the
moment at which another loader forks its workers: they find the lock taken, and hang.

A fork waits until the thread that pins has left torch. The script makes the moment certain: its stand-in for pinning
holds a lock, as libc does, which each forked process takes first.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any
from unittest import mock

import torch

from tests.data import Made
from tests.reports.report import Found, found_in_child

LIBC = threading.Lock()
"""Stands for a lock of libc."""


def row(index: int, *, takes_lock: bool) -> torch.Tensor:
    if takes_lock:
        with LIBC:  # of the forked process, which has it as it was at the fork
            pass
    return torch.full((4,), index)


def pin_slowly(tensor: torch.Tensor, *given: Any) -> torch.Tensor:
    with LIBC:
        time.sleep(0.05)
    return tensor


def passes(loader: Any) -> Found:
    with (
        mock.patch("torch.accelerator.is_available", return_value=True),
        mock.patch("torch.accelerator.current_accelerator", return_value=torch.device("cuda")),
        mock.patch("torch.accelerator.current_device_index", return_value=0),
        mock.patch("torch.accelerator.set_device_index"),
        mock.patch.object(torch.Tensor, "pin_memory", pin_slowly),
    ):
        training = iter(loader(Made(partial(row, takes_lock=False), 64), batch_size=1, num_workers=1, pin_memory=True))
        next(training)
        other = loader(Made(partial(row, takes_lock=True), 64), batch_size=8, num_workers=2)
        seen = sum(len(batch) for batch in other)
        assert seen == 64
    return Found(0, 1, "passes that hang")


def trouble(loader: Any, *, short: bool) -> Found:
    tries = 2 if short else 10
    hung = sum(found_in_child(partial(passes, loader), 10.0, "passes that hang").bad for _ in range(tries))
    return Found(hung, tries, "passes that hang")
