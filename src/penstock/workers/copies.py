"""Copies of a dataset for worker threads: a copy of its Python objects, which shares the data that they hold.

A worker process has its own dataset because it is forked; a worker thread gets one from here. A `Snapshot` is the
dataset as pickle writes it when the pass begins, and each thread reads it. What code changes while it reads a sample is
written: objects, as pickle and copy.deepcopy copy them, lists, dicts and sets, closures and bound methods. What these
refuse is refused: open files, locks, sockets, generators. What is data is shared: tensors, arrays, strings, bytes and
other immutable values, images in memory, and classes, modules and functions that are found by their name. Two rules
keep copies cheap and safe:

- an array or tensor of at most SCRATCH_BYTES that an object or a closure holds is copied, for code writes into such
  memory while it reads a sample, unless it lies in memory that worker processes would share, too;
- entries of a list, dict, set or tuple of at least MANY entries are shared where a thousand of them, spread over it,
  hold nothing that is refused; each copy has the container for itself.
"""

from __future__ import annotations

import array
import copy
import copyreg
import ctypes
import io
import pickle
import re
import sys
import threading
import types
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from contextvars import ContextVar
from enum import Enum
from functools import partial
from itertools import islice
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from PIL import Image

from penstock.errors import InvalidOption
from penstock.memory.shared_mappings import SharedMappings, has_storage

#: Memory up to this size, in bytes, is copied where an object holds it as an attribute.
SCRATCH_BYTES = 1 << 20
#: Entries of a container of so many are shared.
MANY = 10_000
#: Strings of fewer characters are written.
SHORT = 1000
#: So many entries of a large container are looked at.
LOOKED_AT = 1000
_AS_VALUES = {type(None), bool, int, float}
_CONTAINERS = {list, tuple, dict, set, frozenset, defaultdict, OrderedDict}
#: Values that nobody changes while samples are read, however many threads read them.
DATA: set[type] = {
    *(type(None), type(...), type(NotImplemented), bool, int, float, complex, str, bytes, range, slice, memoryview),
    *(re.Pattern, re.Match, torch.dtype, torch.device, torch.Size, torch.UntypedStorage),
    *(types.ModuleType, types.CodeType, property, threading.local, ContextVar),
}
_KINDS = (type, Enum, PurePath, np.generic, np.dtype, torch.TypedStorage)
#: Modules whose objects are made to be used by several processes or threads, or cannot be changed.
_SHARING = (
    "penstock._native",
    "pyarrow",
    *(f"multiprocessing.{name}" for name in ("managers", "queues", "shared_memory", "sharedctypes", "synchronize")),
)
_CTYPES = (ctypes.Array, ctypes.Structure, ctypes._SimpleCData)
#: What is kept of a value for all copies, and how each makes its own of that; None: it has the same.
Kept = tuple[Any, Callable[[Any], Any] | None]


class NotCopied(InvalidOption):
    """A dataset holds what cannot be copied for each thread.

    Attributes:
        what: what it is and where it is held, as a part of a sentence.
        closes: it is a file or a connection, or another thing that is closed.
    """

    def __init__(self, what: str, *, closes: bool = False) -> None:
        super().__init__(
            f"worker_method='thread' gives each thread a copy of the dataset, and {what}. A file that is opened "
            "at the first sample, and what __getstate__ leaves out, need no copy; else use worker_method='process', or "
            "share_dataset=True where several threads may use the dataset at once"
        )
        self.what, self.closes = what, closes

    def __reduce__(self) -> tuple[Any, ...]:
        return NotCopied, (self.what,)


class Snapshot(pickle.Pickler):
    """Values as they are now, of which each thread takes a copy: what two of them share, their copies share.

    It writes what each copy has for itself, and keeps what they share.

    Args:
        share: called with memory, or a container of data, that the copies share, and this, returns what they have.
        probing: nothing is copied: it is seen whether some entries of a large container could be.

    Attributes:
        kinds: the classes of the objects that are copied.
        shared: the tensors and arrays that the copies share, of which other processes would have their own.
        mappings: those of this process.
    """

    def __init__(self, *, share: Callable[[Any, Snapshot], Any] | None = None, probing: bool = False) -> None:
        self._file = io.BytesIO()
        super().__init__(self._file, protocol=5)
        self.kinds: set[type] = set()
        self.shared: list[Any] = []
        self.mappings = SharedMappings()
        self._share, self._probing = share or (lambda value, _: value), probing
        self._kept: list[Kept] = []
        self._numbers: dict[int, int] = {}  # in `_kept`, by the ids of
        self._originals: list[Any] = []  # these
        self._blocks: list[torch.Tensor] = []  # small memory
        self._at: Any = None  # the object that is being written

    def add(self, value: Any, name: str) -> Any:
        """Take a value in, and return it. name: what it is called in errors. Raises NotCopied."""
        try:
            self.dump(value)
        except RecursionError:
            raise NotCopied(f"{name} holds objects nested too deep to be copied") from None
        except Exception as error:
            kind = type(self._at)
            module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
            what = f"{_path(self._at, value, name)}, of type {module}{kind.__qualname__}, cannot be copied ({error})"
            raise NotCopied(what, closes=hasattr(kind, "close")) from None
        return value

    def finish(self) -> Callable[[], Callable[[Any, str], Any]]:
        """Return what begins a copy: what it returns gives each value in the order of `add`, and raises NotCopied.

        The Snapshot may then be dropped. It is never cleared: CPython's clear_memo() frees objects that a collection in
        another thread still finds in the memo, and crashes.
        """
        return partial(_copy, self._file.getvalue(), self._kept)

    def persistent_id(self, value: Any) -> int | None:
        """Return the number of a value that is kept, None of one that is written."""
        if type(value) in _AS_VALUES or (type(value) is str and len(value) < SHORT):
            return None
        number = self._numbers.get(id(value))
        if number is None and (kept := self._keep(value, type(value))) is not None:
            number = self._number(value, *kept)
        return number

    def _number(self, value: Any, kept: Any, make: Callable[[Any], Any] | None = None) -> int:
        """Keep this of a value, wherever it is met from here on."""
        number = self._numbers[id(value)] = len(self._kept)
        self._kept.append((kept, make))
        self._originals.append(value)
        return number

    def _keep(self, value: Any, kind: type) -> Kept | None:
        """Return what is kept of a value, None of one that is written."""
        if kind in DATA:
            return value, None
        if kind in _CONTAINERS:
            return self._keep_container(value) if len(value) >= MANY else None
        if isinstance(value, _KINDS):
            return value, None
        if isinstance(value, (np.ndarray, torch.Tensor)):
            return None if getattr(value.dtype, "hasobject", False) else (self._share(value, self), None)
        self._at = value
        if (
            _is_found(value)
            or (isinstance(value, (bytearray, array.array)) and len(value) * value[:1].__sizeof__() > SCRATCH_BYTES)
            or (isinstance(value, Image.Image) and getattr(value, "fp", None) is None)
            or str(kind.__module__).startswith(_SHARING)  # shared by processes, too
            or (isinstance(value, _CTYPES) and self.mappings.hold(value))
        ):
            return value, None
        if str(kind.__module__).partition(".")[0] == "pandas" and hasattr(kind, "iloc"):
            return _columns_of(value), _columns_of
        if hasattr(kind, "__deepcopy__"):
            self.kinds.add(kind)
            return copy.deepcopy(value), copy.deepcopy
        return None

    def _keep_container(self, value: Any) -> Kept | None:
        """Return the same for a large container: its entries are shared where some of them can be written."""
        if self._probing:
            return value, None
        probe = Snapshot(share=self._share, probing=True)
        probe.mappings = self.mappings
        try:
            probe.dump(_spread(value))
        except Exception:  # raised again, where the entry is written
            return None
        return copy.copy(self._share(value, self) if probe.shared else value), copy.copy

    def reducer_override(self, value: Any) -> Any:
        """Return how an object is made again, as copyreg does."""
        self._at, kind = value, type(value)
        if kind is types.FunctionType:
            return self._function(value)
        if kind is types.CellType:
            contents = None if _is_empty(value) else (self._own(value.cell_contents),)
            return types.CellType, (), contents, None, None, _fill_cell
        if kind is types.MethodType:
            return types.MethodType, (value.__func__, value.__self__)
        if kind is weakref.ref:
            return weakref.ref, (value(),)
        self.kinds.add(kind)
        reducer = copyreg.dispatch_table.get(kind)
        reduced: Any = value.__reduce_ex__(4) if reducer is None else reducer(value)
        if isinstance(reduced, str) or len(reduced) == 2:
            return reduced
        make, arguments, state, items, pairs, fill = (*reduced, None, None, None)[:6]
        both = isinstance(state, tuple) and len(state) == 2
        state = tuple(map(self._attributes, state)) if both else self._attributes(state)
        return make, arguments, state, items, pairs, fill or (None if state is None else _fill_object)

    def _function(self, value: types.FunctionType) -> Any:
        if id(value.__globals__) not in self._numbers:
            self._number(value.__globals__, value.__globals__)
        made = (value.__code__, value.__globals__, value.__name__, None, value.__closure__)
        attributes = [(name, getattr(value, name)) for name in _OF_FUNCTIONS]
        return types.FunctionType, made, attributes, None, None, _fill_function

    # --- memory that each copy has for itself -----------------------------------------------------------------------

    def _attributes(self, state: Any) -> Any:
        return {name: self._own(item) for name, item in state.items()} if isinstance(state, dict) else state

    def _own(self, value: Any) -> Any:
        """Return what is written of what an object or a closure holds: small memory is each copy's own.

        What overlaps in the dataset overlaps in its copy.
        """
        kind: Any = type(value)
        if kind is torch.Tensor and has_storage(value) and not value.requires_grad:
            if self.mappings.hold(value) or value.is_conj() or value.is_neg() or value.__dict__:
                return value
            memory = torch.empty(0, dtype=torch.uint8, device="cpu").set_(value.untyped_storage())
            address, strides = value.data_ptr(), value.stride()
        elif kind is np.ndarray and value.flags.writeable and value.nbytes and not value.dtype.hasobject:
            root = value
            while type(root.base) is np.ndarray:
                root = root.base
            other = root.base is not None and type(root.base) is not torch.Tensor  # a file's, or a bytes object's
            if other or not root.flags.forc or self.mappings.hold(root):
                return value
            memory = torch.from_numpy(root.ravel("K").view(np.uint8))
            address, strides = value.__array_interface__["data"][0], value.strides
        else:
            return value
        if not 0 < len(memory) <= SCRATCH_BYTES:
            return value
        begin, size = memory.data_ptr(), len(memory)
        block = next((one for one in self._blocks if 0 <= begin - one.data_ptr() <= len(one) - size), None)
        if block is None:
            block = memory
            self._blocks.append(block)
            self._number(block, block.clone(), torch.clone)
        offset = address - block.data_ptr()
        if kind is torch.Tensor and offset % value.dtype.itemsize:
            return value
        return _View(kind, block, value.dtype, offset, tuple(value.shape), strides)


class _Reading(pickle.Unpickler):
    """Reads what a Snapshot has written. own: the object of each number that it has kept."""

    def __init__(self, pickled: bytes, own: list[Any]) -> None:
        super().__init__(io.BytesIO(pickled))
        self._own = own

    def persistent_load(self, number: int) -> Any:
        return self._own[number]


def _copy(pickled: bytes, kept: list[Kept]) -> Callable[[Any, str], Any]:
    """Begin a copy of what a Snapshot has written and kept."""
    reading = _Reading(pickled, [value if make is None else make(value) for value, make in kept])

    def take(value: Any, name: str) -> Any:
        try:
            return reading.load()
        except Exception as error:
            raise NotCopied(f"{name} cannot be copied ({error})") from error

    return take


def copied(value: Any, name: str) -> Any:
    """Return a copy of a value, which shares its data. name: what it is called in errors. Raises NotCopied."""
    snapshot = Snapshot()
    snapshot.add(value, name)
    return snapshot.finish()()(value, name)


def _columns_of(frame: Any) -> Any:
    """Return a frame of pandas with new columns, which share their values."""
    return frame.copy(deep=False)


_OF_FUNCTIONS = ("__qualname__", "__module__", "__defaults__", "__kwdefaults__", "__dict__")


def _fill_object(made: Any, state: Any) -> None:
    """Give an object its state, as pickle does, but that a __getattr__ of its class is not asked for __setstate__."""
    if (fill := getattr(type(made), "__setstate__", None)) is not None:
        fill(made, state)
        return
    attributes, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    if attributes:
        vars(made).update(attributes)
    for name, value in (slots or {}).items():
        setattr(made, name, value)


def _fill_function(function: types.FunctionType, attributes: list[tuple[str, Any]]) -> None:
    for name, value in attributes:
        setattr(function, name, value)


def _fill_cell(cell: types.CellType, contents: tuple[Any]) -> None:
    (cell.cell_contents,) = contents


class _View:
    """An array or tensor over a part of small memory, of which each copy has its own."""

    def __init__(self, *parts: Any) -> None:
        self._parts = parts

    def __reduce__(self) -> Any:
        return _view, self._parts


def _view(kind: type, block: torch.Tensor, dtype: Any, offset: int, shape: Any, strides: Any) -> Any:
    if kind is np.ndarray:
        return np.ndarray(shape, dtype, block.numpy(), offset, strides)
    made = torch.empty(0, dtype=dtype, device="cpu")
    return made.set_(block.untyped_storage(), offset // dtype.itemsize, shape, strides)


def _spread(container: Any) -> list[Any]:
    """Return some entries of a container, spread over it; of a dict the keys too."""
    step = len(container) // LOOKED_AT
    if isinstance(container, (list, tuple)):
        return list(container[::step])
    parts = [container, container.values()] if isinstance(container, dict) else [container]
    return [entry for part in parts for entry in islice(part, 0, None, step)]


def _path(part: Any, whole: Any, name: str) -> str:
    """Return how code reaches a part of a value through attributes and containers, as far as that is found."""
    waiting, seen = [(name, whole)], set()
    for path, value in waiting:
        if value is part:
            return path
        if id(value) in seen or type(value) in DATA:
            continue
        seen.add(id(value))
        if isinstance(value, dict):
            waiting += [(f"{path}[{key!r:.40}]", item) for key, item in value.items()]
        elif isinstance(value, (list, tuple)):
            waiting += [(f"{path}[{position}]", item) for position, item in enumerate(value)]
        else:
            waiting += [(f"{path}.{attribute}", item) for attribute, item in getattr(value, "__dict__", {}).items()]
    return name


def _is_empty(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


def _is_found(value: Any) -> bool:
    """Return whether this is a function or reference that holds nothing which is copied."""
    if isinstance(value, types.FunctionType):
        holds = value.__closure__ or value.__defaults__ or value.__kwdefaults__ or value.__dict__
        if not holds:
            return True
        found: Any = sys.modules.get(value.__module__)
        for part in value.__qualname__.split("."):
            found = getattr(found, part, None)
        return found is value  # pickle would look it up
    if isinstance(value, types.BuiltinFunctionType):
        return isinstance(value.__self__, (types.ModuleType, type, type(None)))
    return isinstance(value, weakref.ref) and value() is None
