"""A batch of any structure, taken apart: the value of each field of each sample, and what a value is as text."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import PackedSequence

from penstock.insight.pictures import plain_array
from penstock.showing import shown

#: The keys that lead to a field: positions in tuples and lists, keys of mappings, names of attributes.
Path = tuple[Any, ...]
Fields = dict[Path, Any]
_DEEPEST = 8  # containers within containers

#: Names of fields that are labels.
LABELS = ("label", "labels", "target", "targets", "class", "cls", "y", "category")
_LONGEST = 200  # characters of a text
_WHOLE = 8  # elements of an array that are shown, not summed up
_LIKELY = 2  # classes of a mixed label


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

    Of a batch tensors, arrays, and lists and tuples of one value a sample are cut along their first dimension. A list
    of whole samples, as some collate functions return it, is one too. Something unbatched is several samples where all
    of its arrays have the same first dimension, and one of them has four dimensions or more.

    number: of the samples of a batch; None: the first dimension of most of its tensors, or of its lists where it has
    none. Where nothing in the batch has that length, or that is 0, all of it belongs to the batch.
    """
    if form is Form.SAMPLES:
        return [flat(sample) for sample in value], {}
    if form is Form.UNBATCHED:
        shapes = [tuple(leaf.shape) for leaf in flat(value).values() if _is_array(leaf) and leaf.ndim]
        if len({shape[0] for shape in shapes}) != 1 or max(map(len, shapes)) < 4:
            return [flat(value)], {}
        number = shapes[0][0]
    number = _number(value) if number is None else number
    if not number:
        return [], flat(value)
    columns: Fields = {}
    whole: Fields = {}
    _collect(value, number, (), columns, whole)
    if whole and form is Form.UNBATCHED:
        return [flat(value)], {}
    samples: list[Fields] = [{} for _ in range(number if columns else 0)]
    for path, column in columns.items():
        for fields, one in zip(samples, column, strict=True):
            fields |= flat(one, path)
    return samples, whole


def flat(value: Any, path: Path = ()) -> Fields:
    """Return the leaves of one sample by their paths; the sample itself, at the empty path, where it is one."""
    parts = _parts(value, path)
    if parts is None:
        return {path: value}
    return {inner: leaf for key, part in parts for inner, leaf in flat(part, (*path, key)).items()}


def name_of(path: Path) -> str:
    """Return a path as text: "1", "target.boxes"."""
    return ".".join(map(str, path))


def _collect(value: Any, number: int, path: Path, columns: Fields, whole: Fields) -> None:
    """Put each column of a batch, one value a sample, into columns, and each other leaf into whole.

    A list of columns, which may be just as many as the samples, is a structure and no column itself.
    """

    def of_columns(one: Any) -> bool:
        return _length(one) == number and (_is_array(one) or len({type(inner) for inner in one}) == 1)

    if _length(value) == number and (_is_array(value) or not all(map(of_columns, value))):
        columns[path] = value
    elif (parts := _parts(value, path)) is not None:
        for key, part in parts:
            _collect(part, number, (*path, key), columns, whole)
    else:
        whole[path] = value


def _length(value: Any) -> int | None:
    """Return how many values an array, a list or a tuple holds; None: it is something else."""
    if _is_array(value):
        return len(value) if value.ndim else None
    return len(value) if isinstance(value, list | tuple) and not hasattr(value, "_fields") else None


def _number(batch: Any) -> int | None:
    """Return the number of samples that a batch shows; None: nothing in it has a length."""
    if isinstance(batch, list) and all(type(one) is tuple or isinstance(one, Mapping) for one in batch):
        return len(batch)
    leaves = flat(batch)
    lengths = Counter(len(leaf) for leaf in leaves.values() if _is_array(leaf) and leaf.ndim)
    if not lengths:
        lengths = Counter(Counter(path[:-1] for path in leaves if path and isinstance(path[-1], int)).values())
    return lengths.most_common(1)[0][0] if lengths else None


def _parts(value: Any, path: Path) -> list[tuple[Any, Any]] | None:
    """Return what a container holds, by key; None for all else, for an empty container, and for one too deep."""
    parts: list[tuple[Any, Any]] = []
    if isinstance(value, PackedSequence) or len(path) >= _DEEPEST:
        return None
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        parts = list(zip(value._fields, value, strict=True))
    elif isinstance(value, tuple | list):
        parts = list(enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    elif isinstance(value, Mapping):
        parts = list(value.items())
    return parts or None


def _is_array(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.layout == torch.strided and not value.is_nested
    return isinstance(value, np.ndarray)


# --- text ------------------------------------------------------------------------------------------------------------


def line_of(path: Path, value: Any, fields: Sequence[Path], classes: Sequence[str]) -> str:
    """Return a field of a sample as a line, "name: value"; a label, as the second of two fields, has no name.

    fields: all of the sample's. classes: their names by label; empty: they are not known.
    """
    second = path == (1,) and {one[0] for one in fields if one} == {0, 1}
    label = second or (path and str(path[-1]).lower() in LABELS)
    text = text_of(value, classes if label else None)
    return text if second or not path else f"{shown(name_of(path))}: {text}"


def text_of(value: Any, classes: Sequence[str] | None = None) -> str:
    """Return a value in one line.

    Numbers and strings are unchanged; arrays are their elements, or the dtype, shape and range where they have many.
    classes: the value is a label, the number of a class or a vector of a weight a class, of these names, which may be
    none; None: it is not a label.
    """
    try:
        text = shown(_text(value, classes))
    except Exception:  # of a class of the user's, whose __repr__ may raise anything
        text = type(value).__name__
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _text(value: Any, classes: Sequence[str] | None) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int) and not isinstance(value, bool) and classes is not None:
        return f"{value} {classes[value]}" if 0 <= value < len(classes) else str(value)
    if isinstance(value, torch.Tensor | np.ndarray | np.generic) and not getattr(value, "is_nested", False):
        return _array(value, classes)
    return " ".join(repr(value).split())


def _array(value: Any, classes: Sequence[str] | None) -> str:
    shape = f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    array = plain_array(value)
    if array is None or array.dtype.kind not in "biufUSO":
        return shape
    if array.ndim == 0:
        return _text(array.item(), classes)
    if not array.size:
        return f"{shape}, empty"
    if classes is not None and (weights := _weights(array, classes)):
        return weights
    if array.size <= _WHOLE:
        rounded = np.round(array.astype(np.float64), 4) if array.dtype.kind == "f" else array
        return " ".join(str(rounded.tolist()).split())
    if array.dtype.kind not in "biuf":
        return shape
    finite = array[np.isfinite(array)]
    if not finite.size:
        return f"{shape}: no finite value"
    odd = f"; {array.size - finite.size:,} of {array.size:,} NaN or infinite" if finite.size < array.size else ""
    mean = float(finite.mean(dtype=np.float64))
    return f"{shape}: {float(finite.min()):.4g} .. {float(finite.max()):.4g}, mean {mean:.4g}{odd}"


def _weights(array: NDArray[Any], classes: Sequence[str]) -> str:
    """Return a label that is a vector of a weight a class, one-hot or mixed; empty: it is not one."""
    if array.ndim != 1 or array.size < 2 or array.dtype.kind not in "biuf" or (classes and array.size != len(classes)):
        return ""
    if array.dtype.kind in "iu" and len(classes) <= _LIKELY:  # a list of a few classes, perhaps
        return ""
    weights = array.astype(np.float64)
    if not (weights >= 0).all() or abs(weights.sum() - 1) > 0.01:
        return ""
    order = np.argsort(-weights, kind="stable")[:_LIKELY].tolist()
    if weights[order[0]] == 1:
        return f"{_text(order[0], classes)} (one-hot)"
    return ", ".join(f"{weights[one]:.2f} of {_text(one, classes)}" for one in order if weights[one])
