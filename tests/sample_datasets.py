"""Datasets that Python reads, iterable datasets, and files for what is read natively: shared by many tests."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset, get_worker_info


class Made(Dataset[Any]):
    """Samples that a function makes of their index."""

    def __init__(self, make: Callable[[int], Any] = int, size: int = 23) -> None:
        self.make = make
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        if not -self.size <= index < self.size:
            raise IndexError(index)
        return self.make(index)


class Whole(Made):
    """Samples that are fetched a batch at a time."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Numbers(Made):
    """Sample i is the number i; bad ones raise an error."""

    def __init__(
        self, bad: Collection[int] = (), size: int = 23, error: Callable[[str], Exception] = ValueError
    ) -> None:
        super().__init__(self.number, size)
        self.bad = bad
        self.error = error

    def number(self, index: int) -> int:
        if index in self.bad:
            raise self.error(f"number {index} is bad")
        return index


class Drawing(Made):
    """Each sample holds its number, and a draw from each of the global generators."""

    def __init__(self, size: int = 23) -> None:
        super().__init__(self.draw, size)

    def draw(self, index: int) -> Any:
        return index, random.random(), float(np.random.rand()), torch.rand(2)


class Stream(IterableDataset[Any]):
    """Samples 0 to size - 1 in order, each in one of the workers, or (not shared) in every worker."""

    def __init__(self, size: int = 23, make: Callable[[int], Any] = int, *, shared: bool = True) -> None:
        self.size = size
        self.make = make
        self.shared = shared

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info() if self.shared else None
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return map(self.make, range(first, self.size, step))


def rows(size: int = 53) -> Any:
    """Return numbers in memory, which are read natively."""
    return TensorDataset(torch.arange(size))


def in_memory(name: str, transform: Any, samples: int = 50, *, planar: bool = True) -> Any:
    """Return a torchvision dataset of noise, of exactly the class of this name, without its files.

    CIFAR holds a view of its files' planes; a program may put an array of its own there (planar=False).
    """
    draw = np.random.default_rng(4)
    kind = getattr(torchvision.datasets, name)
    dataset = kind.__new__(kind)
    torchvision.datasets.VisionDataset.__init__(dataset, "nowhere", transform=transform)
    dataset.train = True
    targets = draw.integers(0, 10, samples)
    if name in ("SVHN", "STL10"):  # which hold columns, but for the split "train+unlabeled" of STL10
        side = 32 if name == "SVHN" else 96
        columns = draw.integers(0, 256, (samples, 3, side, side), dtype=np.uint8).transpose(0, 1, 3, 2)
        dataset.data, dataset.labels = columns if planar else np.ascontiguousarray(columns), targets.astype(np.int64)
    elif name.startswith("CIFAR"):
        view = draw.integers(0, 256, (samples, 3, 32, 32), dtype=np.uint8).transpose(0, 2, 3, 1)
        dataset.data, dataset.targets = view if planar else np.ascontiguousarray(view), targets.tolist()
    else:
        dataset.data = torch.from_numpy(draw.integers(0, 256, (samples, 28, 28), dtype=np.uint8))
        dataset.targets = torch.from_numpy(targets)
    return dataset


def tensor_files(root: Path, count: int, shape: tuple[int, ...] = (3,), name: str = "{:02}") -> Path:
    """Write tensors that are full of their number, one a file, and return their folder."""
    root.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        torch.save(torch.full(shape, float(number)), root / f"{name.format(number)}.pt")
    return root


def noise_image(seed: int, height: int, width: int) -> Image.Image:
    """Return a picture in which no two pixels are alike."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def smooth_photos(root: Path, count: int, sides: tuple[int, int]) -> Iterator[tuple[Path, Image.Image]]:
    """Yield smooth pictures of random sizes and where to save them (without a suffix): folders of three classes."""
    draw = np.random.default_rng(0)
    for number in range(count):
        folder = root / f"class{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        height, width = (int(side) for side in draw.integers(*sides, 2))
        coarse = Image.fromarray(draw.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        yield folder / str(number), coarse.resize((width, height))
