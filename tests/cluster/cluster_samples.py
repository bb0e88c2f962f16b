"""Datasets of a user's own, in a module that the nodes of a cluster can import."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from tests.cluster.conftest import wait_until


class Signals(Dataset[Any]):
    """A dataset of a user's own: samples of several fields, draws from the global generators, some bad ones."""

    def __init__(self, size: int, bad: tuple[int, ...] = ()) -> None:
        self.size, self.bad = size, bad

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        if index in self.bad:
            raise KeyError(f"signal {index} is off")
        info = get_worker_info()
        assert info is not None
        assert info.num_workers == 2
        noise = torch.rand(3) + random.random() + float(np.random.rand())
        return {"x": torch.full((3, 4), float(index)), "noise": noise, "name": f"n{index}", "label": index % 3}


class Ending(Dataset[int]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return index


class Slow(Dataset[bytes]):
    """Samples of bytes, one of which waits, where a packer reads it, until the test lets it go on."""

    def __init__(self, gate: Path) -> None:
        self.gate, self.owner = gate, os.getpid()

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> bytes:
        if index == 30 and os.getpid() != self.owner and not self.gate.exists():
            (self.gate.parent / "waits").write_text(str(os.getpid()))
            wait_until(self.gate.exists)
        return b"%d" % index * 100


def as_is(sample: bytes) -> bytes:
    return sample


class Endless(Dataset[int]):
    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, index: int) -> int:
        return index


class Waiting(Dataset[bytes]):
    def __init__(self, told: Path) -> None:
        self.told, self.owner = told, os.getpid()

    def __len__(self) -> int:
        return 80

    def __getitem__(self, index: int) -> bytes:
        if index == 41 and os.getpid() != self.owner:
            self.told.touch()
            signal.pause()
        return b"%d" % index * 100


class Rows(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((75_000,), float(index))
