"""Values of samples as text: labels with the names of their classes, and what stands for an array in one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.insight.fields import Path
from penstock.insight.pictures import plain_array
from penstock.showing import shown

_LONGEST = 200  # characters
_WHOLE = 8  # elements of an array that are shown, not summed up
#: Names of fields that are labels.
LABELS = ("label", "labels", "target", "targets", "class", "cls", "y", "category")
_LIKELY = 2  # classes of a mixed label


def is_label(path: Path, fields: Sequence[Path]) -> bool:
    """Return whether a field is a sample's label: the second of two, or one by the name of a label."""
    if path == (1,):
        return {one[0] for one in fields if one} == {0, 1}
    return bool(path) and str(path[-1]).lower() in LABELS


@dataclass(frozen=True)
class Label:
    """What is known of a field that holds labels."""

    classes: tuple[str, ...] = ()
    """The names of the classes by number; empty: not known."""

    def name(self, number: int) -> str:
        """Return a class by its number and, where it is known, its name."""
        if 0 <= number < len(self.classes):
            return f"{number} {_short(shown(self.classes[number]))}"
        return str(number)


def text_of(value: Any, label: Label | None = None) -> str:
    """Return a value in one line.

    Numbers and strings are as they are; arrays are their elements, or the dtype, shape and range where they have many.

    Args:
        value: of one field of one sample.
        label: the value is a label: the number of a class, or a vector of a weight a class; None: it is none.
    """
    try:
        return _text(value, label)
    except Exception:  # of a class of the user's, whose __repr__ may raise anything
        return type(value).__name__


def _text(value: Any, label: Label | None) -> str:
    if isinstance(value, str):
        return _short(shown(value))
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    if value is None or isinstance(value, bool | int | float | complex):
        return _number(value, label)
    nested = isinstance(value, torch.Tensor) and value.is_nested
    if isinstance(value, torch.Tensor | np.ndarray | np.generic) and not nested:
        return _array(value, label)
    return _short(shown(" ".join(repr(value).split())))


def _number(value: Any, label: Label | None) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if label is not None and isinstance(value, int) and not isinstance(value, bool):
        return label.name(value)
    return _short(str(value))


def _array(value: Any, label: Label | None) -> str:
    shape = tuple(value.shape)
    dtype = str(value.dtype).removeprefix("torch.")
    array = plain_array(value)
    if array is None or array.dtype.kind not in "biufUSO":
        return f"{dtype} {shape}"
    if array.ndim == 0:
        return text_of(array.item(), label)
    if not array.size:
        return f"{dtype} {shape}, empty"
    if label is not None and (weights := _weights(array, label)) is not None:
        return weights
    if array.size <= _WHOLE:
        return _short(shown(" ".join(str(_rounded(array).tolist()).split())))
    if array.dtype.kind not in "biuf":
        return f"{dtype} {shape}"
    return f"{dtype} {shape}: {_summary(array)}"


def _summary(array: NDArray[Any]) -> str:
    finite = array[np.isfinite(array)]
    missing = array.size - finite.size
    odd = f"; {missing:,} of {array.size:,} NaN or infinite" if missing else ""
    if not finite.size:
        return "no finite value"
    mean = float(finite.mean(dtype=np.float64))
    return f"{float(finite.min()):.4g} .. {float(finite.max()):.4g}, mean {mean:.4g}{odd}"


def _weights(array: NDArray[Any], label: Label) -> str | None:
    """Return a label that is a vector of a weight a class, one-hot or mixed; None: it is none."""
    if array.ndim != 1 or array.size < 2 or array.dtype.kind not in "biuf":
        return None
    if label.classes and array.size != len(label.classes):
        return None
    if array.dtype.kind in "iu" and len(label.classes) <= _LIKELY:  # a list of a few classes, perhaps
        return None
    weights = array.astype(np.float64)
    if not (weights >= 0).all() or abs(weights.sum() - 1) > 0.01:
        return None
    order = np.argsort(-weights, kind="stable")[:_LIKELY].tolist()
    if weights[order[0]] == 1:
        return f"{label.name(order[0])} (one-hot)"
    return ", ".join(f"{weights[one]:.2f} of {label.name(one)}" for one in order if weights[one])


def _rounded(array: NDArray[Any]) -> NDArray[Any]:
    return np.round(array.astype(np.float64), 4) if array.dtype.kind == "f" else array


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
