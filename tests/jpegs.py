"""JPEG files of every sampling, made by Pillow of generated pictures."""

from __future__ import annotations

import io
import random
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

Pixels = npt.NDArray[np.uint8]
Box = tuple[int, int, int, int]

#: Photos beside the project, where there are any.
PHOTOS = Path(__file__).resolve().parents[2] / "shared" / "data" / "photos"

SAMPLINGS = ("4:4:4", "4:2:2", "4:2:0", "4:4:0", "grey", "rgb")
#: How many blocks of luma lie in an MCU of each, across and down.
FACTORS = {"4:4:4": (1, 1), "4:2:2": (2, 1), "4:2:0": (2, 2), "4:4:0": (1, 2), "grey": (1, 1)}


def picture(width: int, height: int, seed: int = 0) -> Pixels:
    """Smooth waves, hard edges and noise: uint8 of shape (height, width, 3)."""
    y, x = np.mgrid[0:height, 0:width]
    noise = np.random.default_rng(seed).normal(0, 12, (height, width))
    red = 128 + 90 * np.sin(x / 7 + y / 11 + seed)
    green = 128 + 80 * np.cos(y / 5 - x / 9) + noise
    blue = np.where((x // 6 + y // 5) % 2 == 0, 230, 20) + noise / 2
    return np.stack([red, green, blue], axis=-1).clip(0, 255).astype(np.uint8)


def save(image: Image.Image, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    return file.getvalue()


def frame(data: bytes) -> int:
    """The position of the SOF segment's marker."""
    return next(i for i in (data.find(b"\xff\xc0"), data.find(b"\xff\xc2")) if i >= 0)


def patched(data: bytes, changes: dict[int, int]) -> bytes:
    """`data` with bytes replaced, at offsets from the SOF marker."""
    out, at = bytearray(data), frame(data)
    for offset, value in changes.items():
        out[at + offset] = value
    return bytes(out)


def encode(width: int, height: int, sampling: str, seed: int = 0, quality: int = 88, **options: object) -> bytes:
    if sampling == "grey":
        return save(Image.fromarray(picture(width, height, seed)).convert("L"), quality=quality, **options)
    if sampling == "rgb":
        return save(Image.fromarray(picture(width, height, seed)), quality=quality, keep_rgb=True, **options)
    if sampling == "4:4:0":
        # Pillow cannot write it. 4:2:2 of the transposed size holds the same number of blocks in the same order of
        # components, so that swapping sides and factors in the frame gives a sound file (of a scrambled picture).
        data = encode(height, width, "4:2:2", seed, quality, **options)
        sides = data[frame(data) + 5 : frame(data) + 9]
        return patched(data, {5: sides[2], 6: sides[3], 7: sides[0], 8: sides[1], 11: 0x12})
    return save(Image.fromarray(picture(width, height, seed)), quality=quality, subsampling=sampling, **options)


def extreme() -> bytes:
    """A file whose coefficients no encoder writes: all steps of quantisation are the largest."""
    data = encode(64, 64, "4:2:0")
    table = data.index(b"\xff\xdb") + 5
    return data[:table] + b"\xff" * 64 + data[table + 64 :]


def damaged(data: bytes, rng: random.Random) -> bytes:
    """`data` with one damage: bits turned, bytes that are missing, put in, written over or there twice."""
    out = bytearray(data)
    at = rng.randrange(len(out))
    kind = rng.randrange(8)
    if kind == 0:
        for _ in range(rng.randint(1, 3)):
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del out[at : rng.choice((None, -2))]  # with and without the end of the image
    elif kind == 2:
        out[at:at] = rng.randbytes(rng.randint(1, 4))
    elif kind == 3:
        del out[at : at + rng.randint(1, 8)]
    elif kind == 4:
        for _ in range(rng.randint(1, 4)):
            out[rng.randrange(min(len(out), 700))] = rng.randrange(256)  # the header
    elif kind == 5:
        out[at:at] = b"\xff\xd9"
    elif kind == 6:
        out[at:at] = rng.choice((b"\xff\xd0", b"\xff", b"\x00\x00"))
    else:
        out[at:at] = out[rng.randrange(len(out)) :][: rng.randint(1, 200)]
    return bytes(out)


def pillow(data: bytes) -> Pixels:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def random_boxes(width: int, height: int, rng: random.Random, count: int) -> Iterator[Box]:
    for _ in range(count):
        x0, y0 = rng.randrange(width), rng.randrange(height)
        yield x0, y0, rng.randint(x0 + 1, width), rng.randint(y0 + 1, height)


def photos(step: int) -> Iterator[tuple[bytes, Image.Image]]:
    """Yield the content of some of the photos, and each opened."""
    files = sorted(path for path in PHOTOS.rglob("*") if path.is_file())[::step]
    assert files
    for path in files:
        with Image.open(path) as image:
            yield path.read_bytes(), image
