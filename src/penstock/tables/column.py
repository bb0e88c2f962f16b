"""A column of an Arrow table, whose rows are gathered for a batch at once. pyarrow is imported by who has the table."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

import penstock._native as _native
from penstock.order.permutations import Indices

#: The dtypes of numbers and truth values, by Arrow's names for their types.
DTYPES = {
    "bool": torch.bool,
    **{f"{sign}int{bits}": getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "halffloat": torch.float16,
    "float": torch.float32,
    "double": torch.float64,
}


class NotGathered(Exception):
    """The package, the collator or the class makes these rows, or raises its error."""


class Column:
    """The rows of a pyarrow.ChunkedArray, whatever its chunks are; `rows` are their numbers, none of them negative."""

    def __init__(self, chunked: Any) -> None:
        self._chunked = chunked
        self.type = chunked.type
        self._native = _native_of(chunked)
        element = self.type if self._native is not None else None
        self.is_list = element is not None and str(element).startswith(("list<", "large_list<", "fixed_size_list<"))
        """A row is a list."""
        if self.is_list:
            element = self.type.value_type
        self.dtype: torch.dtype | None = DTYPES.get(str(element))
        """Of its numbers, or of its lists' numbers, as they are stored; None: they are none."""
        self.is_text = self._native is not None and str(self.type) in ("string", "large_string", "string_view")

    def objects(self, rows: Indices) -> list[Any]:
        """Return what pyarrow's to_pylist() gives for these rows."""
        if self._native is not None:
            return self._native.objects(rows)
        return [self._chunked.slice(row, 1).to_pylist()[0] for row in rows.tolist()]

    def has_nulls(self, rows: Indices) -> bool:
        """Return whether one of these rows, or a value in one, is null."""
        if self._native is None:
            raise ValueError(f"a column of {self.type} is not read natively")
        return self._native.has_nulls(rows)

    def lengths(self, rows: Indices) -> NDArray[np.int64] | None:
        """Return how many elements these lists have; None: one is null, or they are not lists."""
        found = np.empty(len(rows), np.int64)
        written = self._native is not None and self._native.write_lengths(rows, found.ctypes.data)
        return found if written else None

    def flat(self, rows: Indices, dtype: torch.dtype, size: int) -> torch.Tensor | None:
        """Return the numbers of these rows one behind another: one a row, or the elements of its list.

        size: how many there are. None: one of them is null, the rows hold no numbers, or they are not converted here.
        """
        found = torch.empty(size, dtype=dtype)
        try:
            written = self._native is not None and self._native.write_flat(rows, found.data_ptr(), size, _name(dtype))
        except ValueError:
            return None
        return found if written else None

    def numbers(self, rows: Indices, dtype: torch.dtype) -> tuple[torch.Tensor, NDArray[np.int64] | None] | None:
        """Return the numbers of these rows one behind another, and the lengths of lists. None: as for `flat`."""
        lengths = self.lengths(rows) if self.is_list else None
        if self.is_list and lengths is None:
            return None
        flat = self.flat(rows, dtype, len(rows) if lengths is None else int(lengths.sum()))
        return None if flat is None else (flat, lengths)

    def padded(
        self, rows: Indices, dtype: torch.dtype, width: int, fill: float, *, left: bool = False
    ) -> torch.Tensor | None:
        """Return lists of numbers as rows of `width` elements: longer ones are cut, shorter ones are filled.

        None: as for `flat`.
        """
        found = torch.empty((len(rows), width), dtype=dtype)
        element = torch.tensor(fill, dtype=dtype).numpy().tobytes()
        try:
            written = self._native is not None and self._native.write_padded(
                rows, found.data_ptr(), width, _name(dtype), element, left
            )
        except ValueError:
            return None
        return found if written else None


def dtype_of_objects(stored: torch.dtype) -> torch.dtype:
    """Return the dtype of the tensor that torch makes of such numbers in a list, as Python's objects."""
    return torch.float32 if stored.is_floating_point else torch.bool if stored is torch.bool else torch.int64


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _native_of(chunked: Any) -> _native.ArrowColumn | None:
    """Return a column that the native core reads; None: it does not read this type."""
    if _has_own_python(chunked.type):
        return None
    column = _native.ArrowColumn()
    try:
        for chunk in chunked.chunks:
            schema, array = chunk.__arrow_c_array__()
            column.add(schema, array, _sizes(chunk))
    except (ValueError, NotImplementedError):
        return None
    return column


def _has_own_python(kind: Any) -> bool:
    """Return whether a type, or one within it, is an extension, whose class says what its values are."""
    if hasattr(kind, "extension_name"):
        return True
    fields = [kind.field(number) for number in range(kind.num_fields)]
    unnamed = len({field.name for field in fields}) < len(fields)  # to_pylist() refuses two fields of one name
    return unnamed or any(_has_own_python(field.type) for field in fields)


def _sizes(array: Any) -> list[int]:
    sizes = [0 if buffer is None else buffer.size for buffer in array.buffers()]
    return sizes + _sizes(array.dictionary) if hasattr(array, "dictionary") else sizes


C = TypeVar("C")


def read_once(read: Callable[[Any], C]) -> Callable[[Any, str], C]:
    """Return what reads a column of a pyarrow.Table by its name, once as long as the table lives: it never changes."""
    known: dict[int, tuple[weakref.ref[Any], dict[str, C]]] = {}
    """By the identity of a table: the table, and what was read of it."""

    def column(table: Any, name: str) -> C:
        key = id(table)
        if key not in known or known[key][0]() is not table:
            known[key] = weakref.ref(table, lambda _: known.pop(key, None)), {}
        columns = known[key][1]
        if name not in columns:
            columns[name] = read(table.column(name))
        return columns[name]

    return column


column_of = read_once(Column)
