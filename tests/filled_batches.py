"""Image folders, collate functions and the comparison with torch's loader that tests of filled batches share."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from torch.utils.data import default_collate
from torchvision import transforms as v1

import penstock
from tests.same import assert_same

EVAL = v1.Compose([v1.Resize(24), v1.CenterCrop(20), v1.ToTensor(), v1.Normalize([0.5] * 3, [0.25] * 3)])
TRAIN = v1.Compose([v1.RandomResizedCrop(20), v1.RandomHorizontalFlip(), v1.PILToTensor()])
#: Whose tensors have the channels last in memory.
LAST = v1.Compose([v1.Resize(24), v1.CenterCrop(20), v1.PILToTensor()])
FILLED = "native   each batch in one piece"
METHODS = pytest.mark.parametrize(
    ("workers", "method"), [(0, None), (2, None), (2, "thread")], ids=["0", "2", "threads"]
)


def images(folder: Path, transform: Any = EVAL, **named: Any) -> Any:
    return torchvision.datasets.ImageFolder(str(folder), transform, **named)


def batches(kind: Any, dataset: Any, **named: Any) -> list[Any]:
    """Return all batches of a loader, after the same global seeds."""
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    return list(kind(dataset, batch_size=8, shuffle=True, **named))


def check(dataset: Any, *, filled: bool = True, workers: int = 2, method: Any = None, **named: Any) -> list[Any]:
    """Compare a loader with torch's, and return its batches."""
    loader = penstock.DataLoader(dataset, batch_size=8, num_workers=workers, worker_method=method, **named)
    assert (FILLED in loader.explain()) is filled, loader.explain()
    ours = batches(penstock.DataLoader, dataset, num_workers=workers, worker_method=method, **named)
    theirs = batches(torch.utils.data.DataLoader, dataset, num_workers=workers, **named)
    assert_same(ours, theirs)
    assert len(ours) > 2
    return ours


def handed_on(batch: Any) -> Any:
    return default_collate(batch)


def stacked(batch: Any) -> Any:
    return torch.stack([image for image, _ in batch]), torch.tensor([label for _, label in batch])


def listed(batch: Any) -> Any:
    return tuple(zip(*batch, strict=True))


def reseeded(worker: int) -> None:
    """The worker_init_fn of PyTorch's notes on reproducibility."""
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)
