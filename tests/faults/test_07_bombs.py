"""Row 7: a 60,000 x 60,000 PNG of a few KB, JPEGs and GIFs with false headers, records of 2^62 bytes.

Each is refused before memory is allocated for it, within a second and with less than 64 MB more memory.
"""

from __future__ import annotations

import io
import os
import resource
import struct
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torchvision import transforms

import penstock
from tests.data import write_tensors
from tests.forking import assert_in_child

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
LIMIT_SECONDS, LIMIT_BYTES = 1.0, 64 << 20


ERRORS = (penstock.PenstockError, OSError, RuntimeError, ValueError, Image.DecompressionBombError)


def refused(work: Callable[[], Any]) -> None:
    """Assert that some work raises an error in good time and little memory, in a child of its own."""

    def check() -> None:
        before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
        with pytest.raises(ERRORS) as raised:
            work()
        seconds = time.monotonic() - begun
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        assert not isinstance(raised.value, MemoryError)
        limit = LIMIT_SECONDS * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))  # of a machine of one's own
        assert seconds < limit and grown < LIMIT_BYTES, (seconds, grown)

    assert_in_child(check)


def big_png() -> bytes:
    """Return a grey PNG of 60,000 x 60,000 pixels whose data is a few KB."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(bytes(1 << 20), 9))
        + chunk(b"IEND", b"")
    )


def lying_jpeg(progressive: bool) -> bytes:
    """Return a JPEG whose header says 65,500 x 65,500 pixels, and whose data is that of 40 x 30."""
    file = io.BytesIO()
    Image.effect_noise((40, 30), 50).convert("RGB").save(file, "JPEG", progressive=progressive)
    data = bytearray(file.getvalue())
    at = next(data.index(mark) for mark in (b"\xff\xc0", b"\xff\xc2") if mark in data)
    data[at + 5 : at + 9] = struct.pack(">HH", 65_500, 65_500)
    return bytes(data)


def gif() -> bytes:
    file = io.BytesIO()
    Image.new("P", (8, 8)).save(file, "GIF")
    data = bytearray(file.getvalue())
    data[6:10] = struct.pack("<HH", 65_500, 65_500)
    return bytes(data)


IMAGES: dict[str, Callable[[], bytes]] = {
    "png": big_png,
    "jpeg": lambda: lying_jpeg(False),
    "progressive": lambda: lying_jpeg(True),
    "gif": gif,
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", IMAGES)
def test_images(kind: str, workers: int, tmp_path: Path) -> None:

    (tmp_path / "class").mkdir()
    (tmp_path / "class" / f"bomb.{'jpg' if 'j' in kind or 'pro' in kind else kind}").write_bytes(IMAGES[kind]())
    recipe = transforms.Compose([transforms.Resize(16), transforms.ToTensor()])
    dataset = torchvision.datasets.ImageFolder(tmp_path, recipe, is_valid_file=os.path.exists)
    refused(lambda: list(penstock.DataLoader(dataset, num_workers=workers)))


def record_of(shape: tuple[int, ...]) -> bytes:
    """Return a .npy file whose header asks for so many elements, with 64 bytes of them."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return file.getvalue() + bytes(64)


def pt_of(size: int) -> bytes:
    """Return a .pt file whose tensor says that it has `size` elements."""
    file = io.BytesIO()
    torch.save(torch.zeros(0x1234567), file)
    with zipfile.ZipFile(file) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in held.items():
            if name.endswith("data.pkl"):
                number = size.to_bytes((size.bit_length() + 8) // 8, "little")
                data = data.replace(b"J\x67\x45\x23\x01", b"\x8a" + bytes([len(number)]) + number)
            archive.writestr(name, data[:64] if name.endswith("data/0") else data)
    return made.getvalue()


TENSORS: dict[str, Callable[[], bytes]] = {
    "npy 2^62": lambda: record_of((1 << 60,)),
    "npy product": lambda: record_of((1 << 31, 1 << 31)),
    "npy 2^33": lambda: record_of((1 << 31,)),
    "pt 2^62": lambda: pt_of(1 << 60),
    "pt 2^33": lambda: pt_of(1 << 31),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", TENSORS)
def test_tensors(kind: str, workers: int, tmp_path: Path) -> None:
    suffix = f".{kind[:3].strip()}"
    (tmp_path / f"bomb{suffix}").write_bytes(TENSORS[kind]())
    dataset = penstock.TensorFolder(tmp_path, suffix=suffix)
    refused(lambda: list(penstock.DataLoader(dataset, num_workers=workers)))


@pytest.mark.parametrize("entry", ["length", "offset", "samples"])
def test_shards(entry: str, tmp_path: Path) -> None:
    penstock.pack(penstock.TensorFolder(write_tensors(tmp_path / "source", count=4)), tmp_path / "out")
    path = next((tmp_path / "out").glob("*.index.npy"))
    description = tmp_path / "out" / "dataset.json"
    if entry == "samples":
        description.write_text(description.read_text().replace('"samples": 4', f'"samples": {1 << 62}'))
    else:
        rows = np.load(path)
        rows["members"][entry][:] = 1 << 62
        np.save(path, rows)
    refused(lambda: list(penstock.DataLoader(penstock.Shards(tmp_path / "out"))))
