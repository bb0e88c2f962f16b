"""The adapter of Hugging Face datasets whose samples are numbers: their columns are gathered from Arrow's buffers.

Nothing is copied: the chunks of a column are views of Arrow's buffers, which may be those of a memory-mapped file.
Neither `datasets` nor pyarrow is imported here: a program that has such a dataset has imported both.
"""

from __future__ import annotations

import copy
import math
import sys
import weakref
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import default_collate

import penstock._native as _native
from penstock.order.permutations import Indices
from penstock.recipe.originals import own_class
from penstock.recipe.steps import Refusal, Step
from penstock.sources.arrays import numbered
from penstock.sources.native_source import Field, Form, Memory, NativeSource
from penstock.sources.source import Source
from penstock.sources.unchanged import Unchanged, all_of, same_attributes
from penstock.system.words import counted


class HuggingFaceSource(Source):
    """The adapter of datasets.Dataset: an Arrow table, a mapping of indices to its rows, and a format."""

    @classmethod
    def kinds(cls) -> tuple[type, ...]:
        kind = own_class("datasets.arrow_dataset", "Dataset")
        return () if kind is None else (kind,)

    def native(self, raw: bool) -> NativeSource | Refusal:
        dataset = self.dataset
        if (refusal := _refused(dataset)) is not None:
            return refusal
        table = dataset._data.table
        columns: dict[str, Column] = {}
        name = ""
        try:
            for name, form in _forms(dataset).items():
                columns[name] = column_of(table, name)
                if form is None:
                    _refuse_objects(columns[name])
            # The package says itself, by the first sample, what it makes of each column.
            first = default_collate(dataset.__getitems__([0]))
            if not _is_of(first, columns):
                return Refusal(
                    type(dataset).__name__,
                    "its first sample gives other tensors than expected, as with another default device",
                    "tensors of the default dtypes on the CPU",
                )
            fields = {name: _field(columns[name], first[name].dtype) for name in columns}
        except NotNumbers as why:
            remedy = "columns of numbers alone, chosen by select_columns() or with_format('torch', columns=...),"
            return Refusal(f"column {name!r}", f"it holds {why}", remedy)
        rows = None if dataset._indices is None else _Mapping(dataset._indices.table, table.num_rows)
        leading = next(iter(columns))
        shapes = ", ".join(
            f"{name} {str(first[name].dtype).removeprefix('torch.')}{list(columns[name].shape)}" for name in columns
        )
        return NativeSource(
            size=len(dataset),
            fields=tuple(fields.values()),
            steps=(Step(f"gather  {counted(len(dataset), 'row')} of Arrow columns: {shapes}", "native"),),
            identify=numbered,
            rescue=lambda row: torch.as_tensor(table.column(leading)[row].as_py()),
            apply=lambda row: torch.as_tensor(table.column(leading)[row].as_py()),
            form=Form(keys=tuple(columns)),
            rows=rows,
            still=_same_dataset(dataset),
            memory=Memory(all_of(), reads_ahead=True),
        )


class _Mapping:
    """Leads from the indices of a dataset that was shuffled, or chosen from another, to the rows of its table."""

    def __init__(self, indices: Any, rows: int) -> None:
        self._column = column_of(indices, "indices").filler("int64")
        self._rows = rows

    def __call__(self, positions: Indices) -> Indices:
        rows = np.empty(len(positions), np.int64)
        self._column.take(positions, rows)
        return rows % self._rows


def _refused(dataset: Any) -> Refusal | None:
    """Return why the batches of a dataset's format, or its rows, are not made natively, or None."""
    kind, options = dataset._format_type, dict(dataset._format_kwargs or {})
    if kind == "custom":
        remedy = "columns of numbers, with_format('torch') and the same function applied to the batch"
        return Refusal("Dataset.set_transform", "its function makes the samples", remedy)
    known = {"device", "dtype"} if kind == "torch" else set()
    on_cpu = options.get("device", "cpu") in ("cpu", torch.device("cpu"))
    if kind not in (None, "numpy", "torch") or options.keys() - known or not on_cpu:
        what = f"with_format({kind!r}{f', {options}' if options else ''})"
        return Refusal(what, "the format is Python's", "with_format('torch')")
    if "_getitem" in vars(dataset):
        return Refusal(type(dataset).__name__, "its _getitem was replaced", "the class as it is")
    decoding = [type(one) for one in dataset._info.features.values() if hasattr(one, "decode_example")]
    if not all(kind.__module__.startswith("datasets.") for kind in decoding):
        return Refusal(type(dataset).__name__, "a feature of one's own may decode samples", "the package's features")
    names = dataset._data.column_names
    if not len(dataset) or not names or len(set(names)) < len(names):
        return Refusal(type(dataset).__name__, "it has no rows or no columns of different names", "rows and columns")
    return None


def _forms(dataset: Any) -> dict[str, str | None]:
    """Return the columns of a sample in its order, with the format of each."""
    names, chosen, form = dataset._data.column_names, dataset._format_columns, dataset._format_type
    if chosen is None:
        return dict.fromkeys(names, form)
    forms = {name: form for name in names if name in chosen}
    if dataset._output_all_columns:
        forms |= {name: None for name in names if name not in chosen}
    return forms


def _refuse_objects(column: Column) -> None:
    """Raise NotNumbers for a column of which Python's objects, without a format, collate to other than a tensor."""
    if column.shape:
        raise NotNumbers("lists, which collate to lists,")
    if column.dtype in ("uint64", "float16"):
        raise NotNumbers(f"{column.dtype} numbers as Python objects")


def _is_of(batch: Any, columns: dict[str, Column]) -> bool:
    """Return whether a batch of one sample is a dictionary of plain tensors, each a row of a column."""
    return (
        type(batch) is dict
        and list(batch) == list(columns)
        and all(
            type(tensor) is torch.Tensor
            and tensor.device.type == "cpu"
            and not tensor.requires_grad
            and tensor.shape == (1, *column.shape)
            for tensor, column in zip(batch.values(), columns.values(), strict=True)
        )
    )


def _field(column: Column, dtype: torch.dtype) -> Field:
    """Return the field of a column in batches. Raises NotNumbers where its numbers are not converted natively."""
    name = str(dtype).removeprefix("torch.")
    try:
        return Field(column.filler(name), _native.Spec(name, list(column.shape)))
    except ValueError:
        raise NotNumbers(f"{column.dtype} numbers, which become {name},") from None


def _same_dataset(dataset: Any) -> Unchanged:
    """Return whether a dataset keeps the tables, features and format that it has now."""
    options, chosen = copy.copy(dataset._format_kwargs), copy.copy(dataset._format_columns)
    table, features, info = dataset._data.table, dataset._info.features, dataset._info
    same = same_attributes(dataset, "_data", "_indices", "_info", "_format_type", "_output_all_columns")

    def holds() -> bool:
        return (
            same()
            and dataset._data.table is table
            and info.features is features
            and dataset._format_kwargs == options
            and dataset._format_columns == chosen
            and _refused(dataset) is None
        )

    return holds


# --- columns of Arrow tables ------------------------------------------------------------------------------------------

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
