"""What a packing writes: shards, which are tar archives of some samples; the rows of each; and, of all rows, the index.

The same samples give the same bytes everywhere.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

import penstock._native as _native
from penstock.errors import DatasetChanged
from penstock.packing.contents import Contents, Encoded
from penstock.packing.encoding import Encoding, image_size
from penstock.packing.places import After, Place, splits_of, write
from penstock.packing.plan import Plan, rows_name, shard_name, webdataset_key
from penstock.sources.image_folder import IMG_EXTENSIONS
from penstock.storage.description import FILE, Column, Part, Shard, Split, as_json
from penstock.storage.durable import write_all
from penstock.storage.index import ABSENT, LABELS, MEMBER, row_dtype
from penstock.storage.tar import END, header, padding

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
    """The rows of one shard, whose samples need not have the same files. label: their dtype; None: without."""

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
        """
        self._labelled &= label is not None
        self._suffixes += [suffix for suffix in files if suffix not in self._suffixes]
        placed = {self._suffixes.index(suffix): place for suffix, place in files.items()}
        self._rows.append(((*head, 0 if label is None else label) if self._label else head, placed))

    def record(self, shard: Shard) -> ShardRecord:
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


# --- shards ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShardWork:
    """What the shards of a packing are written of, and where to. Several threads may write, a shard each."""

    place: Place
    contents: Contents
    encoding: Encoding
    plan: Plan
    stamps: NDArray[np.int64]
    """Size and time of each sample's file, shape (samples, 2)."""

    def samples(self, shard: int) -> range:
        return range(self.plan.begins[shard], self.plan.ends[shard])

    @cached_property
    def _id_offsets(self) -> NDArray[np.int64]:
        lengths = np.fromiter(map(len, self.contents.ids), np.int64, self.contents.size) + 1
        return np.concatenate([[0], np.cumsum(lengths)])

    def write(self, shard: int, after: After, attempt: str = "") -> ShardRecord:
        """Write a shard and its rows; the rows get their final name first.

        Args:
            after: called after each sample with the bytes that were added, and with none while the shard is sent
                somewhere; may raise to stop.
            attempt: a part of the temporary names: a packer that was given up may still write to its names.

        Raises:
            SampleError, DatasetChanged, OSError: the temporary files are removed then.
        """
        place, contents, samples = self.place, self.contents, self.samples(shard)
        name, id_offset = shard_name(place.split, shard), int(self._id_offsets[samples.start])
        kind, dtype = contents.first.kind, "<i8" if contents.first.kind == "files" else None
        if contents.labels is not None and dtype is None:
            dtype = LABELS.get(contents.first.label or "", contents.labels.dtype.newbyteorder("<").str)
        rows = ShardRows(dtype)
        with place.draft(name, attempt, after) as file:
            archive = _Archive(file.fileno())
            for sample in samples:
                before, length = archive.size, len(contents.ids[sample])
                files = self.encoding.encoded(contents, sample)
                self._check_unchanged(sample)
                places = archive.add(contents.ids[sample].decode("utf-8", "surrogateescape"), files)
                if self.plan.labelled:
                    ending, text = label_file(contents, sample)
                    key = webdataset_key(contents.ids[sample]) or contents.ids[sample]
                    head = header(key.decode("utf-8", "surrogateescape") + ending, len(text))
                    archive.append(head + text + bytes(padding(len(text))))
                extent = image_size(files[0][1]) if kind in ("images", "pixels") else (0, 0)
                label = class_number(dict(files).get(LABEL)) if contents.labels is None else contents.labels[sample]
                rows.add((id_offset, length, shard, *extent), places, label)
                id_offset += length + 1
                after(archive.size - before, 1)
            archive.append(END)
            record = rows.record(Shard(name, archive.size, archive.crc32c, len(samples)))
            write(place, rows_name(place.split, shard), record.write, attempt)
        return record

    def _check_unchanged(self, sample: int) -> None:
        """Raise DatasetChanged where the file of a sample is not the one that the plan was made of."""
        planned = self.stamps[sample]
        if planned[1] and self.contents.stamp(sample) != (planned[0], planned[1]):
            name = os.fsdecode(self.contents.ids[sample])
            raise DatasetChanged(f"{name} was changed while it was packed: pack again when no program writes it")


class _Archive:
    """A tar archive that grows in an empty file, with the CRC-32C of all its bytes. Its methods raise OSError."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.size = self.crc32c = 0

    def add(self, name: str, files: Encoded) -> dict[str, FileExtent]:
        """Append the files of a sample, whose names begin so; return where each lies, by suffix."""
        places, pieces, at = {}, list[bytes](), self.size
        for suffix, data in files:
            head = header(name + suffix, len(data))
            places[suffix] = (at + len(head), len(data), _native.crc32c(data))
            pieces += (head, data, bytes(padding(len(data))))
            at += sum(map(len, pieces[-3:]))
        self.append(b"".join(pieces))
        return places

    def append(self, data: bytes) -> None:
        write_all(self._descriptor, data)
        self.size += len(data)
        self.crc32c = _native.crc32c(data, self.crc32c)


def label_file(contents: Contents, sample: int) -> tuple[str, bytes]:
    """Return the suffix and the bytes of the member that holds a label, as WebDataset's decoders read it."""
    assert contents.labels is not None
    value = contents.labels[sample]
    if contents.texts is not None:
        return ".txt", contents.texts[int(value)].encode()
    return (".cls" if contents.labels.dtype.kind in "iu" else ".json"), repr(value.item()).encode()


# --- the index ------------------------------------------------------------------------------------------------------


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
        members = np.zeros((len(record.rows), len(names)), MEMBER)
        members["suffix"] = ABSENT
        members[:, [names.index(suffix) for suffix in record.suffixes]] = record.rows["members"]
        rows.append(_with_members(record.rows, members))
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
            made = []
            for rows, which in zip(table.rows, present, strict=True):
                members = rows["members"][:, places][which][:, None]
                members["suffix"] = which.argmax(axis=1)[:, None]
                made.append(_with_members(rows, members, labelled=labelled))
            return kind, labelled, Table([[names[place] for place in places]], made)
    bare = [_with_members(rows, rows["members"], labelled=False) for rows in table.rows]
    return "files", False, Table(table.fields, bare)


def _with_members(rows: NDArray[Any], members: NDArray[Any], *, labelled: bool = True) -> NDArray[Any]:
    """Return rows with other members, and with their labels where they have any and are labelled."""
    label = rows.dtype["label"].str if labelled and "label" in (rows.dtype.names or ()) else None
    made = np.empty(len(rows), row_dtype(members.shape[1], label))
    for name in made.dtype.names or ():
        made[name] = members if name == "members" else rows[name]
    return made


def npy_head(dtype: np.dtype[Any], count: int) -> bytes:
    """Return the header of an .npy file, version 1.0, of a 1-d array."""
    file = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": (count,)})
    return file.getvalue()


def write_column(place: Place, name: str, pieces: Iterable[bytes], digest: Any) -> Column:
    """Write a file of the index from its pieces, and add it to a digest. Raises OSError."""
    crc = size = 0

    def write_pieces(file: BinaryIO) -> None:
        nonlocal crc, size
        for piece in pieces:
            file.write(piece)
            digest.update(piece)
            crc = _native.crc32c(piece, crc)
            size += len(piece)

    write(place, name, write_pieces)
    return Column(name, size, crc)


def write_index(
    place: Place, records: Sequence[ShardRecord], kind: str, table: Table, ids: Sequence[bytes], **facts: Any
) -> Split:
    """Write the index and the IDs of a split; return what dataset.json says of it. facts: what else it says."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps([table.fields, facts["texts"]]).encode())

    def rows() -> Iterable[bytes]:
        yield npy_head(table.rows[0].dtype, sum(map(len, table.rows)))
        for some in table.rows:
            yield some.tobytes()

    def texts_of_ids() -> Iterable[bytes]:
        yield npy_head(np.dtype("u1"), sum(map(len, ids)) + len(ids))
        for begin in range(0, len(ids), 1 << 16):
            yield b"\0".join(ids[begin : begin + (1 << 16)]) + b"\0"

    index = write_column(place, f"{place.split}.index.npy", rows(), digest)
    names = write_column(place, f"{place.split}.ids.npy", texts_of_ids(), digest)
    return Split(
        kind=kind,
        samples=len(ids),
        parts=tuple(Part(str(number), tuple(suffixes)) for number, suffixes in enumerate(table.fields)),
        shards=tuple(record.shard for record in records),
        index=index,
        ids=names,
        fingerprint=digest.hexdigest(),
        **facts,
    )


def write_description(place: Place, split: Split) -> None:
    """Write dataset.json with the place's split added, or exchanged. Raises CorruptShards, OSError."""
    text = as_json({**splits_of(place), place.split: split})
    write(place, FILE, lambda file: file.write(text))
