"""The rows of a packing's samples: of each shard while it is written, and of all shards, as the index, in the end."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

import penstock._native as _native
from penstock.packing.places import Write
from penstock.sources.image_folder import IMG_EXTENSIONS
from penstock.storage.description import FILE, Column, Shard, Split, as_json
from penstock.storage.index import ABSENT, ends_crc32c, row_dtype

Put = Callable[[str, Write], None]
"""Writes a file under a name, as a whole or not at all."""


TENSORS = (".npy", ".pt", ".pth")
#: The suffix under which WebDataset keeps the number of a class.
LABEL = ".cls"

FileExtent = tuple[int, int, int]
"""Where a file lies in its shard: offset, length and CRC-32C."""


@dataclass(frozen=True)
class ShardRecord:
    """What is kept of a finished shard until all are: a JSON text and the rows, in one file."""

    shard: Shard
    suffixes: list[str]
    """Of all files of its samples; one field of the rows for each."""
    rows: NDArray[Any]
    labelled: bool
    """Whether each sample has a label; of samples that are files of any suffix, a file that holds a class number."""

    def write(self, file: BinaryIO) -> None:
        """Write the record to a file."""
        held = {
            "shard": [self.shard.name, self.shard.bytes, self.shard.crc32c, self.shard.samples],
            "suffixes": self.suffixes,
            "labelled": self.labelled,
        }
        file.write(json.dumps(held).encode() + b"\n")
        np.save(file, self.rows, allow_pickle=False)

    @classmethod
    def parse(cls, text: bytes | None) -> ShardRecord | None:
        """Return the record that a file holds, None where there is none or it is damaged."""
        if text is None:
            return None
        try:
            file = io.BytesIO(text)
            held = json.loads(file.readline())
            return cls(Shard(*held["shard"]), held["suffixes"], np.load(file, allow_pickle=False), held["labelled"])
        except (EOFError, ValueError, TypeError, KeyError):
            return None


class ShardRows:
    """The rows of one shard, whose samples need not have the same files.

    Args:
        label: the dtype of the labels; None: there are none.
    """

    def __init__(self, label: str | None) -> None:
        self._label = label
        self._suffixes: list[str] = []
        self._rows: list[tuple[tuple[Any, ...], dict[int, FileExtent]]] = []
        self._labelled = True

    def add(self, head: tuple[int, int, int, int, int], files: Mapping[str, FileExtent], label: Any) -> None:
        """Add a sample.

        Args:
            head: id_offset, id_length, shard, width and height of its row.
            files: where each file lies, by suffix.
            label: its label; None where it has none.
        """
        self._labelled &= label is not None
        self._suffixes += [suffix for suffix in files if suffix not in self._suffixes]
        placed = {self._suffixes.index(suffix): place for suffix, place in files.items()}
        self._rows.append(((*head, 0 if label is None else label) if self._label else head, placed))

    def record(self, shard: Shard) -> ShardRecord:
        """Return what is kept of the shard."""
        absent = (0, 0, 0, ABSENT)
        places = range(len(self._suffixes))
        listed = [
            (*head, [(*files[place], 0) if place in files else absent for place in places])
            for head, files in self._rows
        ]
        rows = np.array(listed, row_dtype(len(self._suffixes), self._label))
        return ShardRecord(shard, self._suffixes, rows, self._labelled)


def class_number(label: bytes | None) -> int | None:
    """Return the number that a file LABEL holds, None where it holds another thing."""
    try:
        number = None if label is None else int(label)
    except ValueError:
        return None
    return number if number is not None and -(1 << 63) <= number < 1 << 63 else None


@dataclass(frozen=True)
class Table:
    """The rows of all shards, which have the same fields."""

    fields: list[list[str]]
    """The suffixes of each field, as the rows number them."""
    rows: list[NDArray[Any]]
    """Of each shard."""


def joined(records: Sequence[ShardRecord]) -> Table:
    """Return the rows of all shards, with one field for each suffix."""
    names = list(dict.fromkeys(suffix for record in records for suffix in record.suffixes))
    rows = []
    for record in records:
        wide = record.rows
        if record.suffixes != names:
            label = wide.dtype["label"].str if "label" in (wide.dtype.names or ()) else None
            wide = _with_fields(wide, len(names), label)
            wide["members"]["suffix"] = ABSENT
            for place, suffix in enumerate(record.suffixes):
                wide["members"][:, names.index(suffix)] = record.rows["members"][:, place]
        rows.append(wide)
    return Table([[name] for name in names], rows)


def classified(records: Sequence[ShardRecord]) -> tuple[str, bool, Table]:
    """Return the kind of samples that are files of any suffix, whether they have labels, and their rows.

    images or tensors where each sample has one file of such a suffix and, all of them or none, a class number; there is
    one field then. Else files.
    """
    table = joined(records)
    names = [suffix for (suffix,) in table.fields]
    labelled = LABEL in names
    for kind, group in (("images", IMG_EXTENSIONS), ("tensors", TENSORS)):
        places = [place for place, name in enumerate(names) if name.lower() in group]
        others = {name for place, name in enumerate(names) if place not in places}
        if not places or others - {LABEL} or (labelled and not all(record.labelled for record in records)):
            continue
        present = [rows["members"]["suffix"][:, places] != ABSENT for rows in table.rows]
        if all((which.sum(axis=1) == 1).all() for which in present):
            rows = [_one_field(*one, places, labelled) for one in zip(table.rows, present, strict=True)]
            return kind, labelled, Table([[names[place] for place in places]], rows)
    return "files", False, Table(table.fields, [_without_labels(rows) for rows in table.rows])


def _one_field(rows: NDArray[Any], present: NDArray[Any], places: list[int], labelled: bool) -> NDArray[Any]:
    """Return rows with one field: that of these places which is present."""
    made = _with_fields(rows, 1, "<i8" if labelled else None)
    column = present.argmax(axis=1)
    made["members"][:, 0] = rows["members"][np.arange(len(rows)), np.array(places)[column]]
    made["members"]["suffix"][:, 0] = column
    return made


def _without_labels(rows: NDArray[Any]) -> NDArray[Any]:
    bare = _with_fields(rows, rows["members"].shape[1], None)
    bare["members"] = rows["members"]
    return bare


def _with_fields(rows: NDArray[Any], fields: int, label: str | None) -> NDArray[Any]:
    """Return rows with so many fields, without what their files are."""
    made = np.zeros(len(rows), row_dtype(fields, label))
    for name in made.dtype.names or ():
        if name != "members":
            made[name] = rows[name]
    return made


def npy_head(dtype: np.dtype[Any], count: int) -> bytes:
    """Return the header of an .npy file, version 1.0, of a 1-d array."""
    file = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": (count,)})
    return file.getvalue()


def write_column(put: Put, name: str, pieces: Iterable[bytes], digest: Any) -> Column:
    """Write a file of the index from its pieces, and add it to a digest. Raises OSError."""
    crc = size = ends = 0

    def write(file: BinaryIO) -> None:
        nonlocal crc, size, ends
        for piece in pieces:
            file.write(piece)
            digest.update(piece)
            crc = _native.crc32c(piece, crc)
            size += len(piece)
        file.flush()
        ends = ends_crc32c(file, size)

    put(name, write)
    return Column(name, size, crc, ends)


def write_index(
    put: Put, name: str, table: Table, ids: Sequence[bytes], texts: Sequence[str] | None
) -> tuple[Column, Column, str]:
    """Write the index and the IDs of a split; return them, and the fingerprint."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps([table.fields, texts]).encode())

    def rows() -> Iterable[bytes]:
        yield npy_head(table.rows[0].dtype, sum(map(len, table.rows)))
        for some in table.rows:
            yield some.tobytes()

    def texts_of_ids() -> Iterable[bytes]:
        yield npy_head(np.dtype("u1"), sum(map(len, ids)) + len(ids))
        for begin in range(0, len(ids), 1 << 16):
            yield b"\0".join(ids[begin : begin + (1 << 16)]) + b"\0"

    index = write_column(put, f"{name}.index.npy", rows(), digest)
    names = write_column(put, f"{name}.ids.npy", texts_of_ids(), digest)
    return index, names, digest.hexdigest()


def write_description(put: Put, splits: Mapping[str, Split], name: str, split: Split) -> None:
    """Write dataset.json with a split added, or exchanged. Raises CorruptShards, OSError."""
    text = as_json({**splits, name: split})
    put(FILE, lambda file: file.write(text))
