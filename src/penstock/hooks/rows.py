"""Rows of datasets.Dataset, answered natively: a number, or a list of numbers, in the formats of Python and arrays."""

from __future__ import annotations

from typing import Any

from penstock.hooks.loads import Refused
from penstock.tables import hugging_face
from penstock.tables.column import NotGathered


def get_rows(dataset: Any, key: Any) -> Any:
    """Return what datasets.Dataset's `dataset[key]` returns, or Refused."""
    if type(key) not in (int, list) or not hugging_face.is_dataset(dataset):
        return Refused("it has another kind of index")
    rows = hugging_face.rows_of(dataset)
    if rows is None:
        return Refused(f"the package makes the format {dataset._format_type!r}")
    try:
        return rows.answer(dataset, key)
    except NotGathered as why:
        return Refused(str(why))
