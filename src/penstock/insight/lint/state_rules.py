"""Rules about what a dataset holds: many Python objects, and open files and connections."""

from __future__ import annotations

import dis
import io
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from penstock.insight.check import State
from penstock.insight.lint.objects import Held
from penstock.insight.lint.ownership import Ownership
from penstock.insight.lint.remark import Remark, place
from penstock.recipe.unseeded_generators import attributes
from penstock.system.words import size_of

#: Python objects in one attribute that take this many bytes, or more, are worth a remark: each worker copies them.
COSTLY_BYTES = 16 << 20
#: How many elements of a container stand for all, and how deep they are looked into.
_SAMPLED, _DEPTH = 500, 4
_PAGE = 4096
#: What Python keeps before each object that its garbage collector knows.
_GC_BYTES = 16
#: Returns the size of an object without what it holds; that of its class is not called.
_BARE_SIZE: Callable[[Any], int] = object.__sizeof__

_CONTAINERS: tuple[Any, ...] = (list, tuple, set, frozenset, deque)
_PLAIN: tuple[Any, ...] = (str, bytes, bytearray, int, float, complex)


# --- many Python objects ---------------------------------------------------------------------------------------------


def python_objects(held: Iterable[Held], own: Ownership) -> Iterator[Remark]:
    """Yield remarks on attributes that hold many Python objects, which worker processes copy page by page.

    Those are containers, arrays and tables of objects, and datasets of libraries.
    """
    for one in held:
        if one.direct and one.owner is not None and _may_be_costly(one.value, own):
            objects, bytes_ = weight(one.value)
            if bytes_ >= COSTLY_BYTES:
                yield Remark(
                    "python-objects",
                    State.LOOK,
                    _place_of(one, own),
                    f"{one.path}, {_with_article(type(one.value).__name__)}, holds about {_rounded(objects)} Python "
                    f"objects, {size_of(int(bytes_))}",
                    "A forked worker shares them at first; reading an object counts references in it, so that each "
                    "worker copies their pages, up to all of them. A spawned worker gets a copy at once.",
                    "Keep numbers in one NumPy array or tensor and texts in one bytes buffer with offsets "
                    "(np.array(paths, dtype=np.bytes_) does for paths); penstock.TensorFolder, ImageFolder and Shards "
                    "hold their names so.",
                )


def _may_be_costly(value: Any, own: Ownership) -> bool:
    kind = type(value)
    if issubclass(kind, (np.ndarray, dict, Dataset, *_CONTAINERS)):
        return not issubclass(kind, Dataset) or not own.of_class(kind)
    return _object_columns(value) is not None


def weight(value: Any) -> tuple[float, float]:
    """Return about how many Python objects a value consists of, and the bytes of their pages that reading them copies.

    Of long containers some elements stand for all. Nothing of an object's class runs.
    """
    return _weigh(value, set(), _DEPTH)


def _weigh(value: Any, seen: set[int], depth: int) -> tuple[float, float]:
    kind = type(value)
    if id(value) in seen or value is None or kind is bool or (kind is int and -5 <= value <= 256):
        return 0.0, 0.0
    seen.add(id(value))
    if kind in _PLAIN:
        return 1.0, float(min(sys.getsizeof(value), _PAGE))
    objects, bytes_ = 1.0, float(_BARE_SIZE(value) + _GC_BYTES)
    length, elements = _contents(value)
    if depth and length:
        sampled = [_weigh(one, seen, depth - 1) for one in islice(elements, 0, None, max(1, length // _SAMPLED))]
        scale = length / max(1, len(sampled))
        objects += scale * sum(one for one, _ in sampled)
        bytes_ += scale * sum(size for _, size in sampled)
    return objects, bytes_


def _contents(value: Any) -> tuple[int, Iterable[Any]]:
    """Return how many Python objects a value holds itself, and these; none of a tensor, a class or a module."""
    kind = type(value)
    if issubclass(kind, np.ndarray):
        return (value.size, value.flat) if value.dtype == object else (0, ())
    if issubclass(kind, dict):
        return 2 * dict.__len__(value), chain(dict.keys(value), dict.values(value))
    for container in _CONTAINERS:
        if issubclass(kind, container):
            return container.__len__(value), container.__iter__(value)
    if issubclass(kind, torch.Tensor | type | types.ModuleType | types.FunctionType):
        return 0, ()
    columns = _object_columns(value)
    if columns is not None:
        return sum(column.size for column in columns), chain.from_iterable(column.flat for column in columns)
    held = attributes(value)
    return len(held), held.values()


def _object_columns(value: Any) -> list[Any] | None:
    """Return the columns of a table of pandas that are arrays of Python objects; None: it is no such table."""
    pandas: Any = sys.modules.get("pandas")
    if pandas is None or type(value) not in (pandas.DataFrame, pandas.Series):
        return None
    columns = [value] if type(value) is pandas.Series else [value.iloc[:, i] for i in range(value.shape[1])]
    return [column.to_numpy() for column in columns if column.dtype == object]


def _with_article(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def _rounded(number: float) -> str:
    """Return a number with two digits that count: "1,200,000"."""
    digits = max(0, len(str(int(number))) - 2)
    return f"{round(number, -digits):,.0f}"


# --- open files and connections -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Handle:
    """A class whose objects are bound to the process that opened them."""

    name: str
    """As "module:Class" of a module that is only looked up where the program has imported it."""
    what: str
    closed: Callable[[Any], bool] = lambda _: False


_HANDLES = (
    _Handle("h5py:File", "an open HDF5 file", lambda file: not file),
    _Handle("h5py:Group", "a group of an open HDF5 file", lambda group: not group),
    _Handle("h5py:Dataset", "a dataset of an open HDF5 file", lambda dataset: not dataset),
    _Handle("lmdb:Environment", "an open LMDB environment"),
    _Handle("lmdb:Transaction", "a transaction of LMDB"),
    _Handle("sqlite3:Connection", "a connection to an SQLite database"),
    _Handle("sqlite3:Cursor", "a cursor of an SQLite database"),
    _Handle("socket:socket", "an open socket", lambda one: bool(one.fileno() < 0)),
    _Handle("zipfile:ZipFile", "an open ZIP file", lambda file: file.fp is None),
    _Handle("tarfile:TarFile", "an open tar file", lambda file: bool(file.closed)),
    _Handle("requests:Session", "a session of requests"),
    _Handle("psycopg2.extensions:connection", "a connection to PostgreSQL", lambda one: bool(one.closed)),
    _Handle("psycopg:Connection", "a connection to PostgreSQL", lambda one: bool(one.closed)),
    _Handle("pymysql.connections:Connection", "a connection to MySQL"),
    _Handle("redis:Redis", "a client of Redis"),
    _Handle("cv2:VideoCapture", "an open video", lambda video: not video.isOpened()),
    _Handle("decord:VideoReader", "an open video"),
    _Handle("av.container:InputContainer", "an open video"),
    _Handle(
        "PIL.ImageFile:ImageFile",
        "an image that Pillow has not read yet, with its open file",
        lambda image: attributes(image).get("fp") is None,
    ),
)
_FILES = (io.FileIO, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper)


def open_handles(held: Iterable[Held], own: Ownership) -> Iterator[Remark]:
    """Yield remarks on open files and connections that a dataset of the user's own holds; one for an attribute."""
    kinds = [(kind, one) for one in _HANDLES if (kind := _imported(one.name)) is not None]
    seen: set[tuple[int, str]] = set()
    for one in held:
        if one.owner is None or (id(one.owner), one.attribute) in seen:
            continue
        what = _handle(one.value, kinds)
        if what is None:
            continue
        seen.add((id(one.owner), one.attribute))
        yield Remark(
            "open-handle",
            State.BAD,
            _place_of(one, own),
            f"{one.path} is {what}",
            "Forked workers share it with each other, with its position and its locks: they read each other's bytes, "
            "wait for ever, or crash. It cannot be pickled for a spawned one.",
            f"Set self.{one.attribute} = None in __init__, and open it in __getitem__ where it is None: each worker "
            "then has its own.",
        )


def _handle(value: Any, kinds: list[tuple[type, _Handle]]) -> str | None:
    """Return what kind of open handle a value is; None: none."""
    if type(value) in _FILES:
        in_memory = type(value) is io.TextIOWrapper and type(getattr(value, "buffer", None)) is io.BytesIO
        return None if value.closed or in_memory else f"an open file ({getattr(value, 'name', 'without a name')!r})"
    for kind, handle in kinds:
        if issubclass(type(value), kind):
            try:
                return None if handle.closed(value) else handle.what
            except Exception:  # of the library, for a handle that is half open
                return handle.what
    return None


def _imported(name: str) -> type | None:
    module, _, attribute = name.partition(":")
    found = vars(sys.modules[module]).get(attribute) if module in sys.modules else None
    return found if isinstance(found, type) else None


# --- where an attribute is set ---------------------------------------------------------------------------------------


def _place_of(held: Held, own: Ownership) -> str:
    """Return the class of an attribute's owner, and where code of the user's sets the attribute."""
    kind = type(held.owner)
    for one in filter(own.of_class, kind.__mro__):
        functions = [value for value in vars(one).values() if type(value) is types.FunctionType]
        for function in sorted(functions, key=lambda function: function.__name__ != "__init__"):
            for step in dis.get_instructions(function):
                if step.opname == "STORE_ATTR" and step.argval == held.attribute and step.positions is not None:
                    name = f"{kind.__name__}.{function.__name__}"
                    return place(name, function.__code__.co_filename, step.positions.lineno)
    module = sys.modules.get(kind.__module__)
    return place(kind.__name__, None if module is None else vars(module).get("__file__"), None)
