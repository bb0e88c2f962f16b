"""What of a dataset is data: values that nobody changes while samples are read, however many threads read them."""

from __future__ import annotations

import ctypes
import datetime
import decimal
import fractions
import mmap
import operator
import re
import sys
import threading
import types
import uuid
from collections.abc import Iterable
from contextvars import ContextVar
from enum import Enum
from itertools import chain, islice
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

_NOTHING = object()
#: So many entries of a large container are looked at.
LOOKED_AT = 1000
#: Containers in containers are looked into so far.
_DEEP = 6

DATA: set[type] = {
    *(type(None), type(...), type(NotImplemented), bool, int, float, complex, str, bytes, range, slice, memoryview),
    *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone),
    *(decimal.Decimal, fractions.Fraction, uuid.UUID, re.Pattern, re.Match),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, torch.UntypedStorage),
    *(types.ModuleType, types.CodeType, property, threading.local, ContextVar),
}
DATA_KINDS = (type, Enum, PurePath, np.generic, np.dtype, torch.TypedStorage)


def are_data(values: Iterable[Any], depth: int = 0, *, records: bool = False) -> bool:
    """Return whether all values are immutable, or arrays and tensors; tuples are looked into.

    records: plain containers and objects are looked into, too.
    """
    if depth == _DEEP:
        return False
    values = values if isinstance(values, (list, tuple)) else list(values)
    for kind in set(map(type, values)) - DATA:
        if issubclass(kind, (*DATA_KINDS, torch.Tensor)):
            continue
        alike: list[Any] = [value for value in values if type(value) is kind]
        if kind is np.ndarray:
            if any(value.dtype.hasobject for value in alike):
                return False
            continue
        if kind is tuple or (records and issubclass(kind, (tuple, list, set, frozenset))):
            inner: Iterable[Any] = chain.from_iterable(alike)
        elif records and issubclass(kind, dict):
            inner = chain.from_iterable((*value.keys(), *value.values()) for value in alike)
        elif records and kind.__new__ is object.__new__:
            inner = chain.from_iterable(getattr(value, "__dict__", {"": _NOTHING}).values() for value in alike)
        else:
            return False
        if not are_data(inner, depth + 1, records=records):
            return False
    return True


def some_records(container: Any) -> list[Any] | None:
    """Return entries of a container, spread over it, of a dict the keys too; None where some are not records."""
    step = max(1, len(container) // LOOKED_AT)
    if isinstance(container, list):
        found = container[::step]
    else:
        parts = [container, container.values()] if isinstance(container, dict) else [container]
        found = [entry for part in parts for entry in islice(part, 0, None, step)]
    return found if are_data(found, records=True) else None


def as_shared(value: Any, shared: list[Any]) -> Any:
    """Return a value with read-only views in the place of its arrays, where a worker process would have its own.

    Lists, tuples and dicts are looked into, and are the same where nothing of them is another.

    Args:
        value: data, or a container of data.
        shared: takes the tensors, and the arrays of which there are views.
    """
    kind = type(value)
    if kind in DATA:
        return value
    if isinstance(value, np.ndarray):
        view = _read_only(value)
        if view is not value:
            shared.append(value)
        return view
    if isinstance(value, torch.Tensor):
        shared.append(value)
    elif kind is dict:
        parts = [as_shared(part, shared) for part in value.values()]
        if not all(map(operator.is_, parts, value.values())):
            return dict(zip(value, parts, strict=True))
    elif kind is list or isinstance(value, tuple):
        parts = [as_shared(part, shared) for part in value]
        if not all(map(operator.is_, parts, value)):
            return value._make(parts) if hasattr(value, "_make") else kind(parts)
    return value


def _read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a view that cannot be written to; the array itself where worker processes share its memory, too."""
    base: Any = array.base
    if not array.flags.writeable or (base is not None and _is_mapped(base)):
        return array
    view = array.view()
    view.setflags(write=False)
    return view


def _is_mapped(base: Any) -> bool:
    """Return whether the memory that an array rests on is a file's, or of several processes."""
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, torch.Tensor):
        return base.is_shared()  # type: ignore[no-any-return, no-untyped-call]
    base = base.obj if isinstance(base, memoryview) else base
    return isinstance(base, (mmap.mmap, ctypes.Array, ctypes.Structure, ctypes._SimpleCData))


def is_refused_write(error: BaseException) -> bool:
    """Return whether an error says, in the words of NumPy or Python, that memory is read-only."""
    said = str(error) if type(error) in (ValueError, TypeError, BufferError) else ""  # others may have no words
    return re.search(r"read-?only|read-write|not writ", said) is not None


def is_named(function: types.FunctionType) -> bool:
    """Return whether a function is an attribute of a module, or of a class of a module, as pickle would look it up."""
    found: Any = sys.modules.get(function.__module__)
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is function


def is_frame(value: Any) -> bool:
    """Return whether this is one of pandas's frames and series."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, (pandas.DataFrame, pandas.Series))
