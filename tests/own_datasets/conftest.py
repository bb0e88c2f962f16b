"""Files that several families read."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data import smooth_photos

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # else its import looks for a newer release in the network


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the paths of 12 JPEG files: colour, grey, CMYK, progressive, and with an EXIF orientation."""
    paths = []
    for i, (path, image) in enumerate(smooth_photos(tmp_path_factory.mktemp("photos"), 12, (40, 72))):
        file = path.with_suffix(".jpg")
        exif = Image.Exif()
        exif[0x0112] = 1 + i % 8
        kept = image.convert({3: "L", 7: "CMYK"}.get(i, "RGB"))
        kept.save(file, quality=90, progressive=i == 5, subsampling=i % 3, exif=exif)
        paths.append(file)
    return sorted(paths)


@pytest.fixture(scope="session")
def masks(photos: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the paths of PNG files with 4 classes, one for each photo and of its size."""
    folder = tmp_path_factory.mktemp("masks")
    draw = np.random.default_rng(1)
    paths = []
    for i, photo in enumerate(photos):
        with Image.open(photo) as image:
            width, height = image.size
        Image.fromarray(draw.integers(0, 4, (height, width), dtype=np.uint8)).save(folder / f"{i:02}.png")
        paths.append(folder / f"{i:02}.png")
    return paths


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of 12 samples: N.pt (a tensor), N.dict.pt, N.npy and N.npz."""
    folder = tmp_path_factory.mktemp("saved")
    draw = torch.Generator().manual_seed(2)
    for i in range(12):
        x = torch.randn(3, 6, 5, generator=draw)
        torch.save(x, folder / f"{i}.pt")
        torch.save({"x": x, "y": i, "name": f"n{i}", "views": [x[:2], x[..., ::2]]}, folder / f"{i}.dict.pt")
        np.save(folder / f"{i}.npy", x.numpy())
        np.savez(folder / f"{i}.npz", x=x.numpy(), y=np.int64(i))
    return folder
