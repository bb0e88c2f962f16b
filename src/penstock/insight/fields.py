"""A batch of any structure, taken apart: the value of each field of each sample."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence

#: The keys that lead to a field: positions in tuples and lists, keys of mappings, names of attributes.
Path = tuple[Any, ...]
Fields = dict[Path, Any]
_DEEPEST = 8  # containers within containers


class Form(Enum):
    """What a loader hands out."""

    BATCH = "batch"
    """Samples, put together by a collate function."""
    SAMPLES = "samples"
    """A list of samples."""
    UNBATCHED = "unbatched"
    """Of a loader that does not batch (batch_size=None): one sample, or what the dataset itself made of several."""


def taken_apart(value: Any, form: Form, number: int | None = None) -> tuple[list[Fields], Fields]:
    """Return the fields of each sample of what a loader handed out, and those that belong to no sample.

    Something unbatched is several samples where all of its arrays have the same first dimension, and one of them has
    four dimensions or more.

    Args:
        value: of any structure.
        form: of it.
        number: of the samples of a batch, as `samples_of` takes it.
    """
    if form is Form.BATCH:
        return samples_of(value, number)
    if form is Form.SAMPLES:
        return [flat(sample) for sample in value], {}
    sample = flat(value)
    shapes = [tuple(leaf.shape) for leaf in sample.values() if _is_array(leaf) and leaf.ndim]
    if len({shape[0] for shape in shapes}) == 1 and max(map(len, shapes)) >= 4:
        samples, whole = samples_of(value, shapes[0][0])
        if not whole:
            return samples, whole
    return [sample], {}


def samples_of(batch: Any, number: int | None = None) -> tuple[list[Fields], Fields]:
    """Return the fields of each sample of a batch, and those that belong to the batch as a whole.

    Tensors, arrays, and lists and tuples of one value a sample are cut along their first dimension. A list of whole
    samples, as some collate functions return it, is one too.

    Args:
        batch: of any structure.
        number: of its samples; None: the first dimension of most of its tensors, or of its lists where it has none.
            Where nothing in the batch has that length, or that is 0, all of it belongs to the batch.
    """
    if number is None:
        number = _number(batch)
    columns: Fields = {}
    whole: Fields = {}
    if number:
        _collect(batch, number, (), columns, whole)
    else:
        whole = flat(batch)
    samples = []
    for position in range(number or 0) if columns else ():
        fields: Fields = {}
        for path, column in columns.items():
            for inner, value in flat(column[position]).items():
                fields[path + inner] = value
        samples.append(fields)
    return samples, whole


def flat(value: Any, path: Path = ()) -> Fields:
    """Return the leaves of one sample by their paths; the sample itself, at the empty path, where it is one."""
    parts = _parts(value) if len(path) < _DEEPEST else None
    if parts is None:
        return {path: value}
    found: Fields = {}
    for key, part in parts:
        found |= flat(part, (*path, key))
    return found


def name_of(path: Path) -> str:
    """Return a path as text: "1", "target.boxes"."""
    return ".".join(map(str, path))


def _collect(value: Any, number: int, path: Path, columns: Fields, whole: Fields) -> None:
    """Put each column of a batch, one value a sample, into columns, and each other leaf into whole."""
    if _is_column(value, number):
        columns[path] = value
    elif (parts := _parts(value) if len(path) < _DEEPEST else None) is not None:
        for key, part in parts:
            _collect(part, number, (*path, key), columns, whole)
    else:
        whole[path] = value


def _is_column(value: Any, number: int) -> bool:
    if _is_array(value):
        return bool(value.ndim and value.shape[0] == number)
    if not _is_sequence(value) or len(value) != number:
        return False
    # A list of columns, which may be just as many as the samples, is a structure and no column itself.
    return not all(_is_array_of(one, number) or _is_plain_list(one, number) for one in value)


def _is_array_of(value: Any, number: int) -> bool:
    return _is_array(value) and value.ndim > 0 and value.shape[0] == number


def _is_plain_list(value: Any, number: int) -> bool:
    """Return whether a list or tuple holds one value a sample: values of one type."""
    return _is_sequence(value) and len(value) == number and len({type(one) for one in value}) == 1


def _number(batch: Any) -> int | None:
    """Return the number of samples that a batch shows; None: nothing in it has a length."""
    leaves = flat(batch).values()
    lengths = Counter(int(leaf.shape[0]) for leaf in leaves if _is_array(leaf) and leaf.ndim)
    if isinstance(batch, list) and len({_structure(one) for one in batch}) == 1:
        bare = any(not _is_array(leaf) and not isinstance(leaf, str) for leaf in leaves)
        if len(lengths) != 1 or bare or all(type(one) is tuple for one in batch):
            return len(batch)  # a list of samples, or of one value a sample
    if len(lengths) == 1:
        return next(iter(lengths))
    if _is_sequence(batch) and all(map(_is_sequence, batch)) and len({len(one) for one in batch}) == 1:
        return len(batch[0])  # a list a field
    if lengths:
        return lengths.most_common(1)[0][0]
    return next((len(one) for one in _lists(batch) if one), None)


def _structure(sample: Any) -> Any:
    return tuple((path, type(value)) for path, value in flat(sample).items())


def _lists(value: Any, depth: int = 0) -> Iterator[Any]:
    """Yield the lists and tuples of leaves in a batch."""
    if _is_sequence(value) and all(_parts(one) is None for one in value):
        yield value
    elif depth < _DEEPEST:
        for _, part in _parts(value) or ():
            yield from _lists(part, depth + 1)


def _parts(value: Any) -> list[tuple[Any, Any]] | None:
    """Return what a container holds, by key; None for all else, and for an empty container."""
    if isinstance(value, PackedSequence):
        return None
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, tuple | list):
        return list(enumerate(value)) or None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)] or None
    if isinstance(value, Mapping):
        return list(value.items()) or None
    return None


def _is_array(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.layout == torch.strided and not value.is_nested
    return isinstance(value, np.ndarray)


def _is_sequence(value: Any) -> bool:
    """Return whether a value is a list or tuple, but no named tuple."""
    return isinstance(value, list | tuple) and not hasattr(value, "_fields")
