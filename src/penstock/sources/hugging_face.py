"""The adapter of Hugging Face datasets whose samples are numbers: their columns are gathered from Arrow's buffers.

The chunks of a column are views of Arrow's buffers, which may be those of a memory-mapped file. Neither `datasets` nor
pyarrow is imported here: a program that has such a dataset has imported both.
"""

from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import default_collate

import penstock._native as _native
from penstock.recipe.originals import own_class
from penstock.recipe.steps import Refusal, Step
from penstock.sources.native_source import Field, Form, Memory, NativeSource
from penstock.sources.source import Source
from penstock.system.words import counted
from penstock.tables.column import read_once


class HuggingFaceSource(Source):
    """The adapter of datasets.Dataset: an Arrow table, a mapping of indices to its rows, and a format."""

    batches_differ = True

    @classmethod
    def kinds(cls) -> tuple[type, ...]:
        kind = own_class("datasets.arrow_dataset", "Dataset")
        return () if kind is None else (kind,)

    def native(self, raw: bool) -> NativeSource | Refusal:
        dataset = self.dataset
        if (refusal := refused(dataset)) is not None:
            return refusal
        table, mapping = dataset._data.table, dataset._indices
        # The package says itself, by the first sample, what it makes of each column.
        first = default_collate(dataset.__getitems__([0]))
        as_objects = dataset._format_type is None or dataset._output_all_columns
        fields: dict[str, Field] = {}
        for name in first:
            try:
                column = column_of(table, name)
                if as_objects and column.dtype == "uint64":  # the greatest do not fit into int64
                    raise NotNumbers("uint64 numbers as Python objects")
                fields[name] = _field(column, first[name])
            except NotNumbers as why:
                remedy = "select_columns() without it" * (len(first) > 1)
                return Refusal(f"column {name!r}", f"it holds {why}", remedy)
        specs = [(name, field.spec) for name, field in fields.items() if field.spec is not None]
        shapes = ", ".join(f"{name} {spec.dtype}{list(spec.shape)}" for name, spec in specs)
        chunks = [] if mapping is None else column_of(mapping.table, "indices").chunks
        numbers = np.concatenate(chunks) if len(chunks) > 1 else next(iter(chunks), None)
        return NativeSource(
            fields=tuple(fields.values()),
            steps=(Step(f"gather  {counted(len(dataset), 'row')} of Arrow columns: {shapes}", "native"),),
            form=Form(keys=tuple(fields)),
            rows=None if numbers is None else lambda positions: (numbers[positions] % table.num_rows).astype(np.int64),
            memory=Memory(reads_ahead=True),
        )


def refused(dataset: Any) -> Refusal | None:
    """Return why the batches of a dataset's format, or its rows, are not made natively, or None."""
    kind, options = dataset._format_type, dict(dataset._format_kwargs or {})
    if kind == "custom":
        remedy = "columns of numbers, with_format('torch') and the same function applied to the batch"
        return Refusal("Dataset.set_transform", "its function makes the samples", remedy)
    if kind not in (None, "numpy", "torch") or options.keys() - ({"device", "dtype"} if kind == "torch" else set()):
        what = f"with_format({kind!r}{f', {options}' if options else ''})"
        return Refusal(what, "Python makes this format", "with_format('torch')")
    if "_getitem" in vars(dataset):
        return Refusal(type(dataset).__name__, "its _getitem was replaced", "the unmodified class")
    decoding = [type(one).__module__ for one in dataset._info.features.values() if hasattr(one, "decode_example")]
    if not all(module.startswith("datasets.") for module in decoding):
        return Refusal(
            type(dataset).__name__, "a feature class of your own may decode samples", "the package's features"
        )
    names = dataset._data.column_names
    if not len(dataset) or not names or len(set(names)) < len(names):
        return Refusal(type(dataset).__name__, "it has no rows or no columns of different names", "rows and columns")
    return None


def _field(column: Column, first: Any) -> Field:
    """Return the field of a column in batches, of which this is the first row. Raises NotNumbers."""
    plain = type(first) is torch.Tensor and first.device.type == "cpu" and not first.requires_grad
    if not plain or first.shape != (1, *column.shape):
        raise NotNumbers("a value that does not become a plain tensor in host memory")
    dtype = str(first.dtype).removeprefix("torch.")
    if dtype not in column.fillers:
        spec = _native.Spec(dtype, list(column.shape))
        chunks = [chunk.reshape(len(chunk), math.prod(column.shape)).view(np.uint8) for chunk in column.chunks]
        try:
            column.fillers[dtype] = Field(_native.ColumnFiller(chunks, column.dtype, spec), spec)
        except ValueError:
            raise NotNumbers(f"{column.dtype} numbers, which become {dtype},") from None
    return column.fillers[dtype]


# --- columns of Arrow tables ------------------------------------------------------------------------------------------

#: The types of elements by Arrow's names for them, as torch and numpy call them.
_DTYPES = {
    "bool": "bool",
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "halffloat": "float16",
    "float": "float32",
    "double": "float64",
}


class NotNumbers(Exception):
    """A column does not hold numbers in rows of one shape; the message says what it holds."""


class Column(NamedTuple):
    """A column of numbers."""

    dtype: str
    """Of the elements as they are stored."""
    shape: tuple[int, ...]
    """Of a row."""
    chunks: list[NDArray[Any]]
    """Views of Arrow's buffers, of shape (rows, *shape); copies of truth values, which Arrow holds as bits."""
    fillers: dict[str, Field]
    """By the dtype that they convert to, those that were made."""


@read_once
def _column_or_why(column: Any) -> Column | str:
    try:
        return _read(column)
    except NotNumbers as error:
        return str(error)


def column_of(table: Any, name: str) -> Column:
    """Return a column of a pyarrow.Table. Raises NotNumbers."""
    found = _column_or_why(table, name)
    if isinstance(found, str):
        raise NotNumbers(found)
    return found


def _read(column: Any) -> Column:
    arrays = [_rows(chunk) for chunk in column.chunks if len(chunk)]
    if len({array.shape[1:] for array in arrays}) != 1:
        raise NotNumbers("lists of different lengths" if arrays else "no rows")
    # Only an array of several dimensions tells how the elements of its rows are arranged.
    shape = tuple(getattr(column.type, "shape", arrays[0].shape[1:]))
    if arrays[0].dtype == bool and shape:
        raise NotNumbers("lists of truth values")
    arrays = [array.reshape(len(array), *shape) for array in arrays]
    return Column(arrays[0].dtype.name, shape, arrays, {})


def _rows(array: Any) -> NDArray[Any]:
    """Return the rows of a chunk, of shape (rows,) or (rows, elements). Raises NotNumbers."""
    types, compute = sys.modules["pyarrow"].types, sys.modules["pyarrow"].compute
    given, rows, lists = array.type, len(array), False
    array = getattr(array, "storage", array)
    while types.is_list(array.type) or types.is_large_list(array.type) or types.is_fixed_size_list(array.type):
        if lists and not hasattr(given, "shape"):
            raise NotNumbers(f"elements of type {given}")
        if array.null_count:
            raise NotNumbers("nulls")
        if len(compute.unique(compute.list_value_length(array))) > 1:
            raise NotNumbers("lists of different lengths")
        array, lists = array.flatten(), True
    if str(array.type) not in _DTYPES:
        raise NotNumbers(f"elements of type {given}")
    if array.null_count:
        raise NotNumbers("nulls")
    elements: NDArray[Any] = array.to_numpy(zero_copy_only=str(array.type) != "bool")
    return elements.reshape(rows, -1 if elements.size else 0) if lists else elements
