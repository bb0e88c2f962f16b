"""Parts of JPEG files, decoded natively in each way, against Pillow's pixels."""

from __future__ import annotations

import numpy as np

from penstock._native import decode_jpeg
from tests.jpegs import Box, Pixels, pillow
from tests.native_testing import JpegRowStates, decode_jpeg_by, jpeg_decoders

#: The decoder of loaders, and each set of instructions of the native core's own decoder.
OWN = tuple(name for name in jpeg_decoders() if name != "libjpeg")
DECODERS = ("product", *OWN)


def decoded(name: str, data: bytes, box: Box | None = None, states: JpegRowStates | None = None) -> Pixels:
    pixels = decode_jpeg(data, box) if name == "product" else decode_jpeg_by(data, name, box, states)
    assert not isinstance(pixels, str), pixels
    return pixels


def check(data: bytes, boxes: list[Box], names: tuple[str, ...] = DECODERS) -> None:
    """Compare the boxes of a file with Pillow's pixels, by each of these decoders."""
    whole = pillow(data)
    for name in names:
        states = JpegRowStates()
        for number, box in enumerate(boxes):
            x0, y0, x1, y1 = box
            found = decoded(name, data, box, states if number % 2 else None)
            assert np.array_equal(found, whole[y0:y1, x0:x1]), (name, box)
