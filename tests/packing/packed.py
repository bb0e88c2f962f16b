"""Datasets that the tests pack, and what is done to shards in them."""

from __future__ import annotations

import pkgutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import penstock


def interrupt_packing(dataset: Any, out: Any) -> None:
    """Pack in one thread, and interrupt it after 20 samples."""

    def stop(now: Any) -> None:
        if now.samples == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        penstock.pack(dataset, out, shard_size=6000, workers=1, on_progress=stop)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder and what they hold, hidden ones too."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def flip_bit(path: Path, at: int) -> None:
    """Change one bit of a file, in place."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 4]))


def plain(sample: Any) -> Any:
    """Return a sample in which images are arrays with their mode."""
    if isinstance(sample, Image.Image):
        return sample.mode, np.asarray(sample)
    return tuple(map(plain, sample)) if isinstance(sample, tuple) else sample


def offset_of(shards: penstock.Shards, position: int) -> tuple[Path, int]:
    """Return the shard of a sample, and where its file begins in it."""
    row = shards.index.rows([position])[0]
    return Path(shards.files.path(int(row["shard"]))), int(row["members"]["offset"][0])


def start_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have readers from the start of each pass, though nothing blocks."""
    name = "penstock._native.Pool"
    real = pkgutil.resolve_name(name)

    def pool(*arguments: Any) -> Any:
        made = real(*arguments)
        made.start_readers()
        return made

    monkeypatch.setattr(name, pool)
