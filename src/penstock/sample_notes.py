"""Notes on errors of a user's dataset, transform or collate_fn: which sample each is about.

The error itself, its type and its arguments stay what they were, for programs that look at them.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from penstock.showing import said, shown_lines
from penstock.system.versions import write_note

#: Characters of an index or another value in a note.
_TEXT = 100
#: Samples of a batch that a note names by their indices.
_LISTED = 8


def add_note(error: BaseException, text: str) -> None:
    """Add a note to an error, once; it keeps the notes that it has."""
    text = shown_lines(text)
    with contextlib.suppress(Exception):  # of an exception of the user's that takes no notes
        if text not in getattr(error, "__notes__", ()):
            write_note(error, text)


def not_an_end(error: BaseException, place: str) -> BaseException:
    """Return an error of a user's function; for a StopIteration, which would end the pass, a RuntimeError (PEP 479)."""
    if not isinstance(error, StopIteration):
        return error
    made = RuntimeError(f"StopIteration was raised {place}")
    made.__cause__ = error
    return made


def note_sample(error: BaseException, index: Any) -> None:
    """Note which sample an error came from. Raises RuntimeError for a StopIteration."""
    place = "in __getitem__"
    with contextlib.suppress(Exception):  # a repr of the user's
        place = f"in __getitem__ of sample {_short(index)}"
    _note(error, place)


def note_batch(error: BaseException, given: Any, samples: Any = None) -> None:
    """Note that an error came from a batch: of which samples, where that is known, and where they differ first.

    Raises RuntimeError for a StopIteration.
    """
    place = ""
    with contextlib.suppress(Exception):
        place = _batch_of(given, samples)
        if (number := getattr(error, "sample_number", None)) is not None:
            place = f"in sample {_short(given[number])}, {place}"
    _note(error, place)
    if isinstance(error, TypeError) and "<class 'PIL." in said(error):
        add_note(error, "Images are batched as tensors: give the dataset a transform that ends with ToTensor()")


def _note(error: BaseException, place: str) -> None:
    if (made := not_an_end(error, place or "in collate_fn")) is not error:
        raise made
    if place:
        add_note(error, place)


def _batch_of(given: Any, samples: Any) -> str:
    """Return which batch that is of what a sampler gave; empty where that is not known."""
    if given is None:
        return ""
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        return f"in the batch of {_short(given)}"
    listed = ", ".join(map(_short, given[:_LISTED]))
    more = f" and {len(given) - _LISTED:,} more" if len(given) > _LISTED else ""
    differing = ""
    if isinstance(samples, Sequence) and len(samples) == len(given):
        for index, sample in zip(given, samples, strict=True):
            if (found := _difference(samples[0], sample, "")) is not None:
                place, first, other = found
                differing = f": sample {_short(index)} {other}{place}, sample {_short(given[0])} {first}"
                break
    return f"in a batch of samples [{listed}]{more}{differing}"


def one_by_one(read: Callable[[Any], Any], given: Any) -> list[Any]:
    """Return the sample of each index. An error gets a note of its sample."""
    indices = given if isinstance(given, list) else list(given)
    left = iter(indices)  # the length hint of a list's iterator gives the position, at no cost
    try:
        return [read(index) for index in left]
    except Exception as error:
        note_sample(error, indices[len(indices) - operator.length_hint(left) - 1])
        raise


def collated(collate: Callable[[Any], Any], given: Any, samples: Any) -> Any:
    """Return the batch that a function makes of samples. An error gets a note of the samples."""
    try:
        return collate(samples)
    except Exception as error:
        note_batch(error, given, samples)
        raise


def torch_batch(dataset: Any, given: Any) -> Any:
    """Return the batch that torch would make where a sampler gave something else than indices."""
    if whole := getattr(dataset, "__getitems__", None):
        samples = collated(lambda _: whole(given), given, None)
    else:
        samples = one_by_one(partial(operator.getitem, dataset), given)
    return collated(default_collate, given, samples)


def resize_hint(first: Sequence[int], other: Sequence[int]) -> str:
    """Return what to write in the place of a Resize that set the shorter sides of two images; empty: none did."""
    side = min(first[-2:], default=0)
    if len(first) != 3 or len(other) != 3 or side != min(other[-2:]):
        return ""
    return f". Resize({side}) sets the shorter side of an image only: write Resize(({side}, {side}))"


def _difference(first: Any, other: Any, place: str) -> tuple[str, str, str] | None:
    """Return where two samples differ first in what must be equal to collate them, and what each has there."""
    if isinstance(first, torch.Tensor | np.ndarray) and isinstance(other, torch.Tensor | np.ndarray):
        if tuple(first.shape) != tuple(other.shape):
            said = f"shape {tuple(first.shape)}{resize_hint(first.shape, other.shape)}"
            return place, said, f"has shape {tuple(other.shape)}"
        return None
    if type(first) is not type(other):
        return place, type(first).__name__, f"has {type(other).__name__}"
    if isinstance(first, Mapping):
        if first.keys() != other.keys():
            return place, f"keys {_short(list(first))}", f"has keys {_short(list(other))}"
        keys = list(first)
    elif isinstance(first, tuple | list):
        if len(first) != len(other):
            return place, f"{len(first)} elements", f"has {len(other)} elements"
        keys = list(range(len(first)))
    else:
        return None
    parts = (_difference(first[key], other[key], f"{place}[{key!r}]") for key in keys)
    return next((found for found in parts if found is not None), None)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _TEXT else f"{text[: _TEXT - 3]}..."
