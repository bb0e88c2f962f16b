"""What is known of a list of torchvision's transforms, and the native runs of those of them that are known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

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


class KnownTransforms:
    """What is known of a list of transforms.

    It keeps those of them alive that are torchvision's and hold nothing of a program's, and no other object. Any number
    of threads may use it at once.
    """

    def __init__(self, transforms: Sequence[Any]) -> None:
        self._list_kinds = frozenset(classes("Compose"))
        parts, composes = self._flat(transforms)
        known = known_transforms()
        self._known = [part if _is_known(part, known) else None for part in parts]
        """By part: it; None: a program's own code may run in it."""
        held = [one for part in self._known if part is not None for one in _with_parts(part)]
        self._composes = [AttributeState(compose, without="transforms") for compose in composes]
        self._states = [(one, AttributeState(one)) for one in held]
        self._runs: dict[tuple[int, str, torch.dtype, bool], Run | SampleRun | None] = {}
        self.takes_several = not any(type(compose) in classes("Compose", V1) for compose in composes)
        """Whether no part is a Compose of the first generation, which takes one value."""
        self._kinds = {*self._list_kinds, *map(type, held)}
        self._pass, self._replaced = Passes.begun, self._is_replaced()
        own = set(map(id, held))
        self.native = (
            not self._replaced
            and not any(map(changed, composes))
            and all(state.fixed and not state.objects for state in self._composes)
            and all(state.fixed and own.issuperset(map(id, state.objects)) for _, state in self._states)
        )
        """Whether any of the transforms may be run natively; if not, nothing is known of them in this pass."""
        if not self.native:
            self._known, self._composes, self._states = [], [], []  # they may hold objects of any kind

    def _flat(self, transforms: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return transforms in turn, with the parts of each Compose in its place, and all Composes."""
        parts: list[Any] = []
        composes: list[Any] = []
        for one in transforms:
            if (
                type(one) in self._list_kinds
                and type(within := vars(one).get("transforms")) in (list, tuple)
                and within
            ):
                more, inner = self._flat(within)
                parts += more
                composes += [one, *inner]
            else:
                parts.append(one)
        return parts, composes

    def _is_replaced(self) -> bool:
        """Return whether a method of the transforms' classes is a program's own now."""
        return any(replaced_in_class(kind) is not None for kind in self._kinds)

    @property
    def given_up(self) -> bool:
        """Whether torchvision runs them all in this pass."""
        return not self.native and self._pass == Passes.begun

    def still(self, transforms: Sequence[Any]) -> list[Any] | None:
        """Return the parts of a list, in turn, where they are those that are known, unchanged; None: they are not."""
        if hooked() or not self.native:
            return None
        if self._pass != Passes.begun:
            if self._is_replaced() != self._replaced:
                return None
            self._pass = Passes.begun
        parts, composes = self._flat(transforms)
        if len(parts) != len(self._known) or len(composes) != len(self._composes):
            return None
        for part, known in zip(parts, self._known, strict=True):
            if part is not known and known is not None:
                return None
        same = all([state.same(one) for one, state in self._states])  # noqa: C419  quicker than one by one
        return parts if same and all(map(AttributeState.same, self._composes, composes)) else None

    def run(self, transforms: Sequence[Any], parts: Sequence[Any], value: Any, several: bool = False) -> Any:
        """Return what calling the transforms in turn returns, of which still() has just returned the parts.

        A transform that is changed meanwhile is called as it is then; a list that is changed counts from the next call.

        several: each is called with the items of what the one before it returned, a tuple of more than one value.
        """
        begin, natively_run, image, given = 0, False, value, len(value) if several else 0
        told = False
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
            foreign = self._known[begin] is None
            if not told and (foreign or not natively_run):
                told = True
                call_counts.refused(TRANSFORMS, _why_left(parts[begin], foreign, run, image))
            value, begin = called(parts[begin : begin + 1], value, several), begin + 1
            if foreign and begin < len(parts) and not (self._are_still(parts, transforms) and _is_sample(value, given)):
                return called(parts[begin:], value, several)
        return value

    def _are_still(self, parts: Sequence[Any], transforms: Sequence[Any]) -> bool:
        """Return whether these are still the parts of a list, unchanged; False where that cannot be told."""
        try:
            now = self.still(transforms)
        except (KeyError, TypeError):
            return False
        return now is not None and all(one is other for one, other in zip(parts, now, strict=True))

    def run_first(self, parts: Sequence[Any], value: Any) -> Any:
        """Return what the known transforms at the start of the parts make of a value; or REFUSED."""
        run = self._run_from(0, parts, value)
        return REFUSED if run is None else run(value, parts[: run.length])

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


def _why_left(transform: Any, foreign: bool, run: Run | SampleRun | None, image: Any) -> str:
    """Return why a transform of an image is called as it is."""
    name = transform.__qualname__ if type(transform) is FunctionType else type(transform).__qualname__
    if foreign:
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


def _with_parts(transform: Any) -> Iterator[Any]:
    """Yield a known transform and those that it holds, RandomApply for one."""
    yield transform
    for one in vars(transform).get("transforms", ()):
        yield from _with_parts(one)
