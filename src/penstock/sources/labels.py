"""Columns of a dataset: labels, compact where they are numbers, and sequences whose items are made when taken."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from penstock.sample_notes import add_note
from penstock.system.words import counted, there_are

LabelColumn = NDArray[Any] | list[Any]
"""Labels of some samples: an array where all are numbers."""

T = TypeVar("T")


class LazySequence(Sequence[T]):
    """A sequence whose items are made when they are taken; equal to a list of them."""

    def _at(self, position: int) -> T:
        """Return the item at a position from 0 on."""
        raise NotImplementedError

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self._at(position) for position in range(*index.indices(len(self)))]
        try:
            return self._at(range(len(self))[index])
        except IndexError:
            raise IndexError(f"sample index {index} is out of range: {there_are(len(self), 'sample')}") from None

    def __iter__(self) -> Iterator[T]:
        return map(self._at, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (type(self), list, tuple)):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({counted(len(self), 'sample')})"


class Missing:
    """Stands, as the class itself, for the label of a sample that has none."""


def array_of(labels: LabelColumn) -> NDArray[Any]:
    """Return Python integers as int64 and floats as float64; anything else as an array of the objects."""
    found = compact(labels) if isinstance(labels, list) else labels
    return found if isinstance(found, np.ndarray) else np.fromiter(found, dtype=object, count=len(found))


def looked_up(labels: Mapping[str, Any], ids: Iterable[str]) -> NDArray[Any]:
    """Return the label of each ID, as `array_of` does; an ID without one has `Missing`."""
    try:
        return array_of(list(map(labels.__getitem__, ids)))
    except KeyError:
        return array_of([labels.get(name, Missing) for name in ids])


def taken(labels: NDArray[Any], positions: NDArray[np.int64]) -> LabelColumn:
    """Return the labels at these positions: an array where they are numbers."""
    found = labels[positions]
    return found.tolist() if found.dtype == object else found


def as_objects(labels: LabelColumn) -> list[Any]:
    """Return labels as the Python objects that the dataset itself would give."""
    return labels.tolist() if isinstance(labels, np.ndarray) else labels


def compact(values: list[Any]) -> LabelColumn:
    """Return labels as an array where they are Python integers or floats, else as they are."""
    kinds = set(map(type, values))
    if kinds == {float}:
        return np.array(values, dtype=np.float64)
    if kinds == {int}:
        try:
            return np.array(values, dtype=np.int64)
        except OverflowError:
            return values
    return values


def transformed(labels: LabelColumn, target_transform: Callable[[Any], Any] | None) -> LabelColumn:
    """Apply a dataset's target_transform to Python objects, as its __getitem__ would."""
    if target_transform is None:
        return labels
    objects = as_objects(labels)
    left = iter(objects)
    try:
        return [target_transform(label) for label in left]
    except Exception as error:
        add_note(error, f"in target_transform of label {objects[len(objects) - operator.length_hint(left) - 1]!r}")
        raise
