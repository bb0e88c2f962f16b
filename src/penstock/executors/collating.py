"""Batches built in place: what torch's default_collate gives, without a list of all samples and a copy of it.

The tensors and arrays of a few samples at a time are stacked into their rows of the batch as soon as they are there;
numbers, strings and all else are kept, and collated by torch in the end. Where the samples of a batch do not agree,
they are given back as they were, and torch's default_collate has the last word.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

import penstock._native as _native
from penstock.executors.buffers import Field, Rows
from penstock.sample_notes import collated, note_batch

# torch.stack takes a microsecond or two a tensor, apart from copying it.
_STACKER = _native.Stacker(torch.Tensor, torch.Tensor.__dlpack_c_exchange_api__)
_requires_grad = operator.attrgetter("requires_grad")
_is_neg = operator.methodcaller("is_neg")  # negated lazily


class _Differs(Exception):
    """A sample is not like the first one of its batch."""


class _Part(Protocol):
    """A part of all samples of a batch: a field, or a container of parts."""

    def take(self, values: Sequence[Any], begin: int) -> None:
        """Take in the values of the samples from a position on. Raises _Differs."""

    def value(self, position: int) -> Any:
        """Return what was taken in for a sample, equal to it."""

    def batch(self, kind: type) -> Any:
        """Return what default_collate gives for a list, or tuple, of the values. Raises what it raises."""


@dataclass(frozen=True)
class Layout:
    """How a sample is made: the containers, and the fields that get rows."""

    make: Callable[[Sequence[Rows], int], _Part]
    """Returns the part for the rows of the fields and a number of samples."""
    fields: tuple[Field, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of a sample's rows."""
        return sum(field.nbytes for field in self.fields)


def layout_of(sample: Any) -> Layout:
    """Return the layout of a sample."""
    fields: list[Field] = []
    return Layout(_maker(sample, fields), tuple(fields))


def _maker(value: Any, fields: list[Field]) -> Callable[[Sequence[Rows], int], _Part]:
    kind: Any = type(value)
    dtype = None
    make: Callable[[Rows], _Part] = _Tensors
    shape: Any = ()
    if (
        kind is torch.Tensor
        and value.is_cpu
        and value.layout is torch.strided
        and not value.requires_grad
        and not value.is_nested
    ):
        dtype, shape = str(value.dtype).removeprefix("torch."), value.shape
    elif kind is np.ndarray and value.ndim:
        dtype, shape, make = _torch_name(value.dtype), value.shape, partial(_Arrays, dtype=value.dtype)
    if dtype in _native.DTYPES and value.ndim <= _native.MAX_DIMS:
        number = len(fields)
        fields.append(Field(_native.Spec(dtype, list(shape))))
        return lambda rows, samples: make(rows[number])
    if not any(isinstance(value, registered) for registered in default_collate_fn_map):
        if kind is tuple or kind is list or (isinstance(value, tuple) and hasattr(value, "_fields")):
            makers = [_maker(item, fields) for item in value]
            return lambda rows, samples: _Items(kind, [make(rows, samples) for make in makers])
        if kind is dict:
            named = {key: _maker(item, fields) for key, item in value.items()}
            return lambda rows, samples: _Entries({key: make(rows, samples) for key, make in named.items()})
    return lambda rows, samples: _Kept(samples)


def _torch_name(dtype: np.dtype[Any]) -> str | None:
    """Return the name of the dtype that torch gives an array, or None where it takes none."""
    try:
        return str(torch.from_numpy(np.empty(0, dtype)).dtype).removeprefix("torch.")
    except (TypeError, ValueError):
        return None


class BatchMemory(Protocol):
    """Where a batch is built."""

    def rows(self, samples: int, field: Field) -> Rows:
        """Return uninitialised memory for a field of a batch."""


class Build:
    """One batch while its samples come in.

    `take` may be called by several threads at once, for different positions; `finish` once, after all of them.
    """

    def __init__(self, layout: Layout, samples: int, buffers: BatchMemory) -> None:
        self._samples = samples
        self._part = layout.make([buffers.rows(samples, field) for field in layout.fields], samples)
        self._differing: dict[int, Any] = {}

    def take(self, samples: Sequence[Any], begin: int) -> None:
        """Take in the samples from a position on."""
        try:
            self._part.take(samples, begin)
        except _Differs:
            if len(samples) == 1:
                self._differing[begin] = samples[0]
                return
            for position, sample in enumerate(samples, begin):
                self.take([sample], position)

    @property
    def agrees(self) -> bool:
        """Whether all samples so far were like the first."""
        return not self._differing

    def finish(self, given: Any) -> Any:
        """Return what default_collate gives for the samples of what a sampler gave. Raises what it raises."""
        if self._differing:
            return collated(default_collate, given, self._taken())
        try:
            return self._part.batch(list)
        except Exception as error:
            note_batch(error, given, self._taken())
            raise

    def _taken(self) -> list[Any]:
        """Return the samples as they were."""
        return [
            self._differing[position] if position in self._differing else self._part.value(position)
            for position in range(self._samples)
        ]


class _Tensors:
    """Tensors that are stacked."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows.tensor
        self._alike = {(torch.Tensor, rows.tensor.dtype)}
        self._plain = not rows.tensor.is_complex()  # which may be conjugated lazily

    def take(self, values: Sequence[Any], begin: int) -> None:
        if self._copied(values, begin):
            return
        if {(type(value), getattr(value, "dtype", None)) for value in values} != self._alike:
            raise _Differs
        rows = self._rows[begin : begin + len(values)]
        try:
            if values[0].shape != rows.shape[1:]:  # or stack resizes
                raise _Differs
            torch.stack(values, out=rows)  # type: ignore[arg-type]
        except (RuntimeError, ValueError):  # of another shape, not on the CPU, sparse, nested, or with a gradient
            raise _Differs from None

    def _copied(self, values: Sequence[Any], begin: int) -> bool:
        """Copy plain tensors without torch; False: some are not, and what was copied does not count."""
        return (
            self._plain
            and _STACKER.stack(self._rows, begin, list(values))
            and not any(map(_requires_grad, values))
            and not any(map(_is_neg, values))
        )

    def value(self, position: int) -> Any:
        return self._rows[position]

    def batch(self, kind: type) -> Any:
        return self._rows


class _Arrays:
    """NumPy arrays that are stacked."""

    def __init__(self, rows: Rows, dtype: np.dtype[Any]) -> None:
        self._tensor = rows.tensor
        self._rows = rows.memory.view(dtype).reshape(rows.tensor.shape)

    def take(self, values: Sequence[Any], begin: int) -> None:
        rows = self._rows
        for position, value in enumerate(values, begin):
            if type(value) is not np.ndarray or value.dtype != rows.dtype or value.shape != rows.shape[1:]:
                raise _Differs
            if any(stride < 0 or stride % value.itemsize for stride in value.strides):  # which torch refuses
                raise _Differs
            rows[position] = value

    def value(self, position: int) -> Any:
        return self._rows[position]

    def batch(self, kind: type) -> Any:
        return self._tensor


class _Kept:
    """Numbers, strings, and whatever else torch collates as it is."""

    def __init__(self, samples: int) -> None:
        self._values: list[Any] = [None] * samples

    def take(self, values: Sequence[Any], begin: int) -> None:
        self._values[begin : begin + len(values)] = values

    def value(self, position: int) -> Any:
        return self._values[position]

    def batch(self, kind: type) -> Any:
        return default_collate(kind(self._values))


class _Items:
    """Tuples, named ones too, and lists, of as many parts each."""

    def __init__(self, kind: Any, parts: Sequence[_Part]) -> None:
        self._kind = kind
        self._parts = parts

    def take(self, values: Sequence[Any], begin: int) -> None:
        for value in values:  # len() only of what is sure to have one
            if type(value) is not self._kind or len(value) != len(self._parts):
                raise _Differs
        for part, column in zip(self._parts, zip(*values, strict=True), strict=True):
            part.take(column, begin)

    def value(self, position: int) -> Any:
        values = [part.value(position) for part in self._parts]
        return values if self._kind is list else tuple(values) if self._kind is tuple else self._kind(*values)

    def batch(self, kind: type) -> Any:
        batches = [part.batch(tuple) for part in self._parts]
        return batches if self._kind in (tuple, list) else self._kind(*batches)


class _Entries:
    """Dicts with equal keys in one order."""

    def __init__(self, parts: dict[Any, _Part]) -> None:
        self._parts = parts
        self._keys = tuple(parts)

    def take(self, values: Sequence[Any], begin: int) -> None:
        if any(type(value) is not dict or tuple(value) != self._keys for value in values):
            raise _Differs
        for key, part in self._parts.items():
            part.take([value[key] for value in values], begin)

    def value(self, position: int) -> Any:
        return {key: part.value(position) for key, part in self._parts.items()}

    def batch(self, kind: type) -> Any:
        return {key: part.batch(list) for key, part in self._parts.items()}
