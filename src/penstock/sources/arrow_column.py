"""Columns of Apache Arrow tables, as far as they are numbers that the native core gathers from the buffers of Arrow.

Nothing is copied: the chunks of a column are views of Arrow's buffers, which may be those of a memory-mapped file.
"""

from __future__ import annotations

import math
import sys
import weakref
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

import penstock._native as _native
from penstock.recipe.originals import own_class

#: (rows, offsets of lists, bytes of the elements, place of the first element), as _native.ColumnFiller takes it.
Chunk = tuple[int, list[NDArray[Any]], NDArray[np.uint8], int]

#: The types of elements by Arrow's names for them, as torch and numpy call them.
_DTYPES = {
    "bool": "bool",
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "halffloat": "float16",
    "float": "float32",
    "double": "float64",
}
_EXTENSIONS = tuple(f"Array{ndim}DExtensionType" for ndim in (2, 3, 4, 5))


class NotNumbers(Exception):
    """A column does not hold numbers in rows of one shape; the message says what it holds."""


@dataclass(frozen=True)
class Column:
    """A column of numbers."""

    dtype: str
    """Of the elements as they are stored."""
    shape: tuple[int, ...]
    """Of a row."""
    chunks: list[Chunk]
    fillers: dict[str, _native.ColumnFiller] = field(default_factory=dict)
    """By the dtype that they convert to, those that were made."""

    def filler(self, dtype: str) -> _native.ColumnFiller:
        """Return what fills rows with elements of a dtype. Raises ValueError where these are not converted natively."""
        if dtype not in self.fillers:
            spec = _native.Spec(dtype, list(self.shape))
            self.fillers[dtype] = _native.ColumnFiller(self.chunks, self.dtype, spec)
        return self.fillers[dtype]


#: By the identity of a table, for as long as it lives: the table, and its columns that were read, or what they hold.
_known: dict[int, tuple[weakref.ref[Any], dict[str, Column | str]]] = {}


def column_of(table: Any, name: str) -> Column:
    """Return a column of a pyarrow.Table, which is read once: tables never change. Raises NotNumbers."""
    key = id(table)
    if key not in _known or _known[key][0]() is not table:
        _known[key] = weakref.ref(table, lambda _: _known.pop(key, None)), {}
    columns = _known[key][1]
    if name not in columns:
        try:
            columns[name] = _read(table.column(name))
        except NotNumbers as error:
            columns[name] = str(error)
    found = columns[name]
    if isinstance(found, str):
        raise NotNumbers(found)
    return found


def _read(column: Any) -> Column:
    kind, shape = column.type, None
    if type(kind) in _extension_types():
        shape, kind = tuple(kind.shape), kind.storage_type
        if not all(type(extent) is int and extent > 0 for extent in shape):
            raise NotNumbers("rows of different shapes")
    types = sys.modules["pyarrow"].types
    depth, fixed = 0, False
    while types.is_list(kind) or types.is_large_list(kind):
        depth, kind = depth + 1, kind.value_type
    if depth == 0 and types.is_fixed_size_list(kind):
        fixed, shape, kind = True, (kind.list_size,), kind.value_type
    if str(kind) not in _DTYPES or (depth > 1 and depth != len(shape or ())):
        raise NotNumbers(f"elements of type {column.type}")
    if depth == 0 and not fixed:
        shape = ()
    dtype = _DTYPES[str(kind)]
    chunks = []
    for array in column.chunks:
        if len(array):
            shape, chunk = _chunk(array, dtype, shape)
            chunks.append(chunk)
    if shape is None:
        raise NotNumbers("no rows")
    return Column(dtype, shape, chunks)


def _extension_types() -> tuple[Any, ...]:
    return tuple(filter(None, (own_class("datasets.features.features", name) for name in _EXTENSIONS)))


def _chunk(array: Any, dtype: str, shape: tuple[int, ...] | None) -> tuple[tuple[int, ...], Chunk]:
    """Return the shape of the rows, which is this one if it is known, and the chunk. Raises NotNumbers."""
    types = sys.modules["pyarrow"].types
    rows = len(array)
    array = getattr(array, "storage", array)
    offsets: list[NDArray[Any]] = []
    begin, end, first_end = 0, rows, 1
    while types.is_list(array.type) or types.is_large_list(array.type):
        _refuse_nulls(array)
        wide = np.int64 if types.is_large_list(array.type) else np.int32
        numbers = np.frombuffer(array.buffers()[1], wide)[array.offset : array.offset + len(array) + 1]
        begin, end, first_end = int(numbers[begin]), int(numbers[end]), int(numbers[first_end])
        offsets.append(numbers)
        array = array.values
    if types.is_fixed_size_list(array.type):
        _refuse_nulls(array)
        size = array.type.list_size
        array = array.values.slice(array.offset * size, rows * size)
    if shape is None:
        shape = (first_end - begin,)
    if offsets and end - begin != rows * math.prod(shape):
        raise NotNumbers("lists of different lengths")
    _refuse_nulls(array)
    return shape, (rows, offsets, *_elements(array, dtype))


def _refuse_nulls(array: Any) -> None:
    if array.null_count:
        raise NotNumbers("nulls")


def _elements(array: Any, dtype: str) -> tuple[NDArray[np.uint8], int]:
    """Return the bytes of the elements of an array, and the place of the first one among them."""
    buffer = array.buffers()[1]
    held = np.frombuffer(buffer, np.uint8) if buffer is not None and buffer.size else np.empty(0, np.uint8)
    begin, end = array.offset, array.offset + len(array)
    if dtype == "bool":
        return held[begin // 8 : -(-end // 8)], begin % 8
    size = np.dtype(dtype).itemsize
    return held[begin * size : end * size], 0
