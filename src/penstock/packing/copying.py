"""One shard of files that are packed as they are: the native core appends them, Python prepares their headers."""

from __future__ import annotations

import os
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

import penstock._native as _native
from penstock.errors import DatasetChanged
from penstock.packing.contents import Contents, Leaf
from penstock.packing.encoding import image_size
from penstock.packing.finishing import ShardRecord
from penstock.packing.place import After
from penstock.packing.shard_writer import Suffixes, label_dtype, label_member
from penstock.storage.description import Shard
from penstock.storage.index import row_dtype
from penstock.storage.tar import END, header, padding

#: Files of one call of the native core: few enough for Ctrl-C to be seen soon.
_CALL = 64


def copies(contents: Contents) -> bool:
    """Return whether each sample is one file of a table."""
    return all(leaf.table is not None for leaf in contents.leaves)


class ShardCopier:
    """Writes one shard; for one thread.

    Args:
        descriptor: of an empty file, open for reading and writing.
        contents: all samples, of which `copies` holds.
        stamps: int64, shape (samples, 2): the size and time that each file must have.
        labelled: whether each sample has a member with its label.
        after: called after each sample with the bytes that were added; may raise to stop.
    """

    def __init__(
        self,
        descriptor: int,
        contents: Contents,
        stamps: NDArray[np.int64],
        *,
        labelled: bool,
        after: After,
    ) -> None:
        self._descriptor, self._contents, self._stamps = descriptor, contents, stamps
        self._labelled, self._after = labelled, after
        self._bytes = self._crc32c = 0
        self._suffixes, self._rows = Suffixes(), list[Any]()

    def write(self, file_name: str, samples: range, shard: int, *, id_offset: int) -> ShardRecord:
        """Write these samples, and return what is kept of the shard. Raises SampleError, DatasetChanged, OSError.

        file_name: the final name of the file; shard: its number; id_offset: bytes of the IDs of all samples before,
        each with its NUL.
        """
        contents = self._contents
        for number, run in groupby(samples, key=lambda sample: int(contents.leaf[sample])):
            chosen = list(run)
            for begin in range(0, len(chosen), _CALL):
                id_offset = self._copy(contents.leaves[number], chosen[begin : begin + _CALL], shard, id_offset)
        os.write(self._descriptor, END)
        self._bytes += len(END)
        written = Shard(file_name, self._bytes, _native.crc32c(END, self._crc32c), len(samples))
        dtype = row_dtype(len(self._suffixes.fields), label_dtype(contents))
        return ShardRecord(written, self._suffixes.fields, np.array(self._rows, dtype))

    def _copy(self, leaf: Leaf, samples: list[int], shard: int, id_offset: int) -> int:
        """Append the files of some samples of one leaf; return the offset of the next ID."""
        contents, files, places, at = self._contents, [], [], self._bytes
        for sample in samples:
            size, time_ns = self._stamps[sample].tolist()
            before = header(contents.ids[sample].decode("utf-8", "surrogateescape") + leaf.suffix, size)
            after = bytes(padding(size)) + (label_member(contents, sample) if self._labelled else b"")
            files.append((int(contents.local[sample]), size, time_ns, before, after))
            places.append((at + len(before), size, len(before) + size + len(after)))
            at += places[-1][2]
        assert leaf.table is not None
        done = _native.pack_files(self._descriptor, leaf.table, files, self._crc32c)
        if len(done) == 3:
            raise self._error(samples[done[0]], done[1], writing=done[2])
        each, self._crc32c = done
        self._bytes = at
        for sample, (crc, width, height), (offset, size, added) in zip(samples, each, places, strict=True):
            length = len(contents.ids[sample])
            if not width and contents.first.kind == "images":
                width, height = image_size(os.pread(self._descriptor, size, offset))
            label = () if contents.labels is None else (contents.labels[sample],)
            member = (offset, size, crc, self._suffixes.number(0, leaf.suffix))
            self._rows.append((id_offset, length, shard, width, height, *label, [member]))
            id_offset += length + 1
            self._after(added)
        return id_offset

    def _error(self, sample: int, code: int, *, writing: bool) -> Exception:
        """Return the error of a file that could not be packed."""
        if writing:
            return OSError(code, os.strerror(code))
        try:
            self._contents.read(sample)
        except Exception as error:
            return error
        name = os.fsdecode(self._contents.ids[sample])
        return DatasetChanged(f"{name} was changed while it was packed: run the same again when nobody writes it")
