"""Splits a transform into a leading part that the native core does, and the rest, which stays Python's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

import penstock._native as _native
from penstock.recipe.originals import HOOKED, hooked
from penstock.recipe.reader import Reader, known_transforms, unknown
from penstock.recipe.recipe import DRAWING
from penstock.recipe.steps import Refusal, Step
from penstock.recipe.torchvision import Refused, flatten


@dataclass(frozen=True)
class Prefix:
    """The leading part of a transform that the native core does, up to the PIL image for the rest."""

    native: _native.Recipe
    """Gives the pixels of that image: uint8, (height, width, channels)."""
    crops: bool
    """Some of the native operations leave rows of an image aside."""
    drawing: int
    """How many of the native operations draw."""
    mode: str
    """The mode of that image, 'RGB' or 'L'."""
    keeps_info: bool
    """The image has the info of its file, unless something was padded to it."""
    rest: tuple[Callable[[Any], Any], ...]
    """The transforms that are called in turn, from that image on."""
    ends: Refusal | None
    """Why the first of the rest is Python's; None: there is no rest."""
    steps: tuple[Step, ...]
    """The steps of the native part, for explain()."""


def read_prefix(transform: Callable[[Any], Any] | None, *, mode: str) -> Prefix:
    """Return as much of a transform as the native core does on PIL images, and what is left of it.

    Called in turn, the rest does what the transform itself would do: a Compose passes on one value.

    Args:
        transform: anything that is called with a PIL image; None for the image itself.
        mode: of the PIL image that the transform would be given, 'RGB' or 'L'.

    Raises:
        ValueError: another mode.
    """
    reader = Reader(mode)
    rest: list[Any] = []
    ends: Refusal | None = None
    if transform is not None:
        ends = HOOKED if hooked() else None
        rest = list(flatten(transform)) if ends is None else [transform]
    try:
        while rest and ends is None:
            reader.add_to_picture(rest[0])
            del rest[0]
    except Refused as refused:
        # A conversion is Python's because of what follows it, where that is not known.
        ends = next((unknown(step) for step in rest if type(step) not in known_transforms()), refused.refusal)
    native, result = reader.finish_picture()
    drawing = sum(operation["op"] in DRAWING for operation in reader.operations)
    crops = reads_part(reader.operations)
    return Prefix(native, crops, drawing, result, reader.keeps_info, tuple(rest), ends, tuple(reader.steps))


def reads_part(operations: Sequence[dict[str, Any]]) -> bool:
    """Return whether the operations of a recipe leave rows of an image aside."""
    return any(operation["op"].endswith("Crop") for operation in operations)


def picture(mode: str, pixels: NDArray[np.uint8], info: dict[Any, Any]) -> Image.Image:
    """Return the PIL image of these pixels, (height, width, channels)."""
    image = Image.frombytes(mode, (pixels.shape[1], pixels.shape[0]), pixels)
    image.info = info
    return image
