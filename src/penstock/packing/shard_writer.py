"""One shard of a packing: a tar archive of some samples, and their rows of the index; everywhere the same bytes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

import penstock._native as _native
from penstock.errors import DatasetChanged
from penstock.packing.contents import Contents, Encoded
from penstock.packing.encoding import Encoding, image_size
from penstock.packing.index_writer import LABEL, FileExtent, ShardRecord, ShardRows, class_number
from penstock.packing.places import After, Place
from penstock.packing.plan import Plan, rows_name, shard_name, webdataset_key
from penstock.storage.description import Shard
from penstock.storage.durable import write_all
from penstock.storage.index import LABELS
from penstock.storage.tar import END, header, padding


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
        """Return the samples of a shard."""
        return range(self.plan.begins[shard], self.plan.ends[shard])

    @cached_property
    def _id_offsets(self) -> NDArray[np.int64]:
        lengths = np.fromiter(map(len, self.contents.ids), np.int64, self.contents.size) + 1
        return np.concatenate([[0], np.cumsum(lengths)])

    def write(self, shard: int, after: After, attempt: str = "") -> ShardRecord:
        """Write a shard and its rows; the rows get their final name first.

        Args:
            shard: its number.
            after: called after each sample with the bytes that were added, and with none while the shard is sent
                somewhere; may raise to stop.
            attempt: a part of the temporary names: who was given up may still write to the names of its own.

        Raises:
            SampleError, DatasetChanged, OSError: the temporary files are removed then.
        """
        place, contents, samples = self.place, self.contents, self.samples(shard)
        name, id_offset = shard_name(place.split, shard), int(self._id_offsets[samples.start])
        kind = contents.first.kind
        rows = ShardRows("<i8" if kind == "files" else label_dtype(contents))
        with place.draft(name, attempt, after) as descriptor:
            archive = _Archive(descriptor)
            for sample in samples:
                before, length = archive.size, len(contents.ids[sample])
                files = self.encoding.encoded(contents, sample)
                self._check_unchanged(sample)
                places = archive.add(contents.ids[sample].decode("utf-8", "surrogateescape"), files)
                if self.plan.labelled:
                    archive.append(label_member(contents, sample))
                extent = image_size(files[0][1]) if kind in ("images", "pixels") else (0, 0)
                label = class_number(dict(files).get(LABEL)) if contents.labels is None else contents.labels[sample]
                rows.add((id_offset, length, shard, *extent), places, label)
                id_offset += length + 1
                after(archive.size - before, 1)
            archive.append(END)
            record = rows.record(Shard(name, archive.size, archive.crc32c, len(samples)))
            place.write(rows_name(place.split, shard), record.write, attempt)
        return record

    def _check_unchanged(self, sample: int) -> None:
        """Raise DatasetChanged where the file of a sample is not the one that the plan was made of."""
        planned = self.stamps[sample]
        if planned[1] and self.contents.stamp(sample) != (planned[0], planned[1]):
            name = os.fsdecode(self.contents.ids[sample])
            raise DatasetChanged(f"{name} was changed while it was packed: run the same again when nobody writes it")


class _Archive:
    """A tar archive that grows, with the CRC-32C of all its bytes. Its methods raise OSError.

    Args:
        descriptor: of an empty file, open for writing.
    """

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
        """Append bytes."""
        write_all(self._descriptor, data)
        self.size += len(data)
        self.crc32c = _native.crc32c(data, self.crc32c)


def label_dtype(contents: Contents) -> str | None:
    """Return the dtype of the labels in the index."""
    if contents.labels is None:
        return None
    return LABELS.get(contents.first.label or "", contents.labels.dtype.newbyteorder("<").str)


def label_file(contents: Contents, sample: int) -> tuple[str, bytes]:
    """Return the suffix and the bytes of the member that holds a label, as WebDataset's decoders read it."""
    assert contents.labels is not None
    value = contents.labels[sample]
    if contents.texts is not None:
        return ".txt", contents.texts[int(value)].encode()
    return (".cls" if contents.labels.dtype.kind in "iu" else ".json"), repr(value.item()).encode()


def label_member(contents: Contents, sample: int) -> bytes:
    """Return the member that holds a label: header, data and padding."""
    name = contents.ids[sample]
    ending, data = label_file(contents, sample)
    key = (webdataset_key(name) or name).decode("utf-8", "surrogateescape")
    return header(key + ending, len(data)) + data + bytes(padding(len(data)))
