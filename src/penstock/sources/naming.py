"""What a sample is called: its ID and its file, as far as its dataset tells."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any

from penstock.sources.tree import source_of


def name_of(dataset: Any, index: Any) -> tuple[str, str | None]:
    """Return (ID, file) of a sample, as messages and manifests name it.

    The ID is the file where the dataset has no IDs, and the index where it has no files either; the file is None where
    there is none.
    """
    return next(names_of(dataset, (index,)))


def names_of(dataset: Any, indices: Iterable[Any]) -> Iterator[tuple[str, str | None]]:
    """Yield (ID, file) of each of these samples."""
    whole = source_of(dataset)
    for index in indices:
        try:
            prefix, source, number = whole.locate(operator.index(index))
            name, path = source.name(number)
            yield (name if path is not None else prefix + name), path
        except Exception:  # a dataset of any kind, asked for what it need not have
            yield _short(index), None


def id_of(dataset: Any, index: Any) -> str:
    """Return the ID of a sample, the same wherever its dataset lies: of a file its name below the dataset's root.

    A sample of a ConcatDataset has the number of its part before it: "0/ID".
    """
    return ids_of(dataset, (index,))[0]


def ids_of(dataset: Any, indices: Iterable[Any]) -> list[str]:
    """Return the ID of each of these samples."""
    whole = source_of(dataset)
    found = []
    for index in indices:
        try:
            prefix, source, number = whole.locate(operator.index(index))
            found.append(prefix + source.id(number))
        except Exception:  # as above
            found.append(_short(index))
    return found


def _short(index: Any) -> str:
    text = repr(index)
    return text if len(text) <= 200 else text[:197] + "..."
