"""One shard: a tar archive of some samples, and their rows of the index."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

import penstock._native as _native
from penstock.packing.contents import Contents, Encoded
from penstock.packing.encoding import image_size
from penstock.packing.file_rows import LABEL, FileRows
from penstock.packing.finishing import ShardRecord
from penstock.packing.place import After
from penstock.packing.plan import webdataset_key
from penstock.storage.description import Shard
from penstock.storage.index import LABELS, row_dtype
from penstock.storage.tar import BLOCK, END, header, padding

_WRITE = 1 << 20  # bytes of one writev, about
_PIECES = 900  # of one writev; Linux takes 1,024
_ZEROS = bytes(BLOCK)
_SHAPE = re.compile(rb"'shape': \((\d+), (\d+)")


@dataclass
class Suffixes:
    """The suffixes of each field of a shard's samples, in the order in which they were met."""

    fields: list[list[str]] = field(default_factory=list)

    def number(self, place: int, suffix: str) -> int:
        """Return the number of a suffix of the field at a place."""
        while len(self.fields) <= place:
            self.fields.append([])
        known = self.fields[place]
        if suffix not in known:
            known.append(suffix)
        return known.index(suffix)


class ShardWriter:
    """Appends members to a file, and counts its CRC-32C. One thread at a time.

    Args:
        descriptor: of an empty file, open for writing.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pieces: list[bytes] = []
        self._held = 0
        self.bytes = 0
        self.crc32c = 0

    def add(self, name: str, data: bytes) -> tuple[int, int]:
        """Append a member; return the offset of its first byte and its CRC-32C. Raises OSError."""
        head = header(name, len(data))
        offset = self.bytes + len(head)
        pad = padding(len(data))
        crc = _native.crc32c(data)
        self._put(head)
        self._put(data)
        if pad:
            self._put(_ZEROS[:pad])
        if self._held >= _WRITE or len(self._pieces) > _PIECES:
            self._flush()
        return offset, crc

    def append(self, members: bytes) -> None:
        """Append members that are whole, headers and padding included."""
        self._put(members)

    def finish(self) -> None:
        """Write what ends an archive. Raises OSError."""
        self._put(END)
        self._flush()

    def _put(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._held += len(piece)
        self.bytes += len(piece)
        self.crc32c = _native.crc32c(piece, self.crc32c)

    def _flush(self) -> None:
        written = os.writev(self._descriptor, self._pieces)
        if written < self._held:
            rest = memoryview(b"".join(self._pieces))[written:]
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        self._pieces.clear()
        self._held = 0


def write_shard(
    descriptor: int,
    file_name: str,
    contents: Contents,
    encode: Callable[[int], Encoded],
    samples: range,
    shard: int,
    *,
    id_offset: int,
    labelled: bool,
    after: After,
) -> ShardRecord:
    """Write the samples of one shard, and return what is kept of it.

    Args:
        descriptor: of an empty file, open for writing.
        file_name: the final name of that file.
        contents: all samples.
        encode: returns the files of a sample.
        samples: which of them.
        shard: its number.
        id_offset: bytes of the IDs of all samples before, each with its NUL.
        labelled: whether each sample has a member with its label.
        after: called after each sample with the bytes that were added; may raise to stop.
    """
    writer, suffixes, rows, any_files = ShardWriter(descriptor), Suffixes(), [], FileRows()
    images, free = contents.first.kind in ("images", "pixels"), contents.first.kind == "files"
    for sample in samples:
        before, name = writer.bytes, contents.ids[sample]
        files = encode(sample)
        text = name.decode("utf-8", "surrogateescape")
        places = [(*writer.add(text + suffix, data), len(data)) for suffix, data in files]
        if labelled:
            writer.append(label_member(contents, sample))
        width, height = size_of_image(files[0][1]) if images else (0, 0)
        head = (id_offset, len(name), shard, width, height)
        if free:
            placed = {suffix: (at, size, crc) for (suffix, _), (at, crc, size) in zip(files, places, strict=True)}
            any_files.add(head, placed, dict(files).get(LABEL))
        else:
            members = [
                (at, size, crc, suffixes.number(place, suffix))
                for place, ((suffix, _), (at, crc, size)) in enumerate(zip(files, places, strict=True))
            ]
            label = () if contents.labels is None else (contents.labels[sample],)
            rows.append((*head, *label, members))
        id_offset += len(name) + 1
        after(writer.bytes - before)
    writer.finish()
    written = Shard(file_name, writer.bytes, writer.crc32c, len(samples))
    if free:
        return ShardRecord(written, [[suffix] for suffix in any_files.suffixes], any_files.array(), any_files.labelled)
    return ShardRecord(written, suffixes.fields, np.array(rows, row_dtype(len(suffixes.fields), label_dtype(contents))))


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


def size_of_image(data: bytes) -> tuple[int, int]:
    """Return the (width, height) of an image that is encoded or an .npy file; (0, 0) where it is not known."""
    if not data.startswith(b"\x93NUMPY"):
        return image_size(data)
    found = _SHAPE.search(data[:256])
    return (int(found[2]), int(found[1])) if found is not None else (0, 0)
