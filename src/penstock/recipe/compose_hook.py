"""torchvision's transforms, run natively where a dataset's own code calls them in one of our workers.

A dataset that opens an image with Pillow, or decodes it to a uint8 tensor, and calls a Compose on it gets exactly what
the Compose would return: the same elements, strides and type, after the same draws from torch's generator, for
torchvision's own code draws them. Known transforms that follow each other are run together by the native core, on the
memory of the image: no image is made between them, and Python's lock is released. Of an encoded image
(encoded_image.py) no more is decoded than the first of them needs, in a Compose or called by themselves. All other
transforms are called as ever.

While a pass is open other methods replace those of torchvision's classes (patches.py); in any thread that
does not work for a loader they do what they did.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import torch
from PIL import Image

from penstock import call_counts
from penstock.recipe.composed_run import REFUSED, Run, called, find_picture, read_run, read_sample_run, run_sample
from penstock.recipe.conversions import PRESETS as KNOWN_PRESETS, tensor_ramp
from penstock.recipe.encoded_image import is_encoded
from penstock.recipe.originals import AttributeState, Row, add_methods, hooked, look_again, replaced_in_class, this_pass
from penstock.recipe.patches import Patches, in_worker
from penstock.recipe.reader import known_transforms
from penstock.recipe.torchvision import PRESETS, TV_TENSORS, V1, V2, changed, classes

#: Under this name the images count whose transforms are run natively, in whole or in part, or not at all.
TRANSFORMS = "torchvision transforms"


class Debt:
    """What readings of transforms have cost, and images that were done natively since have not yet paid back."""

    images = 0


def parts_of(compose: Any) -> Any:
    """Return the list of the transforms that one holds. Raises KeyError where only its class has one."""
    return vars(compose)["transforms"]


class KnownTransforms:
    """What is known of a list of transforms, which it does not keep alive. Any number of threads may use it at once."""

    def __init__(self, transforms: Sequence[Any]) -> None:
        self._list_kinds = frozenset(classes("Compose"))
        parts, composes = self._flat(transforms)
        known = known_transforms()
        own = [part if _is_known(part, known) else None for part in parts]
        self._known = [None if part is None else weakref.ref(part) for part in own]
        """By part: it; None: a program's own code may run in it."""
        held = [one for part in own if part is not None for one in _with_parts(part)]
        self._composes = [AttributeState(compose, without="transforms") for compose in composes]
        self._states = [(weakref.ref(one), AttributeState(one)) for one in held]
        self._runs: dict[tuple[int, Any, torch.dtype, bool], Run | None] = {}
        self.takes_several = not any(type(compose) in classes("Compose", V1) for compose in composes)
        """Whether no part is a Compose of the first generation, which takes one value."""
        self._kinds = {*self._list_kinds, *map(type, held)}
        self._pass, self._replaced = this_pass(), self._is_replaced()
        theirs = set(map(id, held))
        self.native = (
            not self._replaced
            and not any(map(changed, composes))
            and all(state.fixed and not state.objects for state in self._composes)
            and all(state.fixed and theirs.issuperset(map(id, state.objects)) for _, state in self._states)
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
        return not self.native and self._pass is this_pass()

    def same_parts(self, transforms: Sequence[Any]) -> list[Any] | None:
        """Return the parts of a list, in turn, where they are those that are known, unchanged; None: they are not."""
        if hooked() or not self.native:
            return None
        if self._pass is not (now := this_pass()):
            if self._is_replaced() != self._replaced:
                return None
            self._pass = now
        parts, composes = self._flat(transforms)
        if len(parts) != len(self._known) or len(composes) != len(self._composes):
            return None
        for part, known in zip(parts, self._known, strict=True):
            if known is not None and part is not known():
                return None
        same = all([state.same(one()) for one, state in self._states])  # noqa: C419  quicker than one by one
        return parts if same and all(map(AttributeState.same, self._composes, composes)) else None

    def run(self, transforms: Sequence[Any], parts: Sequence[Any], value: Any, several: bool = False) -> Any:
        """Return what calling the transforms in turn returns, of which same_parts() has just returned the parts.

        A transform that is changed meanwhile is called as it is then; a list that is changed counts from the next call.

        several: each is called with the items of what the one before it returned, a tuple of more than one value.
        """
        begin, natively_run, image, given = 0, False, value, len(value) if several else 0
        told = False
        pictures = True  # there may be one
        while begin < len(parts):
            run = self._run_from(begin, parts, value) if pictures else None
            if run is not None and (done := _done(run, value, parts[begin : begin + run.length])) is not REFUSED:
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
            if foreign and begin < len(parts):
                as_many = not several or (type(value) is tuple and len(value) == given)
                if not (as_many and self._are_still(parts, transforms)):
                    return called(parts[begin:], value, several)
        return value

    def _are_still(self, parts: Sequence[Any], transforms: Sequence[Any]) -> bool:
        """Return whether these are still the parts of a list, unchanged; False where that cannot be told."""
        try:
            now = self.same_parts(transforms)
        except (KeyError, TypeError):
            return False
        return now is not None and all(one is other for one, other in zip(parts, now, strict=True))

    def run_first(self, parts: Sequence[Any], value: Any) -> Any:
        """Return the value after the known transforms at the start of the parts; or REFUSED."""
        run = self._run_from(0, parts, value)
        return REFUSED if run is None else run(value, parts[: run.length])

    def _run_from(self, begin: int, parts: Sequence[Any], value: Any) -> Run | None:
        if isinstance(value, torch.Tensor):
            return self._run_on_tensors(begin, parts, value)
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

    def _run_on_tensors(self, begin: int, parts: Sequence[Any], value: torch.Tensor) -> Run | None:
        if not is_tensor_image(value) or (interleaved := lie_side_by_side(value)) is None:
            return None
        key = (begin, (type(value), interleaved), torch.get_default_dtype(), True)
        if key not in self._runs:
            try:
                self._runs[key] = read_run(parts[begin:], "RGB", tensor_ramp(type(value), interleaved))
            except Exception:  # torchvision itself has the last word
                self._runs[key] = None
        return self._runs[key]


def is_tensor_image(value: Any) -> bool:
    """Return whether a value is a tensor that may hold the pixels of an image."""
    if type(value) is not torch.Tensor and type(value) not in classes("Image", TV_TENSORS):
        return False
    return bool(value.dtype == torch.uint8 and value.ndim == 3 and value.is_cpu)


def lie_side_by_side(image: torch.Tensor) -> bool | None:
    """Return whether the three channels of each pixel lie side by side; None: they neither do nor lie in planes."""
    channels, height, width = image.shape
    lies: dict[tuple[int, ...], bool] = {(1, width * channels, channels): True, (height * width, width, 1): False}
    return lies.get(image.stride()) if channels == 3 and min(height, width) > 1 else None


def _done(run: Run, value: Any, parts: Sequence[Any]) -> Any:
    return run(value, parts) if isinstance(value, Image.Image | torch.Tensor) else run_sample(run, value, parts)


def _picture_in(value: Any) -> Any:
    """Return the image of a sample of several values, or None."""
    found = None if isinstance(value, torch.Tensor) else find_picture(value)
    return None if found is None else found[0][found[2]]


def _why_left(transform: Any, foreign: bool, run: Run | None, image: Any) -> str:
    name = transform.__qualname__ if type(transform) is FunctionType else type(transform).__qualname__
    if foreign:
        return f"{name} has no native form"
    if isinstance(image, torch.Tensor):
        if not is_tensor_image(image) or lie_side_by_side(image) is None:
            return "the image is a tensor of another dtype, size or layout"
        return f"{name} by itself gains nothing"
    if not isinstance(image, Image.Image):
        inside = _picture_in(image)
        if inside is None:
            return f"the image is a {type(image).__qualname__}"
        image = inside
    if image.mode not in ("RGB", "L"):
        return f"the image is of mode {image.mode}"
    return f"{name} by itself gains nothing natively" if run is None else "the native core refuses images of this size"


def _is_known(transform: Any, known: Mapping[type, Any]) -> bool:
    if type(transform) not in known and type(transform) not in classes("Compose"):
        return False
    held = vars(transform).get("transforms", getattr(transform, "transforms", ()))
    return type(held) in (list, tuple) and all(_is_known(one, known) for one in held)


def _with_parts(transform: Any) -> Iterator[Any]:
    """Yield a known transform and those that it holds, RandomApply for one."""
    yield transform
    for one in vars(transform).get("transforms", ()):
        yield from _with_parts(one)


# --- what is known of each Compose ------------------------------------------------------------------------------------

# Reading a Compose takes as long as some images do. So that it pays, each reading is a debt that images done natively
# pay back; while the debt is high, a Compose must have been called a number of times before it is read once more.
_IMAGES_PER_READING = 8
_MOST_DEBT = 4 * _IMAGES_PER_READING


#: By id() of a Compose, which need not be hashable, and may be equal to another one.
_entries: dict[int, _Entry] = {}


class _Entry:
    """What is known of one Compose object, which it does not keep alive."""

    __slots__ = ("calls", "compose", "known")

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


def _known_and_parts(
    compose: Any, parts_of: Callable[[Any], Sequence[Any]] = lambda transform: (transform,)
) -> tuple[KnownTransforms, Sequence[Any]] | None:
    """Return how a Compose (or one transform) is run, read anew where it was changed, and the list of its parts.

    None: torchvision itself runs it.
    """
    try:
        entry = _entries.get(id(compose))
        if entry is None or entry.compose() is not compose:
            entry = _entries[id(compose)] = _Entry(compose)
        if hooked():
            return None
        known, transforms = entry.known, parts_of(compose)
        entry.calls += 1
        if known is not None and known.given_up:
            return None
        parts = None if known is None else known.same_parts(transforms)
        if parts is None:
            known = _reread(entry, compose, transforms)
            parts = None if known is None else known.same_parts(transforms)
        return None if known is None or parts is None else (known, parts)
    except Exception:  # of an object in an unusual state: torchvision's own error counts
        return None


def _reread(entry: _Entry, compose: Any, parts: Sequence[Any]) -> KnownTransforms | None:
    if entry.known is not None:
        entry.known, entry.calls = None, 1
    if Debt.images > _MOST_DEBT and entry.calls < _IMAGES_PER_READING:
        return None
    if isinstance(parts, list | tuple) and not parts:
        return None  # version 2 raises its own error for an empty list
    if parts[0] is not compose and not (type(compose) in classes("Compose") and type(parts) in (list, tuple)):
        return None  # a subclass may behave differently
    Debt.images += _IMAGES_PER_READING
    entry.known, entry.calls = KnownTransforms(parts), 0
    return entry.known


# --- what replaces torchvision's methods ------------------------------------------------------------------------------

_NOT_FOLLOWED = "the Compose, or what its transforms call, was changed"


def _call_of_list(joint: bool, original: Any) -> Any:
    """Return the method of a Compose that runs its transforms natively, as far as they are known.

    joint: it takes samples of several values.
    """

    def call(self: Any, *inputs: Any, **named: Any) -> Any:
        if len(inputs) == 1 and not named and (isinstance(inputs[0], Image.Image) or is_tensor_image(inputs[0])):
            found = _known_and_parts(self, parts_of)
            if found is not None:
                known, parts = found
                return known.run(parts_of(self), parts, inputs[0])
            call_counts.refused(TRANSFORMS, _NOT_FOLLOWED)
        elif joint and inputs and not named and _is_sample(inputs):
            several, found = len(inputs) > 1, _known_and_parts(self, parts_of)
            if found is not None and (found[0].takes_several or not several):
                return found[0].run(parts_of(self), found[1], inputs if several else inputs[0], several)
            call_counts.refused(TRANSFORMS, _NOT_FOLLOWED)
        return original(self, *inputs, **named)

    return call


def _is_sample(inputs: tuple[Any, ...]) -> bool:
    """Return whether what a Compose is called with is an image and what belongs to it."""
    if isinstance(inputs[0], Image.Image):
        return True
    return not isinstance(inputs[0], torch.Tensor) and find_picture(inputs) is not None


def _call_of_one(original: Any) -> Any:
    """Return the method of a transform that has the native core decode what the transform needs of an encoded image."""

    def call(self: Any, *inputs: Any, **named: Any) -> Any:
        if len(inputs) == 1 and not named and is_encoded(inputs[0]):
            found = _known_and_parts(self)
            if found is not None:
                known, parts = found
                done = known.run_first(parts, inputs[0])
                if done is not REFUSED:
                    call_counts.answered(TRANSFORMS)
                    return done
        return original(self, *inputs, **named)

    return call


METHODS: tuple[Row, ...] = (
    (V1, "Compose", "__call__", partial(_call_of_list, False)),
    (V2, "Compose", "forward", partial(_call_of_list, True)),
    (V1, "RandomResizedCrop", "forward", _call_of_one),
    (V1, "Resize", "forward", _call_of_one),
    (V1, "ToTensor", "__call__", _call_of_one),
    (V2, "Transform", "forward", _call_of_one),
    *((PRESETS, name, "forward", _call_of_one) for name in KNOWN_PRESETS),
)


def find(patches: Patches) -> None:
    """Add the methods of what is imported of torchvision."""
    look_again()
    add_methods(patches, METHODS, in_worker)
