"""One shard of a packing: a tar archive of some samples, and their rows of the index; everywhere the same bytes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

import penstock._native as _native
from penstock.errors import DatasetChanged
from penstock.packing.contents import Contents, Leaf
from penstock.packing.encoding import Encoding, image_size
from penstock.packing.index_writer import LABEL, FileExtent, ShardRecord, ShardRows, class_number
from penstock.packing.places import After, Place
from penstock.packing.plan import Plan, rows_name, shard_name, webdataset_key
from penstock.storage.description import Shard
from penstock.storage.index import LABELS
from penstock.storage.tar import END, header, padding

_WRITE = 1 << 20  # bytes of one writev, about
_PIECES = 900  # of one writev; Linux takes 1,024
_CALL = 64  # files of one call of the native core: few enough for Ctrl-C to be seen soon


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
        with place.draft(name, attempt, after) as descriptor:
            writer = ShardWriter(descriptor, contents, shard, id_offset, labelled=self.plan.labelled, after=after)
            if copies(contents) and not self.encoding.changes:
                for number, run in groupby(samples, key=lambda sample: int(contents.leaf[sample])):
                    chosen = list(run)
                    for begin in range(0, len(chosen), _CALL):
                        writer.copy(contents.leaves[number], chosen[begin : begin + _CALL], self.stamps)
            else:
                for sample in samples:
                    writer.add(sample, self.encoding.encoded(contents, sample))
            record = writer.finish(name, len(samples))
            place.write(rows_name(place.split, shard), record.write, attempt)
        return record


def copies(contents: Contents) -> bool:
    """Return whether each sample is one file of a table, which the native core copies."""
    return all(leaf.table is not None for leaf in contents.leaves)


class ShardWriter:
    """Appends samples to a file, and counts its CRC-32C. One thread at a time; all methods raise OSError.

    Args:
        descriptor: of an empty file, open for reading and writing.
        contents: all samples.
        shard: the number of the shard.
        id_offset: bytes of the IDs of all samples before, each with its NUL.
        labelled: whether each sample has a member with its label.
        after: called after each sample with the bytes that were added; may raise to stop.
    """

    def __init__(
        self, descriptor: int, contents: Contents, shard: int, id_offset: int, *, labelled: bool, after: After
    ) -> None:
        self._descriptor, self._contents, self._shard, self._id_offset = descriptor, contents, shard, id_offset
        self._labelled, self._after = labelled, after
        self._pieces: list[bytes] = []
        self._held = self._bytes = self._crc32c = 0
        self._rows = ShardRows("<i8" if contents.first.kind == "files" else label_dtype(contents))

    def add(self, sample: int, files: tuple[tuple[str, bytes], ...]) -> None:
        """Append the files of a sample."""
        before, text = self._bytes, self._contents.ids[sample].decode("utf-8", "surrogateescape")
        places = {}
        for suffix, data in files:
            head = header(text + suffix, len(data))
            places[suffix] = (self._bytes + len(head), len(data), _native.crc32c(data))
            self._put(head, data, bytes(padding(len(data))))
            if self._held >= _WRITE or len(self._pieces) > _PIECES:
                self._flush()
        if self._labelled:
            self._put(label_member(self._contents, sample))
        images = self._contents.first.kind in ("images", "pixels")
        self._add_row(sample, places, image_size(files[0][1]) if images else (0, 0), dict(files).get(LABEL))
        self._after(self._bytes - before, 1)

    def copy(self, leaf: Leaf, samples: list[int], stamps: NDArray[np.int64]) -> None:
        """Append the files of some samples of one leaf as they are. Raises SampleError, DatasetChanged.

        stamps: int64, shape (samples of all, 2): the size and time that each file must have.
        """
        assert leaf.table is not None
        contents, files, placed, at = self._contents, [], [], self._bytes
        for sample in samples:
            size, time_ns = stamps[sample].tolist()
            before = header(contents.ids[sample].decode("utf-8", "surrogateescape") + leaf.suffix, size)
            after = bytes(padding(size)) + (label_member(contents, sample) if self._labelled else b"")
            files.append((int(contents.local[sample]), size, time_ns, before, after))
            placed.append((at + len(before), size, len(before) + size + len(after)))
            at += placed[-1][2]
        done = _native.pack_files(self._descriptor, leaf.table, files, self._crc32c)
        if len(done) == 3:
            raise self._error(samples[done[0]], done[1], writing=done[2])
        each, self._crc32c = done
        self._bytes = at
        for sample, (crc, width, height), (offset, size, added) in zip(samples, each, placed, strict=True):
            if not width and contents.first.kind == "images":
                width, height = image_size(os.pread(self._descriptor, size, offset))
            self._add_row(sample, {leaf.suffix: (offset, size, crc)}, (width, height))
            self._after(added, 1)

    def finish(self, file_name: str, samples: int) -> ShardRecord:
        """Write what ends an archive; return what is kept of the shard. file_name: the final name of the file."""
        self._put(END)
        self._flush()
        written = Shard(file_name, self._bytes, self._crc32c, samples)
        return self._rows.record(written)

    def _add_row(
        self, sample: int, files: dict[str, FileExtent], extent: tuple[int, int], label: bytes | None = None
    ) -> None:
        """Add the row of a sample: where its files lie, by suffix; width and height; the bytes of its file LABEL."""
        contents, length = self._contents, len(self._contents.ids[sample])
        known = class_number(label) if contents.labels is None else contents.labels[sample]
        self._rows.add((self._id_offset, length, self._shard, *extent), files, known)
        self._id_offset += length + 1

    def _put(self, *pieces: bytes) -> None:
        for piece in pieces:
            if piece:
                self._pieces.append(piece)
                self._held += len(piece)
                self._bytes += len(piece)
                self._crc32c = _native.crc32c(piece, self._crc32c)

    def _flush(self) -> None:
        written = os.writev(self._descriptor, self._pieces)
        if written < self._held:
            rest = memoryview(b"".join(self._pieces))[written:]
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        self._pieces.clear()
        self._held = 0

    def _error(self, sample: int, code: int, *, writing: bool) -> Exception:
        """Return the error of a file that could not be copied."""
        if writing:
            return OSError(code, os.strerror(code))
        try:
            self._contents.read(sample)
        except Exception as error:
            return error
        name = os.fsdecode(self._contents.ids[sample])
        return DatasetChanged(f"{name} was changed while it was packed: run the same again when nobody writes it")


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
