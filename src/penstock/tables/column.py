"""Columns of Arrow tables. (A stand-in in Python for the native gatherer, until that arrives with main.)"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray


class ArrowColumn:
    """A column of a pyarrow.Table."""

    def __init__(self, column: Any) -> None:
        self._column = column.combine_chunks() if hasattr(column, "combine_chunks") else column
        self.rows = len(column)

    def _taken(self, rows: NDArray[np.int64]) -> Any:
        taken = self._column.take(rows)
        return taken.combine_chunks() if hasattr(taken, "combine_chunks") else taken

    def objects(self, rows: NDArray[np.int64]) -> list[Any]:
        return self._taken(rows).to_pylist()  # type: ignore[no-any-return]

    def lengths(self, rows: NDArray[np.int64], level: int = 1) -> NDArray[np.int64]:
        return np.array([0 if one is None else len(one) for one in self.objects(rows)], dtype=np.int64)

    def has_nulls(self, rows: NDArray[np.int64]) -> bool:
        return any(one is None or (isinstance(one, list) and None in one) for one in self.objects(rows))

    def padded(self, rows: NDArray[np.int64], out: Any, dtype: str, fill: float, left: bool) -> None:
        out = np.asarray(out)
        out[:] = fill
        for row, one in zip(out, self.objects(rows), strict=True):
            one = one[: len(row)]
            row[len(row) - len(one) if left else 0 : len(row) if left else len(one)] = one

    def flat(self, rows: NDArray[np.int64], out: Any, dtype: str) -> None:
        np.asarray(out)[:] = [number for one in self.objects(rows) for number in one]

    def numbers(self, rows: NDArray[np.int64], out: Any, dtype: str) -> None:
        np.asarray(out)[:] = self.objects(rows)


_known: dict[int, tuple[weakref.ref[Any], dict[str, ArrowColumn]]] = {}


def column_of(table: Any, name: str) -> ArrowColumn:
    """Return a column of a pyarrow.Table; it is kept for as long as the table lives."""
    key = id(table)
    if key not in _known or _known[key][0]() is not table:
        _known[key] = weakref.ref(table, lambda _: _known.pop(key, None)), {}
    return _known[key][1].setdefault(name, ArrowColumn(table.column(name)))
