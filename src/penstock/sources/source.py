"""What Penstock knows of a dataset: its adapter.

An adapter, a subclass of `Source`, serves the classes of dataset that it names; tree.SOURCES is the tuple of all.
It knows the names, files, labels and sizes of samples and, for exactly the classes that it names, how the native core
reads whole batches (`native`) and how threads read single samples (`sample_reader`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.errors import CorruptSample
from penstock.order.permutations import Indices
from penstock.recipe.conversions import Inverse
from penstock.recipe.originals import READING, own_class, replaced_in_class
from penstock.recipe.steps import Refusal, Step
from penstock.settings import known_size
from penstock.sources.labels import LabelColumn, joined_ids, label_values, transformed
from penstock.sources.native_source import NativeSource, ReadInPython, RemoteSamples
from penstock.sources.unchanged import DatasetState, all_of

_READING = frozenset(READING.split())

#: Attributes under which datasets hold the IDs of their samples: Penstock's, and those of the well-known tutorial.
_ID_LISTS = ("ids", "list_IDs", "IDs", "list_ids")


class Source:
    """The adapter of a dataset. The base serves any map-style dataset, by the attributes that many have.

    An adapter is made for one question, about the dataset as it is then, and overrides what it knows better. Each
    method may raise what the dataset raises.
    """

    classes: tuple[type, ...] = ()
    """The classes of dataset that the adapter serves."""
    torchvisions: tuple[str, ...] = ()
    """The names of such classes in torchvision.datasets, where the program has imported it."""
    read: frozenset[str] | None = None
    """What of a dataset its samples come from, beside READING: a subclass that defines none of it reads as its base
    does. None: no subclass is known to."""

    batches_differ = False
    """Batches of samples may have other dtypes than single samples."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    @classmethod
    def kinds(cls) -> tuple[type, ...]:
        """Return the classes of dataset that the adapter serves now."""
        if not cls.torchvisions:
            return cls.classes
        found = (own_class("torchvision.datasets", name) for name in cls.torchvisions)
        return tuple(kind for kind in found if kind is not None)

    def locate(self, index: int) -> tuple[str, Source, int]:
        """Return the beginning of a sample's ID, the source that the sample comes from, and its index in that."""
        return "", self, index

    def name(self, index: int) -> tuple[str, str | None]:
        """Return (ID, file) of a sample that `locate` leads to; the file is None where there is none.

        The ID is the file where the dataset has no IDs, and the index where it has no files either.
        """
        pairs = self._file_pairs()
        if pairs is not None and isinstance(pairs[index], tuple):
            path = pairs[index][0]
            return path, path
        ids = self._ids()
        return str(index if ids is None else ids[index]), None

    def id(self, index: int) -> str:
        """Return the ID of a sample, the same wherever the dataset lies: a file's ID is its name below the root."""
        name, path = self.name(index)
        return self._below_root(name) if name == path else name

    def ids(self) -> bytes | None:
        """Return the IDs of all samples, each followed by a NUL; None where they are the indices."""
        pairs = self._file_pairs()
        if pairs is not None:
            return joined_ids(self._below_root(pair[0]) for pair in pairs)
        ids = self._ids()
        return None if ids is None else joined_ids(map(str, ids))

    def labels(self) -> NDArray[Any] | None:
        """Return the labels of all samples, a 64-bit value each; None where they cannot be had without the samples."""
        dataset = self.dataset
        pairs = self._file_pairs()
        if pairs is not None and all(len(pair) > 1 for pair in pairs):
            return label_values([pair[1] for pair in pairs])
        ids, labels = self._ids(), getattr(dataset, "labels", None)
        if ids is not None and isinstance(labels, Mapping):  # of the well-known tutorial
            return label_values([labels.get(name) for name in ids])
        for column in (getattr(dataset, "targets", None), labels):
            if isinstance(column, list | tuple | np.ndarray | torch.Tensor) and len(column) == known_size(dataset):
                return label_values(column)
        return None

    def sizes(self) -> NDArray[np.int64]:
        """Return the shapes of rows that lie in memory."""
        return np.empty(0, np.int64)

    def parts(self, most: int | None = None) -> Iterator[Source]:
        """Yield the sources that the samples come from; most: of each ConcatDataset only so many."""
        yield self

    def remote(self) -> RemoteSamples | None:
        """Return where the samples lie in an object store, None for those that lie elsewhere."""
        return None

    def native(self, raw: bool) -> NativeSource | Refusal:
        """Return how the native core reads the dataset, which is of one of `kinds` exactly, or why it cannot.

        raw: images stay pixels where a recipe allows it, and the result has the table of what they become.
        """
        return unknown(self.dataset)

    def _file_pairs(self) -> Any:
        """Return the (file, class) pairs of a dataset that is made like torchvision's DatasetFolder, else None."""
        samples = getattr(self.dataset, "samples", None)
        if not isinstance(samples, Sequence) or not samples or len(samples) != known_size(self.dataset):
            return None
        first = samples[0]
        return samples if isinstance(first, tuple) and first and isinstance(first[0], str) else None

    def _ids(self) -> list[Any] | tuple[Any, ...] | None:
        for attribute in _ID_LISTS:
            ids = getattr(self.dataset, attribute, None)
            if isinstance(ids, (list, tuple)) and len(ids) == known_size(self.dataset):
                return ids
        return None

    def _below_root(self, path: str) -> str:
        """Return a file's name below its dataset's root."""
        root = getattr(self.dataset, "root", None)
        if not isinstance(root, (str, os.PathLike)):
            return path
        return path.removeprefix(os.path.join(os.fsdecode(root), ""))


def native_of(source: Source, raw: bool) -> NativeSource | Refusal:
    """Return how the native core reads a source's dataset, or why it cannot: one of a recognised class exactly.

    A subclass may override anything, and a program may have replaced a method.
    """
    dataset, kind = source.dataset, type(source.dataset)
    if not _reads_as_known(source):
        base = next((base.__name__ for base in kind.__mro__[1:] if base in source.kinds()), None)
        if base is None:
            return unknown(dataset)
        return Refusal(kind.__name__, f"a subclass of {base} may read differently", f"{base} itself")
    if (refusal := replaced(dataset)) is not None:
        return refusal
    try:
        native = source.native(raw)
        if isinstance(native, Refusal):
            return native
        state, more, exact = DatasetState(dataset), native.same_dataset, kind in source.kinds()
        first_field, same_memory = native.form.first_field, all_of(state.same_memory, native.same_memory)

        def same_dataset() -> bool:
            known = type(dataset) is kind and (exact or _reads_as_known(source))
            return known and state.same() and same_memory() and more() and replaced(dataset) is None

        labelled: tuple[Step, ...] = ()
        if native.labels is not None and dataset.target_transform is None:
            labelled = (Step("label   from an array", "native"),)
        elif native.labels is not None:
            labelled = (Step("label   target_transform, in the caller's thread", "Python"),)
        native = replace(
            native,
            size=len(dataset),
            steps=(*native.steps, *labelled),
            identify=lambda position: (source.id(position), source.name(position)[1]),
            sample_in_python=lambda position: first_field(dataset[position]),
            same_dataset=same_dataset,
            same_memory=same_memory,
        )
        return native if native.table is None else _giving_pixels(native, Inverse(native.table))
    except Exception as error:  # a dataset in an unusual state is torch's to read, or to refuse
        return Refusal(kind.__name__, f"planning raised {type(error).__name__}: {error}", "the unmodified class")


def _reads_as_known(source: Source) -> bool:
    """Return whether a dataset is of a class that its adapter serves, or of a subclass that reads as that does."""
    kind, kinds = type(source.dataset), source.kinds()
    if kind in kinds:
        return True
    if source.read is None:
        return False
    for base in kind.__mro__:
        if base in kinds:
            return True
        if not source.read.isdisjoint(vars(base)) or not _READING.isdisjoint(vars(base)):
            return False
    return False


def unknown(dataset: object) -> Refusal:
    """Return why a dataset of a class that no adapter serves is not native."""
    why = getattr(dataset, "_read_by_python", "Penstock does not know this class, so Python reads it")
    return Refusal(type(dataset).__name__, why, "")


def replaced(dataset: object) -> Refusal | None:
    """Return which method that a dataset's samples come from was replaced, on the object or its class, or None."""
    if {"__getitem__", "__getitems__"} & vars(dataset).keys():
        return Refusal(type(dataset).__name__, "its __getitem__ was replaced", "the unmodified class")
    return replaced_in_class(type(dataset), READING)


def own_transform(dataset: Any) -> Refusal | None:
    """Return why the tensors of a dataset that has a transform are not native, or None."""
    if dataset.transform is None:
        return None
    what, why = f"{type(dataset).__name__}.transform", "Python calls your function on each tensor"
    return Refusal(what, why, "the function applied to the batch instead")


def label_reader(take: Callable[[Indices], LabelColumn], dataset: Any) -> Callable[[Indices], LabelColumn]:
    """Return what takes labels by their positions, and calls the dataset's target_transform."""
    return lambda positions: transformed(take(positions), dataset.target_transform)


def _giving_pixels(native: NativeSource, inverse: Inverse) -> NativeSource:
    """Return a source whose samples are turned back into pixels where Python reads them, transform and all."""

    def pixels(position: int, value: torch.Tensor) -> torch.Tensor:
        try:
            return inverse(value)
        except ValueError as error:
            sample_id, path = native.identify(position)
            raise CorruptSample(
                f"sample {sample_id!r} ({path or 'in memory'}): its transform gave {error}, other than what the "
                "device expects. Was the transform changed during the pass?",
                sample_id=sample_id,
                path=path,
            ) from error

    def read_in_python(position: int, *file: Any) -> ReadInPython:
        value = native.read_in_python(position, *file)
        return pixels(position, value) if isinstance(value, torch.Tensor) else value

    return replace(
        native,
        read_in_python=read_in_python,
        sample_in_python=lambda position: pixels(position, native.sample_in_python(position)),
    )
