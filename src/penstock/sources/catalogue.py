"""The catalogue of a dataset: the IDs, labels and sizes of its samples, as far as they can be had without reading them.

Its hashes are the dataset's fingerprint. It is kept in the user's cache folder under them, for a checkpoint holds the
hashes only: what a dataset was can then be told from what it has become, ID by ID.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from penstock.order.permutations import Indices
from penstock.sources import ImageFolder, TensorFolder
from penstock.sources.naming import below, file_pairs, id_list, name_of
from penstock.system import cache_folder

#: The folder of catalogues below the cache folder.
KIND = "catalogues"

#: How many files are asked for their sizes, evenly spread.
LOOKED_AT = 1024

_HASH_BYTES = 8  # two datasets share a hash by chance once in 2**64 pairs
_VERSION = 1


@dataclass(frozen=True)
class Names:
    """IDs, in order; compact."""

    prefix: str
    """Before each of them: "0/" in the first part of a ConcatDataset."""
    size: int
    texts: bytes | None = None
    """Each followed by a NUL."""
    numbers: Indices | None = None
    """Int64, shape (size,). Without texts and numbers the IDs are the numbers 0 to size - 1."""

    def as_texts(self) -> list[bytes]:
        """Return each ID."""
        prefix = self.prefix.encode()
        if self.texts is not None:
            listed = self.texts.split(b"\0")[:-1]
            return [prefix + text for text in listed] if prefix else listed
        numbers: Iterable[int] = range(self.size) if self.numbers is None else self.numbers.tolist()
        return [prefix + str(number).encode() for number in numbers]

    def as_numbers(self) -> Indices:
        """Return each ID of those that are numbers."""
        return np.arange(self.size, dtype=np.int64) if self.numbers is None else self.numbers

    def chosen(self, indices: Indices) -> Names:
        """Return the IDs at some indices."""
        if self.texts is None:
            numbers = indices if self.numbers is None else self.numbers[indices]
            return Names(self.prefix, len(indices), numbers=numbers)
        listed = self.texts.split(b"\0")[:-1]
        return Names(self.prefix, len(indices), texts=_joined([listed[index] for index in indices.tolist()]))


@dataclass(frozen=True)
class Catalogue:
    """What is known of a dataset's samples, in order."""

    names: tuple[Names, ...]
    labels: NDArray[Any] | None = None
    """One 64-bit value for each sample: its number, or a hash of what it is."""
    sizes: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """The shapes of rows that lie in memory; bytes of the files that were looked at, -1 where there was none."""

    @property
    def size(self) -> int:
        return sum(part.size for part in self.names)

    @property
    def nameless(self) -> bool:
        """Return whether no sample has an ID but its index."""
        first = self.names[0]
        return len(self.names) == 1 and not first.prefix and first.texts is None and first.numbers is None

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """Return the fingerprint: JSON-able, a few dozen bytes.

        `size`: of the dataset; `ids`, `labels`, `sizes`: hashes, None where there are none.
        """
        ids = hashlib.blake2b(digest_size=_HASH_BYTES)
        for part in self.names:
            kind = "t" if part.texts is not None else "r" if part.numbers is None else "n"
            ids.update(json.dumps([part.prefix, part.size, kind]).encode())
            ids.update(part.texts or b"")
            if part.numbers is not None:
                ids.update(part.numbers.tobytes())
        return {
            "size": self.size,
            "ids": None if self.nameless else ids.hexdigest(),
            "labels": None if self.labels is None else _hash(self.labels),
            "sizes": _hash(self.sizes) if len(self.sizes) else None,
        }

    def texts(self) -> list[bytes]:
        """Return the ID of each sample."""
        return [text for part in self.names for text in part.as_texts()]

    def numbers(self) -> Indices | None:
        """Return the ID of each sample where all are numbers, and no two the same; else None."""
        if len(self.names) != 1 or self.names[0].texts is not None or self.names[0].prefix:
            return None
        numbers = self.names[0].as_numbers()
        unique = self.names[0].numbers is None or len(np.unique(numbers)) == len(numbers)
        return numbers if unique else None

    def keep(self) -> None:
        """Keep it in the user's cache folder, where there is something to keep."""
        if self.nameless and self.labels is None:
            return
        arrays = self._arrays()
        entry = cache_folder.entry(KIND, _key(self.fingerprint))
        if entry is None or sum(array.nbytes for array in arrays.values()) > cache_folder.MAX_BYTES:
            return
        if entry.exists():
            cache_folder.used(entry)
        else:
            cache_folder.store(entry, arrays)

    def _arrays(self) -> dict[str, NDArray[Any]]:
        heads = [
            [part.prefix, part.size, part.texts is not None, part.numbers is not None, self.labels is not None]
            for part in self.names
        ]
        arrays: dict[str, NDArray[Any]] = {
            "version": np.array([_VERSION], np.int64),
            "heads": np.frombuffer(json.dumps(heads).encode(), np.uint8),
            "sizes": self.sizes,
        }
        for number, part in enumerate(self.names):
            if part.texts is not None:
                arrays[f"texts{number}"] = np.frombuffer(part.texts, np.uint8)
            if part.numbers is not None:
                arrays[f"numbers{number}"] = part.numbers
        if self.labels is not None:
            arrays["labels"] = self.labels
        return arrays


def kept(fingerprint: Mapping[str, Any]) -> Catalogue | None:
    """Return the catalogue of a dataset that had this fingerprint, None where none is kept."""
    size = fingerprint.get("size")
    if fingerprint.get("ids") is None and fingerprint.get("labels") is None and isinstance(size, int):
        return Catalogue((Names("", size),))  # which nothing need be kept of
    entry = cache_folder.entry(KIND, _key(fingerprint))
    arrays = None if entry is None else cache_folder.load(entry)
    if entry is None or arrays is None:
        return None
    try:
        heads = json.loads(arrays["heads"].tobytes())
        names = tuple(
            Names(
                prefix,
                size,
                arrays[f"texts{number}"].tobytes() if texts else None,
                arrays[f"numbers{number}"] if numbers else None,
            )
            for number, (prefix, size, texts, numbers, _) in enumerate(heads)
        )
        found = Catalogue(names, arrays["labels"] if heads and heads[0][4] else None, arrays["sizes"])
        if arrays["version"].tolist() != [_VERSION] or found.fingerprint != dict(fingerprint):
            return None
    except (KeyError, ValueError, TypeError):  # damaged, or of another version
        return None
    cache_folder.used(entry)
    return found


def place_of(fingerprint: Mapping[str, Any]) -> str:
    """Return the file that the catalogue of a dataset of this fingerprint is kept in, for messages."""
    return str(cache_folder.entry(KIND, _key(fingerprint)) or "a cache folder")


def catalogue(dataset: Any) -> Catalogue:
    """Return the catalogue of a map-style dataset. No sample is read; up to 1,024 files are asked for their sizes."""
    return replace(_listed(dataset), sizes=_sizes(dataset))


def _listed(dataset: Any) -> Catalogue:
    """Return the IDs and labels of a dataset."""
    if isinstance(dataset, Subset):
        return _chosen(_listed(dataset.dataset), np.asarray(_as_array(dataset.indices), dtype=np.int64))
    if isinstance(dataset, ConcatDataset):
        parts = [_listed(part) for part in dataset.datasets]
        names = tuple(
            Names(f"{number}/{names.prefix}", names.size, names.texts, names.numbers)
            for number, part in enumerate(parts)
            for names in part.names
        )
        return Catalogue(names, _together(parts))
    return Catalogue((Names("", len(dataset), _texts(dataset)),), _labels(dataset))


def _chosen(whole: Catalogue, indices: Indices) -> Catalogue:
    """Return the catalogue of a Subset."""
    indices = np.where(indices < 0, indices + whole.size, indices)
    if len(whole.names) == 1:
        names: tuple[Names, ...] = (whole.names[0].chosen(indices),)
    else:
        listed = whole.texts()
        names = (Names("", len(indices), _joined([listed[index] for index in indices.tolist()])),)
    return Catalogue(names, None if whole.labels is None else whole.labels[indices])


def _together(parts: Sequence[Catalogue]) -> NDArray[Any] | None:
    """Return the labels of a ConcatDataset: of the parts that have some."""
    if all(part.labels is None for part in parts):
        return None
    return np.concatenate([np.zeros(part.size, np.int64) if part.labels is None else part.labels for part in parts])


def _texts(leaf: Any) -> bytes | None:
    if isinstance(leaf, TensorFolder | ImageFolder):
        return leaf.paths.names()
    pairs = file_pairs(leaf)
    if pairs is not None:
        return _joined([_encoded(below(leaf, pair[0])) for pair in pairs])
    ids = id_list(leaf)
    return None if ids is None else _joined([_encoded(str(name)) for name in ids])


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass").replace(b"\0", b"\\0")


def _joined(texts: Sequence[bytes]) -> bytes:
    return b"\0".join(texts) + b"\0" if texts else b""


def _labels(leaf: Any) -> NDArray[Any] | None:
    if isinstance(leaf, ImageFolder):
        return leaf.labels
    if isinstance(leaf, TensorFolder):
        if leaf.labels is None:
            return None
        try:
            return _values(leaf.labels.take(np.arange(len(leaf), dtype=np.int64)))
        except KeyError:  # one is missing, which is an error of its batch
            return None
    pairs = file_pairs(leaf)
    if pairs is not None and all(len(pair) > 1 for pair in pairs):
        return _values([pair[1] for pair in pairs])
    ids, labels = id_list(leaf), getattr(leaf, "labels", None)
    if ids is not None and isinstance(labels, Mapping):  # of the well-known tutorial
        return _values([labels.get(name) for name in ids])
    for column in (getattr(leaf, "targets", None), labels):
        if isinstance(column, list | tuple | np.ndarray | torch.Tensor) and len(column) == len(leaf):
            return _values(column)
    return None


def _values(labels: Any) -> NDArray[Any] | None:
    """Return one 64-bit value for each label."""
    labels = _as_array(labels)
    if isinstance(labels, np.ndarray) and labels.ndim == 1 and labels.dtype.kind in "biuf":
        return labels.astype(np.float64).view(np.int64) if labels.dtype.kind == "f" else labels.astype(np.int64)
    return np.fromiter(map(_of_label, labels), np.int64, len(labels))


def _as_array(values: Any) -> Any:
    """Return a tensor as an array of its own: one of its memory would forbid the tensor to grow later."""
    return values.detach().clone().numpy(force=True) if isinstance(values, torch.Tensor) else values


def _of_label(label: Any) -> int:
    """Return a whole number itself, else a hash: of an array's bytes, or of a text without an address in it."""
    if type(label) is int and -(1 << 63) <= label < 1 << 63:
        return label
    if type(label) is float:
        return int(np.float64(label).view(np.int64))
    label = _as_array(label)
    if isinstance(label, np.ndarray) and label.dtype != object:
        data = label.tobytes()
    else:
        text = repr(label)
        data = (type(label).__qualname__ if " at 0x" in text else text).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)


def _sizes(dataset: Any) -> NDArray[np.int64]:
    """Return the shapes of rows that lie in memory, and the sizes of files evenly spread over a dataset."""
    size = len(dataset)
    looked_at: Sequence[int] = range(0, size, max(1, -(-size // LOOKED_AT)))
    if not size or name_of(dataset, 0)[1] is None:
        looked_at = ()
    return np.array([*_shapes(dataset), *(_bytes_of(name_of(dataset, index)[1]) for index in looked_at)], np.int64)


def _shapes(dataset: Any) -> Iterator[int]:
    if isinstance(dataset, Subset):
        yield from _shapes(dataset.dataset)
    elif isinstance(dataset, ConcatDataset):
        for part in dataset.datasets:
            yield from _shapes(part)
    elif isinstance(dataset, TensorDataset):
        for tensor in dataset.tensors:
            yield from (tensor.ndim, *tensor.shape[1:], tensor.element_size())


def _bytes_of(path: str | None) -> int:
    try:
        return -1 if path is None else os.stat(path).st_size
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return -1


def _hash(array: NDArray[Any]) -> str:
    return hashlib.blake2b(array.tobytes(), digest_size=_HASH_BYTES).hexdigest()


def _key(fingerprint: Mapping[str, Any]) -> bytes:
    return json.dumps(fingerprint, sort_keys=True).encode()
