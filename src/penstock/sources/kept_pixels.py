"""cache_decoded=True: which pixels of an image a cache keeps in the place of its file, and where that cannot pay.

They are those that the first steps of a recipe make, up to the first one that draws or that converts pixels: the steps
after them find the same pixels as without a cache. They are kept where they have a size that the recipe sets.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import PIL
from PIL import Image, ImageFile

from penstock.recipe.recipe import DRAWING, Recipe

#: Part of each form: to be raised when the native core makes other pixels of the same file, or lays them out otherwise.
_VERSION = 1
#: The longer edge of a photo, where a recipe sets only the shorter one to 1.
_USUAL = 4 / 3


@dataclass(frozen=True)
class KeptPixels:
    """What a cache keeps of each image."""

    operations: int
    """How many operations of the recipe have been done to it."""
    after: str
    """The last of these, for explain()."""
    bytes: int
    """What an image takes; an estimate where the recipe sets one edge alone."""
    form: str
    """All that the pixels depend on but the file: the operations, and how files are decoded."""


def kept_pixels(recipe: Recipe | None) -> KeptPixels | str:
    """Return which pixels of its images a cache keeps for a recipe, or why it keeps their files.

    recipe: None where the samples are no images.
    """
    if recipe is None:
        return "the samples are no images"
    operations = recipe.operations[: recipe.leading]
    size = _size_after(operations)
    if size is None:
        return f"{_ends(recipe)}, and whole images take more as pixels"
    named = [{**one, "fill": recipe.leading_fills[one["fill"]].hex()} if "fill" in one else one for one in operations]
    channels = next((one["channels"] for one in reversed(operations) if one["op"] == "Grayscale"), 3)
    return KeptPixels(
        len(operations),
        operations[-1]["op"],
        round(size[0] * size[1] * channels),
        json.dumps(
            {
                "version": _VERSION,
                "operations": named,
                "pillow": PIL.__version__,
                "truncated": bool(ImageFile.LOAD_TRUNCATED_IMAGES),
                "most": Image.MAX_IMAGE_PIXELS,
            },
            sort_keys=True,
        ),
    )


def _size_after(operations: tuple[dict[str, Any], ...]) -> tuple[float, float] | None:
    """Return the height and width that operations give a photo; None where they set none."""
    size: tuple[float, float] | None = None
    for operation in operations:
        if operation["op"] == "CenterCrop":
            size = operation["size"]
        elif operation["op"] == "Resize":
            size = operation["size"] or _edges(operation["shorter"], operation["longest"])
        elif operation["op"] == "Pad" and size is not None:
            left, top, right, bottom = operation["padding"]
            size = size[0] + top + bottom, size[1] + left + right
    return size


def _edges(shorter: int, longest: int) -> tuple[float, float]:
    """Return the usual height and width where a recipe sets the shorter edge, the longest one, or a limit of it."""
    if not shorter:
        return longest / _USUAL, longest
    return shorter, min(shorter * _USUAL, longest or float("inf"))


def _ends(recipe: Recipe) -> str:
    """Return what ends the operations that could be done before pixels are kept."""
    rest = recipe.operations[recipe.leading :]
    drawing = next((one.get("name", one["op"]) for one in rest if one["op"] in DRAWING), None)
    if drawing is None:
        return "no step before the conversion sets the size of the images"
    named = {"RandomFlip": "a random flip"}.get(drawing, drawing)
    return f"{named} comes before any step that sets the size of the images without drawing"
