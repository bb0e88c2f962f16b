"""Columns of a dataset: labels, compact where they are numbers, and sequences whose items are made when taken."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

import numpy as np
import torch
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


# --- IDs and labels of all samples, for a fingerprint -----------------------------------------------------------------


def joined_ids(names: Iterable[str]) -> bytes:
    """Return IDs as bytes, each followed by a NUL."""
    return joined([name.encode("utf-8", "surrogatepass").replace(b"\0", b"\\0") for name in names])


def joined(texts: Sequence[bytes]) -> bytes:
    """Return texts as bytes, each followed by a NUL."""
    return b"\0".join(texts) + b"\0" if texts else b""


def label_values(labels: Any) -> NDArray[Any]:
    """Return one 64-bit value for each label."""
    labels = as_array(labels)
    if isinstance(labels, np.ndarray) and labels.ndim == 1 and labels.dtype.kind in "biuf":
        return labels.astype(np.float64).view(np.int64) if labels.dtype.kind == "f" else labels.astype(np.int64)
    return np.fromiter(map(_of_label, labels), np.int64, len(labels))


def as_array(values: Any) -> Any:
    """Return a copy of a tensor as an array: an array that shares its memory would forbid the tensor to grow."""
    return values.detach().clone().numpy(force=True) if isinstance(values, torch.Tensor) else values


def chosen_of(indices: Any) -> NDArray[np.int64]:
    """Return the indices of a Subset as an array; of a dict, by their positions. Raises TypeError, ValueError."""
    listed = [indices[position] for position in sorted(indices)] if isinstance(indices, Mapping) else indices
    return np.asarray(as_array(listed), dtype=np.int64)


def _of_label(label: Any) -> int:
    """Return a whole number itself, else a hash: of an array's bytes, or of a text without an address in it."""
    if type(label) is int and -(1 << 63) <= label < 1 << 63:
        return label
    if type(label) is float:
        return int(np.float64(label).view(np.int64))
    label = as_array(label)
    if isinstance(label, np.ndarray) and label.dtype != object:
        data = label.tobytes()
    else:
        text = repr(label)
        data = (type(label).__qualname__ if " at 0x" in text else text).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)
