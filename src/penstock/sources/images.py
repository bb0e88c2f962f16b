"""Images by a list of their files, as a CSV file or a DataFrame names them; with the adapter of ImageFolder too."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import Dataset

import penstock._native as _native
from penstock.errors import InvalidID, InvalidOption
from penstock.recipe.steps import Refusal
from penstock.sources.catalogue import label_values
from penstock.sources.image_files import ImageReader, foreign_decoder, native_images, transformed_as_now
from penstock.sources.image_folder import ImageFolder
from penstock.sources.labels import Labels, compact
from penstock.sources.native_source import Form, NativeSource, SampleFiles
from penstock.sources.reading import open_sample, read_image
from penstock.sources.sample_reader import SampleReader
from penstock.sources.source import Source, label_reader
from penstock.system.words import counted, there_are


class Images(Dataset[Any]):
    """Images that a list of files names, with their labels: ``Images(table["file"], table["label"], transform)``.

    A sample is the image, a PIL image in mode RGB until a transform makes something else of it, or the pair (image,
    label) when labels are given.

    Args:
        paths: the files: a list, a column of a DataFrame or an array, of strings or path objects. A relative one is
            below root.
        labels: a label for each file, in the same order: a list, a column or an array. Numbers become Python's int
            (int64 in a batch) and float (float64); of an array of several dimensions each row is a label.
        transform: called with the image.
        target_transform: called with the label.
        root: the folder of relative paths; None: the folder that the program runs in now.

    Attributes:
        paths: the files, a compact table.
        labels: the labels by position, None without.

    Raises:
        InvalidID: a path is empty or contains a NUL character.
        InvalidOption: there are not as many labels as paths.
        TypeError: a path is no string.
    """

    def __init__(
        self,
        paths: Iterable[str | os.PathLike[str]],
        labels: Iterable[Any] | None = None,
        transform: Callable[[Any], Any] | None = None,
        *,
        target_transform: Callable[[Any], Any] | None = None,
        root: str | os.PathLike[str] | None = None,
    ) -> None:
        names = [_name(path) for path in _listed(paths)]
        self.root = os.getcwd() if root is None else os.path.abspath(os.fspath(root))
        self.transform = transform
        self.target_transform = target_transform
        if root is None or any(map(os.path.isabs, names)):
            folder, names = b"", [os.path.join(self.root, name) for name in names]
        else:
            folder = os.fsencode(self.root)
        self.paths = _native.PathTable(folder, b"".join(os.fsencode(name) + b"\0" for name in names))
        self.labels = None if labels is None else Labels(compact(_listed(labels)))
        if self.labels is not None and len(self.labels) != len(self.paths):
            raise InvalidOption(
                f"labels= has {len(self.labels):,} labels for {counted(len(self.paths), 'path')}: give one for each"
            )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        try:
            position = range(len(self))[operator.index(index)]
        except IndexError:
            raise IndexError(f"sample index {index} is out of range: {there_are(len(self), 'sample')}") from None
        image: Any = self.read(position)
        if self.transform is not None:
            image = self.transform(image)
        if self.labels is None:
            return image
        label = self.labels[position]
        return image, label if self.target_transform is None else self.target_transform(label)

    def path(self, position: int) -> str:
        """Return the file of the sample at a position."""
        return os.fsdecode(self.paths.path(position))

    def read(self, position: int) -> Image.Image:
        """Return the image at a position, decoded by Pillow to mode RGB. Raises SampleError."""
        path = self.path(position)
        return read_image(open_sample(self.paths, position, path), path)

    def __repr__(self) -> str:
        labelled = "" if self.labels is None else ", labelled"
        return f"Images({counted(len(self), 'file')}{labelled})"


def _listed(values: Any) -> list[Any]:
    """Return the items of a list, a column or an array; those of an array of one dimension as Python's objects."""
    if isinstance(values, str | bytes | os.PathLike):
        raise TypeError(f"paths and labels are lists, not one {type(values).__name__}")
    for method in ("tolist", "to_pylist"):  # NumPy, torch and pandas; Arrow
        if getattr(values, "ndim", 1) == 1 and callable(listed := getattr(values, method, None)):
            return list(listed())
    return list(values)


def _name(path: Any) -> str:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"a path is a string or a path object; got {path!r}")
    name = os.fspath(path)
    if not isinstance(name, str):
        raise TypeError(f"a path is a string or a path object; got {path!r}")
    if not name or "\0" in name:
        raise InvalidID(f"path {name!r} {'contains a NUL character' if name else 'is empty'}: no file has that name")
    return name


class ImageTableSource(Source):
    """The adapter of Images and ImageFolder, whose files are in a table."""

    dataset: Images | ImageFolder
    classes = (Images, ImageFolder)
    read = frozenset({"samples", "paths", "labels", "transform", "target_transform"})

    def name(self, index: int) -> tuple[str, str | None]:
        path = self._path(range(len(self.dataset))[index])
        return path, path

    def id(self, index: int) -> str:
        return os.fsdecode(self.dataset.paths.name(range(len(self.dataset))[index]))

    def ids(self) -> bytes | None:
        return self.dataset.paths.names()

    def labels(self) -> NDArray[Any] | None:
        held = self._held
        return None if held is None else label_values(held.take(np.arange(len(held), dtype=np.int64)))

    def native(self, raw: bool) -> NativeSource | Refusal:
        dataset, held = self.dataset, self._held
        if (refusal := foreign_decoder()) is not None:
            return refusal
        dataset.paths.refresh()
        return native_images(
            dataset,
            raw,
            dataset.paths,
            size=len(dataset),
            identify=self.name,
            rescue=lambda position: np.asarray(dataset.read(position)),
            apply=lambda position: dataset[position] if held is None else dataset[position][0],
            files=SampleFiles(
                dataset.paths.name, lambda file, position: np.asarray(read_image(file, self._path(position)))
            ),
            form=Form(pair=held is not None),
            labels=label_reader(held, dataset),
            still=transformed_as_now(dataset, "paths", "labels"),
        )

    def sample_reader(self) -> SampleReader:
        if foreign_decoder() is not None:
            return SampleReader(self.dataset)
        self.dataset.paths.refresh()
        return ImageReader(self.dataset, self.dataset.paths, lambda position: (None, position), self._sample)

    @property
    def _held(self) -> Labels | None:
        labels = self.dataset.labels
        return Labels(labels) if isinstance(labels, np.ndarray) else labels

    def _path(self, position: int) -> str:
        return os.fsdecode(self.dataset.paths.path(position))

    def _sample(self, position: int, image: Any) -> Any:
        """Return the sample at a position, whose image has been transformed."""
        held, change = self._held, self.dataset.target_transform
        if held is None:
            return image
        return image, held[position] if change is None else change(held[position])
