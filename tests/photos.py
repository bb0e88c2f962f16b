"""Pictures of many sizes and forms in files, and torchvision's datasets of pictures in memory: shared by many tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from PIL import Image


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
    if name.startswith("CIFAR"):
        view = draw.integers(0, 256, (samples, 3, 32, 32), dtype=np.uint8).transpose(0, 2, 3, 1)
        dataset.data, dataset.targets = view if planar else np.ascontiguousarray(view), targets.tolist()
    else:
        dataset.data = torch.from_numpy(draw.integers(0, 256, (samples, 28, 28), dtype=np.uint8))
        dataset.targets = torch.from_numpy(targets)
    return dataset


def grey_files(root: Path, count: int, side: int = 9) -> Path:
    """Write PNG files of one class that are full of their number, and return their root."""
    (root / "class").mkdir(parents=True, exist_ok=True)
    for number in range(count):
        Image.new("RGB", (side, side), (number, number, number)).save(root / "class" / f"{number:02}.png")
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


#: How photo_files saves a picture: the suffix, the mode, and Pillow's options.
FORMS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "jpg": (".jpg", "RGB", {"quality": 90}),
    "4:4:4": (".jpg", "RGB", {"quality": 90, "subsampling": 0}),
    "upper case": (".JPEG", "RGB", {"quality": 75}),
    "grey": (".jpg", "L", {}),
    "CMYK": (".jpg", "CMYK", {}),
    "progressive": (".jpg", "RGB", {"progressive": True}),
    "png": (".png", "RGB", {}),
}


def photo_files(root: Path, count: int, sides: tuple[int, int] = (40, 90), forms: Sequence[str] = ("jpg",)) -> Path:
    """Save smooth pictures in folders of three classes, in each of these forms in turn, and return their root."""
    for (path, image), form in zip(smooth_photos(root, count, sides), itertools.cycle(forms), strict=False):
        suffix, mode, options = FORMS[form]
        image.convert(mode).save(f"{path}{suffix}", **options)
    return root
