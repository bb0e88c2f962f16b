"""One shard on its way from an object store into the cache: in parts by ranges, resumed, verified.

The unfinished file holds the bytes of the shard at their places and, behind them, a header and a byte for each part
that is written. A later attempt, in this process or another, goes on with the parts that are missing where the
object's etag and size are the same. Whatever an unfinished file holds, the checksum of all bytes has the last word.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import penstock._native as _native
from penstock.errors import ChangedObject, CorruptDownload, StorageError, StoreUnreachable
from penstock.storage.cache_folder import CachedShard, CacheFolder, HeldFile
from penstock.storage.objects import ObjectInfo, ObjectStore
from penstock.system.words import counted

#: Bytes of one request.
PART_BYTES = 8 << 20
#: Requests for one part that bring no byte, one after the other, before the download fails.
ATTEMPTS = 8
# Of a request that failed to the next one: the first pause, doubled each time, up to the longest one, in seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
#: Bytes that an unfinished file has behind the shard, beside one for each part.
_HEADER_BYTES = 512
#: Pauses while another process, or another thread, fetches the same shard, in seconds.
_FIRST_LOOK, _LONGEST_LOOK = 0.005, 0.1
_CHECKED_AT_ONCE = 4 << 20


@dataclass
class Traffic:
    """What came from an object store."""

    bytes: int = 0
    requests: int = 0
    retries: int = 0
    """Requests that followed one that failed or was cut off."""
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
        self._parts = max(1, -(-shard.size // PART_BYTES))

    async def run(self, urgent: Callable[[], bool]) -> HeldFile | None:
        """Return the shard's file, fetched by this process or another; None: the cache has no space for it now.

        urgent: called where there is no space; returns whether the shard may exceed the limit of the cache.

        Raises:
            StorageError: it cannot be fetched.
            OSError: it cannot be written.
        """
        for fresh in (False, True):
            held, part = await self._found()
            if part is None:
                return held
            try:
                return await self._complete(part, urgent, fresh=fresh)
            except _WrongChecksum:  # once more, without what was there
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

    async def _complete(self, part: HeldFile, urgent: Callable[[], bool], *, fresh: bool) -> HeldFile | None:
        """Return the whole shard, or None. Raises _WrongChecksum, StorageError, OSError."""
        try:
            total = self._shard.size + _HEADER_BYTES + self._parts
            room = await asyncio.to_thread(self._cache.reserve, part, total)
            if not room and urgent():
                room = await asyncio.to_thread(self._cache.reserve, part, total, beyond=True)
            if not room:
                if os.fstat(part.descriptor).st_size < total:
                    self._cache.discard(self._shard, part)
                return None
            info = await self._store.info_soon(self._name)
            self._check(info)
            done = self._progress(part, info, fresh=fresh)
            try:
                async with asyncio.TaskGroup() as group:
                    for number in [number for number in range(self._parts) if not done[number]]:
                        group.create_task(self._fetch_part(part, info, number))
            except* OSError as failed:
                raise failed.exceptions[0] from None
            if not await asyncio.to_thread(self._verified, part):
                self._cache.discard(self._shard, part)
                raise _WrongChecksum
            os.ftruncate(part.descriptor, self._shard.size)
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

    def _progress(self, part: HeldFile, info: ObjectInfo, *, fresh: bool) -> bytes:
        """Return a byte for each part, 1 where an earlier attempt has written it; begin anew for another object."""
        says = {"etag": info.etag, "size": info.size, "part": PART_BYTES, "checksum": self._shard.checksum}
        header = json.dumps(says).encode().ljust(_HEADER_BYTES)[:_HEADER_BYTES]
        done = os.pread(part.descriptor, _HEADER_BYTES + self._parts, info.size)
        if not fresh and info.etag is not None and done[:_HEADER_BYTES] == header:
            return done[_HEADER_BYTES:]
        none = bytes(self._parts)
        _write(part.descriptor, header + none, info.size)
        return none

    async def _fetch_part(self, part: HeldFile, info: ObjectInfo, number: int) -> None:
        """Fetch one part; what is cut off goes on where it stopped."""
        at, end = number * PART_BYTES, min((number + 1) * PART_BYTES, info.size)
        attempts = 0
        error: StorageError | None = None
        while at < end:
            before = at
            try:
                async with self._requests:
                    self._traffic.requests += 1
                    async for buffer in self._store.stream(self._name, at, end, info.etag):
                        bytes_left = memoryview(buffer)[: end - at]
                        _write(part.descriptor, bytes_left, at)
                        at += len(bytes_left)
                        self._traffic.bytes += len(bytes_left)
            except StoreUnreachable as failed:
                error = failed
            if at == end:
                break
            attempts = 0 if at > before else attempts + 1
            if attempts >= ATTEMPTS:
                url = self._shard.url
                raise StoreUnreachable(
                    f"{url}: {counted(attempts, 'request')} in a row for its bytes from {at:,} to {end - 1:,} brought "
                    f"none; the last one: {error or 'the connection was closed'}",
                    url=url,
                ) from error
            self._traffic.retries += 1
            await asyncio.sleep(_pause(attempts))
        _write(part.descriptor, b"\1", info.size + _HEADER_BYTES + number)

    def _verified(self, part: HeldFile) -> bool:
        """Return whether the bytes have their checksum."""
        if self._shard.checksum is None:
            return True
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


def _write(descriptor: int, buffer: bytes | memoryview, offset: int) -> None:
    """Write all of a buffer at an offset."""
    view = memoryview(buffer)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
