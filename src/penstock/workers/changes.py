"""What has changed in a user's objects since workers got their copies of them."""

from __future__ import annotations

import types
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import Dataset, IterDataPipe, MapDataPipe

from penstock.recipe.held_objects import open_handle
from penstock.system.libraries import is_users

Path = tuple["str | int", ...]
"""The way from the roots to a value: attributes by their names, elements of lists by their numbers."""

#: How many objects are looked at, and how many elements of a list or a tuple.
_OBJECTS, _ENTRIES = 64, 16
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_ABSENT = object()


class Changes(NamedTuple):
    """What has changed: values that can be sent, and the first one that cannot."""

    small: list[tuple[Path, Any]]
    large: str
    """The expression of an attribute that is another object now: "dataset.transform"; empty: there is none."""


class Copied:
    """The attributes of a dataset and a collate_fn as workers got them.

    It looks at objects of the user's classes, at datasets, and at transforms of torchvision, also in one another
    and in short lists. Of the attributes numbers, strings, None and tuples of these are compared by their values, all
    others by what they are.
    """

    def __init__(self, *roots: Any) -> None:
        self._held = [(path, one, dict(_held_by(one))) for path, one in _objects(roots)]

    def changes(self) -> Changes:
        """Return what has changed since the workers got it, or the latest changes were sent."""
        small: list[tuple[Path, Any]] = []
        large = ""
        for path, one, before in self._held:
            now = _held_by(one)
            for name, value in now.items():
                old = before.get(name, _ABSENT)
                if old is value:
                    continue
                if _is_plain(value):
                    if type(old) is not type(value) or old != value:
                        small.append(((*path, name), value))
                # An attribute that was not there is one that the class makes when it is first needed, as a handle is.
                elif old is not _ABSENT and open_handle(value) is None:
                    large = large or _expression((*path, name))
            if len(now) < len(before) and not large:
                large = next((_expression((*path, name)) for name in before if name not in now), "")
        return Changes(small, large)

    def sent(self) -> None:
        """Note that the workers have what there is now."""
        self._held = [(path, one, dict(_held_by(one))) for path, one, _ in self._held]


def apply(roots: tuple[Any, ...], small: list[tuple[Path, Any]]) -> None:
    """Set attributes of the calling worker's own objects, as far as it has them."""
    for path, value in small:
        one: Any = roots
        try:
            for step in path[:-1]:
                one = one[step] if isinstance(step, int) else _attribute(one, step)
            _held_by(one)[path[-1]] = value
        except (LookupError, TypeError, AttributeError):
            continue  # the worker's code has put something else there


def _objects(roots: tuple[Any, ...]) -> Iterator[tuple[Path, Any]]:
    """Yield the objects whose attributes count, the nearest first."""
    seen: set[int] = set()
    waiting: deque[tuple[Path, Any]] = deque(((number,), root) for number, root in enumerate(roots))
    while waiting and len(seen) < _OBJECTS:
        path, one = waiting.popleft()
        kind = type(one)
        if kind in _PLAIN or id(one) in seen:
            continue
        if kind is list or kind is tuple:
            if len(one) <= _ENTRIES:
                waiting.extend(((*path, number), part) for number, part in enumerate(one))
        elif kind is types.MethodType:
            waiting.append(((*path, "__self__"), one.__self__))
        elif _counts(kind):
            seen.add(id(one))
            yield path, one
            waiting.extend(((*path, name), part) for name, part in _held_by(one).items())


#: Whether objects of a class are looked at.
_counted: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def _counts(kind: type) -> bool:
    found = _counted.get(kind)
    if found is None:
        # Of a DataPipe torch itself sets attributes as each pass begins.
        known = issubclass(kind, Dataset) and not issubclass(kind, IterDataPipe | MapDataPipe)
        theirs = str(kind.__module__).startswith("torchvision.")
        held = getattr(kind, "__dictoffset__", 0) != 0 and not issubclass(kind, type | types.FunctionType)
        found = _counted[kind] = held and (known or theirs or is_users(kind))
    return found


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind is tuple:
        return len(value) <= _ENTRIES and all(map(_is_plain, value))
    return kind in _PLAIN or issubclass(kind, np.generic)


def _held_by(one: Any) -> dict[Any, Any]:
    """Return the attributes that an object holds; no code of its class runs."""
    held = object.__getattribute__(one, "__dict__")
    return held if type(held) is dict else {}


def _attribute(one: Any, name: str) -> Any:
    return one.__self__ if name == "__self__" else _held_by(one)[name]


def _expression(path: Path) -> str:
    """Return a path as a user writes it."""
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path[1:])
    return ("dataset", "collate_fn")[path[0] == 1] + steps.replace(".__self__", "")
