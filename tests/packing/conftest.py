"""Shards that many tests read: of photos, and of the same photos decoded; who brings their bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from tests.data import write_photos
from tests.packing.packed import start_readers


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos") / "photos")


@pytest.fixture(scope="session")
def packed(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packed") / "out"
    penstock.pack(penstock.ImageFolder(photos), out, shard_size="8KiB")
    return out


@pytest.fixture(scope="session")
def decoded(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of decoded images of 14 sizes."""
    out = tmp_path_factory.mktemp("decoded") / "out"
    penstock.pack(penstock.ImageFolder(photos), out, shard_size="64KiB", decoded=True)
    return out


@pytest.fixture(params=["workers", "readers"])
def reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have workers read the shards, or readers from the start of each pass, though nothing blocks."""
    if request.param == "readers":
        start_readers(monkeypatch)
