"""A collate_fn for samples of different lengths: padded to the longest, with their lengths beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import default_collate

from penstock.errors import InvalidOption, ShapeMismatch
from penstock.system.words import counted


class PaddedSequences(NamedTuple):
    """The sequences of a batch, padded to one length, with their lengths."""

    values: torch.Tensor
    """Shape (samples, longest length, *), of the dtype of the sequences."""
    lengths: torch.Tensor
    """The length of each sequence: int64, shape (samples,), on the CPU."""


class Padded:
    """A collate_fn that pads sequences to the longest of their batch: as torch's pad_sequence(batch_first=True).

    Sequences, which become `PaddedSequences`, are lists of numbers, and tensors and arrays of one dimension or more
    that differ only in the first one. torch's default_collate collates everything else. Native threads still read a
    recognised dataset.

    Args:
        value: the padding after the end of a sequence.
        fields: which fields of a sample are sequences: keys of a dictionary, positions of a tuple; None: all that can
            be.

    Raises:
        InvalidOption: fields that a sample does not have (when it is called).
        ShapeMismatch: sequences that differ in more than their lengths (when it is called).
    """

    def __init__(self, value: float = 0, *, fields: Iterable[Any] | None = None) -> None:
        if isinstance(fields, str):
            raise TypeError(f"fields={fields!r}: give a list of keys or positions, not one string")
        self.value = value
        self.fields = None if fields is None else tuple(fields)

    def __call__(self, samples: Sequence[Any]) -> Any:
        first = samples[0]
        if isinstance(first, Mapping):
            self._check(first)
            return {key: self._collated(key, [sample[key] for sample in samples]) for key in first}
        if isinstance(first, tuple | list) and not _is_sequence(first):
            self._check(range(len(first)))
            if any(len(sample) != len(first) for sample in samples):
                return default_collate(list(samples))  # raises its own error
            columns = [self._collated(place, list(column)) for place, column in enumerate(zip(*samples, strict=True))]
            return type(first)(*columns) if hasattr(first, "_fields") else columns
        return self._collated(None, list(samples))

    def __repr__(self) -> str:
        return f"Padded(value={self.value!r}, fields={self.fields!r})"

    def _check(self, known: Any) -> None:
        for field in self.fields or ():
            if field not in known:
                raise InvalidOption(
                    f"fields={list(self.fields or ())!r}: a sample has {list(known)!r}, and no {field!r}"
                )

    def _collated(self, field: Any, values: list[Any]) -> Any:
        chosen = self.fields is None or field is None or field in self.fields
        if not chosen or not all(map(_is_sequence, values)):
            return default_collate(values)
        sequences = _tensors(values)
        for number, sequence in enumerate(sequences):
            if sequence.shape[1:] != sequences[0].shape[1:] or sequence.dtype != sequences[0].dtype:
                shapes = [f"{tuple(one.shape)} of {str(one.dtype).removeprefix('torch.')}" for one in sequences]
                where = "" if field is None else f" in field {field!r}"
                raise ShapeMismatch(
                    f"sample {number} of a batch of {counted(len(values), 'sample')} has shape {shapes[number]}{where},"
                    f" and sample 0 {shapes[0]}: padded sequences may differ only in their first dimension"
                )
        lengths = torch.tensor([len(sequence) for sequence in sequences], dtype=torch.int64)
        return PaddedSequences(pad_sequence(sequences, batch_first=True, padding_value=self.value), lengths)


def _is_sequence(value: Any) -> bool:
    """Return whether a value of a sample has a length: a tensor, an array, or a list of numbers."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.ndim > 0
    return isinstance(value, list) and all(type(one) in (int, float, bool) for one in value)


def _tensors(values: list[Any]) -> list[torch.Tensor]:
    """Return sequences as tensors; an empty list is of the dtype of the others."""
    sequences = [torch.as_tensor(value) for value in values]
    dtype = next((one.dtype for one in sequences if len(one)), None)
    if dtype is None:
        return sequences
    return [
        one.to(dtype) if isinstance(value, list) and not value else one
        for value, one in zip(values, sequences, strict=True)
    ]
