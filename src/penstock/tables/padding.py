"""Rows of columns of numbers as tensors: padded to one width, or one behind another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.tables.column import Column, NotGathered, column_of, dtype_of_objects

Rows = NDArray[np.int64]
T = TypeVar("T")


def there(found: T | None) -> T:
    """Return what was gathered. Raises NotGathered for None: a value is null, or is not converted natively."""
    if found is None:
        raise NotGathered
    return found


class NumberColumn(NamedTuple):
    """A column of numbers, or of lists of numbers."""

    held: Column
    dtype: torch.dtype
    """Of the tensor that torch makes of its values."""


def number_column(table: Any, name: str, value: Any) -> NumberColumn | None:
    """Return a column; None: it holds neither numbers nor lists of numbers. value: the package's, of its first row."""
    held = column_of(table, name)
    if held.dtype is None or held.dtype is torch.uint64:
        return None
    dtype = dtype_of_objects(held.dtype)
    if held.is_list:
        arrays = isinstance(value, torch.Tensor | np.ndarray)
        plain = value.ndim == 1 and _name(value.dtype) == _name(dtype) if arrays else type(value) is list
    elif isinstance(value, torch.Tensor):
        plain = value.dtype == dtype
    else:
        plain = isinstance(value, bool | int | float | np.number | np.bool_)
        dtype = torch.tensor([value]).dtype if plain else dtype
    return NumberColumn(held, dtype) if plain else None


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


class Batch:
    """Some rows of a table, and tensors made of their columns. The methods raise NotGathered.

    Args:
        columns: those of a sample, in its order; None: a column that holds something else than numbers.
        first: the package's first sample.
        quiet: the tokenizer does not warn.
    """

    def __init__(
        self, columns: Mapping[str, NumberColumn | None], first: Mapping[str, Any], rows: Rows, *, quiet: bool
    ) -> None:
        self.columns, self.first, self.rows, self.quiet = columns, first, rows, quiet
        self._lengths: dict[str, Rows] = {}

    def is_list(self, name: str) -> bool:
        """Return whether a column holds lists of numbers."""
        found = self.columns.get(name)
        return found is not None and found.held.is_list

    def objects(self, name: str) -> list[Any]:
        """Return the numbers of a column, or its lists of numbers, as Python's objects."""
        return self.column(name, listed=self.is_list(name)).held.objects(self.rows)

    def column(self, name: str, *, listed: bool) -> NumberColumn:
        found = self.columns.get(name)
        if found is None or found.held.is_list != listed:
            raise NotGathered
        if found.dtype.is_floating_point and torch.get_default_dtype() != torch.float32:
            raise NotGathered
        return found

    def lengths(self, name: str) -> Rows:
        if name not in self._lengths:
            self._lengths[name] = there(self.column(name, listed=True).held.lengths(self.rows))
        return self._lengths[name]

    def padded(self, name: str, width: int, fill: float, *, left: bool = False, whole: bool = False) -> torch.Tensor:
        """Return the lists of a column as rows of one width, none of which is cut. whole: of whole numbers only."""
        column, lengths = self.column(name, listed=True), self.lengths(name)
        if int(lengths.max()) > width or (whole and column.dtype != torch.int64):
            raise NotGathered
        # torch.tensor makes whole numbers of truth values and numbers, which the padding is.
        mixed = column.dtype == torch.bool and int(lengths.min()) < width
        dtype = torch.int64 if mixed else column.dtype
        return there(column.held.padded(self.rows, dtype, width, fill, left=left))

    def flat(self, name: str) -> torch.Tensor:
        """Return the whole numbers of a column, one list behind another."""
        column = self.column(name, listed=True)
        if column.dtype != torch.int64:
            raise NotGathered
        return there(column.held.flat(self.rows, torch.int64, int(self.lengths(name).sum())))

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
        if self.is_list(name):
            width = int(self.lengths(name)[0])
            if not width or (self.lengths(name) != width).any():
                raise NotGathered
            return self.padded(name, width, 0)
        column = self.column(name, listed=False)
        return there(column.held.flat(self.rows, column.dtype, len(self.rows)))


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


def document_numbers(lengths: Rows) -> torch.Tensor:
    """Return the number of each token's document: int32, shape (tokens,)."""
    return torch.from_numpy(np.repeat(np.arange(len(lengths), dtype=np.int32), lengths))


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
