"""The values of some rows of an Arrow column, as samples of a table hold them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import torch
from pyarrow import types

from penstock.order.permutations import Indices
from penstock.tables.column import Column

#: The dtypes of numbers and truth values, by Arrow's names for their types.
_DTYPES = {
    "bool": torch.bool,
    **{f"{sign}int{bits}": getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "halffloat": torch.float16,
    "float": torch.float32,
    "double": torch.float64,
}


class NullValue(Exception):
    """A row holds a null. position: of the row among those that were asked for."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


def is_number(kind: pa.DataType) -> bool:
    return str(kind) in _DTYPES


def is_list(kind: pa.DataType) -> bool:
    """Return whether a type is that of lists of numbers or truth values, of one length or of any."""
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return lists and is_number(kind.value_type)


def plain_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type of a column's values, of dictionaries that of what they stand for; None: it is not read."""
    if types.is_dictionary(kind):
        kind = kind.value_type
    return None if types.is_union(kind) or types.is_run_end_encoded(kind) else kind


def filled(values: pa.Array, kind: pa.DataType, fill: Any) -> pa.Array:
    """Return a column's values as that type, dictionaries as what they stand for; fill: for nulls, None leaves them."""
    if values.type != kind:
        values = values.cast(kind)
    return values if fill is None or not values.null_count or is_list(kind) else values.fill_null(fill)


def values_of(column: Column, rows: Indices, kind: pa.DataType, fill: Any) -> list[Any]:
    """Return the values of a column at some rows.

    fill: for nulls; of a list for its elements, and a null in the place of a list is an empty one. Raises NullValue.
    """
    lists = is_list(kind)
    dtype = _DTYPES.get(str(kind.value_type if lists else kind))
    if dtype is not None and column.dtype == dtype and column.is_list == lists:
        lengths = column.lengths(rows) if lists else None
        if lengths is not None or not lists:
            flat = column.flat(rows, dtype, len(rows) if lengths is None else int(lengths.sum()))
            if flat is not None:
                return list(flat.unbind(0) if lengths is None else torch.split(flat, lengths.tolist()))
    found = column.objects(rows)
    value = None if fill is None else fill.as_py()
    for position, one in enumerate(found):
        if (one is None and value is None) or (lists and value is None and None in one):
            raise NullValue(position)
        if lists:
            one = [value if element is None else element for element in one or ()]
        one = value if one is None else one
        found[position] = one if dtype is None else torch.tensor(one, dtype=dtype, device="cpu")
    return found
