"""What is done to images while they are packed: made smaller, or decoded; and what that costs and saves."""

from __future__ import annotations

import io
import os
import re
from dataclasses import dataclass

import numpy as np
from PIL import Image

from penstock.errors import InvalidOption
from penstock.packing.contents import Contents, Encoded, npy_bytes
from penstock.sources.reading import read_image
from penstock.system.words import size_of

#: The quality of new JPEGs where none is given.
QUALITY = 90

#: How many samples are measured before packing begins, evenly spread.
MEASURED = 32
_SHAPE = re.compile(rb"'shape': \((\d+), (\d+)")


@dataclass(frozen=True)
class Encoding:
    """How each image is packed.

    Raises InvalidOption for values out of range.
    """

    max_side: int | None = None
    """The most pixels of the longer side of a JPEG; one that has more is resized by Lanczos' filter, and encoded."""
    quality: int = QUALITY
    decoded: bool = False
    """Images become arrays of uint8 in mode RGB, height x width x 3."""

    def __post_init__(self) -> None:
        if self.max_side is not None and self.max_side < 1:
            raise InvalidOption(f"max_side must be at least 1 pixel, not {self.max_side}")
        if not 1 <= self.quality <= 100:
            raise InvalidOption(f"quality must be from 1 to 100, as Pillow's quality of JPEG files, not {self.quality}")

    @property
    def changes(self) -> bool:
        return self.max_side is not None or self.decoded

    def encoded(self, contents: Contents, index: int) -> Encoded:
        """Return the files of a sample as they are packed. Raises SampleError: CorruptSample for an undecodable one."""
        files, name = contents.read(index), os.fsdecode(contents.ids[index])
        if not self.changes:
            return files
        (suffix, data), *_ = files
        if self.max_side is not None and data.startswith(b"\xff\xd8\xff") and max(image_size(data)) > self.max_side:
            data = self._smaller(data, name)
        if not self.decoded:
            return ((suffix, data),)
        return ((".npy", npy_bytes(np.asarray(read_image(io.BytesIO(data), name)))),)

    def _smaller(self, data: bytes, name: str) -> bytes:
        """Return a JPEG, resized and encoded anew. Raises CorruptSample."""
        image, file = _opened(data, name), io.BytesIO()
        scale = (self.max_side or 0) / max(image.size)
        width, height = (max(1, round(extent * scale)) for extent in image.size)
        kept = {key: image.info[key] for key in ("exif", "icc_profile") if image.info.get(key)}
        image.resize((width, height), Image.Resampling.LANCZOS).save(file, "JPEG", quality=self.quality, **kept)
        return file.getvalue()


def _opened(data: bytes, name: str) -> Image.Image:
    with Image.open(io.BytesIO(data)) as image:
        try:
            image.load()
        except Exception:
            read_image(io.BytesIO(data), name)  # raises the error that names the sample
            raise
        return image


@dataclass(frozen=True)
class Measured:
    """What an encoding costs and saves, measured on some samples."""

    samples: int
    of: int
    bytes: tuple[int, int]
    """Of these samples, before and after."""

    @property
    def share(self) -> float:
        """How many bytes are packed for each byte before."""
        return self.bytes[1] / max(1, self.bytes[0])

    def __str__(self) -> str:
        before, after = (size_of(round(each / self.samples)) for each in self.bytes)
        return f"measured on {self.samples:,} of {self.of:,} samples: {before} become {after} ({self.share:.0%})"


def measure(contents: Contents, encoding: Encoding) -> Measured:
    """Encode some samples, evenly spread, and return what came of it. Raises SampleError."""
    chosen = sorted({index * contents.size // MEASURED for index in range(MEASURED)})
    before = after = 0
    for index in chosen:
        before += sum(len(data) for _, data in contents.read(index)) if contents.first.kind != "files" else 0
        after += sum(len(data) for _, data in encoding.encoded(contents, index))
    return Measured(len(chosen), contents.size, (before, after))


def image_size(data: bytes) -> tuple[int, int]:
    """Return the (width, height) of an encoded image or an .npy file of one, (0, 0) where they are not known."""
    if data.startswith(b"\x93NUMPY"):
        found = _SHAPE.search(data[:256])
        return (int(found[2]), int(found[1])) if found is not None else (0, 0)
    try:
        with Image.open(io.BytesIO(data)) as image:
            return image.size
    except Exception:  # what Pillow does not know is packed as it is
        return 0, 0
