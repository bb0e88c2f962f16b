"""The adapter of Hugging Face datasets whose samples are numbers: their columns are gathered from Arrow's buffers.

Neither `datasets` nor pyarrow is imported here: a program that has such a dataset has imported both.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

import penstock._native as _native
from penstock.order.permutations import Indices
from penstock.recipe.originals import own_class
from penstock.recipe.steps import Refusal, Step
from penstock.sources.arrays import numbered
from penstock.sources.arrow_column import Column, NotNumbers, column_of
from penstock.sources.premises import NUMPY_SCALARS, Holds, all_of, collates_as_torch, same_attributes
from penstock.sources.source import Field, NativeSource, Source
from penstock.system.words import counted

_FEATURES = ("Value", "ClassLabel", "Sequence", "List", "LargeList", "Array2D", "Array3D", "Array4D", "Array5D")
_TABLES = ("InMemoryTable", "MemoryMappedTable", "ConcatenationTable")
#: By the name of a format: the class that formats, its module in datasets.formatting, and what default_collate meets.
_FORMATTERS: dict[str | None, tuple[str, str, tuple[Any, ...]]] = {
    None: ("PythonFormatter", "formatting", (float, int)),
    "numpy": ("NumpyFormatter", "np_formatter", (np.ndarray, NUMPY_SCALARS)),
    "torch": ("TorchFormatter", "torch_formatter", ()),
}
#: By the kind of a dtype: what a formatter makes of it for torch and numpy, and what default_collate of Python's.
_TENSORS = {"b": "bool", "i": "int64", "u": "int64", "f": "float32"}
_NUMBERS = {"b": "bool", "i": "int64", "u": "int64", "f": "float64"}
_AS_IT_IS = "the package as it is"


class HuggingFaceSource(Source):
    """The adapter of datasets.Dataset: an Arrow table, a mapping of indices to its rows, and a format."""

    @classmethod
    def kinds(cls) -> tuple[type, ...]:
        kind = own_class("datasets.arrow_dataset", "Dataset")
        return () if kind is None else (kind,)

    def native(self, raw: bool) -> NativeSource | Refusal:
        dataset = self.dataset
        refusal = _refuse_format(dataset) or _refuse_tables(dataset)
        if refusal is not None:
            return refusal
        table = dataset._data.table
        columns: dict[str, Column] = {}
        dtypes: dict[str, str] = {}
        forms = _forms(dataset)
        for name, form in forms.items():
            try:
                columns[name] = column_of(table, name)
                _check_feature(dataset._info.features[name])
                dtypes[name] = _dtype(columns[name], form, dataset._format_kwargs)
            except NotNumbers as why:
                remedy = "columns of numbers alone, chosen by select_columns() or with_format('torch', columns=...),"
                return Refusal(f"column {name!r}", f"it holds {why}", remedy)
        specs = [_native.Spec(dtypes[name], list(columns[name].shape)) for name in columns]
        if not _confirmed(dataset, dict(zip(columns, specs, strict=True))):
            return Refusal(
                type(dataset).__name__,
                "its first sample gives other tensors than expected, as with another default device",
                "tensors of the default dtypes on the CPU",
            )
        shapes = ", ".join(f"{name} {spec.dtype}{list(spec.shape)}" for name, spec in zip(columns, specs, strict=True))
        first = next(iter(columns))
        return NativeSource(
            size=len(dataset),
            fields=tuple(
                Field(columns[name].filler(spec.dtype), spec) for name, spec in zip(columns, specs, strict=True)
            ),
            steps=(Step(f"gather  {counted(len(dataset), 'row')} of Arrow columns: {shapes}", "native"),),
            identify=numbered,
            rescue=lambda row: torch.as_tensor(table.column(first)[row].as_py()),
            apply=lambda row: torch.as_tensor(table.column(first)[row].as_py()),
            keys=tuple(columns),
            rows=None if dataset._indices is None else _Mapping(dataset._indices.table, table.num_rows),
            batches_only=not all(_alike(columns[name], form, dtypes[name]) for name, form in forms.items()),
            still=_same_dataset(dataset),
            unmoved=all_of(),
            ahead=True,
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


def _refuse_format(dataset: Any) -> Refusal | None:
    """Return why batches of the format of a dataset are not made natively, or None."""
    kind = dataset._format_type
    if kind == "custom":
        remedy = "columns of numbers, with_format('torch') and the same function applied to the batch"
        return Refusal("Dataset.set_transform", "its function makes the samples", remedy)
    name, module, met = _FORMATTERS.get(kind, ("", "", ()))
    given = dict(dataset._format_kwargs or {})
    device = given.pop("device", "cpu")
    if kind == "torch" and device in ("cpu", torch.device("cpu")):
        given.pop("dtype", None)
    if not name or given or device not in ("cpu", torch.device("cpu")) or (kind != "torch" and dataset._format_kwargs):
        options = f", {given}" if given else ""
        return Refusal(f"with_format({kind!r}{options})", "the format is Python's", "with_format('torch')")
    formatter = own_class(f"datasets.formatting.{module}", name)
    made = sys.modules["datasets.formatting"].get_formatter(kind, features=dataset._info.features)
    if formatter is None or type(made) is not formatter:
        return Refusal(f"with_format({kind!r})", f"a formatter of one's own, {type(made).__name__}, does it", _AS_IT_IS)
    if dataset._output_all_columns:
        met += _FORMATTERS[None][2]
    if not collates_as_torch(torch.Tensor, *met):
        return Refusal("default_collate_fn_map", "a function of one's own collates numbers", "torch's own map")
    return None


def _refuse_tables(dataset: Any) -> Refusal | None:
    """Return why the tables of a dataset are not read natively, or None."""
    if "_getitem" in vars(dataset):
        return Refusal(type(dataset).__name__, "its _getitem was replaced", "the class as it is")
    known = [own_class("datasets.table", name) for name in _TABLES]
    for table in (dataset._data, dataset._indices):
        if table is not None and type(table) not in known:
            return Refusal(f"the table {type(table).__name__}", "it is none of those of the package", _AS_IT_IS)
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


def _check_feature(feature: Any) -> None:
    """Raise NotNumbers where samples are decoded, as images are, or where a program's own class says what they are."""
    known = [own_class("datasets.features.features", name) for name in _FEATURES]
    while type(feature) in known:
        if not hasattr(feature, "feature"):
            return
        feature = feature.feature
    raise NotNumbers(f"the feature {type(feature).__name__}")


def _dtype(column: Column, form: str | None, options: Any) -> str:
    """Return the dtype of a column in batches. Raises NotNumbers where only Python makes them."""
    stored = np.dtype(column.dtype)
    chosen = (options or {}).get("dtype") if form == "torch" else None
    if form is None and (column.shape or column.dtype in ("uint64", "float16")):
        raise NotNumbers("lists, which collate to lists," if column.shape else f"{stored} numbers as Python objects")
    if form == "numpy" and column.dtype == "float64":
        raise NotNumbers("float64 numbers, whose dtype in this format depends on the release of datasets")
    if chosen is None:
        dtype = (_NUMBERS if form is None else _TENSORS)[stored.kind]
    elif isinstance(chosen, torch.dtype):
        dtype = str(chosen).removeprefix("torch.")
    else:
        raise NotNumbers(f"elements for dtype={chosen!r}")
    try:
        column.filler(dtype)
    except ValueError:
        raise NotNumbers(f"{stored} numbers, which become {dtype},") from None
    return dtype


def _alike(column: Column, form: str | None, dtype: str) -> bool:
    """Return whether a sample by itself has the elements that it has in a batch, whatever they are."""
    if column.shape or form is None:
        return True
    return column.dtype == dtype if form == "numpy" else np.can_cast(column.dtype, dtype)


def _confirmed(dataset: Any, specs: dict[str, _native.Spec]) -> bool:
    """Return whether the first sample collates to tensors of these specs: other releases may format otherwise."""
    batch = default_collate(dataset.__getitems__([0]))
    return (
        type(batch) is dict
        and list(batch) == list(specs)
        and all(
            type(tensor) is torch.Tensor
            and tensor.device.type == "cpu"
            and not tensor.requires_grad
            and tensor.dtype is getattr(torch, spec.dtype)
            and tensor.shape == (1, *spec.shape)
            for tensor, spec in zip(batch.values(), specs.values(), strict=True)
        )
    )


def _same_dataset(dataset: Any) -> Holds:
    """Return a premise: a dataset has the tables, features and format that it has now."""
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
            and _refuse_format(dataset) is None
        )

    return holds
