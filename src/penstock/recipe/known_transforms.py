"""What is known of a list of torchvision's transforms, and the native runs of those of them that are known."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import torch
from PIL import Image

from penstock import call_counts
from penstock.recipe.attributes import AttributeState
from penstock.recipe.composed_run import REFUSED, Run, called, read_run
from penstock.recipe.originals import hooked, replaced_in_class
from penstock.recipe.reader import known_transforms
from penstock.recipe.sample_run import SampleRun, find_picture, read_sample_run
from penstock.recipe.torchvision import V1, changed, classes

#: Under this name the images count whose transforms are run natively, in whole or in part, or not at all.
TRANSFORMS = "torchvision transforms"


class Debt:
    """What readings of transforms have cost, and images that were done natively since have not yet paid back."""

    images = 0


class Passes:
    begun = 0
    """How many passes have begun: methods of classes are looked at once a pass."""


def parts_of(compose: Any) -> Any:
    """Return the list of the transforms that one holds. Raises KeyError where it has none of its own."""
    return vars(compose)["transforms"]


class _Part(NamedTuple):
    """A transform that is no Compose, in a list of transforms or in a Compose within it."""

    transform: weakref.ref[Any]
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
        self._held: list[tuple[weakref.ref[Any], tuple[weakref.ref[Any], ...]]] = []
        """Known transforms that hold others, RandomApply for one, with these."""
        self._parts: list[_Part] = []
        self._runs: dict[tuple[int, str, torch.dtype, bool], Run | SampleRun | None] = {}
        self.takes_several = True
        """Whether no part is a Compose of the first generation, which takes one value."""
        self._kinds: set[type] = set(classes("Compose"))
        self._add(transforms)
        self._pass, self._replaced = Passes.begun, self._is_replaced()
        self.native = not self._replaced and all(state.fixed and not state.objects for _, state in self._states)
        """Whether any of the transforms may be run natively."""
        if not self.native:
            self._states = []  # they may hold objects of any kind

    def _add(self, transforms: Sequence[Any]) -> None:
        references = tuple(map(weakref.ref, transforms))
        self._lists.append(references)
        known = known_transforms()
        for part, reference in zip(transforms, references, strict=True):
            if type(part) in classes("Compose") and changed(part) is None and _has_parts(part):
                self._states.append((reference, AttributeState(part, without="transforms")))
                self._composes.append(reference)
                self.takes_several &= type(part) not in classes("Compose", V1)
                self._add(parts_of(part))
                continue
            own = _is_known(part, known)
            if own:
                self._note(part, reference)
            self._parts.append(_Part(reference, not own))

    def _note(self, part: Any, reference: weakref.ref[Any]) -> None:
        """Note what a known transform is, and the transforms that it holds."""
        holds = "transforms" if "transforms" in vars(part) else None
        self._states.append((reference, AttributeState(part, without=holds)))
        self._kinds.add(type(part))
        if holds is not None:
            held = tuple(map(weakref.ref, parts_of(part)))
            self._held.append((reference, held))
            for one, inner in zip(parts_of(part), held, strict=True):
                self._note(one, inner)

    def _is_replaced(self) -> bool:
        """Return whether a method of the transforms' classes is a program's own now."""
        return any(replaced_in_class(kind) is not None for kind in self._kinds)

    def _hold_the_same(self) -> bool:
        for reference, before in self._held:
            now = parts_of(reference())
            if len(now) != len(before) or not all(map(operator.is_, [one() for one in before], now)):
                return False
        return True

    def still(self, transforms: Sequence[Any]) -> bool:
        """Return whether these are the transforms, and all are as they were."""
        if hooked():
            return False
        if self._pass != Passes.begun:
            if self._is_replaced() != self._replaced:
                return False
            self._pass = Passes.begun
        try:
            lists = self._all_lists(transforms)
            if not self._hold_the_same():
                return False
        except (KeyError, TypeError):
            return False
        for now, before in zip(lists, self._lists, strict=True):
            if len(now) != len(before) or not all(map(operator.is_, [reference() for reference in before], now)):
                return False
        return all([state.same(reference()) for reference, state in self._states])  # noqa: C419  quicker than one by one

    def _all_lists(self, transforms: Sequence[Any]) -> list[Sequence[Any]]:
        return [transforms, *(parts_of(reference()) for reference in self._composes)]

    def run(self, transforms: Sequence[Any], value: Any, several: bool = False) -> Any:
        """Return what calling them in turn returns, where they are still as they were.

        A transform that is changed meanwhile is called as it is then; a list that is changed counts from the next call.

        several: each is called with the items of what the one before it returned, a tuple of more than one value.
        """
        parts: list[Any] = [part.transform() for part in self._parts]
        if any(part is None for part in parts):  # another thread has just taken a transform out of a list
            return called(transforms, value, several)
        begin, natively_run, image, given = 0, False, value, len(value) if several else 0
        left: _Part | None = None
        pictures = True  # there may be one
        while begin < len(parts):
            run = self._run_from(begin, parts, value) if pictures else None
            if run is not None and (done := run(value, parts[begin : begin + run.length])) is not REFUSED:
                value, begin = done, begin + run.length
                pictures = run.mode is not None
                Debt.images = max(0, Debt.images - 1)
                if not natively_run:
                    natively_run = True
                    call_counts.answered(TRANSFORMS)
                continue
            part = self._parts[begin]
            if left is None and (part.foreign or not natively_run):
                left = part
                call_counts.refused(TRANSFORMS, _why_left(parts[begin], part, run, image))
            value, begin = parts[begin](*value) if several else parts[begin](value), begin + 1
            if part.foreign and begin < len(parts) and not (self.still(transforms) and _is_sample(value, given)):
                return called(parts[begin:], value, several)
        return value

    def run_first(self, transforms: Sequence[Any], value: Any) -> Any:
        """Return what the known transforms at the start of the list make of a value; or REFUSED."""
        run = self._run_from(0, transforms, value)
        return REFUSED if run is None else run(value, transforms[: run.length])

    def _run_from(self, begin: int, parts: Sequence[Any], value: Any) -> Run | SampleRun | None:
        alone = isinstance(value, Image.Image)
        image = value if alone else _picture_in(value)
        if image is None or not type(image).__module__.startswith("PIL.") or image.mode not in ("RGB", "L"):
            return None
        key = (begin, image.mode, torch.get_default_dtype(), alone)
        if key not in self._runs:
            try:
                self._runs[key] = (read_run if alone else read_sample_run)(parts[begin:], image.mode)
            except Exception:  # torchvision itself has the last word
                self._runs[key] = None
        return self._runs[key]


def _picture_in(value: Any) -> Any:
    """Return the image of a sample of several values, or None."""
    found = None if isinstance(value, torch.Tensor) else find_picture(value)
    return None if found is None else found[0][found[2]]


def _is_sample(value: Any, several: int) -> bool:
    """Return whether transforms that are called with so many values may go on with a value; 0: with one value."""
    return not several or (type(value) is tuple and len(value) == several)


def _why_left(transform: Any, part: _Part, run: Run | SampleRun | None, image: Any) -> str:
    """Return why a transform of an image is called as it is."""
    name = transform.__qualname__ if type(transform) is FunctionType else type(transform).__qualname__
    if part.foreign:
        return f"{name} has no native form"
    if not isinstance(image, Image.Image):
        inside = _picture_in(image)
        if inside is None:
            return f"the image is a {type(image).__qualname__}"
        image = inside
    if image.mode not in ("RGB", "L"):
        return f"the image is of mode {image.mode}"
    return f"{name} alone gains nothing" if run is None else "the native core refuses images of this size"


def _is_known(transform: Any, known: Mapping[type, Any]) -> bool:
    """Return whether the class of a transform is known, and of all that it holds."""
    if type(transform) not in known and type(transform) not in classes("Compose"):
        return False
    held = vars(transform).get("transforms", getattr(transform, "transforms", ()))
    return type(held) in (list, tuple) and all(_is_known(one, known) for one in held)


def _has_parts(compose: Any) -> bool:
    parts = vars(compose).get("transforms")
    return type(parts) in (list, tuple) and len(parts) > 0
