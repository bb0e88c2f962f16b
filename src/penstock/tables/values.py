"""The values of some rows of an Arrow column, as samples of a table hold them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from pyarrow import types
from torch.utils.data import default_collate

from penstock.order.permutations import Indices
from penstock.tables.column import DTYPES, Column


class NullValue(Exception):
    """A row holds a null. position: of the row among those that were asked for."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


def is_number(kind: pa.DataType) -> bool:
    return str(kind) in DTYPES


def is_list(kind: pa.DataType) -> bool:
    """Return whether a type is that of lists of numbers or truth values, of one length or of any."""
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return lists and is_number(kind.value_type)


def plain_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type of a column's values, of dictionaries that of what they encode; None: it is not read."""
    if types.is_dictionary(kind):
        kind = kind.value_type
    return None if types.is_union(kind) or types.is_run_end_encoded(kind) else kind


def filled(values: pa.Array, kind: pa.DataType, fill: Any) -> pa.Array:
    """Return a column's values as that type, dictionaries as what they encode; fill: for nulls, None leaves them."""
    if values.type != kind:
        values = values.cast(kind)
    return values if fill is None or not values.null_count or is_list(kind) else values.fill_null(fill)


def values_of(column: Column, rows: Indices, kind: pa.DataType, fill: Any) -> list[Any]:
    """Return the values of a column at some rows.

    fill: for nulls; of a list for its elements, and a null in the place of a list is an empty one. Raises NullValue.
    """
    numbers = _numbers(column, rows, kind)
    if numbers is not None:
        flat, lengths = numbers
        return list(flat.unbind(0) if lengths is None else torch.split(flat, lengths.tolist()))
    lists, dtype = is_list(kind), _dtype_of(kind)
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


def collated(column: Column, rows: Indices, kind: pa.DataType, fill: Any) -> Any:
    """Return what default_collate makes of the values of a column. Raises NullValue, and what it raises."""
    numbers = _numbers(column, rows, kind)
    if numbers is not None:
        flat, lengths = numbers
        if lengths is None:
            return flat
        if lengths[0] and (lengths == lengths[0]).all():
            return flat.reshape(len(rows), int(lengths[0]))
    return default_collate(values_of(column, rows, kind, fill))


def joins(kind: pa.DataType) -> bool:
    """Return whether default_collate makes a tensor, or a list of all values, of a column of this type."""
    texts = types.is_string, types.is_large_string, types.is_string_view, types.is_binary, types.is_large_binary
    return _dtype_of(kind) is not None or any(test(kind) for test in texts)


def joined(parts: Sequence[Any], order: Indices) -> Any:
    """Return collated values of a column, of several parts of a batch, in another order."""
    if isinstance(parts[0], torch.Tensor):
        return torch.cat(list(parts))[torch.from_numpy(order)]
    values = [value for part in parts for value in part]
    return [values[place] for place in order.tolist()]


def _numbers(column: Column, rows: Indices, kind: pa.DataType) -> tuple[torch.Tensor, NDArray[np.int64] | None] | None:
    """Return numbers one row behind another, and the lengths of lists; None: they are none, or one is null."""
    dtype = _dtype_of(kind)
    if dtype is None or (column.dtype, column.is_list) != (dtype, is_list(kind)):
        return None
    return column.numbers(rows, dtype)


def _dtype_of(kind: pa.DataType) -> torch.dtype | None:
    """Return the dtype of numbers, or of the numbers in lists, None for other types."""
    return DTYPES.get(str(kind.value_type if is_list(kind) else kind))
