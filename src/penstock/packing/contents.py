"""What is packed of a dataset: for each sample its ID, its label and the bytes of its files."""

from __future__ import annotations

import io
import os
import stat
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import penstock._native as _native
from penstock.errors import DatasetChanged, InvalidOption
from penstock.recipe.originals import is_original
from penstock.sources.arrays import Arrays
from penstock.sources.image_folder import ImageFolder
from penstock.sources.naming import id_of
from penstock.sources.reading import holds_mappings, open_sample, system_error
from penstock.sources.source import Source
from penstock.sources.tensor_folder import TensorFolder
from penstock.sources.tree import source_of
from penstock.system.words import counted

Encoded = tuple[tuple[str, bytes], ...]
"""The files of a sample, in order: what follows the ID in the name of each, and its bytes."""

Stamp = tuple[int, int]
"""What tells whether a file is the one that it was: its size, and its time in nanoseconds."""


@dataclass(frozen=True)
class Leaf:
    """A dataset without others in it."""

    kind: str
    """images, pixels, tensors or files, as description.Split says."""
    size: int
    id: Callable[[int], str]
    read: Callable[[int], Encoded]
    stamp: Callable[[int], Stamp]
    """Of the file of a sample; only the size where there is none, and 0 where that is not known."""
    labels: Sequence[Any] | NDArray[Any] | None = None
    label: str | None = None
    """int, float, text or tensor."""
    classes: tuple[str, ...] | None = None
    fields: int = 1
    pair: bool = True
    safe: bool = True
    """Whether threads may read several samples at once."""


@dataclass(frozen=True)
class Contents:
    """The samples of a dataset, Subset and ConcatDataset included, as they are packed."""

    first: Leaf
    size: int
    leaves: tuple[Leaf, ...]
    leaf: NDArray[np.int32]
    local: NDArray[np.int64]
    """Of each sample its leaf, and its index there."""
    ids: list[bytes] = field(repr=False)
    labels: NDArray[Any] | None = field(repr=False)
    texts: tuple[str, ...] | None = None
    """The labels that are texts, by the numbers in `labels`."""

    def read(self, index: int) -> Encoded:
        leaf: Leaf = self.leaves[int(self.leaf[index])]
        return leaf.read(int(self.local[index]))

    def stamp(self, index: int) -> Stamp:
        leaf: Leaf = self.leaves[int(self.leaf[index])]
        return leaf.stamp(int(self.local[index]))


def contents_of(dataset: Any, to_bytes: Callable[[Any], Any] | None) -> Contents:
    """Return what is packed of a dataset.

    Raises InvalidOption for a dataset that Penstock does not know, without to_bytes; for parts of different kinds; for
    an ID that is not a name inside a folder, or that two samples have.
    """
    if len(dataset) == 0:
        raise InvalidOption(f"{type(dataset).__name__} has no samples: there is nothing to pack")
    if to_bytes is not None:
        leaf = _own(dataset, to_bytes)
        count = len(dataset)
        return _contents([leaf], np.zeros(count, np.int32), np.arange(count), [leaf.id(i) for i in range(count)])
    leaves: dict[int, int] = {}
    made: list[Leaf] = []
    numbers, local, ids = np.empty(len(dataset), np.int32), np.empty(len(dataset), np.int64), []
    whole = source_of(dataset)
    for index in range(len(dataset)):
        prefix, source, inside = whole.locate(index)
        number = leaves.get(id(source))
        if number is None:
            number = leaves[id(source)] = len(made)
            made.append(_known(source))
        numbers[index], local[index] = number, inside % made[number].size
        ids.append(prefix + made[number].id(int(local[index])))
    return _contents(made, numbers, local, ids)


def _contents(leaves: list[Leaf], numbers: NDArray[np.int32], local: NDArray[np.int64], ids: list[str]) -> Contents:
    first = leaves[0]
    for other in leaves[1:]:
        if (other.kind, other.label, other.fields, other.pair) != (first.kind, first.label, first.fields, first.pair):
            raise InvalidOption(
                f"the parts of the dataset differ: one holds {first.kind} with labels {first.label}, another "
                f"{other.kind} with labels {other.label}. Pack each part as its own split: split="
            )
    names = [os.fsencode(name) for name in ids]
    _check_names(names)
    labels, texts = None, None
    if first.label is not None:
        values = [leaves[leaf].labels[at] for leaf, at in zip(numbers.tolist(), local.tolist(), strict=True)]
        labels, texts = _column(values, first.label)
    return Contents(first, len(ids), tuple(leaves), numbers, local, names, labels, texts)


def _check_names(names: list[bytes]) -> None:
    bad = _native.first_bad_name(b"\0".join(names) + b"\0")
    if bad is not None or len(set(names)) != len(names):
        if bad is not None:
            wrong, why = names[bad], "is not a name inside a folder"
        else:
            wrong = Counter(names).most_common(1)[0][0]
            why = "belongs to two samples"
        raise InvalidOption(
            f"ID {os.fsdecode(wrong)!r} {why}; each sample is packed under its ID: give a dataset whose IDs are "
            "relative names, each for one sample"
        )


def _column(values: list[Any], label: str) -> tuple[NDArray[Any], tuple[str, ...] | None]:
    if label == "text":
        texts = tuple(sorted(set(values)))
        places = {text: place for place, text in enumerate(texts)}
        return np.array([places[value] for value in values], np.int64), texts
    if label == "tensor":
        return np.array([value.numpy() for value in values]), None
    return np.array(values, np.int64 if label == "int" else np.float64), None


def label_kind(values: Sequence[Any]) -> str:
    """Return int, float, text or tensor: what all of these labels are. Raises InvalidOption."""
    kinds = {type(value) for value in values}
    if kinds == {torch.Tensor} and len({(value.dtype, value.ndim) for value in values}) == 1 and values[0].ndim == 0:
        return "tensor"
    for name, kind in (("int", int), ("float", float), ("text", str)):
        if kinds == {kind} and (kind is not int or all(-(1 << 63) <= value < 1 << 63 for value in values)):
            return name
    listed = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise InvalidOption(
        f"labels of type {listed} cannot be packed: they must be Python's int (of 64 bits), float or str, one type for "
        "all samples. Or give to_bytes=, a function that makes the files of a sample, with its label"
    )


# --- datasets that Penstock knows -------------------------------------------------------------------------------------


def _known(source: Source) -> Leaf:
    """Return what is packed of a dataset of a known class. Raises InvalidOption for others."""
    dataset, name = source.dataset, type(source.dataset).__name__
    if type(dataset) in source.kinds():
        if type(dataset) is ImageFolder:
            return _files(dataset.paths, b"", "images", dataset.labels, "int", tuple(dataset.classes))
        if name == "ImageFolder" and is_original(dataset.loader, "torchvision.datasets.folder", "default_loader"):
            return _listed(dataset)
        if type(dataset) is TensorFolder and not holds_mappings(dataset.suffix):
            held = dataset.labels
            labels = None if held is None else [dataset.label(position) for position in range(len(dataset))]
            kind = None if labels is None else label_kind(labels)
            return _files(dataset.paths, os.fsencode(dataset.suffix), "tensors", labels, kind, None)
        if name in ("CIFAR10", "CIFAR100", "MNIST", "FashionMNIST"):
            return _pixels(dataset)
        if type(dataset) is Arrays or name == "TensorDataset":
            return _rows(dataset)
    raise InvalidOption(
        f"Penstock cannot pack the samples of a {name} by itself: give to_bytes=, a function that returns the bytes of "
        "a sample, or a dict from file suffix to bytes; or pack an image folder, a folder of tensors, or arrays"
    )


def _files(
    table: _native.PathTable, suffix: bytes, kind: str, labels: Any, label: str | None, classes: tuple[str, ...] | None
) -> Leaf:
    ending = os.fsdecode(suffix)

    def read(index: int) -> Encoded:
        name = os.fsdecode(table.name(index))
        with open_sample(table, index, name) as file:
            return ((ending, read_whole(file.fileno(), name)),)

    return Leaf(
        kind,
        len(table),
        lambda index: os.fsdecode(table.name(index)),
        read,
        lambda index: _stamp(os.fsdecode(table.path(index))),
        labels,
        label,
        classes,
        pair=label is not None,
    )


def _listed(dataset: Any) -> Leaf:
    samples, root = dataset.samples, os.path.join(os.fsdecode(dataset.root), "")
    table = _native.PathTable(b"", b"".join(os.fsencode(path) + b"\0" for path, _ in samples))
    found = _files(table, b"", "images", [label for _, label in samples], "int", tuple(dataset.classes))
    return replace(found, id=lambda index: samples[index][0].removeprefix(root))


def _stamp(path: str) -> Stamp:
    try:
        status = os.stat(path)
    except OSError as error:
        raise system_error(error.errno or 0, path, path) from error
    return status.st_size, status.st_mtime_ns


def read_whole(descriptor: int, name: str) -> bytes:
    """Return all bytes of an open file. Raises DatasetChanged where it changes its length meanwhile, SampleError."""
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidOption(f"{name} is not a regular file: leave it out, or replace it by a file")
        data = os.read(descriptor, status.st_size)
        while len(data) < status.st_size and (more := os.read(descriptor, status.st_size - len(data))):
            data += more
    except OSError as error:
        raise system_error(error.errno or 0, name, name) from error
    if len(data) != status.st_size or os.fstat(descriptor).st_mtime_ns != status.st_mtime_ns:
        raise DatasetChanged(f"{name} was changed while it was packed: pack again when no program writes it")
    return data


def _pixels(dataset: Any) -> Leaf:
    images, targets = dataset.data, dataset.targets

    def read(index: int) -> Encoded:
        return ((".npy", npy_bytes(np.asarray(images[index]))),)

    size = 128 + int(np.prod(images.shape[1:]))
    labels = list(map(int, targets))
    classes = tuple(map(str, getattr(dataset, "classes", ()))) or None
    return Leaf("pixels", len(images), _number, read, lambda _: (size, 0), labels, "int", classes)


def _rows(dataset: Any) -> Leaf:
    first = dataset[0]
    if getattr(dataset, "transform", None) is not None:
        raise InvalidOption(f"{type(dataset).__name__} has a transform, which is not packed: remove the transform")
    fields, label, labels = len(first), None, None
    if fields == 2 and first[1].ndim == 0 and first[1].dtype in _LABELS:
        fields, label, labels = 1, "tensor", dataset.tensors[1].detach()
    held = dataset.tensors[:fields]

    def read(index: int) -> Encoded:
        if fields == 1:
            return (tensor_bytes(held[0][index], ""),)
        return tuple(tensor_bytes(tensor[index], f".{number}") for number, tensor in enumerate(held))

    size = sum(128 + one.element_size() * one[0].numel() for one in held)
    return Leaf("tensors", len(dataset), _number, read, lambda _: (size, 0), labels, label, fields=fields)


_LABELS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.float32, torch.float64, torch.float16)


def _number(index: int) -> str:
    return f"{index:09d}"


def npy_bytes(array: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, np.ascontiguousarray(array).reshape(array.shape), allow_pickle=False)
    return file.getvalue()


def tensor_bytes(tensor: torch.Tensor, stem: str) -> tuple[str, bytes]:
    """Return a tensor as a file: .npy, or .pt where numpy has no such dtype; stem: what comes before the suffix."""
    try:
        return f"{stem}.npy", npy_bytes(tensor.detach().numpy(force=True))
    except TypeError:  # bfloat16, for one
        file = io.BytesIO()
        torch.save(tensor.detach().clone(), file)
        return f"{stem}.pt", file.getvalue()


# --- users' datasets --------------------------------------------------------------------------------------------------

#: How the bytes of a file begin, by suffix.
_MAGIC = {b"\xff\xd8\xff": ".jpg", b"\x89PNG\r\n\x1a\n": ".png", b"\x93NUMPY": ".npy", b"PK\x03\x04": ".pt"}


def _own(dataset: Any, to_bytes: Callable[[Any], Any]) -> Leaf:
    def read(index: int) -> Encoded:
        made = to_bytes(dataset[index])
        if isinstance(made, bytes | bytearray | memoryview):
            data = bytes(made)
            return ((next((suffix for magic, suffix in _MAGIC.items() if data.startswith(magic)), ".bin"), data),)
        if not (
            isinstance(made, dict)
            and made
            and all(isinstance(suffix, str) and suffix and "/" not in suffix for suffix in made)
            and all(isinstance(data, bytes | bytearray) for data in made.values())
        ):
            raise InvalidOption(
                f"to_bytes returned {_shown(made)} for sample {index}: it must return bytes, or a dict from the suffix "
                "of a file, such as 'jpg', to its bytes"
            )
        return tuple((f".{suffix.removeprefix('.')}", bytes(data)) for suffix, data in made.items())

    plain = type(dataset).__module__.partition(".")[0]

    def name(index: int) -> str:
        found = id_of(dataset, index)
        named = found != str(index) and not os.path.isabs(found) and "." not in found and found.isprintable()
        return found if named else _number(index)

    return Leaf("files", len(dataset), name, read, lambda _: (0, 0), safe=plain == "penstock")


def _shown(value: Any) -> str:
    return f"a dict of {counted(len(value), 'entry', 'entries')}" if isinstance(value, dict) else type(value).__name__
