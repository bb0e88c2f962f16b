"""Several views of one image: a transform that calls others on it, and the native recipes of all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.errors import InvalidOption
from penstock.recipe.reader import read
from penstock.recipe.recipe import Recipe
from penstock.recipe.steps import Refusal


class Views:
    """A transform that makes several views of an image, as SimCLR, DINO and their like train on.

    Called with an image it returns the list of what each of its transforms makes of that image. Where the native core
    knows all of them, each image is decoded once for all its views, as far as they need it.

    Args:
        transforms: called with the image, in turn; one may be there several times.

    Raises:
        InvalidOption: there is no transform.
    """

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = list(transforms)
        if not self.transforms:
            raise InvalidOption("Views([]) makes no view: give it at least one transform")

    def __call__(self, image: Any) -> list[Any]:
        return [transform(image) for transform in self.transforms]

    def __repr__(self) -> str:
        lines = "".join(f"\n{transform},".replace("\n", "\n    ") for transform in self.transforms)
        return f"Views([{lines}\n])"


def read_views(views: Views, *, mode: str) -> tuple[Recipe, ...] | Refusal:
    """Return the native recipe of each view, or why one of them has none. mode: as for reader.read()."""
    recipes: list[Recipe] = []
    for transform in views.transforms:
        found = read(transform, mode=mode)
        if isinstance(found, Refusal):
            return found
        recipes.append(found)
    return tuple(recipes)
