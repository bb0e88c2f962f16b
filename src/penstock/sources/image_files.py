"""How image files are read, whole batches natively or single images for a transform; the adapter of our two classes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import penstock._native as _native
from penstock.recipe import drawing
from penstock.recipe.composed_run import makes_plain_tensors
from penstock.recipe.encoded_image import whole_image
from penstock.recipe.installed import decoded_alike
from penstock.recipe.originals import replaced_in_opening
from penstock.recipe.reader import Views, read as read_recipe
from penstock.recipe.steps import Recipe, Refusal, Step
from penstock.recipe.torchvision import flatten
from penstock.sources.image_folder import ImageFolder, Images, ImageTable
from penstock.sources.labels import label_values, taken
from penstock.sources.native_source import Field, Form, ImageSteps, NativeSource, SampleFiles
from penstock.sources.reading import read_image
from penstock.sources.sample_reader import Draw, FolderReader, SampleFile, SampleReader, function_name, target_steps
from penstock.sources.source import Source, label_reader
from penstock.sources.unchanged import DatasetState
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


class ImageReader(FolderReader):
    """Opens single images from their bytes, and calls the dataset's transform, which is answered natively where known.

    Args:
        paths: the table of the folder's files; None: there is none.
        located: returns the path and the label of the sample at a position; None for a path: the table has it, and
            the dataset's `path` says which it is.
        sample: called with label and image, returns the sample; None: (image, label), by the target_transform.
    """

    def __init__(
        self,
        dataset: Any,
        paths: _native.FileTable | None,
        located: Callable[[int], tuple[Any, Any]],
        sample: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        super().__init__(
            dataset, _native.ImageFileFiller(paths, whole_image(), max_pixels()), DatasetState(dataset).holds
        )
        self._paths, self._located = paths, located
        self._sample = sample or self._pair
        # As on the native route. Behind a step of another package's, or the user's own, all draws are torchvision's.
        self._keyed = type(next(flatten(dataset.transform), None)).__module__.startswith("torchvision.")
        self.steps = (
            _read_step(dataset),
            *_transform_steps(dataset.transform),
            *target_steps(dataset.target_transform),
        )

    def path(self, position: int) -> str:
        name = self._located(position)[0]
        return self.dataset.path(position) if name is None else os.fsdecode(name)

    def _pair(self, label: Any, image: Any) -> tuple[Any, Any]:
        change = self.dataset.target_transform
        return image, label if change is None else change(label)

    def _file(self, position: int, name: bytes | None = None) -> SampleFile:
        if name is None and self._paths is None:
            name = os.fsencode(self.path(position))
        return super()._file(position, name)

    def read_at(self, position: int, draw: Draw) -> Any:
        name, label = self._located(position)
        image = self._opened(position, None if name is None else os.fsencode(name), draw)
        with drawing.of_sample(*draw) if self._keyed else contextlib.nullcontext():
            if image is None:
                return self.dataset[position]
            transform = self.dataset.transform
            return self._sample(label, image if transform is None else transform(image))

    def _opened(self, position: int, path: bytes | None, draw: Draw) -> Image.Image | None:
        """Return the image in a file, whose bytes are read natively; None: the dataset must read the file."""
        with contextlib.suppress(Exception):  # the dataset reads the file, and raises the error
            content = self._content(position, path, self._brought(position, path, draw))
            return None if content is None else read_image(content, self.path(position))
        return None


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


def _read_step(dataset: Any, how: str = "") -> Step:
    what = f"{counted(len(dataset), 'image file')} in {dataset.root}; JPEG decoded{how} (only the pixels used)"
    return Step(f"read    {what}, other formats by Pillow", "native")


def _transform_steps(transform: Any) -> tuple[Step, ...]:
    if transform is None:
        return ()
    recipe = read_recipe(transform, mode="RGB")
    if isinstance(recipe, Recipe):
        return recipe.steps
    names = ", ".join(map(function_name, flatten(transform)))
    why = f"{recipe.what}: {recipe.why}"
    return (Step(f"call    {names}, on each PIL image ({why}); the known ones run natively", "Python"),)


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
            rescue=lambda position, file=None: np.asarray(dataset.read(position, file)),
            files=SampleFiles(dataset.paths.name),
            form=Form(pair=held is not None),
            labels=None if held is None else label_reader(partial(taken, held), dataset),
        )

    def sample_reader(self) -> SampleReader:
        dataset = self.dataset
        if foreign_decoder() is not None:
            return SampleReader(dataset)
        dataset.paths.refresh()
        return ImageReader(dataset, dataset.paths, lambda position: (None, position), dataset.labelled)
