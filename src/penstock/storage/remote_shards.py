"""The shards of a dataset in an object store, as local files: the counterpart of description.ShardFiles.

A shard comes into the cache in parts by ranges, of one object. A part whose request fails is asked for again; a
download that was ended begins anew. Whatever an unfinished file holds, the checksum of all bytes has the last word.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from typing import Any

from penstock.errors import CorruptDownload, CorruptShards, SampleError, StoreUnreachable
from penstock.storage import description
from penstock.storage.cache_folder import CachedShard, CacheFolder, HeldFile, NoRoom
from penstock.storage.description import Column, Shard, ShardFiles, Split, verified
from penstock.storage.durable import write_all
from penstock.storage.index import crc32c_of
from penstock.storage.objects import ObjectStore, run_alone
from penstock.system.urls import is_url
from penstock.system.words import counted, size_of

#: A shard, and where a part of it begins and ends, in bytes.
Range = tuple[int, int, int]

#: Requests of one process that are under way at once, at the most.
REQUESTS = 16
#: A shard is fetched whole once this share of its bytes was wanted: by ranges it would soon cost as much.
WORTH_WHOLE = 0.25
#: Bytes of one request.
PART_BYTES = 8 << 20
#: Seconds from a part's first request that failed to the last one, with which the download fails.
PATIENCE = 120.0
# Of a request that failed to the next one: the first pause, doubled each time, up to the longest one, in seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
#: Pauses while there is no space, or another process, or another thread, fetches the same shard, in seconds.
LOOK_AGAIN = 0.02


@dataclass
class Traffic:
    """What came from an object store."""

    bytes: int = 0
    requests: int = 0
    shards: int = 0
    """Whole shards that were fetched."""
    ranges: int = 0
    """Samples that were read only by their ranges."""


@dataclass(frozen=True)
class Download:
    """An object that is to lie in the cache folder."""

    store: ObjectStore
    name: str
    """Of the object."""
    shard: CachedShard
    """As the cache knows it."""
    cache: CacheFolder
    traffic: Traffic

    def open(self, *, beyond: bool) -> tuple[HeldFile | None, HeldFile | None]:
        """Return the whole shard, or its unfinished file; neither: somebody else has that.

        beyond: it is needed at once, and may exceed the limit of the cache. Raises NoRoom, StorageError, OSError.
        """
        return self.cache.open(self.shard, beyond=beyond)

    async def fetch(self, part: HeldFile, requests: asyncio.Semaphore) -> HeldFile | None:
        """Return the whole shard of its unfinished file; None: it was deleted at once.

        requests: bounds the requests under way. Raises StorageError, and OSError where it cannot be written.
        """
        url, size = self.shard.url, self.shard.size
        try:
            for _ in range(2):
                parts = [
                    asyncio.create_task(self._fetch_part(part, begin, min(begin + PART_BYTES, size), requests))
                    for begin in range(0, size, PART_BYTES)
                ]
                try:
                    await asyncio.gather(*parts)
                finally:  # the first error ends the others
                    for one in parts:
                        one.cancel()
                    await asyncio.gather(*parts, return_exceptions=True)
                if await asyncio.to_thread(_is_whole, part, self.shard):
                    self.traffic.shards += 1
                    return await asyncio.to_thread(self.cache.finish, self.shard, part)
            self.cache.discard(self.shard, part)
            raise CorruptDownload(
                f"{url}: the {counted(size, 'byte')} that the store gives do not have the checksum "
                f"{self.shard.checksum:08x} that dataset.json names: the object was damaged or replaced",
                url=url,
            )
        finally:
            part.close()

    async def _fetch_part(self, part: HeldFile, begin: int, end: int, requests: asyncio.Semaphore) -> None:
        """Fetch the bytes from begin to end - 1. Raises StorageError, OSError."""
        first = 0.0  # failure
        for attempt in itertools.count(1):
            try:
                async with requests:
                    self.traffic.requests += 1
                    data = await self.store.read_part(self.name, begin, end, self.shard.size)
                break
            except StoreUnreachable as failed:
                first, url = first or time.monotonic(), self.shard.url
                if (seconds := time.monotonic() - first) >= PATIENCE:
                    raise StoreUnreachable(
                        f"{url}: {counted(attempt, 'request')} in a row for its bytes from {begin:,} to {end - 1:,} "
                        f"brought none for {seconds:.0f} s; the last one: {failed}",
                        url=url,
                    ) from failed
            await asyncio.sleep(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0**attempt))
        self.traffic.bytes += len(data)
        write_all(part.descriptor, data, begin)

    def run(self, *, beyond: bool) -> HeldFile:
        """Return the whole shard, fetched by this process or another. Raises as `open` and `fetch`."""

        async def fetched() -> HeldFile:
            while True:
                held, part = self.open(beyond=beyond)
                if part is not None:
                    held = await self.fetch(part, asyncio.Semaphore(REQUESTS))
                if held is not None:
                    return held
                await asyncio.sleep(LOOK_AGAIN)

        return run_alone(fetched())


def splits_of(path: str) -> dict[str, Split]:
    """Return the splits in a folder of shards or under its URL. Raises CorruptShards, StorageError, OSError."""
    if not is_url(path):
        return description.load(os.path.abspath(os.path.expanduser(path)))
    return splits_in(ObjectStore(path))


def splits_in(store: ObjectStore) -> dict[str, Split]:
    """Return the splits in a folder of an object store. Raises CorruptShards, StorageError."""
    return description.parse(store.read(description.FILE), store.url_of(description.FILE))


class RemoteShards:
    """Shards in an object store, with a local cache of whole ones. Any number of threads may call it.

    Args:
        store: of the folder that the shards lie in.
        shards: what dataset.json says of each.
    """

    def __init__(self, store: ObjectStore, shards: Sequence[Shard], cache: CacheFolder) -> None:
        self.store, self.shards, self.cache = store, tuple(shards), cache
        self.cached = tuple(CachedShard(store.url_of(shard.name), shard.bytes, shard.crc32c) for shard in shards)
        files = [replace(shard, name=f"{known.file}.shard") for shard, known in zip(shards, self.cached, strict=True)]
        self._files = ShardFiles(str(cache.path), files)
        self.traffic = Traffic()
        self._wanted: dict[int, int] = {}
        self._lock = threading.Lock()
        self._brought: dict[Range, bytes] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteShards, (self.store, self.shards, self.cache)

    @property
    def largest(self) -> int:
        return max((shard.bytes for shard in self.shards), default=0)

    def path(self, shard: int) -> str:
        """Return the local file of a shard, which is there while somebody holds it."""
        return self._files.path(shard)

    def place(self, shard: int) -> str:
        return self.cached[shard].url

    def read(self, shard: int, member: Any, name: str, *, verify: bool) -> bytes:
        """Return the bytes of a member, a row of index.MEMBER; name: of the member, for messages.

        From the local file where it is here, else from the store: with its whole shard where another process fetches
        that now, or once a good part of it was wanted; else by its range.

        Raises:
            StorageError: it is not here, and cannot be fetched.
            CorruptSample, ChecksumMismatch: as ShardFiles.read.
        """
        offset, length, expected, _ = member.item()
        data = self._brought.get((shard, offset, offset + length))
        if data is None:
            held = self.cache.hold(self.cached[shard])
            if held is None and (self.cache.is_coming(self.cached[shard]) or self._worth_whole(shard, length)):
                with suppress(NoRoom):
                    held = self.download(shard).run(beyond=False)
            if held is not None:
                with closing(held):
                    try:
                        return self._files.read(shard, member, name, verify=verify)
                    except SampleError:
                        if _is_whole(held, self.cached[shard]):  # the store has no other
                            raise
                        self.cache.discard(self.cached[shard], held, "shard")
            if offset + length > self.shards[shard].bytes:
                raise CorruptShards(
                    f"the index places sample {name!r} at bytes {offset:,} to {offset + length:,} of "
                    f"{self.place(shard)}, which has {self.shards[shard].bytes:,}: it is the index of another dataset"
                )
            data = run_alone(self._read_range(shard, offset, offset + length)) if length else b""
        advice = "Upload the shard again, or pack the dataset again"
        url = self.place(shard)
        return verified(data, expected, name, url, url, advice) if verify else data

    async def bring(self, one: Range, requests: asyncio.Semaphore) -> ExitStack:
        """Read a part of a shard into memory, where `read` finds it until what is returned is closed.

        Raises StorageError.
        """
        async with requests:
            self._brought[one] = await self._read_range(*one)
        held = ExitStack()
        held.callback(self._brought.pop, one, None)
        return held

    def wants_whole(self, shard: int, samples: int) -> bool:
        """Note that samples of a shard are wanted; return whether so many were that all of it is worth fetching."""
        described = self.shards[shard]
        return self._worth_whole(shard, samples * described.bytes // max(1, described.samples))

    async def _read_range(self, shard: int, begin: int, end: int) -> bytes:
        data = await self.store.read_part(self.shards[shard].name, begin, end, self.shards[shard].bytes)
        with self._lock:
            self.traffic.requests += 1
            self.traffic.ranges += 1
            self.traffic.bytes += end - begin
        return data

    def download(self, shard: int) -> Download:
        """Return what brings a shard into the cache."""
        return Download(self.store, self.shards[shard].name, self.cached[shard], self.cache, self.traffic)

    def _worth_whole(self, shard: int, length: int) -> bool:
        with self._lock:
            self._wanted[shard] = self._wanted.get(shard, 0) + length
            return self._wanted[shard] > WORTH_WHOLE * self.shards[shard].bytes

    def describe(self) -> str:
        """Return, for explain(), where shards are kept and what was fetched so far."""
        kept = f", kept in {self.cache.path} (at most {size_of(self.cache.limit)})"
        came = self.traffic
        if not came.requests:
            return kept
        alone = f" and {counted(came.ranges, 'single sample')}" * bool(came.ranges)
        shards, requests = counted(came.shards, "shard"), counted(came.requests, "request")
        return f"{kept}: {shards}{alone} fetched so far, {size_of(came.bytes)} in {requests}"


def _is_whole(held: HeldFile, shard: CachedShard) -> bool:
    """Return whether a file can be read, and its bytes have their checksum."""
    try:
        with open(held.descriptor, "rb", buffering=0, closefd=False) as file:
            return crc32c_of(file, 0, shard.size) == shard.checksum
    except (OSError, CorruptShards):  # CorruptShards: it was cut off
        return False


def with_local_index(store: ObjectStore, split: Split, cache: CacheFolder) -> tuple[Split, list[HeldFile]]:
    """Bring the files of a split's index into the cache folder; return the split with their names there, and the files.

    They stay while the files are held. Raises StorageError.
    """
    held: list[HeldFile] = []

    def local(column: Column, *, checked: bool = True) -> Column:
        known = CachedShard(store.url_of(column.name), column.bytes, column.crc32c)
        download = Download(store, column.name, known, cache, Traffic())
        file = download.run(beyond=True)
        if checked and not _is_whole(file, known):
            cache.discard(known, file, "shard")
            file = download.run(beyond=True)
        held.append(file)
        return replace(column, name=f"{known.file}.shard")

    # Each of the states carries a checksum.
    states = None if split.states is None else local(split.states, checked=False)
    return replace(split, index=local(split.index), ids=local(split.ids), states=states), held
