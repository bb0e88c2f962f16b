"""The row groups of a table, decoded once: Arrow IPC streams in a cache folder, which are memory-mapped.

A row group is decoded batch by batch, so that only a few MiB of it are in memory of the process; pages of the decoded
file are the kernel's page cache. Processes of this user share the files, which last until the machine starts anew or
the folder's limit is reached: the least recently used one that nobody holds goes first.

It is also what `storage.stage.ShardStage` brings ahead of need: one of its "shards" is a row group.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import tempfile
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import ipc, types

import penstock._native as _native
from penstock.errors import CorruptSample, OutOfSpace
from penstock.order.permutations import Indices
from penstock.storage.cache_folder import CachedShard, CacheFolder, HeldFile
from penstock.storage.durable import FULL
from penstock.storage.index import row_dtype
from penstock.storage.objects import run_alone
from penstock.storage.remote_shards import LOOK_AGAIN, REQUESTS, Range
from penstock.system.limits import usable_cpus
from penstock.system.locks import ProcessLock
from penstock.system.words import size_of
from penstock.tables.files import MappedRows, Part, TableFile, mapped
from penstock.tables.values import filled

#: Row groups that are decoded at once, at the most.
AT_ONCE = 4
#: Seconds after which it is looked again whether files have changed.
_LOOK_AGAIN = 1.0


class RowGroups:
    """The row groups of some files. Any number of threads and processes may call it.

    Args:
        schema: of the columns that are read, as they are decoded: dictionaries are values.
        fill: values for nulls, by column.
    """

    def __init__(
        self,
        files: Sequence[TableFile],
        parts: Iterable[Part],
        schema: pa.Schema,
        fill: Mapping[str, Any],
        cache: CacheFolder,
    ) -> None:
        self.files, self.shards, self.schema, self.fill = tuple(files), tuple(parts), schema, dict(fill)
        self.cache = cache
        self._begin()

    def _begin(self) -> None:
        self._opened: OrderedDict[int, MappedRows] = OrderedDict()
        self._whole: pa.Table | None = None
        self._failed: dict[int, CorruptSample] = {}
        self._lock = ProcessLock()
        self._looked = 0.0
        self.largest = max((part.bytes for part in self.shards), default=0)
        self.bytes = sum(part.bytes for part in self.shards)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("files", "shards", "schema", "fill", "cache")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def place(self, number: int) -> str:
        part = self.shards[number]
        return f"{self.files[part.file].place}, row group {part.number}"

    def describe(self) -> str:
        """Return, for explain(), how row groups come, and the bound of what is kept of them."""
        fetched = "fetched and decoded" if self.is_remote else "decoded"
        return (
            f"its row groups are {fetched} as the order needs them, up to {AT_ONCE} at once, and kept in "
            f"{self.cache.path} (at most {size_of(self.cache.limit)})"
        )

    def download(self, number: int) -> Decoding:
        """Return what brings a row group into the cache."""
        return Decoding(self, number)

    def wants_whole(self, number: int, samples: int) -> bool:
        return True

    async def bring(self, one: Range, requests: asyncio.Semaphore) -> contextlib.ExitStack:
        raise NotImplementedError("row groups come as wholes")

    @property
    def is_remote(self) -> bool:
        return any(file.store is not None for file in self.files)

    def check_files(self) -> None:
        """Raise CorruptSample where a local file is not what it was; it is looked at once a second."""
        now = time.monotonic()
        if now - self._looked >= _LOOK_AGAIN:
            for file in self.files:
                if (why := file.changed()) is not None:
                    raise file.corrupt(f"it has changed since the table was made: {why}")
            self._looked = now

    def unchanged(self) -> bool:
        """Return whether the files are what they were, as `check_files` sees it."""
        try:
            self.check_files()
        except CorruptSample:
            return False
        return True

    def opened(self, numbers: Sequence[int]) -> list[MappedRows]:
        """Return row groups; those that are not here are decoded, a few at once. Raises CorruptSample, StorageError."""
        with self._lock:
            found = {number: self._opened[number] for number in numbers if number in self._opened}
            for number in found:
                self._opened.move_to_end(number)
        missing = [number for number in numbers if number not in found]
        if len(missing) == 1:
            found[missing[0]] = self._open(missing[0])
        elif missing:
            with ThreadPoolExecutor(min(AT_ONCE, usable_cpus(), len(missing)), "penstock-decode") as pool:
                found.update(zip(missing, pool.map(self._open, missing), strict=True))
            pa.default_memory_pool().release_unused()
        with self._lock:
            self._opened.update({number: found[number] for number in missing})
            while sum(self.shards[number].bytes for number in self._opened) > self.cache.limit:
                self._opened.popitem(last=False)
        return [found[number] for number in numbers]

    def whole(self) -> pa.Table:
        """Return all row groups as one table, mapped. Raises CorruptSample, StorageError."""
        if self._whole is None:
            self._whole = pa.concat_tables([one.table for one in self.opened(range(len(self.shards)))])
        return self._whole

    def whole_if_open(self) -> pa.Table | None:
        """Return all row groups as one table where none of them is yet to be decoded."""
        return self.whole() if self._whole is not None or len(self._opened) == len(self.shards) else None

    def encoded(self, column: str, chosen: Indices | None) -> _native.ShardTable:
        """Return a table of the bytes of a binary column's values: each is a part of the file that its rows lie in.

        chosen: the numbers of the rows, in order, of which there is an entry; None: all. A null has no bytes. Raises
        ValueError where the column holds views, and as `opened`.
        """
        dtype, shards, begin, entries = row_dtype(1, None), [], 0, 0
        with tempfile.TemporaryFile(dir=self.cache.path) as index:
            for number, mapped_rows in enumerate(self.opened(range(len(self.shards)))):
                shards.append((os.fsencode(self.download(number).path()), mapped_rows.size))
                for chunk in mapped_rows.table.column(column).chunks:
                    lengths, addresses = _places(chunk)
                    rows = np.zeros(len(chunk), dtype)
                    rows["shard"] = number
                    rows["members"]["offset"] = (addresses - mapped_rows.address)[:, None]
                    rows["members"]["length"] = lengths[:, None]
                    if chosen is not None:
                        low, high = np.searchsorted(chosen, [begin, begin + len(chunk)])
                        rows = rows[chosen[low:high] - begin]
                    index.write(rows.tobytes())
                    begin, entries = begin + len(chunk), entries + len(rows)
            index.flush()
            assert dtype.fields is not None
            columns = [dtype.fields[name][1] for name in ("shard", "id_length", "members")]
            native = _native.RowFile(index.fileno(), 0, dtype.itemsize, entries)
        return _native.ShardTable(native, shards, columns, False)

    def _open(self, number: int) -> MappedRows:
        if (failed := self._failed.get(number)) is not None:
            raise copy.copy(failed)
        part = self.shards[number]
        file = self.files[part.file]
        try:
            if file.mapped:
                rows = file.rows()
                return rows._replace(table=rows.table.select(self.schema.names))
            for _ in range(2):
                with contextlib.closing((decoding := self.download(number)).run()) as held, suppress(pa.ArrowException):
                    return mapped(f"/proc/self/fd/{held.descriptor}")
                decoding.discard()  # it was damaged since it was decoded
            raise file.corrupt(f"its decoded rows cannot be read in {self.cache.path}")
        except CorruptSample as error:
            self._failed[number] = error
            raise


@dataclass(frozen=True)
class Decoding:
    """A row group that is to lie in the cache folder, decoded."""

    groups: RowGroups
    number: int

    @property
    def _entry(self) -> CachedShard:
        groups, part = self.groups, self.groups.shards[self.number]
        file, started = groups.files[part.file], _machine_start()
        key = f"{file.version}\n{file.size}\n{started}\n{part}\n{groups.schema}\n{sorted(groups.fill.items())}"
        url = f"{file.place}-{part.number}"
        return CachedShard(url, part.bytes, _native.crc32c(key.encode()), exact=False)

    def discard(self) -> None:
        """Delete the decoded row group."""
        if (held := self.groups.cache.hold(self._entry)) is not None:
            self.groups.cache.discard(self._entry, held, "shard")

    def path(self) -> str:
        """Return the file that the row group is mapped from."""
        file = self.groups.files[self.groups.shards[self.number].file]
        return (
            os.path.realpath(file.place) if file.mapped else str(self.groups.cache.path / f"{self._entry.file}.shard")
        )

    def open(self, *, beyond: bool) -> tuple[HeldFile | None, HeldFile | None]:
        """Return the decoded row group, or its unfinished file; neither: somebody else has that.

        beyond: it is needed at once, and may exceed the limit of the cache. Raises NoRoom, OSError.
        """
        return self.groups.cache.open(self._entry, beyond=beyond)

    async def fetch(self, part: HeldFile, requests: asyncio.Semaphore) -> HeldFile | contextlib.ExitStack | None:
        """Return the decoded row group of its unfinished file; None: it was deleted at once.

        A damaged one of a local file counts as here: its rows raise the error when they are read. Raises StorageError,
        CorruptSample, OSError.
        """
        try:
            return await self._fetch(part, requests)
        except CorruptSample:
            if self.groups.files[self.groups.shards[self.number].file].store is not None:
                raise
            return contextlib.ExitStack()

    async def _fetch(self, part: HeldFile, requests: asyncio.Semaphore) -> HeldFile | None:
        groups, described, entry = self.groups, self.groups.shards[self.number], self._entry
        file = groups.files[described.file]
        where = f", row group {described.number}" if file.kind == "parquet" else ""
        try:
            with file.errors_named(where), await file.fetched(described, groups.schema.names, requests) as source:
                await asyncio.to_thread(self._decode, part, file, described, source)
            return await asyncio.to_thread(groups.cache.finish, entry, part, durable=False)
        except BaseException as error:
            groups.cache.discard(entry, part)
            if (why := file.changed()) is not None:
                raise file.corrupt(f"it has changed since the table was made: {why}") from error
            if isinstance(error, OSError) and error.errno in FULL:
                raise OutOfSpace(f"the disk of the cache folder {groups.cache.path} is full: {error}") from error
            raise
        finally:
            part.close()

    def _decode(self, held: HeldFile, file: TableFile, part: Part, source: Any) -> None:
        schema, rows = self.groups.schema, 0
        with pa.OSFile(f"/proc/self/fd/{held.descriptor}", "wb") as sink, ipc.new_stream(sink, schema) as writer:
            for batch in file.batches(part, schema.names, source):
                plain = [filled(batch.column(one.name), one.type, self.groups.fill.get(one.name)) for one in schema]
                writer.write_batch(pa.RecordBatch.from_arrays(plain, schema=schema))
                rows += batch.num_rows
        if rows != part.samples:
            raise file.corrupt(f"it has {rows:,} rows, and its footer says {part.samples:,}")

    def run(self) -> HeldFile:
        """Return the row group, decoded by this process or another. Raises as `fetch`."""

        async def decoded() -> HeldFile:
            while True:
                held, part = self.open(beyond=True)
                if part is not None:
                    held = await self._fetch(part, asyncio.Semaphore(REQUESTS))
                if held is not None:
                    return held
                await asyncio.sleep(LOOK_AGAIN)

        return run_alone(decoded())


def _places(values: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the length and the address of the bytes of each value; those of encoded images may be a struct's field."""
    if types.is_struct(values.type):
        values = values.field("bytes").slice(values.offset, len(values))
    if types.is_binary_view(values.type):
        raise ValueError("views of bytes")
    _, ends, data = values.buffers()
    wide = np.int64 if types.is_large_binary(values.type) else np.int32
    offsets = np.frombuffer(ends, wide)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    return np.diff(offsets), offsets[:-1] + (0 if data is None else data.address)


def _machine_start() -> str:
    """Return what tells this start of the machine from others: decoded files are not synced to the disk."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return str(os.getpid())
