"""Rows of pandas' tables: columns of numbers lie in arrays, whose elements are gathered.

pandas is not imported here: a program that has a table has imported it. A row that `iloc` gives is a `Series` of one
dtype, to which its numbers are converted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import penstock._native as _native
from penstock.indexing.guard import Reads
from penstock.indexing.program import (
    Columns,
    NotIndexing,
    Program,
    Step,
    Unlike,
    Value,
    column_of,
    dtype_of,
    gathering,
    is_array,
    objects_of,
    torch_dtype,
)


@dataclass(frozen=True)
class Indexer:
    """What finds rows of a table, or items of a column: `iloc`, `loc`, `at`, `iat`."""

    owner: Any
    name: str


@dataclass(frozen=True)
class Row:
    """A row of a table, some of its columns: as pandas gives it, and where it is."""

    frame: Any
    columns: tuple[int, ...]
    at: Value
    example: Any


def _pandas() -> Any:
    return sys.modules.get("pandas")


def is_table(value: object) -> bool:
    """Return whether a value is a table or a column of pandas' classes."""
    pandas = _pandas()
    return pandas is not None and type(value) in (pandas.DataFrame, pandas.Series)


def note(reads: Reads, table: Any) -> None:
    """Note which arrays a table's columns are, and its index."""
    manager, index = table._mgr, table.index
    arrays, axes = list(manager.arrays), table.columns if table.ndim == 2 else None

    def same() -> bool:
        now = table._mgr
        alike = now is manager and len(now.arrays) == len(arrays) and table.index is index
        kept = alike and all(one is other for one, other in zip(now.arrays, arrays, strict=True))
        return kept and (axes is None or table.columns is axes)

    reads.also(same)


def attribute(reads: Reads, table: Any, name: str) -> Any:
    """Return an attribute of a table or a column."""
    if name in ("iloc", "loc", "at", "iat"):
        return Indexer(table, name)
    if name == "shape":
        return table.shape
    if name == "columns" and table.ndim == 2:
        return list(table.columns)
    if name == "values":
        return _values(table)
    if table.ndim == 2 and not hasattr(type(table), name):
        return item(table, name)
    raise NotIndexing


def _values(table: Any) -> Any:
    values = table.values
    if not isinstance(values, np.ndarray) or not np.may_share_memory(values, table.values):
        raise NotIndexing("is made anew for each sample")
    return values


def item(table: Any, key: Any) -> Any:
    """Return a column of a table by its name."""
    if table.ndim != 2 or type(key) not in (str, int) or list(table.columns).count(key) != 1:
        raise NotIndexing("is more than a column")
    return table[key]


def indexed(program: Program, holder: Any, key: Any) -> Any:
    """Return what an index that differs from sample to sample finds."""
    if not isinstance(holder, Indexer):
        if holder.ndim == 1 and _is_counted(holder.index) and isinstance(key, Value):
            return _element(program, holder, _label(program, key))
        raise NotIndexing("is found by a label")
    table, by_number = holder.owner, holder.name in ("iloc", "iat")
    if not by_number and not _is_counted(table.index):
        raise NotIndexing("is found by a label")
    at, which = key if isinstance(key, tuple) and len(key) == 2 else (key, slice(None))
    if not isinstance(at, Value) or type(at.example) is not int:
        raise NotIndexing("is more than a row")
    at = at if by_number else _label(program, at)
    if table.ndim == 1 and not isinstance(key, tuple):
        return _element(program, table, at)
    every = range(len(table.columns))
    if type(which) is int and by_number:
        return _element(program, table.iloc[:, which], at)
    if type(which) is str and not by_number:
        return _element(program, item(table, which), at)
    if isinstance(which, slice) and by_number:
        return _row(table, tuple(every[which]), at)
    if which == slice(None):
        return _row(table, tuple(every), at)
    raise NotIndexing("is more than columns of a row")


def _is_counted(index: Any) -> bool:
    """Return whether the labels of rows are their numbers."""
    return type(index) is _pandas().RangeIndex and (index.start, index.step) == (0, 1)


def _label(program: Program, at: Value) -> Value:
    """Return a row's number that is a label: negative ones are none."""

    def step(columns: Columns) -> Any:
        numbers = columns[at.slot]
        if bool((numbers < 0).any()):
            raise Unlike
        return numbers

    return program.add(step, at.example, at.root)


def _row(table: Any, columns: Sequence[int], at: Value) -> Row:
    return Row(table, tuple(columns), at, table.iloc[at.example, list(columns)])


def _element(program: Program, column: Any, at: Value) -> Value:
    """Return the item of a column in each sample's row."""
    example = column.iloc[at.example]
    values = column.values
    if is_array(values) and dtype_of(example) is not None:
        return program.gather(values, at, example)
    array = column.array
    return program.add(
        lambda columns: column_of([array[number] for number in objects_of(columns, at)], example), example
    )


def part(program: Program, row: Row, key: Any) -> Any:
    """Return an item of a row under a name, or a part of it under a list of names."""
    names = [row.frame.columns[number] for number in row.columns]
    if type(key) is str and names.count(key) == 1:
        return by_number(program, row, names.index(key))
    if isinstance(key, list) and all(names.count(one) == 1 for one in key):
        example = row.example[key]
        return Row(row.frame, tuple(row.columns[names.index(one)] for one in key), row.at, example)
    raise NotIndexing


def by_number(program: Program, row: Row, key: Any) -> Any:
    """Return what `iloc` of a row finds: an item, or a part of it under a slice."""
    if isinstance(key, slice):
        return Row(row.frame, row.columns[key], row.at, row.example.iloc[key])
    if type(key) is not int:
        raise NotIndexing
    made, example = _element(program, row.frame.iloc[:, row.columns[key]], row.at), row.example.iloc[key]
    if row.example.dtype == object or dtype_of(made.example) is None:
        if type(made.example) is not type(example):
            raise NotIndexing
        return made
    if (dtype := dtype_of(example)) is None:
        raise NotIndexing
    return program.add(lambda columns: columns[made.slot].to(dtype), example)


def of_row(program: Program, row: Row, name: str) -> Any:
    """Return an attribute of a row: its numbers as an array, what finds items by number, or an item."""
    if name == "iloc":
        return Indexer(row, name)
    return _row_values(program, row) if name == "values" else part(program, row, name)


def _row_values(program: Program, row: Row) -> Value:
    example = row.example.to_numpy()
    dtype = dtype_of(example)
    arrays = [row.frame.iloc[:, number].values for number in row.columns]
    if dtype is None or not all(map(is_array, arrays)):
        raise NotIndexing("is a row of more than numbers")
    return program.add(_gathering_rows(arrays, row.at.slot, dtype), example)


def _gathering_rows(arrays: list[Any], slot: int, dtype: torch.dtype) -> Step:
    """Return the step that makes rows of the elements of columns, as elements of one dtype."""
    rows = _native.ColumnRows(len(arrays[0]), str(dtype).removeprefix("torch."))
    stored = [str(torch_dtype(array.dtype)).removeprefix("torch.") for array in arrays]
    if not all(
        rows.add(_native.address(array), array.strides[0], kind) for array, kind in zip(arrays, stored, strict=True)
    ):
        gathers = [gathering(array, slot) for array in arrays]
        return lambda columns: torch.stack([gather(columns).to(dtype) for gather in gathers], 1)

    def step(columns: Columns) -> torch.Tensor:
        numbers = columns[slot].contiguous()
        samples = numbers.numel()
        out = torch.empty((samples, len(arrays)), dtype=dtype)
        if rows.gather(numbers.data_ptr(), samples, out.data_ptr()):
            return out
        raise Unlike

    return step
