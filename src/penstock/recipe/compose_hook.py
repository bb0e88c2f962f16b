"""torchvision's Compose, run natively where a dataset's own code calls it in one of our workers.

A dataset that opens an image with Pillow and calls a Compose on it gets exactly what the Compose would return: the same
elements, strides and type, after the same draws from torch's generator, for torchvision's own code draws them. Known
transforms that follow each other are run together by the native core, on the memory of the PIL image: no image is made
between them, and Python's lock is let go. All else is called as ever.

The methods of torchvision's classes are exchanged once, for ones that ask whether the calling thread is a worker at
work; in any other thread they are what they were.
"""

from __future__ import annotations

import copy
import enum
import functools
import operator
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from penstock.recipe.composed_run import REFUSED, Run, called, read_run
from penstock.recipe.originals import hooked, replaced_in_class, snapshot
from penstock.recipe.reader import handlers
from penstock.recipe.torchvision import V1, V2, changed, classes


class _Here(threading.local):
    on = False
    """Whether this thread is at work for a loader."""


_here = _Here()


@contextmanager
def natively() -> Iterator[None]:
    """Run each Compose that this thread calls natively, as far as its parts are known."""
    _exchange_all()
    before, _here.on = _here.on, True
    try:
        yield
    finally:
        _here.on = before


def natively_in_this_process() -> None:
    """Do so in all threads, for the life of a process that is a loader's own."""
    _exchange_all()
    _Here.on = _here.on = True


_METHODS = {V1: "__call__", V2: "forward"}
_exchanged: set[str] = set()
_exchanging = threading.Lock()


def _exchange_all() -> None:
    for module, method in _METHODS.items():
        if module not in _exchanged and module in sys.modules:
            _exchange(module, method)


def _exchange(module: str, method: str) -> None:
    with _exchanging:
        if module in _exchanged:
            return
        kind = next(iter(classes("Compose", module)), None)
        if kind is None or replaced_in_class(kind) is not None:
            return  # what a program has put there is called, and no other; the next batch looks again
        original = vars(kind)[method]

        @functools.wraps(original)
        def call(self: Any, *inputs: Any, **named: Any) -> Any:
            if _here.on and len(inputs) == 1 and not named and isinstance(inputs[0], Image.Image):
                found = _known_of(self)
                if found is not None:
                    known, parts = found
                    return known.run(parts, inputs[0])
            return original(self, *inputs, **named)

        call.__penstock_original__ = original  # type: ignore[attr-defined]
        setattr(kind, method, call)
        _exchanged.add(module)


# --- what is known of each Compose ------------------------------------------------------------------------------------

# Reading a Compose takes as long as some images do. So that it pays, each reading is a debt that images done natively
# pay back; while the debt is high, a Compose must have been called a number of times before it is read. One that is
# changed again and again is torchvision's for good.
_IMAGES_A_READING = 8
_DEBT = 4 * _IMAGES_A_READING
_CHANGES = 4


class _Ledger:
    debt = 0
    """In images."""


#: By id(): a Compose need not be hashable, and may be equal to another one.
_entries: dict[int, _Entry] = {}


class _Entry:
    """What is known of one Compose object, which it does not keep alive."""

    __slots__ = ("calls", "changes", "compose", "known")

    def __init__(self, compose: Any) -> None:
        key = id(compose)

        def forget(reference: Any, entries: dict[int, _Entry] = _entries) -> None:
            entry = entries.get(key)
            if entry is not None and entry.compose is reference:
                del entries[key]

        self.compose = weakref.ref(compose, forget)
        self.known: Known | None = None
        self.calls = 0
        """Since it was read, or is known."""
        self.changes = 0
        """In a row, each after a few images."""


def _known_of(compose: Any) -> tuple[Known, Sequence[Any]] | None:
    """Return how a Compose is run, read anew where it was changed, and its list; None: torchvision itself runs it."""
    try:
        entry = _entries.get(id(compose))
        if entry is None or entry.compose() is not compose:
            entry = _entries[id(compose)] = _Entry(compose)
        if entry.changes >= _CHANGES or hooked():
            return None
        known, parts = entry.known, _parts_of(compose)
        entry.calls += 1
        if known is None or not known.still(parts):
            known = _read_again(entry, compose, parts)
        return None if known is None or not known.native else (known, parts)
    except Exception:  # of an object that is in a state of its own; what torchvision says of it counts
        return None


def _read_again(entry: _Entry, compose: Any, parts: Sequence[Any]) -> Known | None:
    if entry.known is not None:
        entry.changes = entry.changes + 1 if entry.calls <= _IMAGES_A_READING else 0
        entry.known, entry.calls = None, 1
        if entry.changes >= _CHANGES:
            return None
    if _Ledger.debt > _DEBT and entry.calls < _IMAGES_A_READING:
        return None
    if isinstance(parts, list | tuple) and not parts:
        return None  # of which version 2 has something to say
    if not _is_plain(compose):
        entry.changes = _CHANGES
        return None
    _Ledger.debt += _IMAGES_A_READING
    entry.known, entry.calls = Known(parts), 0
    return entry.known


def _parts_of(compose: Any) -> Any:
    """Return the list of a Compose's transforms. Raises KeyError where it has none of its own."""
    return vars(compose)["transforms"]


def _is_plain(compose: Any) -> bool:
    """Return whether calling a Compose, or its method from a subclass, is calling the items of its list in turn."""
    own = [kind for kind in type(compose).__mro__ if kind not in classes("Compose") and not _is_librarys(kind)]
    return type(_parts_of(compose)) in (list, tuple) and not any(
        {"transforms", "__getattribute__", "__getattr__"} & vars(kind).keys() for kind in own
    )


def _is_librarys(kind: type) -> bool:
    return kind is object or kind.__module__.partition(".")[0] in ("torch", "torchvision")


class Pipeline:
    """Transforms that are called in turn; runs of known ones natively. Any number of threads may call it at once."""

    def __init__(self, transforms: Sequence[Any]) -> None:
        self._transforms = list(transforms)
        self._known: Known | None = None
        with suppress(TypeError):  # one of them cannot be referred to weakly
            self._known = Known(self._transforms) if transforms else None

    def __call__(self, value: Any) -> Any:
        """Return what calling each of the transforms in turn returns."""
        known = self._known
        if known is not None and known.native and not hooked() and known.still(self._transforms):
            return known.run(self._transforms, value)
        return called(self._transforms, 0, value)


@dataclass(frozen=True)
class _Leaf:
    """A transform that is no Compose, in a list of transforms or in a Compose within it."""

    part: weakref.ref[Any]
    trail: tuple[tuple[int, int], ...]
    """From the outermost list to its own: (number of the list, position in it)."""
    foreign: bool
    """Whether a program's own code may run in it."""


class Known:
    """What is known of a list of transforms, which it does not keep alive.

    Any number of threads may use it at once.

    Raises:
        TypeError: a transform cannot be referred to weakly.
    """

    def __init__(self, transforms: Sequence[Any]) -> None:
        self._lists: list[tuple[weakref.ref[Any], ...]] = []
        self._composes: list[weakref.ref[Any]] = []
        """The Compose of each list but the first."""
        self._states: list[tuple[weakref.ref[Any], _State]] = []
        self._leaves: list[_Leaf] = []
        self._runs: dict[tuple[int, str, torch.dtype], Run | None] = {}
        kinds = [*classes("Compose")]
        self._add(transforms, (), kinds)
        self._functions = snapshot(kinds)
        self.native = self._functions.replaced is None and all(
            state.fixed and state.closed for _, state in self._states
        )
        """Whether any of them may be run natively."""
        if not self.native:
            self._states = []  # which may hold anything

    def _add(self, transforms: Sequence[Any], trail: tuple[tuple[int, int], ...], kinds: list[type]) -> None:
        number = len(self._lists)
        self._lists.append(tuple(map(weakref.ref, transforms)))
        known = handlers()
        for position, part in enumerate(transforms):
            here = (*trail, (number, position))
            reference = self._lists[number][position]
            if type(part) in classes("Compose") and changed(part) is None and _has_parts(part):
                self._states.append((reference, _State(part, without="transforms")))
                # The lists in it are numbered as they come.
                self._composes.append(reference)
                self._add(_parts_of(part), here, kinds)
                continue
            if type(part) in known:
                self._states.append((reference, _State(part)))
                kinds.append(type(part))
            self._leaves.append(_Leaf(reference, here, type(part) not in known))

    def still(self, transforms: Sequence[Any]) -> bool:
        """Return whether these are the transforms, and as they were; and the functions that they come to."""
        if hooked() or not self._functions.same():
            return False
        try:
            lists = self._all_lists(transforms)
        except (KeyError, TypeError):
            return False
        for now, before in zip(lists, self._lists, strict=True):
            if len(now) != len(before) or not all(map(operator.is_, [reference() for reference in before], now)):
                return False
        return all([state.same(reference()) for reference, state in self._states])  # noqa: C419  quicker than one by one

    def _all_lists(self, transforms: Sequence[Any]) -> list[Sequence[Any]]:
        return [transforms, *(_parts_of(reference()) for reference in self._composes)]

    def run(self, transforms: Sequence[Any], value: Any) -> Any:
        """Return what calling them in turn returns, where they are still as they were."""
        lists = self._all_lists(transforms)
        parts: list[Any] = [leaf.part() for leaf in self._leaves]
        if any(part is None for part in parts):  # another thread has just taken it out
            return called(transforms, 0, value)
        at = 0
        while at < len(parts):
            run = self._run_at(at, parts, value)
            if run is not None and (done := run(value, parts[at : at + run.length])) is not REFUSED:
                value, at = done, at + run.length
                _Ledger.debt = max(0, _Ledger.debt - 1)
                continue
            leaf = self._leaves[at]
            value, at = parts[at](value), at + 1
            if leaf.foreign and at < len(parts) and not self.still(transforms):
                for number, position in reversed(leaf.trail):
                    value = called(lists[number], position + 1, value)
                return value
        return value

    def _run_at(self, at: int, parts: Sequence[Any], value: Any) -> Run | None:
        if not isinstance(value, Image.Image) or not type(value).__module__.startswith("PIL."):
            return None
        if value.mode not in ("RGB", "L"):
            return None
        key = (at, value.mode, torch.get_default_dtype())
        if key not in self._runs:
            try:
                self._runs[key] = read_run(parts[at:], value.mode)
            except Exception:  # torchvision itself has the last word
                self._runs[key] = None
        return self._runs[key]


def _has_parts(compose: Any) -> bool:
    parts = vars(compose).get("transforms")
    return type(parts) in (list, tuple) and len(parts) > 0


class _State:
    """What a transform object's attributes were."""

    def __init__(self, transform: Any, without: str | None = None) -> None:
        self.fixed = True
        self.closed = True
        """Whether they are values that reach no object of a program's own."""
        self._without = without
        self._versions: list[tuple[torch.Tensor, int]] = []
        self._attributes = {name: self._kept(value) for name, value in self._of(transform).items()}

    def _of(self, transform: Any) -> dict[str, Any]:
        attributes: dict[str, Any] = getattr(transform, "__dict__", {})
        if self._without is None:
            return attributes
        return {name: value for name, value in attributes.items() if name != self._without}

    def same(self, transform: Any) -> bool:
        """Return whether they still are."""
        try:
            return bool(self._of(transform) == self._attributes) and all(
                tensor._version == version for tensor, version in self._versions
            )
        except Exception:  # of a comparison
            return False

    def _kept(self, value: Any) -> Any:
        """Return a value that will differ from this one when this one was changed."""
        if isinstance(value, torch.Tensor):
            self.fixed &= not value.is_inference()
            if self.fixed:
                self._versions.append((value, value._version))
        elif isinstance(value, list | tuple | set | dict):
            for item in value.values() if isinstance(value, dict) else value:
                self._kept(item)
            return copy.copy(value)
        elif isinstance(value, np.ndarray):
            self.fixed = False
        else:
            self.closed &= value is None or isinstance(value, _VALUES)
        return value


_VALUES = (bool, int, float, complex, str, bytes, type, enum.Enum, torch.dtype, torch.device, np.generic)
