"""The index of packed shards: where each sample's bytes lie, its label and its ID.

One row a sample in NAME.index.npy, and the IDs in NAME.ids.npy, each followed by a NUL. Rows are read when they are
asked for, by the native core, and are not mapped into memory: an epoch over any number of samples takes none, and a
file that is cut off meanwhile is an error, not a signal.
"""

from __future__ import annotations

import errno
import os
import stat
import weakref
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

import penstock._native as _native
from penstock.errors import CorruptShards
from penstock.storage.description import Column, Split

#: Where the bytes of one field of a sample lie.
MEMBER = np.dtype([("offset", "<u8"), ("length", "<u8"), ("crc32c", "<u4"), ("suffix", "<u4")])

#: The suffix of a field that a sample does not have.
ABSENT = 0xFFFFFFFF

_CHUNK = 4 << 20

#: The dtypes of label columns, besides those of tensors: of the numbers, and of the places in a list of texts.
LABELS = {"int": "<i8", "float": "<f8", "text": "<i8"}


def row_dtype(fields: int, label: str | None) -> np.dtype[Any]:
    """Return the dtype of an index's rows, all little-endian and without padding.

    label: dtype of the labels, None without them.
    """
    labels = [] if label is None else [("label", label)]
    head = [("id_offset", "<u8"), ("id_length", "<u4"), ("shard", "<u4"), ("width", "<u4"), ("height", "<u4")]
    return np.dtype([*head, *labels, ("members", MEMBER, (fields,))])


class Index:
    """The index of one split, open for reading. Any number of threads may call it, also in a forked process.

    Args:
        split: what dataset.json says of it.
        verify: the checksums of its files are compared: 75 ms a GB that is in memory.

    Attributes:
        states: the decoder states of photos that were packed with them, or None.

    Raises:
        CorruptShards: the files of the index are not those that dataset.json speaks of.
    """

    def __init__(self, folder: str, split: Split, *, verify: bool = True) -> None:
        self.path = os.path.join(folder, split.index.name)
        self._ids_path = os.path.join(folder, split.ids.name)
        self._split = split
        with opened(self.path, split.index, verify=verify) as file:
            self.dtype, start = self._header(file)
            self.native = _native.RowFile(file.fileno(), start, self.dtype.itemsize, split.samples)
        with opened(self._ids_path, split.ids, verify=verify) as file:
            self._ids_bytes, self._ids_start, _ = npy_header(file, self._ids_path)
            self._ids = os.dup(file.fileno())
        self.states = _states(folder, split)
        # A file object warns where the garbage collector finds it open, as it does in a cycle of references.
        weakref.finalize(self, os.close, self._ids).atexit = False  # threads may be reading still

    def _header(self, file: BinaryIO) -> tuple[np.dtype[Any], int]:
        """Return the dtype of the rows, and where the first begins."""
        split, path = self._split, self.path
        count, start, dtype = npy_header(file, path)
        label = dtype["label"].str if dtype.names is not None and "label" in dtype.names else None
        fixed = LABELS.get(split.label or "")
        if (
            dtype != row_dtype(len(split.parts), label)
            or (split.label is None) != (label is None)
            or (fixed is not None and label != fixed)
        ):
            raise CorruptShards(f"{path} holds rows {dtype}, which differ from dataset.json. Pack the dataset again")
        if count != split.samples or start + count * dtype.itemsize != split.index.bytes:
            raise CorruptShards(
                f"{path} holds {count:,} rows, and dataset.json speaks of {split.samples:,} samples: it is the index "
                "of another dataset. Pack the dataset again"
            )
        return dtype, start

    def __len__(self) -> int:
        return self._split.samples

    def rows(self, positions: Any) -> NDArray[Any]:
        """Return the rows of these samples. Raises IndexError, CorruptShards."""
        asked = np.ascontiguousarray(positions, dtype=np.int64)
        out = np.empty((len(asked), self.dtype.itemsize), np.uint8)
        try:
            self.native.read(asked, out)
        except OSError as error:
            raise CorruptShards(f"{self.path} cannot be read any more: {error.strerror}") from error
        return out.view(self.dtype).reshape(len(asked))

    def id(self, row: Any) -> bytes:
        offset, length = int(row["id_offset"]), int(row["id_length"])
        inside = offset + length < self._ids_bytes
        text = os.pread(self._ids, length + 1, self._ids_start + offset) if inside else b""
        if len(text) != length + 1 or text[-1] or b"\0" in text[:-1]:
            raise CorruptShards(
                f"{self._ids_path} does not hold the IDs that {self.path} names. Pack the dataset again"
            )
        return text[:-1]

    def table(self, shards: Sequence[tuple[str, int]], *, verify: bool, **most: int) -> _native.ShardTable:
        """Return a table of the samples' first fields.

        Args:
            shards: the path and the bytes of each shard.
            verify: checksums are compared as samples are read.
            most: max_open, the most shards that are kept open; as many as may be where it is not given.
        """
        assert self.dtype.fields is not None
        columns = [self.dtype.fields[name][1] for name in ("shard", "id_length", "members")]
        files = [(os.fsencode(path), size) for path, size in shards]
        return _native.ShardTable(self.native, files, columns, verify, **most)

    def ids(self) -> bytes:
        """Return the IDs of all samples, each followed by a NUL."""
        parts, at, end = [], self._ids_start, self._ids_start + self._ids_bytes
        while at < end and (part := os.pread(self._ids, min(end - at, 1 << 30), at)):
            parts.append(part)
            at += len(part)
        return b"".join(parts)

    def column(self, name: str) -> NDArray[Any]:
        step, size = 1 << 16, len(self)
        parts = [self.rows(np.arange(at, min(at + step, size)))[name] for at in range(0, size, step)]
        return np.concatenate(parts) if parts else np.empty(0, self.dtype[name])


def _states(folder: str, split: Split) -> _native.JpegIndex | None:
    """Return the decoder states of the photos, None where there are none: a file that is damaged is as good as none.

    Each state carries a checksum.
    """
    if split.states is None:
        return None
    try:
        with opened(os.path.join(folder, split.states.name), split.states, verify=False) as file:
            slot = int.from_bytes(os.pread(file.fileno(), 4, 16), "little")
            return _native.JpegIndex(file.fileno(), split.samples, slot, False)
    except (CorruptShards, ValueError, OSError):
        return None


def npy_header(file: BinaryIO, path: str) -> tuple[int, int, np.dtype[Any]]:
    """Return the number of rows of a 1-d .npy file, where the first begins, and its dtype. Raises CorruptShards."""
    try:
        file.seek(0)
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError("it is of another version of the format")
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        if len(shape) != 1:
            raise ValueError(f"its shape is {shape}")
    except Exception as error:  # NumPy and the tokenizer raise many kinds
        raise CorruptShards(f"{path} is not an index of packed shards: {error}. Pack the dataset again") from error
    return shape[0], file.tell(), dtype


def column_of(path: str) -> Column:
    """Return what dataset.json says of a file of the index. Raises OSError."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        return Column(os.path.basename(path), size, crc32c_of(file, 0, size))


def opened(path: str, column: Column, *, verify: bool) -> BinaryIO:
    """Return a file of the index, open; verify: all of it is compared with its checksum. Raises CorruptShards."""
    file = open_regular(path)
    size = os.fstat(file.fileno()).st_size
    if size != column.bytes or (verify and crc32c_of(file, 0, size) != column.crc32c):
        file.close()
        raise CorruptShards(
            f"{path} is not the file that dataset.json names: it is cut off, damaged, or of another dataset. "
            "Copy the whole folder again, or pack the dataset again"
        )
    return file


def open_regular(path: str) -> BinaryIO:
    """Open a file for reading that is neither a symbolic link nor a device. Raises CorruptShards, OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise CorruptShards(f"{path} is missing, and dataset.json names it. Copy the whole folder again") from error
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise CorruptShards(
            f"{path} is a symbolic link, and packed shards are not read through links: replace the link by the file"
        ) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CorruptShards(f"{path} is not a regular file: put the file of that name back in its place")
    return os.fdopen(descriptor, "rb", buffering=0)


def crc32c_of(file: BinaryIO, offset: int, size: int, crc: int = 0) -> int:
    """Return the CRC-32C of a part of a file; crc: of what comes before it. Raises OSError, CorruptShards."""
    end = offset + size
    while offset < end:
        data = os.pread(file.fileno(), min(_CHUNK, end - offset), offset)
        if not data:
            raise CorruptShards(f"{file.name} was cut off while it was read")
        crc, offset = _native.crc32c(data, crc), offset + len(data)
    return crc
