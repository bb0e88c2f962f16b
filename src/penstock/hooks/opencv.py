"""cv2.imread and cv2.imdecode of JPEG files, answered by the native core.

An answer has the elements, shape, strides and flags of OpenCV's array, in numpy's memory. What OpenCV makes of
the orientation in a file's metadata is seen in a tiny image that it decodes with the same metadata; its own functions
turn the image. Refused is what OpenCV decodes as fast (progressive files, reduced sizes), and all that it treats in
another way: other formats, CMYK, and damaged files, of which it warns.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import PurePath
from typing import Any

import numpy as np

from penstock import _native
from penstock.hooks.loads import Refused
from penstock.recipe.installed import jpeg_files, turn_of
from penstock.recipe.patches import original_of

# OpenCV's flags.
_UNCHANGED, _GREY, _COLOUR, _ANY_COLOUR, _AS_STORED, _RGB = -1, 0, 1, 4, 128, 256
_REDUCED = 16 | 32 | 64
_loader = _native.OpenCvLoader(partial(np.empty, dtype=np.uint8), Refused)


def _decode(data: Any, flags: int) -> Any:
    """Return what OpenCV's own imdecode returns."""
    found = sys.modules["cv2"].imdecode
    return (original_of(found) or found)(data, flags)


def read_file(filename: Any, flags: Any = _COLOUR) -> Any:
    """Return what cv2.imread returns for the same arguments, or Refused."""
    path = str(filename) if isinstance(filename, PurePath) else filename
    if type(path) is not str:
        return Refused(f"it reads from a {type(filename).__qualname__}")
    return _image(partial(_loader.path, path), flags)


def decode_bytes(buf: Any, flags: Any) -> Any:
    """Return what cv2.imdecode returns for the same arguments, or Refused."""
    if type(buf) is not np.ndarray or buf.dtype != np.uint8 or buf.ndim != 1 or not buf.flags.c_contiguous:
        return Refused("its buffer is not an array of one dimension of bytes")
    return _image(partial(_loader.bytes, buf), flags)


def _image(read: Callable[[int, bool], Any], flags: Any) -> Any:
    if type(flags) is not int:
        return Refused("its flags= are not an int")
    if not decoded_alike():
        return Refused("this OpenCV decodes JPEG in another way")
    return _read(read, flags)


def _read(read: Callable[[int, bool], Any], flags: int) -> Any:
    if flags == _UNCHANGED:
        found = read(0, False)  # the channels of the file
        return found if type(found) is Refused else found[0]
    taken = 7 | _AS_STORED | (_RGB if hasattr(sys.modules["cv2"], "IMREAD_COLOR_RGB") else 0)
    if flags < 0 or flags & ~taken or flags & 7 == 7 or flags & (_COLOUR | _RGB) == _COLOUR | _RGB:
        return Refused("a reduced size" if flags & _REDUCED else f"its flags= are {flags}")
    channels = 3 if flags & (_COLOUR | _RGB) else 0 if flags & _ANY_COLOUR else 1
    found = read(channels, bool(flags & _RGB))
    if type(found) is Refused:
        return found
    image, metadata = found
    return image if flags & _AS_STORED or not metadata else _turned(image, metadata)


# --- how OpenCV turns an image ----------------------------------------------------------------------------------------


def _turned(image: Any, metadata: bytes) -> Any:
    """Return an image as OpenCV turns it by the application segments of its file, or Refused."""
    turn = turn_of(metadata, lambda file: _decode(np.frombuffer(file, np.uint8), _GREY), _turns())
    return Refused("metadata that OpenCV does not read") if turn is None else turn(image)


@cache
def _turns() -> tuple[Callable[[Any], Any], ...]:
    """Return OpenCV's ways to turn an image."""
    cv2: Any = sys.modules["cv2"]
    flips: tuple[Callable[[Any], Any], ...] = (
        lambda image: image,
        *(partial(cv2.flip, flipCode=code) for code in (1, 0, -1)),
    )
    return (*flips, *(lambda image, flip=flip: flip(cv2.transpose(image)) for flip in flips))


@cache
def decoded_alike() -> bool:
    """Return whether small images of all kinds that the native core takes have the pixels that OpenCV gives them.

    Found out once in a process, in some milliseconds. False too where OpenCV takes no pathlib.Path, or its user has set
    limits of sizes.
    """
    try:
        sys.modules["cv2"].haveImageReader(PurePath(os.devnull))
        limited = any(name.startswith("OPENCV_IO_MAX_IMAGE") for name in os.environ)
        files = [np.frombuffer(data, np.uint8) for data in jpeg_files()]
        kinds = (_UNCHANGED, _GREY, _COLOUR, _ANY_COLOUR, _RGB)
        return not limited and all(_alike(data, flags) for data in files for flags in kinds)
    except Exception:  # of an OpenCV that lacks something
        return False


def _alike(data: Any, flags: int) -> bool:
    found, wanted = _read(partial(_loader.bytes, data), flags), _decode(data, flags)
    return type(found) is Refused or (
        np.array_equal(found, wanted) and (found.dtype, found.strides) == (wanted.dtype, wanted.strides)
    )
