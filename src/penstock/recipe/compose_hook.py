"""torchvision's transforms, run natively where a dataset's own code calls them in one of our workers.

A dataset that opens an image with Pillow and calls a Compose on it gets exactly what the Compose would return: the same
elements, strides and type, after the same draws from torch's generator, for torchvision's own code draws them. Known
transforms that follow each other are run together by the native core, on the memory of the PIL image: no image is made
between them, and Python's lock is let go. Of an encoded image (encoded_image.py) no more is decoded than the first of
them needs, in a Compose or called by themselves. All other transforms are called as ever.

The code of the methods of torchvision's classes is exchanged once, for code that looks whether the calling thread works
for a loader; in any other thread they do what they did.
"""

from __future__ import annotations

import operator
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from PIL import Image

from penstock import call_counts
from penstock.call_counts import CallMeter
from penstock.recipe.attributes import AttributeState
from penstock.recipe.composed_run import REFUSED, Run, called, read_run
from penstock.recipe.encoded_image import is_encoded
from penstock.recipe.exchange import exchange_code
from penstock.recipe.originals import hooked, replaced_in_class, snapshot
from penstock.recipe.reader import handlers
from penstock.recipe.torchvision import V1, V2, changed, classes
from penstock.system.process_lock import ProcessLock


class _ThreadState(threading.local):
    native = False
    """Whether this thread works for a loader."""


this_thread = _ThreadState()


@contextmanager
def natively(calls: CallMeter | None = None) -> Iterator[None]:
    """Run each Compose that this thread calls natively, as far as its parts are known. calls: counts them."""
    _exchange_methods()
    counting = call_counts.this_thread
    before, sink = this_thread.native, counting.sink
    try:
        this_thread.native = True
        counting.sink = None if calls is None else calls.of_this_thread()
        yield
    finally:
        this_thread.native, counting.sink = before, sink


def natively_in_this_process() -> None:
    """Run each Compose so in all threads, for the life of a process that is a loader's own."""
    _exchange_methods()
    _ThreadState.native = this_thread.native = True


#: Under this name the images count whose transforms are run natively, in whole or in part, or not at all.
TRANSFORMS = "torchvision transforms"
_NOT_FOLLOWED = "the Compose, or what its transforms call, was changed"
#: By module: a class, its method, and whether its objects are a list of transforms or one transform.
_METHODS = (
    (V1, "Compose", "__call__", True),
    (V2, "Compose", "forward", True),
    (V1, "RandomResizedCrop", "forward", False),
    (V1, "Resize", "forward", False),
    (V1, "ToTensor", "__call__", False),
    (V2, "Transform", "forward", False),
)
_exchanged: set[tuple[str, str]] = set()
_exchanging = ProcessLock()


def _exchange_methods() -> None:
    for module, name, method, lists in _METHODS:
        if (module, name) not in _exchanged and module in sys.modules:
            with _exchanging:
                _exchange_method(module, name, method, _call_of_list if lists else _call_of_one)


def _exchange_method(module: str, name: str, method: str, wrap: Callable[[Any], Any]) -> None:
    kind = next(iter(classes(name, module)), None)
    if (module, name) in _exchanged or kind is None or replaced_in_class(kind) is not None:
        return  # a method that a program has put into the class stays; the next batch tries once more
    exchange_code(vars(kind)[method], wrap)
    _exchanged.add((module, name))


def _call_of_list(original: Any) -> Any:
    """Return the method of a Compose that runs its transforms natively, as far as they are known."""

    def call(self: Any, *inputs: Any, **named: Any) -> Any:
        if this_thread.native and len(inputs) == 1 and not named and isinstance(inputs[0], Image.Image):
            found = _known_and_parts(self, _parts_of)
            if found is not None:
                known, parts = found
                return known.run(parts, inputs[0])
            call_counts.refused(TRANSFORMS, _NOT_FOLLOWED)
        return original(self, *inputs, **named)

    return call


def _call_of_one(original: Any) -> Any:
    """Return the method of a transform that has the native core decode what the transform needs of an encoded image."""

    def call(self: Any, *inputs: Any, **named: Any) -> Any:
        if this_thread.native and len(inputs) == 1 and not named and is_encoded(inputs[0]):
            found = _known_and_parts(self, _only)
            if found is not None:
                known, parts = found
                done = known.run_first(parts, inputs[0])
                if done is not REFUSED:
                    call_counts.answered(TRANSFORMS)
                    return done
        return original(self, *inputs, **named)

    return call


def run_whole(compose: Any, image: Image.Image) -> Any:
    """Return the tensor that a Compose makes of an image of which nobody else knows; or REFUSED, as a Run."""
    found = _known_and_parts(compose, _parts_of) if type(compose) in classes("Compose") else None
    if found is None:
        return REFUSED
    done = found[0].run_whole(image)
    if done is not REFUSED:
        call_counts.answered(TRANSFORMS)
    return done


def _only(transform: Any) -> tuple[Any]:
    return (transform,)


# --- what is known of each Compose ------------------------------------------------------------------------------------

# Reading a Compose takes as long as some images do. So that it pays, each reading is a debt that images done natively
# pay back; while the debt is high, a Compose must have been called a number of times before it is read. A Compose that
# is changed over and over is left to torchvision for good.
_IMAGES_PER_READING = 8
_MOST_DEBT = 4 * _IMAGES_PER_READING
_MOST_CHANGES = 4


class _Debt:
    images = 0


#: By id() of a Compose, which need not be hashable, and may be equal to another one.
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
        self.known: KnownTransforms | None = None
        self.calls = 0
        """How often the Compose was called since it was read, or since its first call."""
        self.changes = 0
        """How many changes in a row came after a few images each."""


def _known_and_parts(
    compose: Any, parts_of: Callable[[Any], Sequence[Any]]
) -> tuple[KnownTransforms, Sequence[Any]] | None:
    """Return how a Compose (or one transform) is run, read anew where it was changed, and the list of its parts.

    None: torchvision itself runs it.
    """
    try:
        entry = _entries.get(id(compose))
        if entry is None or entry.compose() is not compose:
            entry = _entries[id(compose)] = _Entry(compose)
        if entry.changes >= _MOST_CHANGES or hooked():
            return None
        known, parts = entry.known, parts_of(compose)
        entry.calls += 1
        if known is None or not known.still(parts):
            known = _reread(entry, compose, parts)
        return None if known is None or not known.native else (known, parts)
    except Exception:  # of an object in an unusual state: torchvision's own error counts
        return None


def _reread(entry: _Entry, compose: Any, parts: Sequence[Any]) -> KnownTransforms | None:
    if entry.known is not None:
        entry.changes = entry.changes + 1 if entry.calls <= _IMAGES_PER_READING else 0
        entry.known, entry.calls = None, 1
        if entry.changes >= _MOST_CHANGES:
            return None
    if _Debt.images > _MOST_DEBT and entry.calls < _IMAGES_PER_READING:
        return None
    if isinstance(parts, list | tuple) and not parts:
        return None  # version 2 raises an error of its own for an empty list
    if parts[0] is not compose and not _is_plain(compose):
        entry.changes = _MOST_CHANGES
        return None
    _Debt.images += _IMAGES_PER_READING
    entry.known, entry.calls = KnownTransforms(parts), 0
    return entry.known


def _parts_of(compose: Any) -> Any:
    """Return the list of a Compose's transforms. Raises KeyError where it has none of its own."""
    return vars(compose)["transforms"]


def _is_plain(compose: Any) -> bool:
    """Return whether calling a Compose, or its method from a subclass, is calling the items of its list in turn."""
    bases = type(compose).__mro__[:-1]  # without object
    own = [kind for kind in bases if kind.__module__.partition(".")[0] not in ("torch", "torchvision")]
    return type(_parts_of(compose)) in (list, tuple) and not any(
        {"transforms", "__getattribute__", "__getattr__"} & vars(kind).keys() for kind in own
    )


class Pipeline:
    """Transforms that are called in turn; runs of known ones natively. Any number of threads may call it at once."""

    def __init__(self, transforms: Sequence[Any]) -> None:
        self._transforms = list(transforms)
        self._known: KnownTransforms | None = None
        _exchange_methods()  # before what is known is looked up: an exchange later would be a change
        with suppress(TypeError):  # a transform cannot be referred to weakly
            self._known = KnownTransforms(self._transforms) if transforms else None

    def __call__(self, value: Any) -> Any:
        """Return what calling each of the transforms in turn returns."""
        known = self._known
        if known is not None and known.native and not hooked() and known.still(self._transforms):
            return known.run(self._transforms, value)
        return called(self._transforms, 0, value)


@dataclass(frozen=True)
class _Part:
    """A transform that is no Compose, in a list of transforms or in a Compose within it."""

    transform: weakref.ref[Any]
    trail: tuple[tuple[int, int], ...]
    """(number of the list, position in it), from the outermost list to the transform's own."""
    foreign: bool
    """Whether a program's own code may run in the transform."""


class KnownTransforms:
    """What is known of a list of transforms, which it does not keep alive.

    Any number of threads may use it at once.

    Raises:
        TypeError: a transform cannot be referred to weakly.
    """

    def __init__(self, transforms: Sequence[Any]) -> None:
        self._lists: list[tuple[weakref.ref[Any], ...]] = []
        self._composes: list[weakref.ref[Any]] = []
        """The Compose of each list but the first."""
        self._states: list[tuple[weakref.ref[Any], AttributeState]] = []
        self._parts: list[_Part] = []
        self._runs: dict[tuple[int, str, torch.dtype], Run | None] = {}
        kinds = [*classes("Compose")]
        self._add(transforms, (), kinds)
        replaced, self._functions_as_they_were = snapshot(kinds)
        self.native = replaced is None and all(state.fixed and not state.objects for _, state in self._states)
        """Whether any of the transforms may be run natively."""
        if not self.native:
            self._states = []  # they may hold objects of any kind

    def _add(self, transforms: Sequence[Any], trail: tuple[tuple[int, int], ...], kinds: list[type]) -> None:
        number = len(self._lists)
        self._lists.append(tuple(map(weakref.ref, transforms)))
        known = handlers()
        for position, part in enumerate(transforms):
            inner_trail = (*trail, (number, position))
            reference = self._lists[number][position]
            if type(part) in classes("Compose") and changed(part) is None and _has_parts(part):
                self._states.append((reference, AttributeState(part, without="transforms")))
                self._composes.append(reference)
                self._add(_parts_of(part), inner_trail, kinds)
                continue
            if type(part) in known:
                self._states.append((reference, AttributeState(part)))
                kinds.append(type(part))
            self._parts.append(_Part(reference, inner_trail, type(part) not in known))

    def still(self, transforms: Sequence[Any]) -> bool:
        """Return whether these are the transforms, and both they and the functions they come to are as they were."""
        if hooked() or not self._functions_as_they_were():
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
        parts: list[Any] = [part.transform() for part in self._parts]
        if any(part is None for part in parts):  # another thread has just taken a transform out of a list
            return called(transforms, 0, value)
        begin, natively_run, image = 0, False, value
        left: _Part | None = None
        while begin < len(parts):
            run = self._run_from(begin, parts, value)
            if run is not None and (done := run(value, parts[begin : begin + run.length])) is not REFUSED:
                value, begin = done, begin + run.length
                _Debt.images = max(0, _Debt.images - 1)
                if not natively_run:
                    natively_run = True
                    call_counts.answered(TRANSFORMS)
                continue
            part = self._parts[begin]
            if left is None and (part.foreign or not natively_run):
                left = part
                call_counts.refused(TRANSFORMS, _why_left(parts[begin], part, run, image))
            value, begin = parts[begin](value), begin + 1
            if part.foreign and begin < len(parts) and not self.still(transforms):
                for number, position in reversed(part.trail):
                    value = called(lists[number], position + 1, value)
                return value
        return value

    def run_first(self, transforms: Sequence[Any], value: Any) -> Any:
        """Return what the known transforms at the start of the list make of a value; or REFUSED."""
        run = self._run_from(0, transforms, value)
        return REFUSED if run is None else run(value, transforms[: run.length])

    def run_whole(self, value: Any) -> Any:
        """Return the tensor that one run of all transforms makes of a value; or REFUSED."""
        parts: list[Any] = [part.transform() for part in self._parts]
        run = None if any(part is None for part in parts) else self._run_from(0, parts, value)
        if run is None or run.length != len(parts) or run.mode is not None:
            return REFUSED
        done = run(value, parts)
        if done is not REFUSED:
            _Debt.images = max(0, _Debt.images - 1)
        return done

    def _run_from(self, begin: int, parts: Sequence[Any], value: Any) -> Run | None:
        if not isinstance(value, Image.Image) or not type(value).__module__.startswith("PIL."):
            return None
        if value.mode not in ("RGB", "L"):
            return None
        key = (begin, value.mode, torch.get_default_dtype())
        if key not in self._runs:
            try:
                self._runs[key] = read_run(parts[begin:], value.mode)
            except Exception:  # torchvision itself has the last word
                self._runs[key] = None
        return self._runs[key]


def _why_left(transform: Any, part: _Part, run: Run | None, image: Any) -> str:
    """Return why a transform of an image is called as it is."""
    name = transform.__qualname__ if type(transform) is FunctionType else type(transform).__qualname__
    if part.foreign:
        return f"{name} has no native form"
    if not isinstance(image, Image.Image):
        return f"the image is a {type(image).__qualname__}"
    if image.mode not in ("RGB", "L"):
        return f"the image is of mode {image.mode}"
    return f"{name} alone gains nothing" if run is None else "the native core refuses images of this size"


def _has_parts(compose: Any) -> bool:
    parts = vars(compose).get("transforms")
    return type(parts) in (list, tuple) and len(parts) > 0
