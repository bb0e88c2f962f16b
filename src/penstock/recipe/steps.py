"""A recipe, what is done to each image, and its steps as explain() tells them: who does each, and why not natively."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

import penstock._native as _native

#: The operations of a recipe that draw, by the names that the native core knows.
DRAWING = ("RandomResizedCrop", "RandomCrop", "RandomFlip", "Augment", "RandomErasing")


@dataclass(frozen=True)
class Step:
    """One step of a plan, for its explanation."""

    what: str
    """The step, a verb first."""
    who: str
    """What does it: 'native', 'Python' or 'device'."""


@dataclass(frozen=True)
class Refusal:
    """Why something is left to Python."""

    what: str
    """The dataset, option or transform."""
    why: str
    """Why the native core does not take it."""
    remedy: str
    """What would make it native; reads after 'with'. Empty: nothing is known to."""


@dataclass(frozen=True)
class Recipe:
    """What is done to each image."""

    native: _native.Recipe
    """The recipe as the native core runs it."""
    dtype: torch.dtype
    """The dtype of the result."""
    shape: tuple[int, int, int] | None
    """(channels, height, width) of the result; None when it depends on the image's size."""
    steps: tuple[Step, ...]
    """For explain()."""
    table: torch.Tensor | None = None
    """What each pixel value of the result is yet to become, (channels, 256); None: the result is final."""
    operations: tuple[dict[str, Any], ...] = ()
    """The operations that move pixels, in order, with their parameters as the native core takes them."""
    fills: tuple[bytes, ...] | None = None
    """The colours of padding, a byte a channel, by the numbers that operations give; None: the result is not pixels."""
    leading: int = 0
    """How many operations come before the first one that draws, or that acts on values other than pixels; paddings that
    would be the last of them are not counted."""
    leading_fills: tuple[bytes, ...] = ()
    """The colours of padding as the pixels of these operations, by the numbers that operations give."""

    @property
    def crops(self) -> bool:
        """Whether some operations leave rows of an image aside."""
        return any(operation["op"].endswith("Crop") for operation in self.operations)

    @property
    def drawing(self) -> int:
        """How many operations draw."""
        return sum(operation["op"] in DRAWING for operation in self.operations)
