"""The shards of a dataset in an object store, as local files: the counterpart of description.ShardFiles."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from penstock.errors import CorruptShards, StorageError
from penstock.storage.cache_folder import CachedShard, CacheFolder, HeldFile
from penstock.storage.description import Column, Shard, ShardFiles, Split, verified
from penstock.storage.download import Download, Traffic
from penstock.storage.objects import ObjectStore, run_alone
from penstock.system.words import counted, size_of

#: A shard, and where a part of it begins and ends, in bytes.
Range = tuple[int, int, int]

#: Requests of one process that are under way at once, at the most.
REQUESTS = 16
#: A shard is fetched whole once this share of its bytes was wanted: by ranges it would soon cost as much.
WORTH_WHOLE = 0.25


class RemoteShards:
    """Shards in an object store, with a local cache of whole ones. Any number of threads may call it.

    Args:
        store: of the folder that the shards lie in.
        shards: what dataset.json says of each.
        cache: the folder on this machine.

    Attributes:
        traffic: what came from the store.
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
        """Return the bytes of the largest shard."""
        return max((shard.bytes for shard in self.shards), default=0)

    def path(self, shard: int) -> str:
        """Return the local file of a shard, which is there while somebody holds it."""
        return self._files.path(shard)

    def place(self, shard: int) -> str:
        """Return where a shard lies, for messages."""
        return self.cached[shard].url

    def hold(self, shard: int) -> HeldFile | None:
        """Return a shard's local file, locked; None: it is not here. Raises CorruptShards for a number that is none."""
        if shard >= len(self.cached):
            raise CorruptShards(f"the index speaks of shard {shard:,}, and there are {len(self.cached):,}")
        return self.cache.hold(self.cached[shard])

    def check(self) -> None:
        """Raise StorageError where the first shard is not in the store, or has another size. One request."""
        for shard in self.shards[:1]:
            found = self.store.info(shard.name).size
            if found != shard.bytes:
                raise StorageError(
                    f"{self.store.url_of(shard.name)} has {found:,} bytes, and dataset.json says {shard.bytes:,}: "
                    "it is damaged, or another object. Copy it again",
                    url=self.store.url_of(shard.name),
                )

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
            held = self.hold(shard)
            if held is None and (self.cache.is_coming(self.cached[shard]) or self._worth_whole(shard, length)):
                held = self.fetch(shard)
            if held is not None:
                with closing(held):
                    return self._files.read(shard, member, name, verify=verify)
            if offset + length > self.shards[shard].bytes:
                raise CorruptShards(
                    f"the index places sample {name!r} at bytes {offset:,} to {offset + length:,} of "
                    f"{self.place(shard)}, which has {self.shards[shard].bytes:,}: it is the index of another dataset"
                )
            data = self.read_part(shard, offset, offset + length)
        advice = "Upload the shard again, or pack the dataset again"
        url = self.place(shard)
        return verified(data, expected, name, url, url, advice) if verify else data

    async def bring(self, ranges: Sequence[Range], requests: asyncio.Semaphore) -> None:
        """Read parts of shards into memory, where `read` finds them until they are forgotten. Raises StorageError."""
        for shard in {shard for shard, _, _ in ranges}:
            asked = [(begin, end) for number, begin, end in ranges if number == shard and begin < end]
            if not asked or max(end for _, end in asked) > self.shards[shard].bytes:
                continue  # `read` says what is wrong
            async with requests:
                found = await self.store.read_ranges(self.shards[shard].name, asked)
            self.traffic.requests += 1
            self.traffic.ranges += len(asked)
            self.traffic.bytes += sum(map(len, found))
            self._brought.update(((shard, begin, end), data) for (begin, end), data in zip(asked, found, strict=True))

    def forget(self, ranges: Sequence[Range]) -> None:
        """Drop parts of shards from memory."""
        for one in ranges:
            self._brought.pop(one, None)

    def wants_whole(self, shard: int, samples: int) -> bool:
        """Note that samples of a shard are wanted; return whether so many were that all of it is worth fetching."""
        described = self.shards[shard]
        return self._worth_whole(shard, samples * described.bytes // max(1, described.samples))

    def read_part(self, shard: int, begin: int, end: int) -> bytes:
        """Return the bytes of a shard from begin to end - 1, from the store. Raises StorageError."""
        data = self.store.read_range(self.shards[shard].name, begin, end)
        with self._lock:
            self.traffic.requests += 1
            self.traffic.ranges += 1
            self.traffic.bytes += end - begin
        return data

    def fetch(self, shard: int) -> HeldFile | None:
        """Return a whole shard's local file, fetched; None: there is no space within the limit. Raises StorageError."""
        return run_alone(self.download(shard, asyncio.Semaphore(REQUESTS), lambda: False))

    def _worth_whole(self, shard: int, length: int) -> bool:
        with self._lock:
            self._wanted[shard] = self._wanted.get(shard, 0) + length
            return self._wanted[shard] > WORTH_WHOLE * self.shards[shard].bytes

    async def download(self, shard: int, requests: asyncio.Semaphore, urgent: Callable[[], bool]) -> HeldFile | None:
        """Return a shard's local file; see download.Download.run."""
        name, known = self.shards[shard].name, self.cached[shard]
        return await Download(self.store, name, known, self.cache, requests, self.traffic).run(urgent)

    def describe(self) -> str:
        """Return, for explain(), where shards are kept and what was fetched so far."""
        kept = f", kept in {self.cache.path} (at most {size_of(self.cache.limit)})"
        came = self.traffic
        if not came.requests:
            return kept
        alone = f" and {counted(came.ranges, 'sample')} alone" * bool(came.ranges)
        repeated = f", {came.retries:,} more after one that failed" * bool(came.retries)
        shards, requests = counted(came.shards, "shard"), counted(came.requests - came.retries, "request")
        return f"{kept}: {shards}{alone} fetched so far, {size_of(came.bytes)} in {requests}{repeated}"

    def __repr__(self) -> str:
        return f"<RemoteShards {self.store.url}: {len(self.shards):,} shards, {self.cache!r}>"


def with_local_index(store: ObjectStore, split: Split, cache: CacheFolder) -> tuple[Split, list[HeldFile]]:
    """Bring the files of a split's index into the cache folder; return the split with their names there, and the files.

    They stay while the files are held. Raises StorageError.
    """
    held: list[HeldFile] = []

    def local(column: Column) -> Column:
        known = CachedShard(store.url_of(column.name), column.bytes, column.crc32c)
        found = cache.hold(known)
        while found is None:
            download = Download(store, column.name, known, cache, asyncio.Semaphore(REQUESTS), Traffic())
            found = run_alone(download.run(lambda: True))
        held.append(found)
        return replace(column, name=f"{known.file}.shard")

    states = None if split.states is None else local(split.states)
    return replace(split, index=local(split.index), ids=local(split.ids), states=states), held
