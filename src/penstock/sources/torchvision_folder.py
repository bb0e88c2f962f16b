"""The adapter of torchvision's ImageFolder, whose list of files may be changed at any time."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.order.permutations import Indices
from penstock.recipe.originals import is_original
from penstock.recipe.steps import Refusal
from penstock.sources.image_files import ImageReader, foreign_decoder, native_images, transformed_as_now
from penstock.sources.labels import LabelColumn, transformed
from penstock.sources.premises import all_of
from penstock.sources.reading import open_path, read_image
from penstock.sources.sample_reader import SampleReader
from penstock.sources.source import NativeSource, SampleFiles, Source


class TorchvisionFolderSource(Source):
    """The adapter of torchvision.datasets.ImageFolder."""

    torchvisions = ("ImageFolder",)

    def native(self, raw: bool) -> NativeSource | Refusal:
        dataset = self.dataset
        if (refusal := _foreign(dataset)) is not None:
            return refusal
        samples: Sequence[tuple[str, Any]] = (
            dataset.samples
        )  # each batch reads the list, whose elements may be exchanged
        size = len(samples)

        # Pairs are taken apart as torchvision does it, so that an entry which is no pair raises torchvision's error.
        def labels(positions: Indices) -> LabelColumn:
            taken = [label for _, label in map(samples.__getitem__, positions.tolist())]
            return transformed(taken, dataset.target_transform)

        def paths(positions: Indices) -> list[bytes]:
            return [os.fsencode(path) for path, _ in map(samples.__getitem__, positions.tolist())]

        return native_images(
            dataset,
            raw,
            None,
            size=size,
            identify=lambda position: (samples[position][0],) * 2,
            rescue=lambda position: np.asarray(read_image(open_path(samples[position][0]), samples[position][0])),
            files=SampleFiles(
                lambda position: os.fsencode(samples[position][0]),
                lambda file, position: np.asarray(read_image(file, samples[position][0])),
            ),
            labels=labels,
            paths=paths,
            still=all_of(
                transformed_as_now(dataset, "samples", "loader"),
                lambda: len(samples) == size and _foreign(dataset) is None,
            ),
        )

    def sample_reader(self) -> SampleReader:
        return ImageReader(self.dataset, None) if _foreign(self.dataset) is None else SampleReader(self.dataset)


def _foreign(dataset: Any) -> Refusal | None:
    """Return why a folder's images are not those that Pillow itself decodes, or None."""
    if not is_original(dataset.loader, "torchvision.datasets.folder", "default_loader"):
        return Refusal("ImageFolder(loader=)", "a loader of one's own is Python's", "the default loader")
    if (refusal := foreign_decoder()) is not None:
        return refusal
    if sys.modules["torchvision"].get_image_backend() != "PIL":
        return Refusal(
            "torchvision's image backend", "only PIL's pixels are reproduced", "torchvision.set_image_backend('PIL')"
        )
    return None
