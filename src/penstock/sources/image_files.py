"""How image files are read, whole batches natively or single images for a transform; the adapter of our two classes."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import penstock._native as _native
from penstock.recipe.composed_run import makes_plain_tensors
from penstock.recipe.installed import decoded_alike
from penstock.recipe.originals import replaced_in_opening
from penstock.recipe.reader import Views, read as read_recipe
from penstock.recipe.steps import Recipe, Refusal, Step
from penstock.sources.image_folder import ImageFolder, Images, ImageTable
from penstock.sources.labels import label_values, taken
from penstock.sources.native_source import Field, Form, ImageSteps, NativeSource, SampleFiles
from penstock.sources.source import Source, label_reader
from penstock.system.words import counted


def native_images(
    dataset: Any,
    raw: bool,
    names: _native.FileTable | None,
    *,
    packed_bytes: float | None = None,
    jpeg_index: _native.JpegIndex | None = None,
    **own: Any,
) -> NativeSource | Refusal:
    """Return how the native core reads a folder of images, or why it cannot.

    Args:
        raw: images stay pixels, where a recipe allows it.
        names: the table of the folder's files; None: `paths` names the files of each batch.
        packed_bytes, jpeg_index: of the ImageSteps.
        own: the further attributes of the NativeSource.
    """
    if (refusal := foreign_decoder()) is not None:
        return refusal
    if type(dataset.transform) is Views:
        return _native_views(dataset, dataset.transform, names, own)
    recipe = read_recipe(dataset.transform, mode="RGB", raw=raw)
    if isinstance(recipe, Refusal):
        return recipe
    as_samples = partial(_are_samples, dataset.transform, recipe)
    return NativeSource(
        fields=(Field(_native.ImageFileFiller(names, recipe.native, max_pixels()), spec_of(recipe)),),
        steps=(_read_step(dataset, " natively"), *recipe.steps),
        images=ImageSteps((recipe,), as_samples, encoded=True, packed_bytes=packed_bytes, jpeg_index=jpeg_index),
        **own,
    )


def _native_views(
    dataset: Any, views: Views, names: _native.FileTable | None, own: dict[str, Any]
) -> NativeSource | Refusal:
    """Return how the native core reads a folder of images for several views; as native_images()."""
    recipes: list[Recipe] = []
    for transform in views.transforms:
        found = read_recipe(transform, mode="RGB")
        if isinstance(found, Refusal):
            return found
        recipes.append(found)
    fillers = _native.view_fillers(names, [recipe.native for recipe in recipes], max_pixels())
    steps = [_read_step(dataset, " natively, once for all views,")]
    for number, recipe in enumerate(recipes, 1):
        again = number > 1 and views.transforms[number - 1] is views.transforms[number - 2]
        of = f"{number} of {len(recipes)}{', by the same transform' if again else ''}"
        steps += [Step(f"view    {of}", "native"), *(() if again else recipe.steps)]
    return NativeSource(
        fields=tuple(Field(filler, spec_of(recipe)) for filler, recipe in zip(fillers, recipes, strict=True)),
        steps=tuple(steps),
        images=ImageSteps(tuple(recipes), lambda: all(map(_are_samples, views.transforms, recipes)), encoded=True),
        **{**own, "form": replace(own.get("form", Form()), views=len(recipes))},
    )


def _are_samples(transform: Any, recipe: Recipe) -> bool:
    """Return whether rows lie as the tensors of samples do, and NumPy knows their dtype."""
    shaped = recipe.shape is not None and min(recipe.shape[1:]) > 1
    known = recipe.dtype in (torch.float32, torch.float64, torch.uint8)
    return shaped and known and makes_plain_tensors(transform, "RGB")


def foreign_decoder() -> Refusal | None:
    """Return why Pillow's pixels of a JPEG are not those that the native core decodes, or None."""
    refusal = replaced_in_opening()
    if refusal is not None or decoded_alike():
        return refusal
    remedy = "a Pillow whose libjpeg-turbo gives the native core's pixels"
    return Refusal("JPEG", "decoded by Pillow: this Pillow's libjpeg gives other pixels", remedy)


def max_pixels() -> int:
    """Return how many pixels an image may have by Pillow's setting; 0: any number."""
    return Image.MAX_IMAGE_PIXELS or 0


def spec_of(recipe: Recipe) -> _native.Spec | None:
    """Return the row that a recipe makes of each image, None where it depends on the image."""
    if recipe.shape is None:
        return None
    return _native.Spec(str(recipe.dtype).removeprefix("torch."), list(recipe.shape))


def _read_step(dataset: Any, how: str) -> Step:
    what = f"{counted(len(dataset), 'image file')} in {dataset.root}; JPEG decoded{how} (only the pixels used)"
    return Step(f"read    {what}, other formats by Pillow", "native")


class ImageTableSource(Source):
    """The adapter of Images and ImageFolder, whose files are in a table."""

    dataset: ImageTable
    classes = (Images, ImageFolder)
    read = frozenset({"samples", "paths", "labels", "transform", "target_transform"})

    def name(self, index: int) -> tuple[str, str | None]:
        return (self.dataset.path(range(len(self.dataset))[index]),) * 2

    def id(self, index: int) -> str:
        return os.fsdecode(self.dataset.paths.name(range(len(self.dataset))[index]))

    def ids(self) -> bytes | None:
        return self.dataset.paths.names()

    def labels(self) -> NDArray[Any] | None:
        return None if self.dataset.labels is None else label_values(self.dataset.labels)

    def native(self, raw: bool) -> NativeSource | Refusal:
        dataset, held = self.dataset, self.dataset.labels
        dataset.paths.refresh()
        return native_images(
            dataset,
            raw,
            dataset.paths,
            read_in_python=lambda position, file=None: np.asarray(dataset.read(position, file)),
            files=SampleFiles(dataset.paths.name),
            form=Form(pair=held is not None),
            labels=None if held is None else label_reader(partial(taken, held), dataset),
        )
