"""The catalogue of a dataset: the IDs, labels and sizes of its samples, as far as they can be had without reading them.

The hashes of a catalogue are the dataset's fingerprint, which a checkpoint holds. The catalogue itself is kept in the
user's cache folder under them, so that a dataset that has changed can be compared with what it was, ID by ID.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.order.permutations import Indices
from penstock.system import cache_folder

#: The folder of catalogues below the cache folder.
KIND = "catalogues"

_HASH_BYTES = 8  # two datasets share a hash by chance once in 2**64 pairs
_VERSION = 1


@dataclass(frozen=True)
class Names:
    """IDs, in order; compact."""

    prefix: str
    """What each ID begins with: "0/" in the first part of a ConcatDataset."""
    size: int
    texts: bytes | None = None
    """The IDs without the prefix, each followed by a NUL."""
    numbers: Indices | None = None
    """IDs that are numbers: int64, shape (size,). Without texts and numbers the IDs are 0 to size - 1."""

    def as_texts(self) -> list[bytes]:
        """Return each ID."""
        prefix = self.prefix.encode()
        if self.texts is not None:
            listed = self.texts.split(b"\0")[:-1]
            return [prefix + text for text in listed] if prefix else listed
        numbers: Iterable[int] = range(self.size) if self.numbers is None else self.numbers.tolist()
        return [prefix + str(number).encode() for number in numbers]

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
    """The shapes of rows that lie in memory; sizes in bytes of the files that were looked at, -1 for a missing file."""

    @property
    def size(self) -> int:
        return sum(part.size for part in self.names)

    def texts(self) -> list[bytes]:
        """Return the ID of each sample."""
        return [text for part in self.names for text in part.as_texts()]

    def chosen(self, indices: Indices) -> Catalogue:
        """Return the catalogue of a Subset with these indices; negative indices count from the end."""
        indices = np.where(indices < 0, indices + self.size, indices)
        if len(self.names) == 1:
            names: tuple[Names, ...] = (self.names[0].chosen(indices),)
        else:
            listed = self.texts()
            names = (Names("", len(indices), _joined([listed[index] for index in indices.tolist()])),)
        return Catalogue(names, None if self.labels is None else self.labels[indices], self.sizes)

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

    def keep(self) -> None:
        """Write the catalogue to the user's cache folder, if samples have IDs or labels."""
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
        return Catalogue((Names("", size),))  # its size is all that there is
    entry = cache_folder.entry(KIND, _key(fingerprint))
    arrays = None if entry is None else cache_folder.load(entry)
    if entry is None or arrays is None:
        return None
    try:
        heads = json.loads(arrays["heads"].tobytes())
        names = []
        for number, (prefix, size, texts, numbers, _) in enumerate(heads):
            listed = arrays[f"texts{number}"].tobytes() if texts else None
            names.append(Names(prefix, size, listed, arrays[f"numbers{number}"] if numbers else None))
        found = Catalogue(tuple(names), arrays.get("labels"), arrays["sizes"])
        if arrays["version"].tolist() != [_VERSION] or found.fingerprint != dict(fingerprint):
            return None
    except (KeyError, ValueError, TypeError):  # damaged, or of another version
        return None
    cache_folder.used(entry)
    return found


def place_of(fingerprint: Mapping[str, Any]) -> str:
    """Return the file that the catalogue of a dataset of this fingerprint is kept in, for messages."""
    return str(cache_folder.entry(KIND, _key(fingerprint)) or "a cache folder")


def _hash(array: NDArray[Any]) -> str:
    return hashlib.blake2b(array.tobytes(), digest_size=_HASH_BYTES).hexdigest()


def _key(fingerprint: Mapping[str, Any]) -> bytes:
    return json.dumps(fingerprint, sort_keys=True).encode()


def concatenated(parts: Sequence[Catalogue]) -> Catalogue:
    """Return the catalogue of a ConcatDataset: IDs begin with the number of their part; some parts may lack labels."""
    names = tuple(
        Names(f"{number}/{names.prefix}", names.size, names.texts, names.numbers)
        for number, part in enumerate(parts)
        for names in part.names
    )
    sizes = np.concatenate([part.sizes for part in parts])
    if all(part.labels is None for part in parts):
        return Catalogue(names, None, sizes)
    columns = [np.zeros(part.size, np.int64) if part.labels is None else part.labels for part in parts]
    return Catalogue(names, np.concatenate(columns), sizes)


def joined_ids(names: Iterable[str]) -> bytes:
    """Return IDs as bytes, each followed by a NUL."""
    return _joined([name.encode("utf-8", "surrogatepass").replace(b"\0", b"\\0") for name in names])


def _joined(texts: Sequence[bytes]) -> bytes:
    return b"\0".join(texts) + b"\0" if texts else b""


def label_values(labels: Any) -> NDArray[Any]:
    """Return one 64-bit value for each label."""
    labels = as_array(labels)
    if isinstance(labels, np.ndarray) and labels.ndim == 1 and labels.dtype.kind in "biuf":
        return labels.astype(np.float64).view(np.int64) if labels.dtype.kind == "f" else labels.astype(np.int64)
    return np.fromiter(map(_of_label, labels), np.int64, len(labels))


def as_array(values: Any) -> Any:
    """Return a copy of a tensor as an array: an array that shares its memory would forbid the tensor to grow."""
    return values.detach().clone().numpy(force=True) if isinstance(values, torch.Tensor) else values


def _of_label(label: Any) -> int:
    """Return a whole number itself, else a hash: of an array's bytes, or of a text without an address in it."""
    if type(label) is int and -(1 << 63) <= label < 1 << 63:
        return label
    if type(label) is float:
        return int(np.float64(label).view(np.int64))
    label = as_array(label)
    if isinstance(label, np.ndarray) and label.dtype != object:
        data = label.tobytes()
    else:
        text = repr(label)
        data = (type(label).__qualname__ if " at 0x" in text else text).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)
