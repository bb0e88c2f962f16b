"""Packed: a collate_fn that lays documents one behind another, in batches of as many as a number of tokens allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, IterableDataset, Subset

from penstock.errors import InvalidOption
from penstock.order.buckets import CutBatches, checked_lengths
from penstock.order.packed import DocumentOrder
from penstock.order.permutations import check_one_each, checked_count
from penstock.showing import shown
from penstock.tables.column import NotGathered
from penstock.tables.hugging_face import is_dataset, rows_of
from penstock.tables.padding import Batch, Rows, bounds_of, laid_out, positions

#: The label of each document's first token, which no loss counts: it would be predicted from the document before.
_SEPARATOR = -100
#: A document that replaces another one has another length.
_DEFAULTS = {"batch_size": 1, "sampler": None, "drop_last": False, "on_error": "raise"}


class Packed:
    """A collate_fn that lays documents one behind another: no padding, and attention that stays within a document.

    A batch is a dictionary as Transformers' DataCollatorWithFlattening(return_flash_attn_kwargs=True) makes it:
    `input_ids`, `labels` and `position_ids` (int64, shape (1, tokens)), `cu_seq_lens_q` and `cu_seq_lens_k` (int32,
    shape (documents + 1,)), `max_length_q` and `max_length_k`. Labels are those of the documents, or their tokens, and
    -100 at each document's first token.

    The loader cuts its order into batches by the lengths of the documents: one that does not fit into what is left of
    a batch begins the next one, none is lost, and the last batch of an epoch has fewer tokens. Each epoch has the same
    number of batches: of a shuffle about one in a hundred is cut in two for that. A document is a
    dictionary with `input_ids`, and `labels` if it has any, or by itself a list, array or tensor of tokens. Empty
    documents are left out.

    Args:
        tokens: the most of a batch.
        lengths: of each document of the dataset, whole numbers; None: the column `input_ids` of a Hugging Face dataset
            has them.
        longer: than `tokens`. "raise": such a document is an error before the first batch. "cut": its first `tokens`
            tokens are taken.
        vocab_size: tokens are less than it. None: they are not looked at.

    Raises:
        InvalidOption: from a loader: a batch size, a sampler or drop_last=True beside it, documents that are longer or
            null, lengths that are not known, or not as many as the documents, a column that is not there. From a batch:
            a token beyond vocab_size, or labels that are not as many as the tokens.
        TypeError: tokens that are not whole numbers.
    """

    def __init__(
        self,
        tokens: int,
        *,
        lengths: Sequence[int] | NDArray[Any] | torch.Tensor | None = None,
        longer: str = "raise",
        vocab_size: int | None = None,
    ) -> None:
        self.tokens = checked_count("tokens", tokens)
        self.lengths = None if lengths is None else checked_lengths(lengths)
        if longer not in ("raise", "cut"):
            raise InvalidOption(f"longer={longer!r}: it is 'raise' or 'cut'")
        self.longer = longer
        self.vocab_size = None if vocab_size is None else checked_count("vocab_size", vocab_size)

    def __repr__(self) -> str:
        return f"Packed(tokens={self.tokens})"

    # --- which documents a batch holds ------------------------------------------------------------------------------

    def batches(
        self, dataset: Any, shuffle: bool, generator: torch.Generator | None, others: dict[str, Any]
    ) -> CutBatches:
        """Return the batch sampler of a loader. others: arguments of the loader that must have their defaults.

        Raises InvalidOption.
        """
        for name, value in others.items():
            if value is not _DEFAULTS[name] and value != _DEFAULTS[name]:
                raise InvalidOption(f"{name}={value!r}: {self!r} cuts the loader's order by itself; leave {name}= out")
        if isinstance(dataset, IterableDataset):
            raise InvalidOption(f"{self!r} needs a map-style dataset: an iterable one makes its own order")
        lengths = self.lengths
        if lengths is None:
            lengths = _lengths_of(dataset)
        else:
            check_one_each("lengths", len(lengths), len(dataset))
        if not lengths.any():
            raise InvalidOption(f"{type(dataset).__name__} has no tokens: all of its documents are empty")
        longest = int(lengths.argmax())
        if lengths[longest] > self.tokens and self.longer == "raise":
            raise InvalidOption(
                f"document {longest} has {lengths[longest]:,} tokens, more than tokens={self.tokens}: allow more, "
                f"leave it out, or give longer='cut', which takes its first {self.tokens:,}"
            )
        lengths = np.minimum(lengths, self.tokens)
        order = DocumentOrder(lengths, self.tokens, shuffle=shuffle, generator=generator)
        return CutBatches(order)

    # --- a batch ----------------------------------------------------------------------------------------------------

    def __call__(self, samples: Sequence[Any]) -> dict[str, Any]:
        labelled = isinstance(samples[0], Mapping) and "labels" in samples[0]
        ids = [_tokens(sample, "input_ids", number) for number, sample in enumerate(samples)]
        labels = [_tokens(sample, "labels", number) for number, sample in enumerate(samples)] if labelled else ids
        for number, (one, other) in enumerate(zip(ids, labels, strict=True)):
            if len(one) != len(other):
                raise _of_document(number, f"has {len(other)} labels for {len(one)} tokens")
            if self.vocab_size is not None and len(one) and not 0 <= (worst := _worst(one)) < self.vocab_size:
                place = int((one == worst).argmax())
                raise _of_document(number, f"holds token {worst} at place {place}: vocab_size={self.vocab_size}")
        lengths = np.array(list(map(len, ids)), dtype=np.int64)
        return self._laid_out(lengths, *(torch.from_numpy(np.concatenate(one)) for one in (ids, labels)))

    def gathered(self, batch: Batch) -> dict[str, Any]:
        """Return the batch of rows of a table. Raises NotGathered where the samples themselves have the last word."""
        lengths, ids, labels = batch.documents()
        if self.vocab_size is not None and len(ids) and not 0 <= _worst(ids.numpy()) < self.vocab_size:
            raise NotGathered
        return self._laid_out(lengths, ids, labels)

    def _laid_out(self, lengths: Rows, ids: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
        if self.longer == "cut" and (lengths > self.tokens).any():
            kept = positions(lengths) < self.tokens
            ids, labels, lengths = ids[kept], labels[kept], np.minimum(lengths, self.tokens)
        lengths = lengths[lengths > 0]
        total = int(lengths.sum())
        if not total or total > self.tokens:
            raise InvalidOption(
                f"the documents of a batch have {total:,} tokens, and 1 to {self.tokens:,} are needed: a batch_sampler "
                "of your own, or lengths= that are not those of the documents, put them together"
            )
        made = laid_out(lengths, ids, labels, _SEPARATOR)
        return made | {"position_ids": positions(lengths)[None]} | bounds_of(lengths)


def _worst(tokens: NDArray[np.int64]) -> int:
    """Return a negative token, or the greatest."""
    return least if (least := int(tokens.min())) < 0 else int(tokens.max())


def _of_document(number: int, what: str) -> InvalidOption:
    """Return an error of a document, whose note names the sample of the dataset that it is."""
    error = InvalidOption(f"document {number} of the batch {what}")
    error.sample_number = number  # type: ignore[attr-defined]
    return error


def _tokens(sample: Any, name: str, number: int) -> NDArray[np.int64]:
    """Return the tokens, or labels, of a document. Raises InvalidOption, TypeError."""
    value = sample
    if isinstance(sample, Mapping):
        if name not in sample:
            raise _of_document(number, _missing(name, sample))
        value = sample[name]
    found = np.asarray(value)
    if not found.size and found.ndim == 1:
        return np.zeros(0, dtype=np.int64)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise TypeError(
            f"document {number} of the batch: {name} are of shape {found.shape} and dtype {found.dtype}; whole numbers "
            "in one dimension are needed"
        )
    return found.astype(np.int64)


def _missing(name: str, names: Any) -> str:
    near = get_close_matches(name, map(str, names), 1)
    hint = f"; rename {near[0]!r} if it is meant" if near else ""
    return f"has no {name!r}, but {shown(str(list(names)))}{hint}"


# --- the lengths of documents -----------------------------------------------------------------------------------------


def _lengths_of(dataset: Any) -> Rows:
    """Return the length of each document of a dataset whose column says it. Raises InvalidOption."""
    if type(dataset) is Subset:
        return _lengths_of(dataset.dataset)[np.asarray(dataset.indices, dtype=np.int64)]
    if type(dataset) is ConcatDataset:
        return np.concatenate([_lengths_of(part) for part in dataset.datasets])
    found, name = rows_of(dataset) if is_dataset(dataset) else None, "input_ids"
    if found is None or dataset._format_type == "custom":  # whose function makes the documents
        raise InvalidOption(
            f"the lengths of the documents of {type(dataset).__name__} are not known: give "
            "Packed(tokens, lengths=[len(document) for document in dataset])"
        )
    if name not in found.names:
        raise InvalidOption(f"the dataset {_missing(name, found.names)}")
    column, rows = found.column(name), found.rows(np.arange(len(dataset)))
    if not column.is_list:
        raise InvalidOption(f"column {name!r} of the dataset holds {column.type}: lists of tokens are needed")
    lengths = column.lengths(rows)
    if lengths is None or column.has_nulls(rows):
        null = next(number for number in range(len(rows)) if column.has_nulls(rows[number : number + 1]))
        raise InvalidOption(f"document {null} of the dataset is null, or holds a null: filter it out, or fill it")
    return lengths
