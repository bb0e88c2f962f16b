"""Datasets of a user's own, in a module that the nodes of a cluster can import."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from tests.cluster.conftest import wait_until
from tests.data import Made


class Signals(Made):
    """A dataset of a user's own: samples of several fields, draws from the global generators, some bad ones."""

    def __init__(self, size: int, bad: tuple[int, ...] = ()) -> None:
        self.size, self.bad = size, bad

    def __getitem__(self, index: int) -> Any:
        if index in self.bad:
            raise KeyError(f"signal {index} is off")
        info = get_worker_info()
        assert info is not None and info.num_workers == 2
        noise = torch.rand(3) + random.random() + float(np.random.rand())
        return {"x": torch.full((3, 4), float(index)), "noise": noise, "name": f"n{index}", "label": index % 3}


def ending_at_5(index: int) -> int:
    if index == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return index


class Slow(Made):
    """Samples of bytes, one of which waits, where a packer reads it, until the test lets it go on."""

    def __init__(self, gate: Path) -> None:
        self.gate, self.owner, self.size = gate, os.getpid(), 40

    def __getitem__(self, index: int) -> bytes:
        if index == 30 and os.getpid() != self.owner and not self.gate.exists():
            (self.gate.parent / "waits").write_text(str(os.getpid()))
            wait_until(self.gate.exists)
        return b"%d" % index * 100


def as_is(sample: bytes) -> bytes:
    return sample


class Waiting(Made):
    def __init__(self, told: Path) -> None:
        self.told, self.owner, self.size = told, os.getpid(), 80

    def __getitem__(self, index: int) -> bytes:
        if index == 41 and os.getpid() != self.owner:
            self.told.touch()
            signal.pause()
        return b"%d" % index * 100


def row(index: int) -> torch.Tensor:
    return torch.full((75_000,), float(index))


#: More samples than a test lasts.
ENDLESS, ROWS = Made(size=1 << 40), Made(row, size=1 << 40)
