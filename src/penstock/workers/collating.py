"""Batches built in place: what torch's default_collate gives, without a list of all samples and a copy of it.

The tensors and arrays of a few samples at a time are stacked into their rows of the batch as soon as they are there. In
the samples `Collated` replaces them, of which default_collate makes the rows. Where the samples of a batch do not
agree, it gets them as they were.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

import penstock._native as _native
from penstock.memory.buffers import Field, Rows
from penstock.recipe.collate_fn import Collated
from penstock.sample_notes import collated, note_batch

# torch.stack takes a microsecond or two a tensor, apart from copying it.
_EXCHANGE = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)  # of torch 2.10
_STACKER = _native.Stacker(torch.Tensor, _EXCHANGE) if _EXCHANGE else None
_requires_grad = operator.attrgetter("requires_grad")
_is_neg = operator.methodcaller("is_neg")  # negated lazily


@dataclass(frozen=True)
class _Stacked:
    """A field of samples that gets rows."""

    number: int
    dtype: np.dtype[Any] | None
    """Of arrays; None: tensors."""


@dataclass(frozen=True)
class _Container:
    """Tuples, named ones too, lists, and dicts with equal keys in one order."""

    kind: Any
    keys: tuple[Any, ...] | None
    parts: tuple[_Stacked | _Container | None, ...]

    def fits(self, values: Sequence[Any]) -> bool:
        kind, size, keys = self.kind, len(self.parts), self.keys
        if any(type(value) is not kind or len(value) != size for value in values):  # len() of what is sure to have one
            return False
        return keys is None or all(tuple(value) == keys for value in values)

    def columns(self, values: Sequence[Any]) -> Iterable[tuple[Any, ...]]:
        return zip(*(values if self.keys is None else [value.values() for value in values]), strict=True)

    def joined(self, columns: Sequence[Sequence[Any]]) -> list[Any]:
        joined = zip(*columns, strict=True)
        if self.keys is not None:
            return [dict(zip(self.keys, values, strict=True)) for values in joined]
        if self.kind is tuple:
            return list(joined)
        return list(map(list, joined)) if self.kind is list else [tuple.__new__(self.kind, one) for one in joined]


@dataclass(frozen=True)
class Layout:
    """How a sample is made: the containers, and the fields that get rows."""

    template: _Stacked | _Container | None
    fields: tuple[Field, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of a sample's rows."""
        return sum(field.nbytes for field in self.fields)


def layout_of(sample: Any) -> Layout:
    fields: list[Field] = []
    return Layout(_template(sample, fields), tuple(fields))


def _template(value: Any, fields: list[Field]) -> _Stacked | _Container | None:
    """Return how a value is made, and add its fields; None: it is left to default_collate."""
    kind: Any = type(value)
    name: str | None = None
    dtype = None
    if kind is torch.Tensor:
        if value.is_cpu and value.layout is torch.strided and not (value.requires_grad or value.is_nested):
            name = str(value.dtype).removeprefix("torch.")
    elif kind is np.ndarray and value.ndim:
        name, dtype = _torch_name(value.dtype), value.dtype
    if name in _native.DTYPES and value.ndim <= _native.MAX_DIMS:
        fields.append(Field(_native.Spec(name, list(value.shape))))
        return _Stacked(len(fields) - 1, dtype)
    if any(isinstance(value, registered) for registered in default_collate_fn_map):
        return None
    keys = tuple(value) if kind is dict else None
    if not (keys or kind in (tuple, list) or (isinstance(value, tuple) and hasattr(value, "_fields"))):
        return None
    parts = tuple(_template(item, fields) for item in (value.values() if keys else value))
    return _Container(kind, keys, parts) if any(parts) else None


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

    def begin_anew(self) -> None:
        """Forget the rows of the batch that was begun: it is made another way."""


class Build:
    """One batch while its samples come in.

    `take` may be called by several threads at once, for different positions; `finish` once, after all of them.

    Attributes:
        agrees: all samples so far were like the first.
    """

    def __init__(self, layout: Layout, samples: int, memory: BatchMemory) -> None:
        self.agrees = True
        self._layout = layout
        self._rows = [memory.rows(samples, field) for field in layout.fields]
        self._marks = [Collated(partial(getattr, rows, "tensor")) for rows in self._rows]
        self._samples: list[Any] = [None] * samples

    def take(self, samples: Sequence[Any], begin: int) -> None:
        self._samples[begin : begin + len(samples)] = self._stored(self._layout.template, samples, begin)

    def finish(self, given: Any) -> Any:
        """Return what default_collate gives for the samples of what a sampler gave. Raises what it raises."""
        if not self.agrees:
            return collated(default_collate, given, self._taken())
        try:
            return default_collate(self._samples)
        except Exception as error:
            note_batch(error, given, self._taken())
            raise

    def _stored(self, template: _Stacked | _Container | None, values: Sequence[Any], begin: int) -> Sequence[Any]:
        """Return values with marks for what was stacked."""
        if template is None:
            return values
        if isinstance(template, _Container):
            if template.fits(values):
                columns = zip(template.parts, template.columns(values), strict=True)
                return template.joined([self._stored(part, column, begin) for part, column in columns])
        else:
            stack = _stack_tensors if template.dtype is None else _stack_arrays
            if stack(self._values(template), values, begin):
                return [self._marks[template.number]] * len(values)
        self.agrees = False  # what was copied does not count
        return values

    def _values(self, field: _Stacked) -> Any:
        """Return the rows of a field as a tensor or an array."""
        rows = self._rows[field.number]
        return rows.tensor if field.dtype is None else rows.memory.view(field.dtype).reshape(rows.tensor.shape)

    def _taken(self) -> list[Any]:
        return [self._value(self._layout.template, sample, number) for number, sample in enumerate(self._samples)]

    def _value(self, template: _Stacked | _Container | None, value: Any, position: int) -> Any:
        if isinstance(template, _Container) and template.fits([value]):
            columns = zip(template.parts, template.columns([value]), strict=True)
            return template.joined([[self._value(part, one, position)] for part, (one,) in columns])[0]
        if isinstance(template, _Stacked) and type(value) is Collated:
            return self._values(template)[position]
        return value


def collate_in(memory: BatchMemory, given: Any, samples: Any) -> Any:
    """Return what default_collate gives for the samples of what a sampler gave. Raises what it raises.

    given: None: it is not known.
    """
    if type(samples) not in (list, tuple) or not samples or type(samples[0]) in (str, bytes):
        return collated(default_collate, given, samples)
    build = Build(layout_of(samples[0]), len(samples), memory)
    build.take(samples, 0)
    return build.finish(given)


def _stack_tensors(rows: torch.Tensor, values: Sequence[Any], begin: int) -> bool:
    stacker = None if rows.is_complex() else _STACKER  # complex ones may be conjugated lazily
    if stacker is not None and stacker.stack(rows, begin, list(values)):
        return not any(map(_requires_grad, values)) and not any(map(_is_neg, values))
    rows = rows[begin : begin + len(values)]
    try:
        if any(
            type(one) is not torch.Tensor or (one.dtype, one.shape) != (rows.dtype, rows.shape[1:]) for one in values
        ):
            return False
        torch.stack(values, out=rows)  # type: ignore[arg-type]
    except (RuntimeError, ValueError):  # not on the CPU, sparse, nested, or with a gradient
        return False
    return True


def _stack_arrays(rows: Any, values: Sequence[Any], begin: int) -> bool:
    for position, value in enumerate(values, begin):
        if type(value) is not np.ndarray or value.dtype != rows.dtype or value.shape != rows.shape[1:]:
            return False
        if any(stride < 0 or stride % value.itemsize for stride in value.strides):  # which torch refuses
            return False
        rows[position] = value
    return True
