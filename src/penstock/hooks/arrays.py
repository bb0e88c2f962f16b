"""numpy.fromfile, numpy.memmap and safetensors.torch.load_file, answered natively.

An answer has the type, dtype, shape, order and values of the function's. What is not read straight from the bytes
of a regular file is refused: text, objects, file objects, files open for writing.

h5py's datasets are h5py's: of the 207 us that ``h5py.File(path)["x"][i]`` takes for 48 KB, opening the file and finding
the dataset take 190, and reading contiguous data by its offset was 1.0 to 1.15 times as fast.
"""

from __future__ import annotations

import json
import math
import mmap
import operator
import os
from pathlib import PurePath
from typing import Any

import numpy as np

from penstock import _native
from penstock.hooks.loads import Refused, is_cpu, numpy_loader, torch_loader, unusual

_MODES = {"r": mmap.ACCESS_READ, "readonly": mmap.ACCESS_READ, "c": mmap.ACCESS_COPY, "copyonwrite": mmap.ACCESS_COPY}


def path_of(file: Any) -> str | None:
    """Return the path that a function was called with; None: it is something else."""
    path = os.fspath(file) if isinstance(file, PurePath) else file
    return path if type(path) is str else None


def _plain(dtype: Any) -> np.dtype[Any] | None:
    """Return a dtype whose elements are bytes of a file; None: it is another."""
    kind = np.dtype(dtype)
    return None if kind.hasobject or kind.subdtype is not None or not kind.itemsize else kind


def from_file(file: Any, dtype: Any = float, count: Any = -1, sep: Any = "", offset: Any = 0, **named: Any) -> Any:
    """Return what numpy.fromfile returns for the same arguments, or Refused."""
    path, kind, count, offset = path_of(file), _plain(dtype), operator.index(count), operator.index(offset)
    if path is None:
        return Refused(f"it reads from a {type(file).__qualname__}")
    if sep != "" or named or kind is None:
        return Refused("it reads text or objects, or has a like=")
    if count < -1 or count == 0 or not 0 <= offset < 1 << 62 or count >= 1 << 62:
        return Refused("an unusual count or offset")
    return numpy_loader.part(path, kind, kind.itemsize, count, offset)


def map_file(
    kind: Any,
    filename: Any,
    dtype: Any = np.uint8,
    mode: Any = "r+",
    offset: Any = 0,
    shape: Any = None,
    order: Any = "C",
) -> Any:
    """Return what numpy.memmap returns for the same arguments, or Refused: of a file opened without a file object."""
    path, plain, access = path_of(filename), _plain(dtype), _MODES.get(mode)
    if kind is not np.memmap or path is None or plain is None:
        return Refused("it maps no file of a path, or objects")
    if access is None:
        return Refused("it maps the file to write to it (mode=)")
    shape = (shape,) if type(shape) is int else shape
    numbers = (offset, *(shape if type(shape) is tuple else ()))
    if {type(number) for number in numbers} != {int} or offset < 0 or type(shape) not in (tuple, type(None)):
        return Refused("an unusual offset or shape")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return Refused("the file cannot be opened")
    try:
        size = os.fstat(fd).st_size
        if shape is None:
            elements, behind = divmod(size - offset, plain.itemsize)
            shape = (0 if behind else elements,)
        begin = offset - offset % mmap.ALLOCATIONGRANULARITY
        length = math.prod(shape) * plain.itemsize
        if min(shape, default=1) < 1 or not 0 < length <= size - offset:
            return Refused("a part of the file that is empty, or not there")
        mapped = mmap.mmap(fd, offset + length - begin, access=access, offset=begin)
    except (OSError, ValueError):
        return Refused("the file cannot be mapped")
    finally:
        os.close(fd)
    made: Any = np.ndarray.__new__(np.memmap, shape, plain, mapped, offset - begin, None, order)
    made._mmap, made.offset, made.mode = mapped, offset, "r" if access == mmap.ACCESS_READ else "c"
    made.filename = os.path.abspath(path) if type(filename) is str else filename.resolve()
    return made


#: The number of each dtype of a .safetensors file that is read natively.
_SAFE_DTYPES = {
    short: _native.DTYPES.index(name)
    for short, name in (
        *(("F64", "float64"), ("F32", "float32"), ("F16", "float16"), ("BF16", "bfloat16"), ("BOOL", "bool")),
        *((f"I{bits}", f"int{bits}") for bits in (8, 16, 32, 64)),
        *((f"U{bits}", f"uint{bits}") for bits in (8, 16, 32, 64)),
    )
}
_MOST_OF_HEADER = 1 << 20


def load_safetensors(filename: Any, device: Any = "cpu", **named: Any) -> Any:
    """Return what safetensors.torch.load_file returns for the same arguments, or Refused.

    Each tensor has its own storage, as from the library, in memory that is not mapped.
    """
    path = path_of(filename)
    if path is None or named:
        return Refused("it reads from no path, or has a backend=")
    if type(device) is int or not is_cpu(device):
        return Refused("its device= names a device")
    if (why := unusual()) is not None:
        return Refused(why)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return Refused("the file cannot be opened")
    try:
        head = os.pread(fd, 4096, 0)
        size = 8 + int.from_bytes(head[:8], "little")
        if len(head) < size <= _MOST_OF_HEADER:
            head = os.pread(fd, size, 0)
        if not 10 <= size <= len(head):
            return Refused("a header that is truncated, or over 1 MiB")
        tensors = _tensors_of(head[8:size])
        found = torch_loader.parts(fd, size, list(tensors.values()))
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return Refused("a header that its library does not write")
    finally:
        os.close(fd)
    return found if type(found) is Refused else dict(zip(tensors, found, strict=True))


def _tensors_of(header: bytes) -> dict[str, tuple[int, list[int], int, int]]:
    """Return the parts of a .safetensors file by name. Raises ValueError, TypeError or KeyError for another header."""
    if header[:1] != b"{" or b"\\" in header:
        raise ValueError
    fields = json.loads(header.decode())
    metadata = fields.pop("__metadata__", {})
    if type(metadata) is not dict or {type(value) for value in metadata.values()} - {str}:
        raise TypeError
    found = {}
    for name, field in fields.items():
        shape, (begin, end) = field["shape"], field["data_offsets"]
        if len(field) != 3 or {type(number) for number in (*shape, begin, end)} != {int}:
            raise TypeError
        found[name] = _SAFE_DTYPES[field["dtype"]], shape, begin, end
    if not found or header.count(b'"dtype"') != len(found) or header.count(b'"__metadata__"') > 1:
        raise ValueError  # a name that is there twice
    return found
