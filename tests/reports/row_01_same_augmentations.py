"""Reports: albumentations-team/AlbumentationsX#266, pytorch/pytorch#5059, xingyizhou/CenterNet#233.

A dataset keeps a random generator (NumPy's, Python's, or the pair of an Albumentations pipeline): all worker processes
repeat its draws, and so does each epoch.

The generators that a copy of the dataset keeps get states of their own in each worker and each pass; no `seed=` is
needed. The first worker of the first pass has them as they were, so that a seeded dataset has the same draws in each
run.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from tests.reports.report import Found


class Augmented(Dataset[Any]):
    """Each sample is the draws that would place its crop and its flip."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.rng, self.python = np.random.default_rng(0), random.Random(0)

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        return self.rng.integers(1 << 40), self.python.getrandbits(40)


def trouble(loader: Any, *, short: bool) -> Found:
    workers, epochs, per_worker = 4, 2 if short else 5, 8
    batches = loader(Augmented(workers * per_worker), batch_size=1, num_workers=workers)
    draws = [(int(crop), int(flip)) for _ in range(epochs) for crop, flip in batches]
    return Found(len(draws) - len(set(draws)), len(draws), "samples with the augmentation of an earlier one")
