"""The names of samples, their IDs and files, as far as a dataset has them; and the catalogue of all.

The hashes of a catalogue are the dataset's fingerprint, which a checkpoint holds.
"""

from __future__ import annotations

import hashlib
import json
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.order.permutations import Indices
from penstock.settings import known_size
from penstock.sources.labels import chosen_of, joined
from penstock.sources.source import Source
from penstock.sources.tree import ConcatSource, SubsetSource, source_of

T = TypeVar("T")

#: The most files whose sizes are looked up, evenly spread.
LOOKED_AT = 1024


def name_of(dataset: Any, index: Any) -> tuple[str, str | None]:
    """Return (ID, file) of a sample, as messages and manifests name it.

    The ID is the file where the dataset has no IDs, and the index where it has no files either; the file is None where
    there is none.
    """
    return next(names_of(dataset, (index,)))


def names_of(dataset: Any, indices: Iterable[Any]) -> Iterator[tuple[str, str | None]]:
    """Yield (ID, file) of each of these samples."""
    return _found(dataset, indices, _name, lambda index: (_short(index), None))


def _name(prefix: str, source: Source, number: int) -> tuple[str, str | None]:
    name, path = source.name(number)
    return (name if path is not None else prefix + name), path


def id_of(dataset: Any, index: Any) -> str:
    """Return the ID of a sample, the same wherever its dataset lies: a file's ID is its name below the root.

    In a ConcatDataset the ID begins with the number of the part: "0/ID".
    """
    return ids_of(dataset, (index,))[0]


def ids_of(dataset: Any, indices: Iterable[Any]) -> list[str]:
    return list(_found(dataset, indices, lambda prefix, source, number: prefix + source.id(number), _short))


def _found(
    dataset: Any, indices: Iterable[Any], find: Callable[[str, Source, int], T], otherwise: Callable[[Any], T]
) -> Iterator[T]:
    whole = source_of(dataset)
    for index in indices:
        try:
            found = find(*whole.locate(operator.index(index)))
        except Exception:  # a dataset of any kind may raise anything where it has no names
            found = otherwise(index)
        yield found


def _short(index: Any) -> str:
    text = repr(index)
    return text if len(text) <= 200 else text[:197] + "..."


# --- the catalogue ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Catalogue:
    """What is known of a dataset's samples, in order."""

    size: int
    ids: bytes | Indices | None = None
    """The ID of each sample: texts, each followed by a NUL; or numbers, int64; None: 0 to size - 1."""
    labels: NDArray[Any] | None = None
    """One 64-bit value for each sample: its number, or a hash of what it is."""
    sizes: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """The shapes of rows that lie in memory; sizes in bytes of the files that were looked at, -1 for a missing file."""

    def texts(self) -> list[bytes]:
        if isinstance(self.ids, bytes):
            return self.ids.split(b"\0")[:-1]
        numbers: Iterable[int] = range(self.size) if self.ids is None else self.ids.tolist()
        return [str(number).encode() for number in numbers]

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """Return the fingerprint: JSON-able, a few dozen bytes.

        `size`: of the dataset; `ids`, `labels`, `sizes`: hashes, None where there are none.
        """
        ids = None
        if self.ids is not None:
            data, kind = (self.ids, "t") if isinstance(self.ids, bytes) else (self.ids.tobytes(), "r")
            ids = _hash(json.dumps(["", self.size, kind]).encode() + data)
        return {
            "size": self.size,
            "ids": ids,
            "labels": None if self.labels is None else _hash(self.labels.tobytes()),
            "sizes": _hash(self.sizes.tobytes()) if len(self.sizes) else None,
        }


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()  # two share one by chance once in 2**64 pairs


def catalogue(dataset: Any) -> Catalogue:
    """Return the catalogue of a map-style dataset. No sample is read; the sizes of up to 1,024 files are looked up."""
    found, size = _of_source(source_of(dataset)), len(dataset)
    looked_at: Sequence[int] = range(0, size, max(1, -(-size // LOOKED_AT)))
    if not size or name_of(dataset, 0)[1] is None:
        looked_at = ()
    files = [_bytes_of(path) for _, path in names_of(dataset, looked_at)]
    return replace(found, sizes=np.array([*found.sizes, *files], np.int64))


def _bytes_of(path: str | None) -> int:
    try:
        return -1 if path is None else os.stat(path).st_size
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return -1


def _of_source(source: Source) -> Catalogue:
    if isinstance(source, SubsetSource):
        return _chosen(_of_source(source.child(0)), chosen_of(source.dataset.indices))
    if isinstance(source, ConcatSource):
        return _concatenated([_of_source(source.child(number)) for number in range(len(source.inner))])
    return Catalogue(known_size(source.dataset) or 0, source.ids(), source.labels(), source.sizes())


def _chosen(whole: Catalogue, indices: Indices) -> Catalogue:
    """Return the catalogue of a Subset with these indices; negative indices count from the end."""
    indices = np.where(indices < 0, indices + whole.size, indices)
    ids: bytes | Indices = indices
    if isinstance(whole.ids, bytes):
        listed = whole.texts()
        ids = joined([listed[index] for index in indices.tolist()])
    elif whole.ids is not None:
        ids = whole.ids[indices]
    return Catalogue(len(indices), ids, None if whole.labels is None else whole.labels[indices], whole.sizes)


def _concatenated(parts: Sequence[Catalogue]) -> Catalogue:
    """Return the catalogue of a ConcatDataset: IDs begin with the number of their part; some parts may lack labels."""
    ids = joined([b"%d/%s" % (number, text) for number, part in enumerate(parts) for text in part.texts()])
    labels = None
    if any(part.labels is not None for part in parts):
        columns = [np.zeros(part.size, np.int64) if part.labels is None else part.labels for part in parts]
        labels = np.concatenate(columns)
    return Catalogue(sum(part.size for part in parts), ids, labels, np.concatenate([part.sizes for part in parts]))
