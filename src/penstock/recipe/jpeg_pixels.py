"""Whether the installed Pillow and the native core decode JPEG to the same pixels.

Each has a libjpeg of its own. Another release or build may round otherwise; and some releases of libjpeg-turbo go
wrong where rows are skipped or columns left out, as the native core does.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from PIL import Image

import penstock._native as _native

#: Sides of the images, in pixels: not whole numbers of blocks, and rows enough that most of them can be skipped.
_WIDTH, _HEIGHT = 51, 73
#: Boxes (x0, y0, x1, y1): all; columns that begin and end beside the edges of blocks of 8 and 16; and deep rows, from
#: rows on that need the rows above them for interpolation.
_BOXES = (
    (0, 0, _WIDTH, _HEIGHT),
    (15, 17, 33, 48),
    (16, 47, 48, 49),
    (_WIDTH - 3, _HEIGHT - 2, _WIDTH, _HEIGHT),
)


@cache
def decoded_alike() -> bool:
    """Return whether small images of all kinds that the native core takes have the pixels that Pillow gives them.

    Found out once in a process, in some milliseconds. False too where Pillow cannot write or read JPEG.
    """
    try:
        return all(_alike(data) for data in _images())
    except Exception:  # of a Pillow without JPEG
        return False


def _alike(data: bytes) -> bool:
    # Without convert("RGB"), which may leave an image encoded where this has been found out.
    pixels = np.asarray(Image.open(io.BytesIO(data)))
    expected = pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, axis=2)
    for x0, y0, x1, y1 in _BOXES:
        box = (x0, y0, min(x1, expected.shape[1]), min(y1, expected.shape[0]))
        if box[0] >= box[2] or box[1] >= box[3]:
            continue
        found = _native.decode_jpeg(data, box)
        if isinstance(found, str) or not np.array_equal(found, expected[box[1] : box[3], box[0] : box[2]]):
            return False
    return True


def _images() -> Iterator[bytes]:
    """Yield JPEG files: each sampling of the chroma, grey, progressive, with restart markers, out of range."""
    y, x = np.mgrid[:_HEIGHT, :_WIDTH].astype(np.uint32)
    waves = np.stack([(x * x + 3 * y) >> 2, (x * 5 ^ y * 3), (x * y) >> 4], axis=2)
    noise = (x * 2654435761 + y * 2246822519) >> 13  # of a hash: hard edges everywhere
    colours = Image.fromarray(((waves + (noise[..., None] & 63)) & 255).astype(np.uint8))
    for subsampling in (0, 1, 2):  # 4:4:4, 4:2:2, 4:2:0
        yield _encoded(colours, subsampling=subsampling, quality=90)
    # Coefficients that no encoder writes: quantisation by 255. libjpeg's code with and without vectors differs there.
    yield re.sub(rb"(\xff\xdb\0\x43.).{64}", rb"\1" + b"\xff" * 64, _encoded(colours, quality=98), flags=re.DOTALL)
    yield _encoded(colours, subsampling=2, quality=60, progressive=True)
    yield _encoded(colours, subsampling=2, quality=30, restart_marker_rows=1)
    yield _encoded(colours.convert("L"), quality=80)
    yield _turned(_encoded(colours, subsampling=1, quality=90))


def _encoded(image: Image.Image, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    return file.getvalue()


def _turned(data: bytes) -> bytes:
    """Return a file of sampling 4:2:2 as one of 4:4:0, which Pillow does not write.

    Both have as many blocks, in the same order, where width and height are exchanged; what they show does not matter.
    """
    frame = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
    height, width, components = data[frame + 5 : frame + 7], data[frame + 7 : frame + 9], data[frame + 10 :]
    assert components[1] == 0x21, "two blocks side by side"
    turned = components[:1] + b"\x12" + components[2:]
    return data[: frame + 5] + width + height + data[frame + 9 : frame + 10] + turned
