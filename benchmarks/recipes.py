"""What training scripts add to an image folder with crop and flip: a collate_fn, a worker_init_fn, MixUp, an index.

Each row stands beside Penstock without the addition, in the same run. Worker processes are kept between epochs.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from benchmarks import photos
from benchmarks.contestants import Make, epochs_of, penstock_persistent, torch_loader
from benchmarks.question import Contestant, Question, Role, Setup, Table, Target

CLASSES = 100
#: Of what Penstock does without the addition, at least.
WITHIN = 0.9


def seeded(worker: int) -> None:
    """The worker_init_fn of PyTorch's notes on reproducibility."""
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)


def handed_on(batch: Any) -> Any:
    return default_collate(batch)


def stacked(batch: Any) -> Any:
    return torch.stack([image for image, _ in batch]), torch.tensor([label for _, label in batch])


def mixed() -> Callable[[Any], Any]:
    """The collate_fn of torchvision's documentation of MixUp and CutMix."""
    from torchvision.transforms import v2

    either = v2.RandomChoice([v2.MixUp(num_classes=CLASSES), v2.CutMix(num_classes=CLASSES)])

    def collate_fn(batch: Any) -> Any:
        return either(*default_collate(batch))

    return collate_fn


ADDED: dict[str, Callable[[], dict[str, Any]]] = {
    "collate_fn": lambda: {"collate_fn": handed_on},
    "stack": lambda: {"collate_fn": stacked},
    "worker_init_fn": lambda: {"worker_init_fn": seeded},
    "mixup": lambda: {"collate_fn": mixed()},
    "index": dict,
}


def plain(setup: Setup) -> Any:
    """torchvision's ImageFolder: RandomResizedCrop(224), flip, normalised float32."""
    return photos.image_folder(setup.data)


def dataset(setup: Setup) -> Any:
    """The dataset of the table: the same, or a subclass that adds the index."""
    if setup.variant != "index":
        return plain(setup)
    from torchvision.datasets import ImageFolder

    class Indexed(ImageFolder):
        def __getitem__(self, index: int) -> Any:
            return (*super().__getitem__(index), index)

    return Indexed(setup.data, photos.recipe("float32"))


def with_added(make: Make) -> Make:
    """Return the loader of `make` with what the table adds."""
    return lambda setup, given, **options: make(setup, given, **ADDED[setup.variant](), **options)


TORCH = Contestant(
    "torch", Role.TORCH, epochs_of(with_added(torch_loader), dataset), "torch.utils.data.DataLoader, with the addition."
)
OURS = Contestant(
    "penstock",
    Role.PENSTOCK,
    epochs_of(with_added(penstock_persistent), dataset),
    "penstock.DataLoader with the same parameters.",
)
WITHOUT = Contestant(
    "penstock without",
    Role.ASIDE,
    epochs_of(penstock_persistent, plain),
    "penstock.DataLoader of the ImageFolder itself, without the addition: aside, for it does less.",
)


def table(name: str, title: str, *targets: Target) -> Table:
    return Table(name, f"{title}, batch 64, shuffled, 2 workers", (TORCH, OURS, WITHOUT), targets)


TABLES = (
    table("collate_fn", "a collate_fn that calls default_collate", Target("penstock", WITHIN, "penstock without")),
    table("stack", "a collate_fn that stacks by itself", Target("penstock", WITHIN, "penstock without")),
    table("worker_init_fn", "a worker_init_fn that seeds", Target("penstock", WITHIN, "penstock without")),
    table("mixup", "MixUp or CutMix in collate_fn", Target("penstock", 2.5, "torch")),
    table("index", "a subclass that adds the index", Target("penstock", 2, "torch")),
)


QUESTION = Question("recipes", "What training scripts add to an image folder", TABLES, photos.prepare)
