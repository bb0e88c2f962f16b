"""The catalogue of a dataset: the IDs, labels and sizes of its samples, as far as they can be had without reading them.

The hashes of a catalogue are the dataset's fingerprint, which a checkpoint holds. The catalogue itself is kept in the
user's cache folder under them, so that a dataset that has changed can be compared with what it was, ID by ID.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.order.permutations import Indices
from penstock.sources.listing import Listing, Names
from penstock.sources.naming import name_of, names_of
from penstock.sources.tree import source_of
from penstock.system import cache_folder

#: The folder of catalogues below the cache folder.
KIND = "catalogues"

#: The most files whose sizes are looked up, evenly spread.
LOOKED_AT = 1024

_HASH_BYTES = 8  # two datasets share a hash by chance once in 2**64 pairs
_VERSION = 1


@dataclass(frozen=True)
class Catalogue(Listing):
    """What is known of a dataset's samples, in order."""

    sizes: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """The shapes of rows that lie in memory; sizes in bytes of the files that were looked at, -1 for a missing file."""

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

    def numbers(self) -> Indices | None:
        """Return the ID of each sample where all are numbers, and no two the same; else None."""
        first = self.names[0]
        if len(self.names) != 1 or first.texts is not None or first.prefix:
            return None
        if first.numbers is None:
            return np.arange(first.size, dtype=np.int64)
        return first.numbers if len(np.unique(first.numbers)) == first.size else None

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


def catalogue(dataset: Any) -> Catalogue:
    """Return the catalogue of a map-style dataset. No sample is read; the sizes of up to 1,024 files are looked up."""
    source = source_of(dataset)
    listing = source.listing()
    size = len(dataset)
    looked_at: Sequence[int] = range(0, size, max(1, -(-size // LOOKED_AT)))
    if not size or name_of(dataset, 0)[1] is None:
        looked_at = ()
    files = (_bytes_of(path) for _, path in names_of(dataset, looked_at))
    shapes = (number for part in source.parts() for number in part.shapes())
    return Catalogue(listing.names, listing.labels, np.array([*shapes, *files], np.int64))


def _bytes_of(path: str | None) -> int:
    try:
        return -1 if path is None else os.stat(path).st_size
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return -1


def _hash(array: NDArray[Any]) -> str:
    return hashlib.blake2b(array.tobytes(), digest_size=_HASH_BYTES).hexdigest()


def _key(fingerprint: Mapping[str, Any]) -> bytes:
    return json.dumps(fingerprint, sort_keys=True).encode()
