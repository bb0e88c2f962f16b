"""PIL images whose pixels are not decoded until something looks at them.

An encoded image is a PIL image in all its attributes but one: the memory of its pixels, which Pillow keeps in the
attribute `_im` (`im` before Pillow 11), is decoded when that attribute is first read, from the bytes that the file held
when Pillow would have decoded it: natively where the mode is RGB, else by Pillow. The native core decodes the part that
transforms need straight from these bytes.

A file is left encoded only where Pillow is sure to decode it without an error (`_native.certify_jpeg`).
"""

from __future__ import annotations

import functools
import io
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image, ImageFile, JpegImagePlugin

import penstock._native as _native
from penstock.recipe.installed import decoded_alike
from penstock.recipe.originals import replaced_in_opening

#: The attribute that holds the memory of an image's pixels.
PIXELS = "_im" if "_im" in vars(Image.Image()) else "im"
#: The attribute that holds the Encoded of an image.
_ENCODED = "_penstock_encoded"


class _Content(io.BytesIO):
    """The bytes of a file that Pillow decodes now: leave_encoded() leaves files of another class than Python's own."""


@dataclass(slots=True, eq=False)
class Encoded:
    """The bytes of a JPEG file, of which an image is made that somebody looks at: "RGB" or "L", (width, height)."""

    data: bytes
    mode: str
    size: tuple[int, int]
    views: int = 0
    """How many times the native core has decoded a part of the file, or the image was converted."""

    def decode(self) -> Any:
        """Return the memory of the pixels, as Pillow decodes them."""
        if (natively := self._decoded_natively()) is not None:
            return natively
        image = JpegImagePlugin.JpegImageFile(_Content(self.data))
        image.load()
        core = getattr(image, PIXELS)
        return core if image.mode == self.mode else core.convert(self.mode, Image.Dither.FLOYDSTEINBERG)

    def _decoded_natively(self) -> Any:
        """Return the memory of the pixels as the native core decodes them; None: Pillow must."""
        if self.mode != "RGB" or replaced_in_opening() is not None:
            return None
        width, height = self.size
        out = torch.empty((height, width, 3), dtype=torch.uint8, device="cpu")
        if isinstance(_native.transform_jpeg(whole_image(), self.data, [], out), str):
            return None
        return getattr(Image.frombytes("RGB", self.size, out.numpy()), PIXELS)


@functools.cache
def whole_image() -> _native.Recipe:
    """Return the recipe of the pixels of an RGB image themselves."""
    return _native.Recipe(3, [], "uint8", "hwc", None, [])


class _Pixels:
    """Reads the memory of an encoded image's pixels. An image that has it in its own attributes never comes here."""

    def __get__(self, image: Any, kind: type) -> Any:
        attributes = {} if image is None else vars(image)
        encoded = attributes.get(_ENCODED)
        if encoded is None:
            if PIXELS in attributes:  # another thread has just decoded it
                return attributes[PIXELS]
            raise AttributeError(f"{kind.__name__!r} object has no attribute {PIXELS!r}")
        core = attributes.setdefault(PIXELS, encoded.decode())
        attributes.pop(_ENCODED, None)
        return core


def encoded_of(image: Any) -> Encoded | None:
    """Return what an image is decoded from when something looks at it; None: its pixels are there, or in its file."""
    attributes = vars(image)
    return None if PIXELS in attributes else attributes.get(_ENCODED)


def is_encoded(image: Any) -> bool:
    """Return whether a value is a PIL image that no one has decoded yet, by itself or in a JPEG file."""
    if not isinstance(image, Image.Image):
        return False
    attributes = vars(image)
    if PIXELS not in attributes:
        return _ENCODED in attributes
    return type(image) is JpegImagePlugin.JpegImageFile and attributes[PIXELS] is None


def view_of(image: Any) -> bytes | None:
    """Return the bytes that the native core decodes a part of an image from; None: the image has to be decoded.

    An image that was decoded in part before is decoded as a whole: there may be more parts to come. After such images
    the next ones are decoded as a whole at once.
    """
    leave_encoded(image)
    encoded = encoded_of(image)
    if encoded is None or image.mode != "RGB":
        return None
    encoded.views += 1
    if encoded.views > 1:
        _Repeated.images = min(_Repeated.images + 8, 64)
        return None
    _Repeated.images = max(_Repeated.images - 1, 0)
    return encoded.data if _Repeated.images < 8 else None


class _Repeated:
    images = 0
    """How many images to decode as a whole, after some that were looked at more than once."""


def leave_encoded(image: Any) -> str | None:
    """Do to a JPEG file that Pillow has opened what its load() does, but decode no pixels.

    The bytes of the file are read, and the file is closed or positioned as load() leaves it. Returns None; or why
    nothing was done.
    """
    if type(image) is not JpegImagePlugin.JpegImageFile:
        return "the file is not a JPEG"
    if vars(image).get(PIXELS, image) is not None:
        return "the image was loaded before"
    found, file = _read(image), image.fp
    if isinstance(found, str) or file is None:
        return found if isinstance(found, str) else "the file is closed"
    data, end = found
    if image._exclusive_fp and image._close_exclusive_fp_after_loading:
        file.close()
    else:
        block = image.decodermaxblock
        file.seek(min(len(data), -(-end // block) * block))
    image.map = None
    image.tile = []
    image.readonly = 0
    image.fp = None
    _set(image, Encoded(data if end == len(data) else data[:end], image.mode, image.size))
    return None


def converted_to_rgb(image: Any) -> Image.Image | None:
    """Return what convert("RGB") returns for an encoded image; None: it is not encoded, or another mode.

    An image that is converted a second time is kept by somebody, and decoded for good.
    """
    encoded = encoded_of(image)
    if encoded is None or encoded.views or image.mode not in ("RGB", "L") or "transparency" in image.info:
        return None
    encoded.views += 1
    converted = Image.Image()
    converted._mode, converted._size = "RGB", image.size
    converted.info = getattr(image, "_copy_info", image.info.copy)()
    _set(converted, Encoded(encoded.data, "RGB", encoded.size))
    return converted


def _read(image: Any) -> tuple[bytes, int] | str:
    """Return the bytes of an opened JPEG file and where its image ends in them; or why Pillow must load it."""
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        return "ImageFile.LOAD_TRUNCATED_IMAGES is on"
    if image.mode not in ("RGB", "L"):
        return f"the image is of mode {image.mode}"
    whole = ("jpeg", (0, 0, *image.size), 0, (image.mode, ""))
    if image.decoderconfig or [tuple(tile) for tile in image.tile] != [whole]:
        return "draft() was called"
    raw = image.fp.raw if type(image.fp) is io.BufferedReader else None
    if type(image.fp) is not io.BytesIO and type(raw) is not io.FileIO:
        return f"it reads from a {type(image.fp).__qualname__}"
    if not decoded_alike():
        return "this Pillow decodes JPEG files differently"
    replaced = replaced_in_opening()
    if replaced is not None:
        return f"{replaced.what} was replaced"
    try:
        position = image.fp.tell()
        image.fp.seek(0)
        data = image.fp.read()
        certified = _native.certify_jpeg(data)
        components = 3 if image.mode == "RGB" else 1
        if not isinstance(certified, str) and certified[:3] == (*image.size, components):
            return data, certified[3]
        image.fp.seek(position)
    except (OSError, ValueError, MemoryError):  # Pillow, which begins at the start of the file, raises its own error
        return "the file cannot be read"
    return certified if isinstance(certified, str) else "the file was changed"


def _set(image: Any, encoded: Encoded) -> None:
    """Have an image decoded when its pixels are first read.

    Pillow's class keeps the descriptor for the life of the process: an encoded image may outlive every lease (a batch
    that a program keeps, a queue to another thread), and to know when the last one is gone each would have to be
    counted under a lock. It shows nowhere: an attribute of an image's own comes before it, and without one it raises
    the AttributeError that Python would.
    """
    if PIXELS not in vars(Image.Image):
        setattr(Image.Image, PIXELS, _Pixels())
    attributes = vars(image)
    attributes[_ENCODED] = encoded
    del attributes[PIXELS]
