"""Folders that tests of readers read, and tables that make their files slow to open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import penstock._native as _native
from tests.data import save_pictures, tensor_files
from tests.native_testing import SlowTable

DELAY = 0.004


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, random = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for i in range(120):
        (root / f"{i % 3}").mkdir(exist_ok=True)
        kind = "png" if i % 10 == 5 else "jpg"  # which Pillow reads
        Image.fromarray(random.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(root / f"{i % 3}" / f"{i:03}.{kind}")
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_pictures(tmp_path_factory.mktemp("images"))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[SlowTable]:
    """Make files of loaders that begin from here on take DELAY to open; returns the tables."""
    tables = []

    def slowly(real: Callable[..., Any]) -> Callable[..., Any]:
        def make(table: Any, *rest: Any) -> Any:
            tables.append(SlowTable(table, DELAY))
            return real(tables[-1], *rest)

        return make

    for name in ("TensorFileFiller", "ImageFileFiller"):
        monkeypatch.setattr(_native, name, slowly(getattr(_native, name)))
    return tables


@pytest.fixture
def broken(tmp_path: Path) -> tuple[Path, list[str]]:
    """Return a folder of 100 tensors and their IDs; some are missing, broken, no file at all, or of another shape."""
    tensor_files(tmp_path, 100, (5,), "{:03}")
    (tmp_path / "050.pt").unlink()
    (tmp_path / "060.pt").write_bytes(b"no tensor")
    (tmp_path / "070.pt").write_bytes(b"")
    (tmp_path / "080.pt").unlink()
    (tmp_path / "080.pt").mkdir()
    torch.save(torch.zeros(6), tmp_path / "090.pt")
    whole = (tmp_path / "095.pt").read_bytes()
    (tmp_path / "095.pt").write_bytes(whole[: len(whole) // 2])
    return tmp_path, [f"{i:03}" for i in range(100)]
