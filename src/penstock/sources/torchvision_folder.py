"""The adapter of torchvision's datasets of image files, such as ImageFolder, whose lists may be changed at any time."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from penstock.order.permutations import Indices
from penstock.recipe.originals import is_original
from penstock.recipe.steps import Refusal
from penstock.sources.image_files import ImageReader, foreign_decoder, native_images, transformed_as_now
from penstock.sources.labels import LabelColumn, transformed
from penstock.sources.native_source import LabelReader, NativeSource, SampleFiles
from penstock.sources.reading import open_path, read_image
from penstock.sources.sample_reader import SampleReader
from penstock.sources.source import Source, replaced
from penstock.sources.unchanged import all_of


class _Layout(NamedTuple):
    """Where a class of torchvision's holds the files and labels of its samples."""

    lists: tuple[str, ...]
    """The attribute with the list of (file, label), or those with the list of files and the list of labels."""
    loader: bool = True
    """Its `loader` opens the files; False: the class itself does, by Image.open and convert("RGB")."""


_FOLDER = _Layout(("samples",))
_PETS = _Layout(("_images", "_labels"), loader=False)
#: By name of the class.
_LAYOUTS = {
    **dict.fromkeys(("ImageFolder", "DatasetFolder", "ImageNet", "Country211", "EuroSAT"), _FOLDER),
    **dict.fromkeys(("DTD", "FGVCAircraft", "Flowers102", "Food101", "SUN397"), _Layout(("_image_files", "_labels"))),
    **dict.fromkeys(("Imagenette", "RenderedSST2", "StanfordCars"), _Layout(("_samples",))),
    "GTSRB": _Layout(("_samples",), loader=False),
    "OxfordIIITPet": _PETS,
}
#: The list of labels for each target of OxfordIIITPet.
_PET_LABELS = {"category": "_labels", "binary-category": "_bin_labels"}
_LISTED = {name for one in _LAYOUTS.values() for name in one.lists}
#: What the samples of some classes depend on beside their lists, loader and transform.
_MORE = ("transforms", "_target_types")


class TorchvisionFolderSource(Source):
    """The adapter of those of torchvision's datasets whose samples are a file and a label each."""

    torchvisions = tuple(_LAYOUTS)
    read = frozenset({"samples", "loader", "transform", "target_transform", *_MORE, *_PET_LABELS.values(), *_LISTED})

    @cached_property
    def _pairs(self) -> list[tuple[str, Any]]:
        located = _located(self.dataset)
        return [(os.fspath(path), label) for path, label in map(located, range(len(self.dataset)))]

    def _file_pairs(self) -> Any:
        return super()._file_pairs() if _layout(self.dataset) is _FOLDER else self._pairs

    def native(self, raw: bool) -> NativeSource | Refusal:
        dataset = self.dataset
        if (refusal := _foreign(dataset)) is not None:
            return refusal
        held = _attributes(dataset)
        lists: tuple[Sequence[Any], ...] = tuple(getattr(dataset, name) for name in held)  # elements may be exchanged
        size, located = len(dataset), _located(dataset)

        # Pairs are taken apart as torchvision does it, so that an entry which is no pair raises torchvision's error.
        def labels(positions: Indices) -> LabelColumn:
            return transformed([located(position)[1] for position in positions.tolist()], dataset.target_transform)

        def paths(positions: Indices) -> list[bytes]:
            return [os.fsencode(located(position)[0]) for position in positions.tolist()]

        def path(position: int) -> str:
            return os.fsdecode(located(position)[0])

        return native_images(
            dataset,
            raw,
            None,
            size=size,
            identify=lambda position: (path(position),) * 2,
            rescue=lambda position: np.asarray(read_image(open_path(path(position)), path(position))),
            files=SampleFiles(
                lambda position: os.fsencode(path(position)),
                lambda file, position: np.asarray(read_image(file, path(position))),
                paths,
            ),
            labels=LabelReader(labels),
            still=all_of(
                transformed_as_now(dataset, *held, "loader", *_MORE),
                lambda: all(len(one) == size for one in lists) and _foreign(dataset) is None,
            ),
            lasting=lambda: replaced(dataset) is None,
        )

    def sample_reader(self) -> SampleReader:
        dataset = self.dataset
        if _foreign(dataset) is not None:
            return SampleReader(dataset)
        return ImageReader(dataset, None, _located(dataset), alike=_MORE)


def _layout(dataset: Any) -> _Layout:
    return next(
        _LAYOUTS[kind.__name__]
        for kind in type(dataset).__mro__
        if kind.__name__ in _LAYOUTS and kind.__module__.startswith("torchvision.datasets.")
    )


def _attributes(dataset: Any) -> tuple[str, ...]:
    """Return the attributes with the lists of a dataset's files and labels."""
    layout = _layout(dataset)
    return ("_images", _PET_LABELS[dataset._target_types[0]]) if layout is _PETS else layout.lists


def _located(dataset: Any) -> Callable[[int], tuple[Any, Any]]:
    """Return a function that gives the file and the label at a position, of the lists as they are then."""
    names = _attributes(dataset)
    if len(names) == 1:

        def of_pair(position: int) -> tuple[Any, Any]:
            path, label = getattr(dataset, names[0])[position]
            return path, label

        return of_pair
    files, labels = names
    return lambda position: (getattr(dataset, files)[position], getattr(dataset, labels)[position])


def _foreign(dataset: Any) -> Refusal | None:
    """Return why a dataset's samples are not labels and images that Pillow itself decodes, or None."""
    name, layout = type(dataset).__name__, _layout(dataset)
    if layout.loader:
        loader = dataset.loader
        if not any(is_original(loader, "torchvision.datasets.folder", own) for own in ("default_loader", "pil_loader")):
            return Refusal(f"{name}(loader=)", "a loader of one's own is Python's", "the default loader")
    if layout is _PETS and (refusal := _foreign_targets(dataset)) is not None:
        return refusal
    if (refusal := foreign_decoder()) is not None:
        return refusal
    if sys.modules["torchvision"].get_image_backend() != "PIL":
        return Refusal(
            "torchvision's image backend", "only PIL's pixels are reproduced", "torchvision.set_image_backend('PIL')"
        )
    return None


def _foreign_targets(dataset: Any) -> Refusal | None:
    """Return why the samples of an OxfordIIITPet are not an image and one label, each with its own transform."""
    kinds = dataset._target_types
    if len(kinds) != 1 or kinds[0] not in _PET_LABELS:
        return Refusal("OxfordIIITPet(target_types=)", "a segmentation is no label", "target_types='category'")
    joint = dataset.transforms
    own = (None, None) if joint is None else (getattr(joint, "transform", joint), getattr(joint, "target_transform", 0))
    standard = joint is None or is_original(type(joint).__call__, "torchvision.datasets.vision", "__call__")
    if not standard or own[0] is not dataset.transform or own[1] is not dataset.target_transform:
        return Refusal("OxfordIIITPet.transforms", "transforms of image and label together are Python's", "transform=")
    return None
