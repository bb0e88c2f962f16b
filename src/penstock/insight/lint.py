"""Looks at a dataset of the user's own for what costs time or memory, or fails, in workers; none of its code runs.

Attributes are read as they lie, and elements as built-in types give them.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import io
import os
import socket
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
from penstock.insight.program_loaders import is_library
from penstock.recipe.unseeded_generators import attributes, parts
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
#: How many objects are visited, and how deep in one another.
_OBJECTS, _DEPTH = 4_000, 8
#: How many elements of a container stand for all when it is weighed, and how deep they are looked into.
_SAMPLED, _WEIGHED_DEPTH = 500, 4
_PAGE = 4096
#: What Python keeps before each object that its garbage collector knows.
_GC_BYTES = 16

#: What lies in an attribute of the object that holds it, and has none of its own.
_WITHIN: tuple[Any, ...] = (list, tuple, dict, types.FunctionType, types.MethodType)
_SMALL = (str, int, float, bool, type(None))
_PLAIN: tuple[Any, ...] = (str, bytes, bytearray, int, float, complex)
_CONTAINERS = (np.ndarray, dict, list, tuple, set, frozenset, deque)
_NO_DATA = (torch.Tensor, type, types.ModuleType, types.FunctionType)
_CLOSED = (*_PLAIN, type(None), torch.Tensor, np.ndarray, type, types.ModuleType)


def lint(dataset: Any) -> list[Remark]:
    """Return remarks on a dataset's state: what fails first, then what costs.

    It examines objects of the user's own classes, also as transforms, in a Subset, a ConcatDataset or any other object
    that the dataset holds, but not those of libraries. No code of the dataset is called. Of a loader its dataset is
    examined.
    """
    root = dataset.dataset if issubclass(type(dataset), DataLoader) else dataset
    held = list(held_objects(root))
    return [*open_handles(held), *python_objects(held)]


def _is_users(kind: type) -> bool:
    """Return whether a class is the user's own code, and not of a library: only what a user can change is a remark."""
    module = str(kind.__module__ or "__main__")  # None: of one made by hand
    if module == "__main__" or module in sys.builtin_module_names:
        return module == "__main__"
    file = _file_of(module)
    return file is None or not is_library(os.path.realpath(file))


def _place(kind: type) -> str:
    """Return where a class is written, as the working folder sees it: "NAME (FILE:LINE)"."""
    if not (file := _file_of(kind.__module__)):
        return kind.__name__
    line = ""
    with contextlib.suppress(OSError, TypeError):
        line = f":{inspect.getsourcelines(kind)[1]}"
    with contextlib.suppress(OSError, ValueError):  # the working folder is gone
        seen = os.path.relpath(file)
        file = file if seen.startswith(os.pardir) else seen
    return f"{kind.__name__} ({file}{line})"


def _file_of(module: str) -> str | None:
    return getattr(sys.modules.get(module), "__file__", None)


# --- what there is ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Held:
    """An object that a dataset holds."""

    path: str
    """The expression that leads to it: "dataset.dataset.samples"."""
    value: Any
    owner: Any = None
    """The object of the user's own whose attribute it is, or lies in; None: a library's."""
    attribute: str = ""
    """That attribute of the owner."""
    direct: bool = False
    """It is that attribute itself, and not in it."""


def held_objects(root: object) -> Iterator[Held]:
    """Yield what a dataset holds, itself first, the nearest objects before those in them."""
    seen: set[int] = set()
    waiting: deque[tuple[Held, int]] = deque([(Held("dataset", root), 0)])
    while waiting and len(seen) < _OBJECTS:
        held, depth = waiting.popleft()
        if id(held.value) in seen or type(held.value) in _SMALL:
            continue
        seen.add(id(held.value))
        yield held
        if depth < _DEPTH and not issubclass(type(held.value), _CLOSED):
            waiting.extend((one, depth + 1) for one in _inside(held))


def _inside(held: Held) -> Iterator[Held]:
    """Yield what an object holds."""
    value, kind = held.value, type(held.value)
    if not issubclass(kind, _WITHIN) and _is_users(kind):
        for name, part in _own_attributes(value).items():
            yield Held(f"{held.path}.{name}", part, value, name, direct=True)
        return
    owner, attribute = (held.owner, held.attribute) if issubclass(kind, _WITHIN) else (None, "")
    for name, part in parts(value):
        yield Held(held.path + name, part, owner, attribute)


def _own_attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object of the user's: those of its classes that are data, and its own."""
    found: dict[str, Any] = {}
    for kind in filter(_is_users, reversed(type(value).__mro__)):
        held = vars(kind).items()
        found |= {name: part for name, part in held if name[:2] != "__" and not hasattr(type(part), "__get__")}
    return found | attributes(value)


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
    return not _is_users(kind) if issubclass(kind, Dataset) else issubclass(kind, _CONTAINERS) or _is_table(value)


def weight(value: Any, seen: set[int] | None = None, depth: int = _WEIGHED_DEPTH) -> float:
    """Return about how many bytes of pages reading all Python objects of a value copies.

    Of long containers some elements stand for all. Nothing of an object's class runs.
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

#: Classes whose objects are bound to the process that opened them, of modules that the program has imported.
_HANDLES = (
    *("h5py.File", "h5py.Group", "h5py.Dataset", "lmdb.Environment", "lmdb.Transaction", "requests.Session"),
    *("sqlite3.Connection", "sqlite3.Cursor", "socket.socket", "zipfile.ZipFile", "tarfile.TarFile"),
    *("psycopg2.extensions.connection", "psycopg.Connection", "pymysql.connections.Connection", "redis.Redis"),
    *("cv2.VideoCapture", "decord.VideoReader", "av.container.InputContainer", "PIL.ImageFile.ImageFile"),
)
_FILES = (io.FileIO, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper)


def open_handles(held: Iterable[Held]) -> Iterator[Remark]:
    """Yield remarks on open files and connections that a dataset of the user's own holds; one for an attribute."""
    seen: set[tuple[int, str]] = set()
    for one in held:
        if one.owner is None or (id(one.owner), one.attribute) in seen:
            continue
        what = _handle(one.value)
        if what is None:
            continue
        seen.add((id(one.owner), one.attribute))
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


def _handle(value: Any) -> str | None:
    """Return what kind of open handle a value is; None: it is not one."""
    if type(value) in _FILES:
        in_memory = type(getattr(value, "buffer", None)) is io.BytesIO
        return None if value.closed or in_memory else f"an open file ({getattr(value, 'name', 'without a name')!r})"
    for name in _HANDLES:
        module, _, attribute = name.rpartition(".")
        kind = vars(sys.modules[module]).get(attribute) if module in sys.modules else None
        if isinstance(kind, type) and issubclass(type(value), kind):
            return None if _closed(value) else f"an open {name}"
    return None


def _closed(value: Any) -> bool:
    """Return whether a handle says that it is closed, in its library's way."""
    try:
        unread = type(value).__module__.startswith(("PIL.", "zipfile")) and value.fp is None
        unbound = type(value) is socket.socket and value.fileno() < 0
        return unread or unbound or bool(getattr(value, "closed", False)) or not value
    except Exception:  # of the library, for a handle that is half open
        return False
