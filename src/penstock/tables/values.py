"""The values of some rows of an Arrow column, as samples of a table hold them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import types

from penstock.order.permutations import Indices

#: Arrow's names for types of numbers and truth values, of which torch has the same.
_NUMBERS = frozenset(
    ("bool", "halffloat", "float", "double", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
)


class NullValue(Exception):
    """A row holds a null. position: of the row among those that were asked for."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


def is_number(kind: pa.DataType) -> bool:
    return str(kind) in _NUMBERS


def is_list(kind: pa.DataType) -> bool:
    """Return whether a type is that of lists of numbers or truth values, of one length or of any."""
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return lists and is_number(kind.value_type)


def plain_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type of a column's values, of dictionaries that of what they stand for; None: it is not read."""
    if types.is_dictionary(kind):
        kind = kind.value_type
    return None if types.is_union(kind) or types.is_run_end_encoded(kind) else kind


def filled(values: pa.Array, kind: pa.DataType, fill: Any = None) -> pa.Array:
    """Return a column's values as that type, dictionaries as what they stand for; fill: for nulls, None leaves them."""
    if values.type != kind:
        values = values.cast(kind)
    return values if fill is None or not values.null_count or is_list(kind) else values.fill_null(fill)


def values_of(column: pa.ChunkedArray, rows: Indices, kind: pa.DataType, fill: Any = None) -> list[Any]:
    """Return the values of a column at some rows.

    fill: for nulls; of a list for its elements, and a null in the place of a list is an empty one. Raises NullValue.
    """

    try:
        taken = filled(column.take(pa.array(rows)), kind, fill).combine_chunks()
    except pa.ArrowNotImplementedError:  # views, also within lists
        values = [column[row].as_py() for row in rows.tolist()]
        if fill is None and None in values:
            raise NullValue(values.index(None)) from None
        return [fill.as_py() if value is None else value for value in values]
    if isinstance(taken, pa.ChunkedArray):  # of no chunk, or more than one array holds
        taken = pa.concat_arrays(taken.chunks)
    if taken.null_count and not (is_list(kind) and fill is not None):
        raise NullValue(_first(taken.is_null()))
    if is_number(kind):
        return list(_tensor(taken).unbind(0))
    if not is_list(kind):
        return list(taken.to_pylist())
    lengths = taken.value_lengths().fill_null(0)
    elements = taken.flatten()
    if elements.null_count:
        if fill is None:
            ends = np.cumsum(lengths.to_numpy(zero_copy_only=False))
            raise NullValue(int(np.searchsorted(ends, _first(elements.is_null()), side="right")))
        elements = elements.fill_null(fill)
    return list(torch.split(_tensor(elements), lengths.to_pylist()))


def joined(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables)


def _first(marked: pa.BooleanArray) -> int:
    return int(np.argmax(marked.to_numpy(zero_copy_only=False)))


def _tensor(numbers: pa.Array) -> torch.Tensor:
    """Return numbers as a tensor of their dtype in memory of its own."""
    found = torch.from_numpy(np.array(numbers.to_numpy(zero_copy_only=False)))
    return found if len(found) else torch.empty(0, dtype=found.dtype, device="cpu")  # with the stride of others
