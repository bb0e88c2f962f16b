"""Looks at a user's dataset for what costs time or memory, or fails, in workers; none of its code runs.

Attributes are read as they lie, and elements as built-in types give them.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from penstock.insight.machine import State
from penstock.recipe.held_objects import Held, held_objects, shared_handles
from penstock.system.libraries import file_of, is_users
from penstock.system.words import size_of

__all__ = ["Remark", "lint"]


@dataclass(frozen=True)
class Remark:
    """One thing in a dataset that costs time or memory, or makes it fail, and what to change."""

    rule: str
    """The name of the rule: "python-objects" or "open-handle"."""
    state: State
    """BAD: it fails, or gives wrong samples, in worker processes. LOOK: it costs."""
    where: str
    """The class, with file and line as far as they are known: "Photos (train.py:12)"."""
    what: str
    why: str
    """What it costs."""
    change: str


#: Python objects in one attribute that take this many bytes, or more, are worth a remark: each worker copies them.
COSTLY_BYTES = 16 << 20
#: How many elements of a container are weighed instead of all, and how deep they are looked into.
_SAMPLED, _WEIGHED_DEPTH = 500, 4
_PAGE = 4096
#: What Python keeps before each object that its garbage collector knows.
_GC_BYTES = 16

_PLAIN: tuple[Any, ...] = (str, bytes, bytearray, int, float, complex)
_CONTAINERS = (np.ndarray, dict, list, tuple, set, frozenset, deque)
_NO_DATA = (torch.Tensor, type, types.ModuleType, types.FunctionType)


def lint(dataset: Any) -> list[Remark]:
    """Return remarks on a dataset's state: what fails first, then what costs.

    It examines objects of the user's classes, also as transforms, in a Subset, a ConcatDataset or any other object
    that the dataset holds, but not those of libraries. No code of the dataset is called. Of a loader its dataset is
    examined.
    """
    root = dataset.dataset if issubclass(type(dataset), DataLoader) else dataset
    held = list(held_objects(root))
    return [*open_handles(held), *python_objects(held)]


def _place(kind: type) -> str:
    """Return where a class is written, as the working folder sees it: "NAME (FILE:LINE)"."""
    if not (file := file_of(kind.__module__)):
        return kind.__name__
    line = ""
    with contextlib.suppress(OSError, TypeError):
        line = f":{inspect.getsourcelines(kind)[1]}"
    with contextlib.suppress(OSError, ValueError):  # the working folder is gone
        seen = os.path.relpath(file)
        file = file if seen.startswith(os.pardir) else seen
    return f"{kind.__name__} ({file}{line})"


# --- many Python objects ---------------------------------------------------------------------------------------------


def python_objects(held: Iterable[Held]) -> Iterator[Remark]:
    """Yield remarks on attributes that hold many Python objects, which worker processes copy page by page.

    Those are containers, arrays and tables of objects, and datasets of libraries.
    """
    for one in held:
        if one.direct and _may_be_costly(one.value) and (bytes_ := weight(one.value)) >= COSTLY_BYTES:
            kind = type(one.value).__name__
            yield Remark(
                "python-objects",
                State.LOOK,
                _place(type(one.owner)),
                f"{one.path}, {'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}, holds Python objects of about "
                f"{size_of(int(bytes_))}",
                "A forked worker shares them at first; reading an object counts references in it, so that each "
                "worker copies their pages, up to all of them. A spawned worker gets a copy at once.",
                "Keep numbers in one NumPy array or tensor and texts in one bytes buffer with offsets "
                "(np.array(paths, dtype=np.bytes_) does for paths); penstock.TensorFolder, ImageFolder and Shards "
                "hold their names so.",
            )


def _may_be_costly(value: Any) -> bool:
    kind = type(value)
    return not is_users(kind) if issubclass(kind, Dataset) else issubclass(kind, _CONTAINERS) or _is_table(value)


def weight(value: Any, seen: set[int] | None = None, depth: int = _WEIGHED_DEPTH) -> float:
    """Return about how many bytes of pages reading all Python objects of a value copies.

    Of long containers only some elements are weighed. Nothing of an object's class runs.
    """
    seen = set() if seen is None else seen
    kind = type(value)
    small = value is None or kind is bool or (kind is int and -5 <= value <= 256)
    if id(value) in seen or small or issubclass(kind, _NO_DATA):
        return 0.0
    seen.add(id(value))
    if kind in _PLAIN:
        return float(min(sys.getsizeof(value), _PAGE))
    if _is_table(value):
        columns = value.select_dtypes("object") if hasattr(value, "columns") else value
        return float(np.sum(columns.memory_usage(index=False, deep=True))) if columns.size else 0.0
    bare_size: Callable[[Any], int] = object.__sizeof__  # that of its class is not called
    bytes_ = float(bare_size(value) + _GC_BYTES)
    inside = _contents(value)
    if depth and len(inside):
        sampled = [weight(one, seen, depth - 1) for one in inside[:: max(1, len(inside) // _SAMPLED)]]
        bytes_ += len(inside) / len(sampled) * sum(sampled)
    return bytes_


def _contents(value: Any) -> Any:
    """Return the Python objects that a value holds itself, as a sequence."""
    if issubclass(type(value), np.ndarray):
        return value.reshape(-1) if value.dtype == object else ()
    if issubclass(type(value), dict):
        return [*dict.keys(value), *dict.values(value)]
    return gc.get_referents(value)


def _is_table(value: Any) -> bool:
    pandas: Any = sys.modules.get("pandas")
    return pandas is not None and type(value) in (pandas.DataFrame, pandas.Series)


# --- open files and connections -----------------------------------------------------------------------------------


def open_handles(held: Iterable[Held]) -> Iterator[Remark]:
    """Yield remarks on open files and connections that a user's dataset holds; one for an attribute."""
    for one, what in shared_handles(held):
        yield Remark(
            "open-handle",
            State.BAD,
            _place(type(one.owner)),
            f"{one.path} is {what}",
            "Forked workers share it with each other, with its position and its locks: they read each other's bytes, "
            "wait for ever, or crash. It cannot be pickled for a spawned one.",
            f"Set self.{one.attribute} = None in __init__, and open it in __getitem__ where it is None: each worker "
            "then has its own.",
        )
