"""Reports: pytorch/pytorch#62066, pytorch/pytorch#5902.

Workers that persist keep the batches of an epoch: the memory of the program grows from epoch to epoch.

Batches are built in blocks of memory that are used again; their number is bounded (docs/workers.md): the memory of
program and workers together is the same after each epoch.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from tests.reports.report import Found
from tests.reports.row_12_lists_of_dicts import children, private_mb


class Images(Dataset[Any]):
    def __init__(self) -> None:
        self.data = np.random.default_rng(0).integers(0, 255, (64, 64, 64, 3), dtype=np.uint8)

    def __len__(self) -> int:
        return 640

    def __getitem__(self, index: int) -> Any:
        return self.data[index % 64].astype(np.float64) + 1.0


def trouble(loader: Any, *, short: bool) -> Found:
    batches: Any = loader(Images(), batch_size=160, num_workers=2, persistent_workers=True)
    before, sizes = children(), []
    for _ in range(3 if short else 9):
        for _batch in batches:
            pass
        workers = [pid for pid in children() if pid not in before]
        sizes.append(private_mb([os.getpid(), *workers]))
    grown = max(0, sizes[-1] - sizes[1])
    return Found(grown, sizes[-1], "MB that are added by epochs behind the second")


def answered(found: Found) -> bool:
    return found.bad < 64
