"""Photos of all samplings, and loaders and indexes of decoder states over them."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

import penstock._native as _native
from penstock import ImageFolder
from tests.native_pool import SECONDS, pool_of, submit
from tests.native_testing import jpeg_decoders
from tests.recipe.against_torchvision import recipe_of

if "avx2" not in jpeg_decoders():
    pytest.skip("JPEG stays libjpeg's here, which knows no states", allow_module_level=True)

PHOTOS = 12
#: Below the first rows of MCUs, so that a decoder passes rows over.
MIDDLE = transforms.Compose([transforms.CenterCrop(60), transforms.PILToTensor()])
LOW = transforms.Compose([transforms.CenterCrop((150, 60)), transforms.PILToTensor()])
FORMS: tuple[dict[str, Any], ...] = (
    {"subsampling": 0},
    {"subsampling": 1},
    {"subsampling": 2},
    {"subsampling": 2, "restart_marker_blocks": 5},
    {"subsampling": 0, "optimize": True, "restart_marker_rows": 1},
    {"subsampling": 2, "progressive": True},
)


def photo(number: int, height: int = 240, width: int = 200) -> Image.Image:
    y, x = np.mgrid[0:height, 0:width]
    noise = np.random.default_rng(number).normal(0, 20, (height, width, 3))
    waves = np.stack([np.sin(x / 9 + number), np.cos(y / 7), np.sin((x + y) / 11)], -1)
    return Image.fromarray((128 + 90 * waves + noise).clip(0, 255).astype(np.uint8))


def encoded(number: int, **options: Any) -> bytes:
    file = io.BytesIO()
    photo(number).save(file, "JPEG", **{"quality": 90, **options})
    return file.getvalue()


def pictures(root: Path, photos: int = PHOTOS) -> Path:
    """Write a folder of JPEG files of all samplings, a grey one, and a PNG."""
    for number in range(photos):
        folder = root / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:02}.jpg").write_bytes(encoded(number, **FORMS[number % len(FORMS)]))
    photo(photos).convert("L").save(root / "class0" / "grey.jpg", quality=90)
    photo(photos + 1).save(root / "class1" / "other.png")
    return root


def torchs(dataset: Any) -> list[Any]:
    return list(torch.utils.data.DataLoader(dataset, batch_size=4))


def counts_of(loader: Any) -> Any:
    return loader.stats().jpeg_index


def only(folder: Path) -> Path:
    (found,) = folder.glob("*.states")
    return found


def scan_of(data: bytes) -> int:
    """Return where the entropy-coded data begin."""
    at = data.rindex(b"\xff\xda")
    return at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")


class Reader:
    """Reads photos by the native core alone, by an index in a file."""

    def __init__(self, tmp_path: Path, recipe: Any = MIDDLE, photos: int = 3, slot: int = 96) -> None:
        root = tmp_path / "some" / "class"
        root.mkdir(parents=True, exist_ok=True)
        for number in range(photos):
            (root / f"{number}.jpg").write_bytes(encoded(number, **FORMS[number]))
        self.photos, self.slot = photos, slot
        self.dataset = ImageFolder(tmp_path / "some", recipe)
        self.filler = _native.ImageFileFiller(self.dataset.paths, recipe_of(recipe).native, 0)
        self.wanted = [np.asarray(self.dataset[i][0]) for i in range(photos)]
        self.path = tmp_path / "states"

    def open(self, *, writable: bool = True) -> _native.JpegIndex:
        descriptor = os.open(self.path, (os.O_RDWR | os.O_CREAT) if writable else os.O_RDONLY)
        try:
            return _native.JpegIndex(descriptor, self.photos, self.slot, writable)
        finally:
            os.close(descriptor)

    def check(self, index: _native.JpegIndex) -> None:
        """Assert that all photos are Pillow's."""
        filler = self.filler.indexed(index)
        for number, wanted in enumerate(self.wanted):
            pool = pool_of(filler, threads=1)
            batch, (memory,) = submit(pool, [number], _native.Spec("uint8", list(wanted.shape)))
            assert pool.wait(batch, SECONDS) == "done"
            assert not pool.retire(batch)
            assert np.array_equal(memory.reshape(wanted.shape), wanted)
