"""The names of samples, their IDs and files, as far as a dataset has them; and the catalogue of all."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from penstock.sources.catalogue import Catalogue
from penstock.sources.source import Source
from penstock.sources.tree import source_of

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
    """Return the ID of each of these samples."""
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


def catalogue(dataset: Any) -> Catalogue:
    """Return the catalogue of a map-style dataset. No sample is read; the sizes of up to 1,024 files are looked up."""
    found, size = source_of(dataset).catalogue(), len(dataset)
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
