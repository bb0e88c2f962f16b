"""The files of a table: which there are, what their footers say, and their rows as record batches.

Parquet files, and Arrow IPC files of both formats (file and stream), in local folders and in object stores. pyarrow
reads the formats. A file is known by its size and version (modification time and inode, or the store's ETag): one that
has changed since is an error, not other rows.
"""

from __future__ import annotations

import asyncio
import errno
import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute, dataset as ds, ipc, parquet as pq

from penstock.errors import CorruptSample, PenstockError
from penstock.showing import said
from penstock.storage.objects import ObjectStore, run_alone
from penstock.system.words import counted

#: Bytes of an object that are fetched for its footer.
TAIL = 1 << 16
#: Bytes of the record batches that a row group is decoded in, about.
_BATCH_BYTES = 2 << 20
#: Bytes of a column chunk that are in memory as they are decoded.
_BUFFER = 1 << 18


class MappedRows(NamedTuple):
    """The rows of an Arrow file in memory that is mapped from it, which lasts as long as they do."""

    table: pa.Table
    address: int
    """Of the file's first byte."""
    size: int
    """Of the file, in bytes."""


def mapped(path: str, read: Callable[[Any], Any] = ipc.open_stream) -> MappedRows:
    """Return the rows of an Arrow file. read: returns what reads them."""
    with pa.memory_map(path) as source:
        whole = source.read_buffer()
        source.seek(0)
        return MappedRows(read(source).read_all(), whole.address, whole.size)


class Part(NamedTuple):
    """A row group of Parquet, or record batches of an IPC file that are one behind another."""

    file: int
    number: int
    """Of the row group, or of the first record batch, in the file."""
    samples: int
    """Rows."""
    bytes: int
    """Of the columns that are read, once decoded, about; 0: the file itself is mapped."""
    first: int = 0
    """The first row's number in the file."""
    batches: int = 0
    """Record batches of an IPC file."""


@dataclass(frozen=True, eq=False)
class TableFile:
    """A file of a table, as it was when the table was made."""

    place: str
    """Path or URL, without secrets."""
    size: int
    version: str
    store: ObjectStore | None = None
    key: str = ""
    """The name of the object in the store."""
    kind: str = ""
    """parquet, file or stream (of Arrow IPC)."""
    mapped: bool = False
    """It lies on this machine as it lies in memory, and is mapped."""
    footer: Any = field(default=None, repr=False)
    """pyarrow.parquet.FileMetaData."""

    def changed(self) -> str | None:
        """Return how a local file is not what it was, or None."""
        if self.store is not None:  # the store's ETag is compared as it is read
            return None
        try:
            now = os.stat(self.place)
        except OSError as error:
            return os.strerror(error.errno or errno.EIO)
        if now.st_size != self.size:
            return f"it has {counted(now.st_size, 'byte')} now, and had {self.size:,}"
        return None if version_of(now) == self.version else "it was written again"

    def corrupt(self, why: object, where: str = "") -> CorruptSample:
        """Return the error of bytes that are not what the format says."""
        told = " ".join(said(why).split()) if isinstance(why, BaseException) else str(why)
        names = {"parquet": "Parquet", "": "Parquet or Arrow IPC"}
        return CorruptSample(
            f"{self.place}{where} is not readable as {names.get(self.kind, 'Arrow IPC')}: {told} (the file has "
            f"{counted(self.size, 'byte')}). Write or copy it again, or leave it out",
            sample_id=self.place,
            path=self.place,
        )

    @contextmanager
    def errors_named(self, where: str = "") -> Iterator[None]:
        """Raise CorruptSample where pyarrow raises what the bytes of the file are the cause of."""
        try:
            yield
        except (PenstockError, MemoryError):
            raise
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
                raise
            raise self.corrupt(error, where) from error

    def source(self) -> Any:
        """Return what pyarrow reads the file from."""
        return pa.PythonFile(RemoteFile(self)) if self.store is not None else pa.OSFile(self.place)

    def schema(self) -> pa.Schema:
        if self.kind == "parquet":
            return self.footer.schema.to_arrow_schema()
        with self.source() as source:
            return self._reader(source).schema

    def _reader(self, source: Any) -> Any:
        return ipc.open_file(source) if self.kind == "file" else ipc.open_stream(source)

    def rows(self) -> MappedRows:
        """Return the rows of a file that is mapped."""
        return mapped(self.place, self._reader)

    # --- parts ------------------------------------------------------------------------------------------------------

    def parts(self, number: int, columns: Sequence[str]) -> list[Part]:
        """Return the parts of the file, which is the table's file of this number. Raises CorruptSample."""
        if self.kind != "parquet":
            with self.errors_named():
                return self._ipc_parts(number)
        found, first, widths, leaves = [], 0, _widths(self.schema(), columns), self._leaves(columns)
        for group in range(self.footer.num_row_groups):
            described = self.footer.row_group(group)
            rows = described.num_rows
            if rows < 0:
                raise self.corrupt(f"row group {group} has {rows} rows")
            if rows == 0:
                continue
            size = rows * sum(width for width in widths.values() if width)
            for name, begin, end, plain in self._chunks(group, leaves):
                if not 0 < begin <= end <= self.size:
                    raise self.corrupt(f"row group {group} places column {name!r} at bytes {begin:,} to {end:,}")
                size += 0 if widths[name] else plain + 4 * rows
            found.append(Part(number, group, rows, max(1, size), first))
            first += rows
        if first != self.footer.num_rows:
            raise self.corrupt(f"its row groups have {first:,} rows, and its footer says {self.footer.num_rows:,}")
        return found

    def _leaves(self, columns: Sequence[str]) -> list[tuple[int, str]]:
        """Return the numbers of the column chunks that columns have in each row group, with the columns."""
        schema, found = self.footer.schema, []
        for number in range(len(schema)):
            path = schema.column(number).path
            name = next((one for one in columns if path == one or path.startswith(f"{one}.")), None)
            found += [] if name is None else [(number, name)]
        return found

    def _chunks(self, group: int, leaves: list[tuple[int, str]]) -> Iterator[tuple[str, int, int, int]]:
        """Yield, of each column chunk, the column that it is of, where it begins and ends, and its bytes once plain."""
        described = self.footer.row_group(group)
        for number, name in leaves:
            chunk = described.column(number)
            begin = chunk.data_page_offset
            if chunk.has_dictionary_page and chunk.dictionary_page_offset:
                begin = min(begin, chunk.dictionary_page_offset)
            yield name, begin, begin + chunk.total_compressed_size, chunk.total_uncompressed_size

    def _ipc_parts(self, number: int) -> list[Part]:
        """Return the one part of an IPC file, or of a compressed local one about as many as it has blocks of rows."""
        with self.source() if not self.mapped else pa.memory_map(self.place) as source:
            reader = self._reader(source)
            if self.kind == "stream":
                return [Part(number, 0, sum(batch.num_rows for batch in reader), 0 if self.mapped else self.size * 4)]
            if not self.mapped:  # the column of the fewest bytes is read, for the numbers of rows
                widths = [_width(one.type) or 1 << 20 for one in reader.schema]
                options = ipc.IpcReadOptions(included_fields=[widths.index(min(widths, default=0))])
                reader = ipc.open_file(source, options=options)
            rows = [reader.get_batch(one).num_rows for one in range(reader.num_record_batches)]
        if self.mapped or self.store is not None:
            return [Part(number, 0, sum(rows), 0 if self.mapped else self.size * 4, 0, len(rows))]
        found, begin = [], 0
        for end in range(1, len(rows) + 1):
            if sum(rows[begin:end]) >= 1 << 18 or end == len(rows):
                size = max(1, self.size * 4 * (end - begin) // len(rows))
                found.append(Part(number, begin, sum(rows[begin:end]), size, sum(rows[:begin]), end - begin))
                begin = end
        return found

    # --- rows -------------------------------------------------------------------------------------------------------

    def batches(self, part: Part, columns: Sequence[str], source: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part, decoded without Python's lock. Page checksums are compared where there are any.

        source: what is read, open.
        """
        if self.kind == "parquet":
            wide = max(1, part.bytes // max(1, part.samples))
            file = _parquet_file(source, self.footer)
            rows = min(1 << 18, max(1024, _BATCH_BYTES // wide))
            yield from file.iter_batches(rows, row_groups=[part.number], columns=list(columns), use_threads=False)
            return
        reader = self._reader(source)
        if self.kind == "stream":
            yield from reader
            return
        for number in range(part.number, part.number + part.batches):
            yield reader.get_batch(number)

    async def fetched(self, part: Part, columns: Sequence[str], requests: Any) -> Any:
        """Return what a part is read from, open; of an object its bytes, fetched. Raises StorageError."""
        if self.store is None:
            return self.source()
        ranges = [(0, self.size)]
        if self.kind == "parquet":
            ranges = _joined([(begin, end) for _, begin, end, _ in self._chunks(part.number, self._leaves(columns))])
        held = RemoteFile(self)

        async def fetch(begin: int, end: int) -> None:
            assert self.store is not None
            async with requests:
                held.parts[begin] = await self.store.read_part(self.key, begin, end, self.size, self.version)

        pieces = [(at, min(at + (8 << 20), end)) for begin, end in ranges for at in range(begin, end, 8 << 20)]
        await asyncio.gather(*(fetch(*piece) for piece in pieces))
        return pa.PythonFile(held)

    def where(self, part: Part, condition: compute.Expression) -> NDArray[np.int32]:
        """Return which rows of a part meet a condition, an array of their numbers in it; only its columns are read."""
        with self.source() if not self.mapped else pa.memory_map(self.place) as source:
            if self.kind == "parquet":
                options = ds.ParquetFragmentScanOptions(
                    use_buffered_stream=True, buffer_size=_BUFFER, pre_buffer=False, page_checksum_verification=True
                )
                fragment = ds.ParquetFileFormat(default_fragment_scan_options=options).make_fragment(source)
                left = fragment.subset(row_group_ids=[part.number]).split_by_row_group(filter=condition)
                if not left:  # the statistics say so
                    return np.empty(0, np.int32)
                scanned = left[0].scanner(columns={"keep": condition}, use_threads=False)
            else:
                batches = list(self.batches(part, (), source))
                scanned = ds.dataset(batches or [self._reader(source).schema.empty_table()]).scanner(
                    columns={"keep": condition}, use_threads=False
                )
            kept = scanned.to_table().column("keep").fill_null(False).to_numpy()
        return np.flatnonzero(kept).astype(np.int32)


class RemoteFile(io.RawIOBase):
    """An object of a store as a file, of which parts may be here already; others are read by separate requests."""

    def __init__(self, file: TableFile) -> None:
        self._file, self._at = file, 0
        self.parts: dict[int, bytes] = {}

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._file.size)[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        begin = self._at
        end = self._file.size if size < 0 else min(begin + size, self._file.size)
        self._at = max(begin, end)
        out, at = bytearray(), begin
        while at < end:
            first = max((one for one in self.parts if one <= at < one + len(self.parts[one])), default=None)
            if first is None:
                assert self._file.store is not None
                read = self._file.store.read_part(self._file.key, at, end, self._file.size, self._file.version)
                self.parts[at], first = run_alone(read), at
            piece = self.parts[first][at - first : end - first]
            out += piece
            at += len(piece)
        return bytes(out)


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges of bytes in order, those with a small gap between them as one."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if found and begin - found[-1][1] <= TAIL:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def _parquet_file(source: Any, footer: Any) -> Any:
    return pq.ParquetFile(
        source, metadata=footer, buffer_size=_BUFFER, pre_buffer=False, page_checksum_verification=True
    )


def _widths(schema: pa.Schema, columns: Sequence[str]) -> dict[str, int]:
    """Return the bytes of an element of each column; 0 where they differ from row to row."""
    return {name: _width(schema.field(name).type) for name in columns}


def _width(kind: pa.DataType) -> int:
    """Return the bytes of an element of a type, rounded up; 0 where they differ from row to row."""
    number = 1
    while hasattr(kind, "list_size"):
        kind, number = kind.value_type, number * kind.list_size
    try:
        return int(max(1, kind.bit_width * number // 8))
    except ValueError:
        return 0


def version_of(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns}-{status.st_ino}"
