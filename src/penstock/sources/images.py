"""Images by a list of their files, as a CSV file or a DataFrame names them; with the adapter of ImageFolder too."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import penstock._native as _native
from penstock.errors import InvalidID, InvalidOption
from penstock.recipe.steps import Refusal
from penstock.sources.catalogue import label_values
from penstock.sources.image_files import ImageReader, foreign_decoder, native_images
from penstock.sources.image_folder import ImageFolder, ImageTable
from penstock.sources.labels import array_of, taken
from penstock.sources.native_source import Form, NativeSource, SampleFiles
from penstock.sources.reading import read_image
from penstock.sources.sample_reader import SampleReader
from penstock.sources.source import Source, label_reader
from penstock.system.words import counted


class Images(ImageTable):
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
        self.labels = None if labels is None else array_of(_listed(labels))
        if self.labels is not None and len(self.labels) != len(self.paths):
            raise InvalidOption(
                f"labels= has {len(self.labels):,} labels for {counted(len(self.paths), 'path')}: give one for each"
            )

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
            rescue=lambda position: np.asarray(dataset.read(position)),
            files=SampleFiles(
                dataset.paths.name, lambda file, position: np.asarray(read_image(file, dataset.path(position)))
            ),
            form=Form(pair=held is not None),
            labels=None if held is None else label_reader(partial(taken, held), dataset),
        )

    def sample_reader(self) -> SampleReader:
        dataset = self.dataset
        if foreign_decoder() is not None:
            return SampleReader(dataset)
        dataset.paths.refresh()
        return ImageReader(dataset, dataset.paths, lambda position: (None, position), dataset.labelled)
