"""What of a dataset is data: values that nobody changes while samples are read, however many threads read them."""

from __future__ import annotations

import ctypes
import mmap
import operator
import re
import sys
import threading
import types
from contextvars import ContextVar
from enum import Enum
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

DATA: set[type] = {
    *(type(None), type(...), type(NotImplemented), bool, int, float, complex, str, bytes, range, slice, memoryview),
    *(re.Pattern, re.Match, torch.dtype, torch.device, torch.Size, torch.UntypedStorage),
    *(types.ModuleType, types.CodeType, property, threading.local, ContextVar),
}
DATA_KINDS = (type, Enum, PurePath, np.generic, np.dtype, torch.TypedStorage)


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


def has_storage(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is one piece of the processor's memory: sparse, nested and opaque ones are not."""
    return tensor.layout is torch.strided and tensor.is_cpu and not tensor.is_nested


def in_shared_memory(tensor: torch.Tensor) -> bool:
    """Return whether other processes have a tensor's memory, too."""
    return has_storage(tensor) and tensor.is_shared()  # type: ignore[no-untyped-call]
