"""torchvision's transforms, run natively where a dataset's own code calls them in one of our workers.

A dataset that opens an image with Pillow and calls a Compose on it gets exactly what the Compose would return: the same
elements, strides and type, after the same draws from torch's generator, for torchvision's own code draws them. Known
transforms that follow each other are run together by the native core, on the memory of the PIL image: no image is made
between them, and Python's lock is let go. Of an encoded image (encoded_image.py) no more is decoded than the first of
them needs, in a Compose or called by themselves. All other transforms are called as ever.

While a pass is open other methods stand in the place of those of torchvision's classes (patches.py); in any thread that
does not work for a loader they do what they did.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from PIL import Image

from penstock import call_counts
from penstock.recipe.composed_run import REFUSED
from penstock.recipe.conversions import PRESETS as KNOWN_PRESETS
from penstock.recipe.encoded_image import is_encoded
from penstock.recipe.known_transforms import TRANSFORMS, Debt, KnownTransforms, Passes, parts_of
from penstock.recipe.originals import Row, add_methods, hooked, look_again
from penstock.recipe.patches import Patches, works_here
from penstock.recipe.sample_run import find_picture
from penstock.recipe.torchvision import PRESETS, V1, V2

_NOT_FOLLOWED = "the Compose, or what its transforms call, was changed"


def _call_of_list(joint: bool, original: Any) -> Any:
    """Return the method of a Compose that runs its transforms natively, as far as they are known.

    joint: it takes samples of several values.
    """

    def call(self: Any, *inputs: Any, **named: Any) -> Any:
        if len(inputs) == 1 and not named and isinstance(inputs[0], Image.Image):
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
            found = _known_and_parts(self, _only)
            if found is not None:
                known, parts = found
                done = known.run_first(parts, inputs[0])
                if done is not REFUSED:
                    call_counts.answered(TRANSFORMS)
                    return done
        return original(self, *inputs, **named)

    return call


_METHODS: tuple[Row, ...] = (
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
    Passes.begun += 1
    look_again()
    add_methods(patches, _METHODS, works_here)


def _only(transform: Any) -> tuple[Any]:
    return (transform,)


# --- what is known of each Compose ------------------------------------------------------------------------------------

# Reading a Compose takes as long as some images do. So that it pays, each reading is a debt that images done natively
# pay back; while the debt is high, a Compose must have been called a number of times before it is read. A Compose that
# is changed over and over is left to torchvision for good.
_IMAGES_PER_READING = 8
_MOST_DEBT = 4 * _IMAGES_PER_READING
_MOST_CHANGES = 4


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
        known, transforms = entry.known, parts_of(compose)
        entry.calls += 1
        if known is not None and known.given_up:
            return None
        parts = None if known is None else known.still(transforms)
        if parts is None:
            known = _reread(entry, compose, transforms)
            parts = None if known is None else known.still(transforms)
        return None if known is None or parts is None else (known, parts)
    except Exception:  # of an object in an unusual state: torchvision's own error counts
        return None


def _reread(entry: _Entry, compose: Any, parts: Sequence[Any]) -> KnownTransforms | None:
    if entry.known is not None:
        entry.changes = entry.changes + 1 if entry.calls <= _IMAGES_PER_READING else 0
        entry.known, entry.calls = None, 1
        if entry.changes >= _MOST_CHANGES:
            return None
    if Debt.images > _MOST_DEBT and entry.calls < _IMAGES_PER_READING:
        return None
    if isinstance(parts, list | tuple) and not parts:
        return None  # version 2 raises an error of its own for an empty list
    if parts[0] is not compose and not _is_plain(compose):
        entry.changes = _MOST_CHANGES
        return None
    Debt.images += _IMAGES_PER_READING
    entry.known, entry.calls = KnownTransforms(parts), 0
    return entry.known


def _is_plain(compose: Any) -> bool:
    """Return whether calling a Compose, or its method from a subclass, is calling the items of its list in turn."""
    bases = type(compose).__mro__[:-1]  # without object
    own = [kind for kind in bases if kind.__module__.partition(".")[0] not in ("torch", "torchvision")]
    return type(parts_of(compose)) in (list, tuple) and not any(
        {"transforms", "__getattribute__", "__getattr__"} & vars(kind).keys() for kind in own
    )
