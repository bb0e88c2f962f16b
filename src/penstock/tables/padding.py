"""Rows of columns of numbers as tensors: padded to one width, or one behind another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.tables.column import ArrowColumn, column_of

Rows = NDArray[np.int64]


class NotGathered(Exception):
    """The collator makes the batch itself, or raises its error."""


class Column(NamedTuple):
    """A column of numbers, or of lists of numbers."""

    arrow: ArrowColumn
    listed: bool
    dtype: torch.dtype
    """Of the tensor that torch makes of its values."""


def number_column(table: Any, name: str, value: Any) -> Column | None:
    """Return a column; None: it holds neither numbers nor lists of numbers. value: the package's, of its first row."""
    kind = table.schema.field(name).type
    listed = hasattr(kind, "value_type") and str(kind).partition("<")[0].endswith("list")
    element = str(kind.value_type if listed else kind)
    if element in ("bool", "float", "double"):
        dtype = torch.bool if element == "bool" else torch.float32
    elif element.lstrip("u") in ("int8", "int16", "int32", "int64") and element != "uint64":
        dtype = torch.int64
    else:
        return None
    if not listed:
        if isinstance(value, torch.Tensor):
            return Column(column_of(table, name), False, value.dtype) if value.dtype == dtype else None
        if not isinstance(value, bool | int | float | np.number | np.bool_):
            return None
        return Column(column_of(table, name), False, torch.tensor([value]).dtype)
    if isinstance(value, torch.Tensor | np.ndarray):
        plain = value.ndim == 1 and str(value.dtype).removeprefix("torch.") == str(dtype).removeprefix("torch.")
    else:
        plain = type(value) is list
    return Column(column_of(table, name), True, dtype) if plain else None


class Batch:
    """Some rows of a table, and tensors made of their columns. The methods raise NotGathered.

    Args:
        columns: those of a sample, in its order; None: a column that holds something else than numbers.
        first: the package's first sample.
        quiet: the tokenizer does not warn.
    """

    def __init__(
        self, columns: Mapping[str, Column | None], first: Mapping[str, Any], rows: Rows, *, quiet: bool
    ) -> None:
        self.columns, self.first, self.rows, self.quiet = columns, first, rows, quiet
        self._lengths: dict[str, Rows] = {}

    def column(self, name: str, *, listed: bool, whole: bool = False) -> Column:
        """Return a column that has no nulls in these rows. whole: its numbers are whole ones."""
        found = self.columns.get(name)
        if found is None or found.listed != listed or (whole and found.dtype != torch.int64):
            raise NotGathered
        if found.dtype.is_floating_point and torch.get_default_dtype() != torch.float32:
            raise NotGathered
        if found.arrow.has_nulls(self.rows):
            raise NotGathered
        return found

    def lengths(self, name: str) -> Rows:
        if name not in self._lengths:
            self._lengths[name] = self.column(name, listed=True).arrow.lengths(self.rows)
        return self._lengths[name]

    def padded(self, name: str, width: int, fill: float, *, left: bool = False, whole: bool = False) -> torch.Tensor:
        """Return the lists of a column as rows of one width, none of which is cut."""
        column, lengths = self.column(name, listed=True, whole=whole), self.lengths(name)
        if int(lengths.max()) > width:
            raise NotGathered
        # torch.tensor makes whole numbers of truth values and numbers, which the padding is.
        mixed = column.dtype == torch.bool and int(lengths.min()) < width
        out = torch.empty((len(self.rows), width), dtype=torch.int64 if mixed else column.dtype)
        column.arrow.padded(self.rows, out.numpy(), str(out.dtype).removeprefix("torch."), fill, left)
        return out

    def flat(self, name: str, *, more: int = 0) -> torch.Tensor:
        """Return the whole numbers of a column, one list behind another. more: elements that are left free behind."""
        total = int(self.lengths(name).sum())
        out = torch.empty(total + more, dtype=torch.int64)
        self.column(name, listed=True, whole=True).arrow.flat(self.rows, out.numpy()[:total], "int64")
        return out

    def documents(self) -> tuple[Rows, torch.Tensor, torch.Tensor]:
        """Return the length of each row's `input_ids`, these and their `labels`, or copies of them, without gaps."""
        lengths, ids = self.lengths("input_ids"), self.flat("input_ids")
        if "labels" not in self.columns:
            return lengths, ids, ids.clone()
        if (self.lengths("labels") != lengths).any():
            raise NotGathered
        return lengths, ids, self.flat("labels")

    def as_it_is(self, name: str) -> torch.Tensor:
        """Return numbers, or lists of one length, as torch.tensor makes a tensor of them."""
        found = self.columns.get(name)
        if found is not None and found.listed:
            width = int(self.lengths(name)[0])
            if not width or (self.lengths(name) != width).any():
                raise NotGathered
            return self.padded(name, width, 0)
        column = self.column(name, listed=False)
        out = torch.empty(len(self.rows), dtype=column.dtype)
        column.arrow.numbers(self.rows, out.numpy(), str(out.dtype).removeprefix("torch."))
        return out


def token_mask(lengths: Rows, width: int, *, left: bool = False) -> torch.Tensor:
    """Return 1 for each token and 0 for padding."""
    places = np.arange(width)
    tokens = places >= width - lengths[:, None] if left else places < lengths[:, None]
    return torch.from_numpy(tokens.astype(np.int64))


def up_to(size: int, multiple: int | None) -> int:
    return size if multiple is None else -(-size // multiple) * multiple


# --- documents one behind another -------------------------------------------------------------------------------------


def boundaries(lengths: Rows) -> torch.Tensor:
    """Return where each document begins, and the end of the last: int32, shape (documents + 1,)."""
    return torch.from_numpy(np.concatenate([[0], lengths.cumsum()]).astype(np.int32))


def positions(lengths: Rows) -> torch.Tensor:
    """Return the place of each token in its document: int64, shape (tokens,)."""
    ends = lengths.cumsum()
    return torch.from_numpy(np.arange(ends[-1]) - np.repeat(ends - lengths, lengths))


def laid_out(lengths: Rows, ids: torch.Tensor, labels: torch.Tensor, separator: int) -> dict[str, Any]:
    """Return `input_ids` and `labels` of documents that lie one behind another, each of shape (1, tokens).

    lengths: of the documents, none of which is empty. separator: the label of each document's first token.
    """
    labels[torch.from_numpy(lengths.cumsum() - lengths)] = separator
    return {"input_ids": ids[None], "labels": labels[None]}


def bounds_of(lengths: Rows) -> dict[str, Any]:
    """Return where documents begin and how long the longest is, as flash attention takes it."""
    longest = int(lengths.max())
    return {
        "cu_seq_lens_q": boundaries(lengths),
        "cu_seq_lens_k": boundaries(lengths),
        "max_length_q": longest,
        "max_length_k": longest,
    }
