"""Rows of samples that are files of any suffix, each suffix a field; and what kind of samples they turn out to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.packing.finishing import ShardRecord, joined_suffixes, widened
from penstock.sources.image_folder import IMG_EXTENSIONS
from penstock.storage.index import ABSENT, row_dtype

TENSORS = (".npy", ".pt", ".pth")
#: The suffix under which WebDataset keeps the number of a class.
LABEL = ".cls"

Place = tuple[int, int, int]
"""Where a file lies in its shard: offset, length and CRC-32C."""


class FileRows:
    """The rows of one shard, whose samples need not have the same files."""

    def __init__(self) -> None:
        self.suffixes: list[str] = []
        self._rows: list[tuple[tuple[int, ...], dict[int, Place]]] = []
        self.labelled = True

    def add(self, head: tuple[int, int, int, int, int], files: dict[str, Place], label: bytes | None) -> None:
        """Add a sample.

        Args:
            head: id_offset, id_length, shard, width and height of its row.
            files: where each file lies, by suffix.
            label: the bytes of its file LABEL; None where it has none.
        """
        number = class_number(label)
        self.labelled &= number is not None
        for suffix in files:
            if suffix not in self.suffixes:
                self.suffixes.append(suffix)
        placed = {self.suffixes.index(suffix): place for suffix, place in files.items()}
        self._rows.append(((*head, number or 0), placed))

    def array(self) -> NDArray[Any]:
        """Return the rows."""
        absent = (0, 0, 0, ABSENT)
        places = range(len(self.suffixes))
        listed = [
            (*head, [(*files[place], 0) if place in files else absent for place in places])
            for head, files in self._rows
        ]
        return np.array(listed, row_dtype(len(self.suffixes), "<i8"))


def class_number(label: bytes | None) -> int | None:
    """Return the number that a file LABEL holds, None where it holds another thing."""
    try:
        number = None if label is None else int(label)
    except ValueError:
        return None
    return number if number is not None and -(1 << 63) <= number < 1 << 63 else None


def classified(records: Sequence[ShardRecord]) -> tuple[str, bool, list[ShardRecord]]:
    """Return the kind of samples that are files of any suffix, whether they have labels, and their records.

    images or tensors where each sample has one file of such a suffix and, all of them or none, a class number; the
    record has one field then. Else files.
    """
    fields, _ = joined_suffixes(records)
    names = [suffix for known in fields for suffix in known]
    for kind, group in (("images", IMG_EXTENSIONS), ("tensors", TENSORS)):
        chosen = [name for name in names if name.lower() in group]
        if not chosen or set(names) - set(chosen) - {LABEL}:
            continue
        labels = [record.labelled for record in records]
        if LABEL in names and not all(labels):
            continue
        one = [_one_field(record, chosen, LABEL in names) for record in records]
        if None not in one:
            return kind, LABEL in names, [record for record in one if record is not None]
    return "files", False, [replace(record, rows=_without_labels(record.rows)) for record in records]


def _one_field(record: ShardRecord, chosen: list[str], labelled: bool) -> ShardRecord | None:
    """Return a record with one field, whichever of these suffixes a sample has; None where some have another number."""
    places = [place for place, (suffix,) in enumerate(record.suffixes) if suffix in chosen]
    members = record.rows["members"][:, places]
    present = members["suffix"] != ABSENT
    if len(record.rows) and not (present.sum(axis=1) == 1).all():
        return None
    rows = np.zeros(len(record.rows), row_dtype(1, "<i8" if labelled else None))
    for name in rows.dtype.names or ():
        if name != "members":
            rows[name] = record.rows[name]
    column = present.argmax(axis=1)
    rows["members"][:, 0] = members[np.arange(len(rows)), column]
    rows["members"]["suffix"][:, 0] = column
    return replace(record, rows=rows, suffixes=[[record.suffixes[place][0] for place in places]])


def _without_labels(rows: NDArray[Any]) -> NDArray[Any]:
    bare = np.zeros(len(rows), row_dtype(rows["members"].shape[1], None))
    for name in bare.dtype.names or ():
        bare[name] = rows[name]
    return bare


def by_suffix(records: Sequence[ShardRecord]) -> list[ShardRecord]:
    """Return records whose fields are the same suffixes in the same order, in all of them."""
    names: list[str] = []
    for record in records:
        names.extend(suffix for (suffix,) in record.suffixes if suffix not in names)
    aligned = []
    for record in records:
        wide = widened(record.rows, len(names), [])
        for place, (suffix,) in enumerate(record.suffixes):
            wide["members"][:, names.index(suffix)] = record.rows["members"][:, place]
        aligned.append(replace(record, rows=wide, suffixes=[[name] for name in names]))
    return aligned
