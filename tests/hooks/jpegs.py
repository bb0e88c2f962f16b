"""Small JPEG files of each kind, and what a call on them gives or raises."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image

from tests.in_workers import within
from tests.same import assert_same


def picture(width: int = 90, height: int = 70, seed: int = 0) -> Image.Image:
    y, x = np.mgrid[:height, :width]
    noise = np.random.default_rng(seed).normal(0, 9, (height, width, 3))
    waves = np.stack([x * 2 + y, 128 + 100 * np.sin(x / 9), (x // 7 + y // 5) % 2 * 200], axis=2)
    return Image.fromarray((waves + noise).clip(0, 255).astype(np.uint8))


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def jpeg(image: Image.Image | None = None, **options: Any) -> bytes:
    return encoded(image or picture(), "JPEG", **{"quality": 85, **options})


def with_exif() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation
    return jpeg(exif=exif, dpi=(72, 72), comment=b"a comment", icc_profile=b"a profile")


PLAIN = {
    "colours": jpeg(), "4:4:4": jpeg(subsampling=0), "4:2:2": jpeg(subsampling=1), "grey": jpeg(picture().convert("L")),
    "restart markers": jpeg(restart_marker_blocks=3), "exif": with_exif(),
    "trailing bytes": jpeg() + b"behind the image" * 9000, "one pixel": jpeg(picture(1, 1)),
}  # fmt: skip
OTHERS = {
    "progressive": jpeg(progressive=True), "cmyk": jpeg(picture().convert("CMYK")), "png": encoded(picture(), "PNG"),
    "no end": jpeg()[:-2], "cut": jpeg()[:-400], "header": jpeg()[:300], "nothing": b"",
}  # fmt: skip
FILES = PLAIN | OTHERS


def outcome(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a call gives or raises, and what torch's generator gives after it."""
    torch.manual_seed(3)
    try:
        value = call(*arguments)
    except Exception as error:
        return type(error), str(error)
    return value, torch.rand(1).item()


def assert_as_pillow(call: Callable[..., Any], *arguments: Any) -> None:
    """Assert that a call gives, raises and draws in our workers what it does outside of them."""
    assert_same(within(outcome, call, *arguments), outcome(call, *arguments))
