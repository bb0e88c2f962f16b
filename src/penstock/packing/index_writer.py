"""The rows of a packing's samples: of each shard while it is written, and of all shards, as the index, in the end."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

import penstock._native as _native
from penstock.packing.places import Write
from penstock.sources.image_folder import IMG_EXTENSIONS
from penstock.storage.description import FILE, Column, Shard, Split, as_json
from penstock.storage.index import ABSENT, MEMBER, ends_crc32c, row_dtype

Put = Callable[[str, Write], None]
"""Writes a file under a name, as a whole or not at all."""


@dataclass(frozen=True)
class ShardRecord:
    """What is kept of a finished shard until all are: a JSON text and the rows, in one file."""

    shard: Shard
    suffixes: list[list[str]]
    rows: NDArray[Any]
    labelled: bool = False
    """Whether each sample has a file that holds a class number; asked only of samples that are files of any suffix."""

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


def widened(rows: NDArray[Any], fields: int, places: Sequence[Sequence[int]]) -> NDArray[Any]:
    """Return rows with so many fields, their suffixes renumbered."""
    label = rows.dtype["label"].str if "label" in (rows.dtype.names or ()) else None
    wide = np.zeros(len(rows), row_dtype(fields, label))
    for name in wide.dtype.names or ():
        if name != "members":
            wide[name] = rows[name]
    old, new = rows["members"], wide["members"]
    new["suffix"] = ABSENT
    if not places:
        return wide
    new[:, : old.shape[1]] = old
    for place, numbers in enumerate(places):
        column = old["suffix"][:, place]
        table = np.array([*numbers, ABSENT], np.uint32)
        new["suffix"][:, place] = table[np.minimum(column, len(numbers))]
    return wide


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
    put: Put,
    name: str,
    records: Sequence[ShardRecord],
    ids: Sequence[bytes],
    texts: Sequence[str] | None,
) -> tuple[Column, Column, list[list[str]], str]:
    """Write the index and the IDs of a split; return them, the suffixes of each field and the fingerprint."""
    suffixes, places = joined_suffixes(records)
    fields = len(suffixes)
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps([suffixes, texts]).encode())
    count = sum(record.shard.samples for record in records)
    first = widened(records[0].rows[:0], fields, places[0]).dtype
    assert first["members"].base == MEMBER

    def rows() -> Iterable[bytes]:
        yield npy_head(first, count)
        for record, numbers in zip(records, places, strict=True):
            yield widened(record.rows, fields, numbers).tobytes()

    def texts_of_ids() -> Iterable[bytes]:
        yield npy_head(np.dtype("u1"), sum(map(len, ids)) + len(ids))
        for begin in range(0, len(ids), 1 << 16):
            yield b"\0".join(ids[begin : begin + (1 << 16)]) + b"\0"

    index = write_column(put, f"{name}.index.npy", rows(), digest)
    names = write_column(put, f"{name}.ids.npy", texts_of_ids(), digest)
    return index, names, suffixes, digest.hexdigest()


def joined_suffixes(records: Sequence[ShardRecord]) -> tuple[list[list[str]], list[list[list[int]]]]:
    """Return the suffixes of each field of all shards, and the new number of each old one, by shard and field."""
    fields: list[list[str]] = []
    places: list[list[list[int]]] = []
    for record in records:
        numbers = []
        for place, known in enumerate(record.suffixes):
            while len(fields) <= place:
                fields.append([])
            fields[place].extend(suffix for suffix in known if suffix not in fields[place])
            numbers.append([fields[place].index(suffix) for suffix in known])
        places.append(numbers)
    return fields, places


def write_description(put: Put, splits: Mapping[str, Split], name: str, split: Split) -> None:
    """Write dataset.json with a split added, or exchanged. Raises CorruptShards, OSError."""
    text = as_json({**splits, name: split})
    put(FILE, lambda file: file.write(text))


# --- samples that are files of any suffix -----------------------------------------------------------------------------

TENSORS = (".npy", ".pt", ".pth")
#: The suffix under which WebDataset keeps the number of a class.
LABEL = ".cls"

FileExtent = tuple[int, int, int]
"""Where a file lies in its shard: offset, length and CRC-32C."""


class FileRows:
    """The rows of one shard, whose samples need not have the same files."""

    def __init__(self) -> None:
        self.suffixes: list[str] = []
        self._rows: list[tuple[tuple[int, ...], dict[int, FileExtent]]] = []
        self.labelled = True

    def add(self, head: tuple[int, int, int, int, int], files: dict[str, FileExtent], label: bytes | None) -> None:
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

    def record(self, shard: Shard) -> ShardRecord:
        """Return what is kept of the shard."""
        absent = (0, 0, 0, ABSENT)
        places = range(len(self.suffixes))
        listed = [
            (*head, [(*files[place], 0) if place in files else absent for place in places])
            for head, files in self._rows
        ]
        rows = np.array(listed, row_dtype(len(self.suffixes), "<i8"))
        return ShardRecord(shard, [[suffix] for suffix in self.suffixes], rows, self.labelled)


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
