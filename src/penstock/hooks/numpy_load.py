"""numpy.load of .npy files, answered by the native core.

An answer is what ``numpy.load`` would give: an array of numpy's own memory, with the same dtype, order, flags and base.
Refused are ``.npz`` archives (numpy reads their arrays when they are asked for, and what it returns is an open file),
structured, big-endian and object arrays, strings and dates, mapped files, and all that is damaged.
"""

from __future__ import annotations

import _io
import builtins
import io
import os
from typing import Any

import numpy as np

from penstock import _native
from penstock.hooks.answers import Refused, content_of


def load(
    file: Any,
    mmap_mode: Any = None,
    allow_pickle: bool = False,
    fix_imports: bool = True,
    encoding: str = "ASCII",
    *,
    max_header_size: int = 10000,
) -> Any:
    """Return what numpy.load returns for the same arguments, or Refused; see penstock.hooks.numpy_load.

    A file object is left where numpy.load leaves it; one of a refusal is where it was.
    """
    if mmap_mode is not None:
        return Refused("it is told to map the file (mmap_mode=)")
    if fix_imports is not True or encoding != "ASCII" or max_header_size != 10000:
        return Refused("it is told how to read")
    if allow_pickle is not False and allow_pickle is not True:
        return Refused("its allow_pickle is not a bool")
    given = None if isinstance(file, str) else content_of(file)
    if given is not None:
        content, start = given
        found = _loader.bytes(content, start) if isinstance(content, bytes) else _loader.descriptor(content, start)
    elif builtins.open is not _io.open:
        return Refused("open() was replaced")
    else:
        path = os.fspath(file) if isinstance(file, os.PathLike) and not hasattr(file, "read") else file
        found = _loader.path(path) if isinstance(path, str) else Refused(f"it reads from a {type(file).__qualname__}")
    if type(found) is Refused:
        return found
    array, shape, fortran_order, end = found
    if given is not None:
        file.seek(start + end)
    return _shaped(array, shape, fortran_order)


def _shaped(array: Any, shape: tuple[int, ...], fortran_order: bool) -> Any:
    """Return the array in its shape, by what numpy.lib.format.read_array does to it."""
    before = shape[::-1] if fortran_order else shape
    if _assigns:
        array.shape = before
    else:
        array = array.reshape(before)
    return array.transpose() if fortran_order else array


def _assigns_shapes() -> bool:
    """Return whether this numpy gives an array its shape in place, so that no other array is its base."""
    file = io.BytesIO()
    np.save(file, np.zeros((1, 2)))
    file.seek(0)
    return np.lib.format.read_array(file).base is None


_assigns = _assigns_shapes()
_loader = _native.NumpyLoader(
    np.empty,
    [np.dtype(name) if name in np.sctypeDict else None for name in _native.DTYPES],  # None: in no .npy file
    Refused,
)
