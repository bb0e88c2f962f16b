"""Where Pillow and the native core decode JPEG to other pixels, JPEG is Pillow's."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torchvision
from PIL import Image, JpegImagePlugin
from torch.utils.data import DataLoader as TorchDataLoader
from torchvision import transforms as v1

import penstock
import penstock._native as _native
from penstock.recipe import installed
from tests.data import photo_files
from tests.same import assert_same

pytestmark = pytest.mark.native


@pytest.fixture(autouse=True)
def _looked_at_anew() -> Iterator[None]:
    installed.decoded_alike.cache_clear()
    yield
    installed.decoded_alike.cache_clear()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return photo_files(tmp_path, 4, (24, 31))


def loaders(folder: Path, kind: Any, assisted: bool) -> tuple[Any, Any]:
    more = [v1.Lambda(lambda image: image)] if assisted else []
    dataset = kind(str(folder), v1.Compose([v1.CenterCrop(12), *more, v1.ToTensor()]))
    return penstock.DataLoader(dataset, batch_size=2), TorchDataLoader(dataset, batch_size=2)


def test_another_libjpeg_is_noticed() -> None:
    """libjpeg-turbo can be told to leave its SIMD code alone: values out of range come out otherwise then."""
    assert installed.decoded_alike()
    script = "from penstock.recipe.installed import decoded_alike; assert not decoded_alike()"
    without = {**os.environ, "JSIMD_FORCENONE": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=without, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


class _OtherCore:
    """Pillow's C module, with a decoder of JPEG that gives other pixels."""

    def __init__(self, core: Any) -> None:
        self._core = core

    def __getattr__(self, name: str) -> Any:
        if name == "jpeg_decoder":
            # Red and blue change places.
            return lambda mode, raw, *more: self._core.jpeg_decoder(mode, "BGR" if raw == "RGB" else raw, *more)
        return getattr(self._core, name)


@pytest.mark.parametrize("kind", [penstock.ImageFolder, torchvision.datasets.ImageFolder])
@pytest.mark.parametrize("assisted", [False, True])
def test_a_pillow_that_decodes_otherwise(photos: Path, kind: Any, assisted: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(Image, "core", _OtherCore(vars(Image)["core"]))
    loader, torchs = loaders(photos, kind, assisted)
    assert_same(list(loader), list(torchs))
    assert "JPEG: decoded by Pillow: this Pillow's libjpeg gives other pixels" in loader.explain()
    assert "JPEG decoded (only the pixels used)" not in loader.explain()
    assert not installed.decoded_alike()


@pytest.mark.parametrize("fault", ["skipped rows", "left out columns", "all", "refuses"])
def test_a_native_core_with_a_faulty_libjpeg(photos: Path, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = _native.decode_jpeg

    def faulty(data: bytes, box: Any = None, max_pixels: int = 0) -> Any:
        found = original(data, box, max_pixels)
        if isinstance(found, str) or fault == "refuses":
            return "not today"
        x0, y0, _, _ = box
        if fault == "all" or (fault == "skipped rows" and y0 > 40) or (fault == "left out columns" and x0 > 0):
            found[0, 0, 1] ^= 1
        return found

    monkeypatch.setattr(_native, "decode_jpeg", faulty)
    loader, torchs = loaders(photos, penstock.ImageFolder, False)
    assert_same(list(loader), list(torchs))
    assert "gives other pixels" in loader.explain()


def test_a_pillow_without_jpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(Image.SAVE, "JPEG", raising=False)
    monkeypatch.setattr(Image, "_initialized", 2)
    assert not installed.decoded_alike()


def test_it_is_looked_at_once_and_only_for_image_files(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = mock.Mock(wraps=installed.jpeg_files)
    monkeypatch.setattr(installed, "jpeg_files", counted)
    list(penstock.DataLoader(penstock.Arrays(np.zeros((4, 2), dtype=np.float32)), batch_size=2))
    assert counted.call_count == 0
    loader, _ = loaders(photos, penstock.ImageFolder, False)
    for _ in range(3):
        list(loader)
    assert counted.call_count == 1
    assert "native" in loader.explain().split("\n")[0]


def test_the_images_are_of_all_kinds() -> None:
    kinds = set()
    for data in installed.jpeg_files():
        image = Image.open(io.BytesIO(data))
        assert isinstance(image, JpegImagePlugin.JpegImageFile)
        kinds.add((tuple(part[1:3] for part in image.layer), "progressive" in image.info))
        image.load()
    grey, full = ((1, 1),), ((1, 1), (1, 1), (1, 1))
    halves = {((2, 1), (1, 1), (1, 1)), ((1, 2), (1, 1), (1, 1)), ((2, 2), (1, 1), (1, 1))}
    assert {sampling for sampling, _ in kinds} == {grey, full, *halves}
    assert {progressive for _, progressive in kinds} == {False, True}
