"""The arguments of Table, compared with what the files hold."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute, dataset, parquet, types

from penstock.errors import InvalidOption
from penstock.system.limits import usable_cpus
from penstock.tables.files import Part, TableFile
from penstock.tables.values import is_list, plain_type


def schema_of(files: Sequence[TableFile], columns: Sequence[str] | None, image: str | None) -> pa.Schema:
    """Return the columns of samples, that of images first, dictionaries as their values. Raises InvalidOption."""
    if columns is not None and (
        isinstance(columns, str) or not columns or not all(isinstance(one, str) for one in columns)
    ):
        raise InvalidOption(f"columns={columns!r}: it is a list of names of columns")
    first = files[0].schema()
    names = list(dict.fromkeys(first.names if columns is None else columns))
    if not names:
        raise InvalidOption(f"{files[0].place} has no columns")
    found: list[pa.Field] = []
    for file in files:
        schema = first if file is files[0] else file.schema()
        for place, name in enumerate(names):
            at = schema.get_all_field_indices(name)
            if not at:
                near = difflib.get_close_matches(name, schema.names, 1)
                meant = f"do you mean {near[0]!r}?" if near else f"it has {', '.join(map(repr, schema.names))}"
                elsewhere = "" if file is files[0] else f", and {files[0].place} has one"
                raise InvalidOption(f"{file.place} has no column {name!r}{elsewhere}: {meant}")
            if len(at) > 1:
                raise InvalidOption(f"{file.place} has {len(at)} columns {name!r}: name columns= without it")
            kind = plain_type(schema.field(at[0]).type)
            if kind is None:
                given = schema.field(at[0]).type
                raise InvalidOption(f"{file.place}: column {name!r} has type {given}, which is not read")
            if file is files[0]:
                found.append(pa.field(name, kind))
            elif found[place].type != kind:
                raise InvalidOption(
                    f"column {name!r} has type {found[place].type} in {files[0].place} and {kind} in {file.place}: "
                    "write the files alike, or leave the column out by columns="
                )
        if columns is None and (more := [name for name in schema.names if name not in names]):
            raise InvalidOption(f"{file.place} has a column {more[0]!r}, and {files[0].place} has none: name columns=")
    if image is not None:
        if image not in names:
            near = difflib.get_close_matches(image, names, 1)
            meant = f"do you mean {near[0]!r}?" if near else f"they are {', '.join(map(repr, names))}"
            raise InvalidOption(f"image={image!r} is not one of the columns: {meant}")
        found.insert(0, found.pop(names.index(image)))
        _check_encoded(found[0])
    return pa.schema(found)


def _check_encoded(field: pa.Field) -> None:
    kind = field.type
    if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind = kind.field("bytes").type
    if not (types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)):
        raise InvalidOption(f"image={field.name!r}: the column has type {field.type}, and encoded images are binary")


def checked_fill(fill: Any, schema: pa.Schema) -> dict[str, Any]:
    """Return the value for nulls of each column that has one, as scalars of its type. Raises InvalidOption."""
    if fill is None:
        return {}
    by_column = isinstance(fill, Mapping)
    found = {}
    for name, value in (fill if by_column else dict.fromkeys(schema.names, fill)).items():
        if name not in schema.names:
            raise InvalidOption(f"fill= names a column {name!r}; the columns are {', '.join(schema.names)}")
        kind = schema.field(name).type
        kind = kind.value_type if is_list(kind) else kind
        try:
            found[name] = pa.scalar(value, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            if by_column:
                raise InvalidOption(f"fill={{{name!r}: {value!r}}}: the column holds {kind}") from error
    if not found:
        raise InvalidOption(f"fill={fill!r} is a value of no column: {schema.to_string()}")
    return found


def chosen_rows(files: Sequence[TableFile], parts: Sequence[Part], filters: Any) -> list[NDArray[np.int32]]:
    """Return the rows of each part of files that meet a condition. Raises InvalidOption, CorruptSample."""
    try:
        condition = filters
        if not isinstance(filters, compute.Expression):
            condition = parquet.filters_to_expression(filters)
        nothing = dataset.dataset(files[0].schema().empty_table())
        kind = nothing.scanner(columns={"keep": condition}).projected_schema.field("keep").type
        if kind != pa.bool_():
            raise TypeError(f"it gives values of type {kind}, and truth values are needed")
    except (pa.ArrowException, ValueError, TypeError, AttributeError) as error:
        raise InvalidOption(
            f"filters={filters!r}: it is a list of (column, operator, value), or a pyarrow expression, of columns that "
            f"{files[0].place} has: {error}"
        ) from error

    def rows(part: Part) -> NDArray[np.int32]:
        file = files[part.file]
        with file.errors_named():
            return file.where(part, condition)

    with ThreadPoolExecutor(min(4, usable_cpus()), "penstock-filter") as pool:
        return list(pool.map(rows, parts))
