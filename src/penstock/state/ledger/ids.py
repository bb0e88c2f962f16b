"""The IDs of a step as bytes."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import InvalidOption

#: The first field of the bytes.
COUNT = struct.Struct("<I")


def ids_bytes(names: Sequence[str | int] | NDArray[np.integer[Any]]) -> bytes:
    """Return the IDs of a step's samples, in their order, as bytes that no other sequence of IDs gives.

    An int is another ID than its digits as a str. Integers of any type and arrays of them are equal to ints.
    The format: uint32 count, then ``i`` and int64 each; or ``s`` and UTF-8 joined by NUL; or, where neither can hold
    them all, ``m`` and for each ``i`` or ``s``, uint32 length, and the digits or UTF-8.
    Raises InvalidOption for an ID that is neither str nor int.
    """
    head = COUNT.pack(len(names))
    if len(names) and isinstance(names[0], str):
        with contextlib.suppress(TypeError):  # not all are str
            text = "\0".join(names)  # type: ignore[arg-type]
            if text.count("\0") == len(names) - 1:
                return head + b"s" + text.encode("utf-8", "surrogatepass")
    elif (numbers := _int64(names)) is not None:
        return head + b"i" + numbers.tobytes()
    return head + b"m" + b"".join(map(_tagged, names))


def _int64(names: Any) -> NDArray[np.int64] | None:
    if not len(names):
        return np.empty(0, "<i8")
    try:
        array = np.asarray(names)
    except ValueError:  # of unequal shapes
        return None
    fits = array.dtype.kind in "iu" and array.ndim == 1 and (array.dtype != np.uint64 or int(array.max()) < 1 << 63)
    return array.astype("<i8", copy=False) if fits else None


def _tagged(name: object) -> bytes:
    if isinstance(name, str):
        kind, data = b"s", name.encode("utf-8", "surrogatepass")
    elif isinstance(name, int | np.integer):
        kind, data = b"i", str(int(name)).encode()
    else:
        raise InvalidOption(f"{name!r} is no ID of a sample: it is of type {type(name).__name__}; give str or int")
    return kind + COUNT.pack(len(data)) + data
