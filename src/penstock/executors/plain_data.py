"""What of a dataset is data: values that nobody changes while samples are read, however many threads read them."""

from __future__ import annotations

import datetime
import decimal
import fractions
import re
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


def are_records(values: list[Any]) -> bool:
    return are_data(values, records=True)


def some(container: Any) -> list[Any]:
    """Return entries of a container, spread over it; of a dict the keys, too."""
    step = max(1, len(container) // LOOKED_AT)
    if isinstance(container, list):
        return container[::step]
    parts = [container, container.values()] if isinstance(container, dict) else [container]
    return [entry for part in parts for entry in islice(part, 0, None, step)]
