"""Splits a transform into a leading part that the native core does, and the rest, which stays Python's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from penstock import _native
from penstock.recipe.originals import replaced_in_transforms
from penstock.recipe.reader import DRAWING, Reader, handlers, unknown
from penstock.recipe.steps import Refusal, Step
from penstock.recipe.torchvision import Refused, flatten


@dataclass(frozen=True)
class Prefix:
    """The leading part of a transform that the native core does, up to the PIL image for the rest."""

    native: _native.Recipe
    """Gives the pixels of that image: uint8, (height, width, channels)."""
    drawing: int
    """How many of its operations draw."""
    mode: str
    """Of that image, 'RGB' or 'L'."""
    keeps_info: bool
    """The image has the info of its file, unless something was padded to it."""
    rest: tuple[Callable[[Any], Any], ...]
    """What is called with that image, and then with what the one before returned."""
    ends: Refusal | None
    """Why the first of the rest is Python's; None: there is no rest."""
    steps: tuple[Step, ...]
    """Of the native part, for explain()."""


def read_prefix(transform: Callable[[Any], Any] | None, *, mode: str) -> Prefix:
    """Return as much of a transform as the native core does on PIL images, and what is left of it.

    Called in turn, the rest does what the transform itself would do: a Compose passes on one value.

    Args:
        transform: anything that is called with a PIL image; None for the image itself.
        mode: of the PIL image that the transform would be given, 'RGB' or 'L'.

    Raises:
        ValueError: another mode.
    """
    if mode not in ("RGB", "L"):
        raise ValueError(f"mode {mode!r}: recipes start from images of mode 'RGB' or 'L'")
    reader = Reader(mode)
    replaced = None if transform is None else replaced_in_transforms()
    if replaced is not None and transform is not None:
        native, result = reader.finish_picture()
        return Prefix(native, 0, result, True, (transform,), replaced, ())
    steps: list[Any] = [] if transform is None else list(flatten(transform))
    known, ends = 0, None
    try:
        for step in steps:
            reader.add_to_picture(step)
            known += 1
    except Refused as refused:
        # A conversion is Python's because of what follows it, where that is not known.
        ends = next((unknown(step) for step in steps[known:] if type(step) not in handlers()), refused.refusal)
    native, result = reader.finish_picture()
    drawing = sum(operation["op"] in DRAWING for operation in reader.operations)
    return Prefix(native, drawing, result, reader.keeps_info, tuple(steps[known:]), ends, tuple(reader.steps))


def picture(mode: str, pixels: NDArray[np.uint8], info: dict[Any, Any]) -> Image.Image:
    """Return the PIL image of these pixels, (height, width, channels)."""
    image = Image.frombytes(mode, (pixels.shape[1], pixels.shape[0]), pixels)
    image.info = info
    return image
