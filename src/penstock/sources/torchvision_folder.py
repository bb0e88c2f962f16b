"""The adapter of torchvision's datasets of image files, such as ImageFolder, whose lists may be changed at any time."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from penstock.order.permutations import Indices
from penstock.recipe.originals import is_original
from penstock.recipe.steps import Refusal
from penstock.sources.image_files import ImageReader, foreign_decoder, native_images
from penstock.sources.labels import LabelColumn, transformed
from penstock.sources.native_source import LabelReader, NativeSource, SampleFiles
from penstock.sources.reading import open_path, read_image
from penstock.sources.sample_reader import SampleReader
from penstock.sources.source import Source, replaced

#: By name of the class: the attribute with the list of (file, label), or those with the lists of files and of labels.
_LISTS = {
    **dict.fromkeys(("ImageFolder", "DatasetFolder", "ImageNet", "Country211", "EuroSAT"), ("samples",)),
    **dict.fromkeys(("DTD", "FGVCAircraft", "Flowers102", "Food101", "SUN397"), ("_image_files", "_labels")),
    **dict.fromkeys(("GTSRB", "Imagenette", "RenderedSST2", "StanfordCars"), ("_samples",)),
}


class TorchvisionFolderSource(Source):
    """The adapter of those of torchvision's datasets whose samples are a file and a label each."""

    torchvisions = tuple(_LISTS)
    read = frozenset({"samples", "loader", "transform", "target_transform", "transforms"}.union(*_LISTS.values()))

    @cached_property
    def _pairs(self) -> list[tuple[str, Any]]:
        return [(os.fspath(path), label) for path, label in map(_located(self.dataset), range(len(self.dataset)))]

    def _file_pairs(self) -> Any:
        return super()._file_pairs() or self._pairs

    def native(self, raw: bool) -> NativeSource | Refusal:
        dataset = self.dataset
        if (refusal := _foreign(dataset)) is not None:
            return refusal
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
            still=lambda: _foreign(dataset) is None,
            lasting=lambda: replaced(dataset) is None,
        )

    def sample_reader(self) -> SampleReader:
        dataset = self.dataset
        if _foreign(dataset) is not None:
            return SampleReader(dataset)
        return ImageReader(dataset, None, _located(dataset))


def _located(dataset: Any) -> Callable[[int], tuple[Any, Any]]:
    """Return a function that gives the file and the label at a position, of the lists as they are then."""
    names = next(_LISTS[kind.__name__] for kind in type(dataset).__mro__ if _is_torchvisions(kind))
    if len(names) == 1:

        def of_pair(position: int) -> tuple[Any, Any]:
            path, label = getattr(dataset, names[0])[position]
            return path, label

        return of_pair
    files, labels = names
    return lambda position: (getattr(dataset, files)[position], getattr(dataset, labels)[position])


def _is_torchvisions(kind: type) -> bool:
    return kind.__name__ in _LISTS and kind.__module__.startswith("torchvision.datasets.")


def _foreign(dataset: Any) -> Refusal | None:
    """Return why a dataset's samples are not labels and images that Pillow itself decodes, or None."""
    loader = vars(dataset).get("loader")  # None: the class itself calls Image.open
    own = ("default_loader", "pil_loader")
    if loader is not None and not any(is_original(loader, "torchvision.datasets.folder", name) for name in own):
        return Refusal(f"{type(dataset).__name__}(loader=)", "a loader of one's own is Python's", "the default loader")
    if (refusal := foreign_decoder()) is not None:
        return refusal
    if sys.modules["torchvision"].get_image_backend() != "PIL":
        return Refusal(
            "torchvision's image backend", "only PIL's pixels are reproduced", "torchvision.set_image_backend('PIL')"
        )
    return None
