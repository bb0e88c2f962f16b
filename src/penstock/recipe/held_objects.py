"""What a dataset holds: the objects in it, found without running any of its code."""

from __future__ import annotations

import contextlib
import functools
import io
import socket
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch

from penstock.system.libraries import is_users

#: How many objects are visited, and how deep in one another.
_OBJECTS, _DEPTH = 4_000, 8
#: How many entries of a list or a dictionary are visited.
_ENTRIES = 32

#: What lies in an attribute of the object that holds it, and has no attributes.
_WITHIN: tuple[Any, ...] = (list, tuple, dict, types.FunctionType, types.MethodType)
_SMALL = (str, int, float, bool, type(None))
_PLAIN: tuple[Any, ...] = (str, bytes, bytearray, int, float, complex)
_CLOSED = (*_PLAIN, type(None), torch.Tensor, np.ndarray, type, types.ModuleType)

#: Classes whose objects are bound to the process that opened them, of modules that the program has imported.
_HANDLES = (
    *("h5py.File", "h5py.Group", "h5py.Dataset", "lmdb.Environment", "lmdb.Transaction", "requests.Session"),
    *("sqlite3.Connection", "sqlite3.Cursor", "socket.socket", "zipfile.ZipFile", "tarfile.TarFile"),
    *("psycopg2.extensions.connection", "psycopg.Connection", "pymysql.connections.Connection", "redis.Redis"),
    *("cv2.VideoCapture", "decord.VideoReader", "av.container.InputContainer", "PIL.ImageFile.ImageFile"),
)
#: Names by which a class shows that it knows in which process it is.
_AWARE = {"getpid", "get_worker_info", "register_at_fork"}
FILES = (io.FileIO, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper)


@dataclass(frozen=True, eq=False)
class Held:
    """An object that a dataset holds."""

    path: str
    """The expression that leads to it: "dataset.dataset.samples"."""
    value: Any
    owner: Any = None
    """The user's object whose attribute it is, or lies in; None: a library's."""
    attribute: str = ""
    """That attribute of the owner."""
    direct: bool = False
    """It is that attribute itself, and not in it."""


def held_objects(
    root: object, *, closed: Callable[[Any], bool] = lambda value: False, of_classes: bool = True
) -> Iterator[Held]:
    """Yield what a dataset holds, itself first, the nearest objects before those in them.

    closed: returns whether an object counts as one that holds nothing.
    of_classes: data of the user's classes counts as held by their objects, too, and the owners are told.
    """
    seen: set[int] = set()
    waiting: deque[tuple[Held, int]] = deque([(Held("dataset", root), 0)])
    while waiting and len(seen) < _OBJECTS:
        held, depth = waiting.popleft()
        if id(held.value) in seen or type(held.value) in _SMALL:
            continue
        seen.add(id(held.value))
        yield held
        if depth < _DEPTH and not issubclass(type(held.value), _CLOSED) and not closed(held.value):
            waiting.extend((one, depth + 1) for one in _inside(held, of_classes))


def _inside(held: Held, of_classes: bool) -> Iterator[Held]:
    """Yield what an object holds."""
    value, kind = held.value, type(held.value)
    if of_classes and not issubclass(kind, _WITHIN) and is_users(kind):
        for name, part in _own_attributes(value).items():
            yield Held(f"{held.path}.{name}", part, value, name, direct=True)
        return
    owner, attribute = (held.owner, held.attribute) if issubclass(kind, _WITHIN) else (None, "")
    for name, part in parts(value):
        yield Held(held.path + name, part, owner, attribute)


def _own_attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object of the user's: those of its classes that are data, and its own."""
    found: dict[str, Any] = {}
    for kind in filter(is_users, reversed(type(value).__mro__)):
        held = vars(kind).items()
        found |= {name: part for name, part in held if name[:2] != "__" and not hasattr(type(part), "__get__")}
    return found | attributes(value)


def parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object holds, each with the end of the expression that leads to it; no code of its class runs.

    Of a list, a tuple or a dictionary only the first entries.
    """
    kind = type(value)
    if issubclass(kind, list):
        yield from ((f"[{i}]", part) for i, part in enumerate(list.__getitem__(value, slice(_ENTRIES))))
    elif issubclass(kind, tuple):
        yield from ((f"[{i}]", part) for i, part in enumerate(tuple.__getitem__(value, slice(_ENTRIES))))
    elif issubclass(kind, dict):
        yield from ((f"[{_shown(key)}]", part) for key, part in islice(dict.items(value), _ENTRIES))
    elif issubclass(kind, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif kind is types.MethodType:
        yield ".__self__", value.__self__
    elif kind is types.FunctionType:
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            try:
                yield f".<{name}>", cell.cell_contents
            except ValueError:  # not set yet
                continue
    else:
        yield from ((f".{name}", part) for name, part in attributes(value).items())


def _shown(key: Any) -> str:
    return repr(key) if type(key) in (str, int, float, bool, bytes) else f"<{type(key).__name__}>"


def attributes(value: Any) -> dict[str, Any]:
    """Return the attributes that an object holds itself, those of __slots__ too; no code of its class runs."""
    found: dict[str, Any] = {}
    for kind in type(value).__mro__:
        for name, slot in kind.__dict__.items() if "__slots__" in kind.__dict__ else ():
            if type(slot) is types.MemberDescriptorType:
                with contextlib.suppress(AttributeError):  # not set
                    found[name] = slot.__get__(value)
    with contextlib.suppress(AttributeError):
        held = object.__getattribute__(value, "__dict__")
        if type(held) is dict:
            found.update(held)
    return found


# --- files and connections --------------------------------------------------------------------------------------------


def shared_handles(held: Iterable[Held]) -> list[tuple[Held, str]]:
    """Return the open files and connections that attributes of the user's objects hold, each with what it is.

    Of each attribute one; none of a class whose methods ask in which process they run.
    """
    found: dict[tuple[int, str], tuple[Held, str]] = {}
    for one in held:
        if one.owner is not None and (what := open_handle(one.value)) is not None and not _is_aware(type(one.owner)):
            found.setdefault((id(one.owner), one.attribute), (one, what))
    return list(found.values())


def _is_aware(kind: type) -> bool:
    methods = (value for base in kind.__mro__ if is_users(base) for value in vars(base).values())
    return any(type(one) is types.FunctionType and not _AWARE.isdisjoint(one.__code__.co_names) for one in methods)


def open_handle(value: Any) -> str | None:
    """Return what kind of open handle a value is; None: it is not one."""
    if type(value) in FILES:
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
