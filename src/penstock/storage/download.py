"""One shard on its way from an object store into the cache: in parts by ranges, of one object, verified.

A part whose request fails is asked for again; a download that was ended begins anew. Whatever an unfinished file holds,
the checksum of all bytes has the last word.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import penstock._native as _native
from penstock.errors import ChangedObject, CorruptDownload, StoreUnreachable
from penstock.storage.cache_folder import CachedShard, CacheFolder, HeldFile
from penstock.storage.objects import ObjectInfo, ObjectStore
from penstock.system.words import counted

#: Bytes of one request.
PART_BYTES = 8 << 20
#: Requests for one part that fail, one after the other, before the download does.
ATTEMPTS = 8
# Of a request that failed to the next one: the first pause, doubled each time, up to the longest one, in seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
#: Pauses while another process, or another thread, fetches the same shard, in seconds.
_FIRST_LOOK, _LONGEST_LOOK = 0.005, 0.1
_CHECKED_AT_ONCE = 4 << 20


@dataclass
class Traffic:
    """What came from an object store."""

    bytes: int = 0
    requests: int = 0
    retries: int = 0
    """Requests that followed one that failed."""
    shards: int = 0
    """Whole shards that were fetched."""
    ranges: int = 0
    """Samples that were read by their ranges alone."""


class Download:
    """A shard that is to lie in the cache folder.

    Args:
        store, name: the object.
        shard: as the cache knows it.
        cache: the folder.
        requests: bounds the requests under way.
        traffic: counts.
    """

    def __init__(
        self,
        store: ObjectStore,
        name: str,
        shard: CachedShard,
        cache: CacheFolder,
        requests: asyncio.Semaphore,
        traffic: Traffic,
    ) -> None:
        self._store, self._name, self._shard, self._cache = store, name, shard, cache
        self._requests, self._traffic = requests, traffic

    async def run(self, urgent: Callable[[], bool]) -> HeldFile | None:
        """Return the shard's file, fetched by this process or another; None: the cache has no space for it now.

        urgent: called where there is no space; returns whether the shard may exceed the limit of the cache.

        Raises:
            StorageError: it cannot be fetched.
            OSError: it cannot be written.
        """
        for _ in range(2):
            held, part = await self._found()
            if part is None:
                return held
            try:
                return await self._complete(part, urgent)
            except _WrongChecksum:
                continue
        raise CorruptDownload(
            f"{self._shard.url}: the {counted(self._shard.size, 'byte')} that the store gives do not have the checksum "
            f"{self._shard.checksum:08x} that dataset.json names: the object was damaged or replaced",
            url=self._shard.url,
        )

    async def _found(self) -> tuple[HeldFile | None, HeldFile | None]:
        """Return the whole shard, or its unfinished file, once nobody else fetches it."""
        pause = _FIRST_LOOK
        while True:
            held, part = await asyncio.to_thread(self._begin)
            if held is not None or part is not None:
                return held, part
            await asyncio.sleep(pause)  # whoever fetches it ends, or leaves a lock that nobody holds
            pause = min(2 * pause, _LONGEST_LOOK)

    def _begin(self) -> tuple[HeldFile | None, HeldFile | None]:
        """Return the whole shard, or its unfinished file; neither: somebody else has that."""
        held = self._cache.hold(self._shard)
        part = self._cache.begin(self._shard) if held is None else None
        if part is not None and (held := self._cache.hold(self._shard)) is not None:  # finished between the two
            self._cache.discard(self._shard, part)
            part = None
        return held, part

    async def _complete(self, part: HeldFile, urgent: Callable[[], bool]) -> HeldFile | None:
        """Return the whole shard, or None. Raises _WrongChecksum, StorageError, OSError."""
        try:
            size = self._shard.size
            room = await asyncio.to_thread(self._cache.reserve, part, size)
            if not room and urgent():
                room = await asyncio.to_thread(self._cache.reserve, part, size, beyond=True)
            if not room:
                self._cache.discard(self._shard, part)
                return None
            info = await self._store.info_soon(self._name)
            self._check(info)
            try:
                async with asyncio.TaskGroup() as group:
                    for begin in range(0, size, PART_BYTES):
                        group.create_task(self._fetch_part(part, info.etag, begin, min(begin + PART_BYTES, size)))
            except* OSError as failed:
                raise failed.exceptions[0] from None
            if not await asyncio.to_thread(self._verified, part):
                self._cache.discard(self._shard, part)
                raise _WrongChecksum
            self._traffic.shards += 1
            return await asyncio.to_thread(self._cache.finish, self._shard, part)
        finally:
            part.close()

    def _check(self, info: ObjectInfo) -> None:
        if info.size != self._shard.size:
            raise ChangedObject(
                f"{self._shard.url}: the object has {counted(info.size, 'byte')}, and dataset.json says "
                f"{self._shard.size:,}: it was damaged or replaced",
                url=self._shard.url,
            )

    async def _fetch_part(self, part: HeldFile, etag: str | None, begin: int, end: int) -> None:
        """Fetch the bytes from begin to end - 1. Raises StorageError, OSError."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                async with self._requests:
                    self._traffic.requests += 1
                    data = await self._store.read_part(self._name, begin, end, etag)
                break
            except StoreUnreachable as failed:
                if attempt == ATTEMPTS:
                    url = self._shard.url
                    raise StoreUnreachable(
                        f"{url}: {counted(attempt, 'request')} in a row for its bytes from {begin:,} to {end - 1:,} "
                        f"brought none; the last one: {failed}",
                        url=url,
                    ) from failed
            self._traffic.retries += 1
            await asyncio.sleep(_pause(attempt))
        self._traffic.bytes += len(data)
        _write(part.descriptor, data, begin)

    def _verified(self, part: HeldFile) -> bool:
        """Return whether the bytes have their checksum."""
        value = 0
        for begin in range(0, self._shard.size, _CHECKED_AT_ONCE):
            wanted = min(_CHECKED_AT_ONCE, self._shard.size - begin)
            value = _native.crc32c(os.pread(part.descriptor, wanted, begin), value)
        return value == self._shard.checksum


class _WrongChecksum(Exception):
    """The bytes of a shard do not have their checksum: its unfinished file is gone."""


def _pause(attempts: int) -> float:
    """Return the seconds before the next request: exponential, with jitter."""
    longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(attempts, 16))
    return longest * (0.5 + secrets.randbelow(1 << 16) / (1 << 17))


def _write(descriptor: int, data: bytes, offset: int) -> None:
    """Write bytes at an offset."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
