"""Shards from an object store into the local cache: verified, shared, and held while a pass needs them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import penstock._native as _native
import penstock.storage.remote_shards as download
from penstock.errors import (
    AccessRefused,
    ChangedObject,
    ChecksumMismatch,
    CorruptDownload,
    CorruptShards,
    MissingObject,
    OutOfSpace,
    StorageError,
    StoreUnreachable,
    UnsafeCache,
)
from penstock.storage.cache_folder import CachedShard, CacheFolder, NoRoom
from penstock.storage.description import Shard
from penstock.storage.index import MEMBER
from penstock.storage.objects import ObjectStore, is_url
from penstock.storage.remote_shards import RemoteShards
from penstock.storage.stage import ShardStage
from tests.forking import assert_in_child
from tests.object_server import ObjectServer

pytest.importorskip("obstore", reason="the client of object stores (extra 'remote') is not installed")

SIZE = 300_000


def shard_bytes(number: int, size: int = SIZE) -> bytes:
    return np.random.default_rng(number).integers(0, 256, size, dtype=np.uint8).tobytes()


def described(objects: dict[str, bytes]) -> list[Shard]:
    return [Shard(name, len(data), _native.crc32c(data), 1) for name, data in sorted(objects.items())]


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "PART_BYTES", 64 << 10)
    monkeypatch.setattr(download, "_FIRST_PAUSE", 0.001)


@pytest.fixture
def objects() -> dict[str, bytes]:
    return {f"data-{number:06d}.tar": shard_bytes(number) for number in range(6)}


def remote(server: ObjectServer, folder: Path, limit: int = 1 << 30) -> RemoteShards:
    return RemoteShards(ObjectStore(server.url), described(server.objects), CacheFolder(folder, limit))


def fetch(shards: RemoteShards, number: int) -> bytes:
    with contextlib.closing(shards.download(number).run(beyond=True)):
        return Path(shards.path(number)).read_bytes()


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("fault", ["500", "503", "cut", "drop", "slow", ""])
def test_a_shard_comes_whole_through_faults(fault: str, objects: dict[str, bytes], tmp_path: Path) -> None:
    with ObjectServer(objects, lambda method, name, number: fault if method == "GET" and number % 3 else "") as server:
        shards = remote(server, tmp_path / "cache")
        assert fetch(shards, 2) == objects["data-000002.tar"]
        assert fetch(shards, 2) == objects["data-000002.tar"]  # from the cache
        assert shards.traffic.shards == 1
        if fault == "":
            assert server.gets["data-000002.tar"] == shards.traffic.requests == 5
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700


@pytest.mark.usefixtures("small_parts")
def test_wrong_bytes_are_fetched_once_more_and_then_refused(objects: dict[str, bytes], tmp_path: Path) -> None:
    faults = iter(["wrong"])
    with ObjectServer(objects, lambda method, *_: next(faults, "") if method == "GET" else "") as server:
        shards = remote(server, tmp_path / "cache")
        assert fetch(shards, 0) == objects["data-000000.tar"]
        assert server.gets["data-000000.tar"] == 10
        server.faults = lambda method, name, number: "wrong" if method == "GET" else ""
        with pytest.raises(CorruptDownload, match=r"data-000001.tar: the 300,000 bytes .* do not have the checksum"):
            fetch(shards, 1)
        assert sorted(path.suffix for path in (tmp_path / "cache").iterdir()) == ["", ".shard"], "nothing is left"


@pytest.mark.usefixtures("small_parts")
def test_errors_of_a_store_are_clear(
    objects: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.storage.objects._RETRIES", {"max_retries": 0})
    with ObjectServer(objects) as server:
        shards = remote(server, tmp_path / "cache")
        server.faults = lambda method, *_: "403"
        with pytest.raises(AccessRefused, match=r"http://127.*data-000000.tar: the store refuses access"):
            fetch(shards, 0)
        server.faults = lambda method, *_: "500" if method == "GET" else ""
        with pytest.raises(StoreUnreachable, match=r"requests in a row for its bytes from .* brought none"):
            fetch(shards, 0)
        server.faults = lambda *_: ""
        del server.objects["data-000000.tar"]
        with pytest.raises(MissingObject, match="there is no such object") as raised:
            fetch(shards, 0)
        assert raised.value.url.endswith("/data-000000.tar")
        server.objects["data-000001.tar"] += b"more"
        with pytest.raises(ChangedObject, match=r"has 300,004 bytes, and dataset.json says 300,000"):
            fetch(shards, 1)
    with pytest.raises(StoreUnreachable, match="does not answer; check the endpoint and the network"):
        fetch(shards, 2)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("size", [SIZE, SIZE + 1, SIZE // 2, 0])
def test_an_object_that_changes_in_the_middle_is_an_error(size: int, objects: dict[str, bytes], tmp_path: Path) -> None:
    with ObjectServer(objects) as server:

        def change(method: str, name: str, number: int) -> str:
            if number == 3:
                server.objects[name] = shard_bytes(99, size)
            return ""

        server.faults = change
        shards = remote(server, tmp_path / "cache")
        with pytest.raises(CorruptDownload if size == SIZE else ChangedObject, match="damaged or replaced"):
            fetch(shards, 0)


def _fetch_and_die(url: str, folder: str, shard: Shard) -> None:
    download.PART_BYTES = 64 << 10
    shards = RemoteShards(ObjectStore(url), [shard], CacheFolder(folder))
    fetch(shards, 0)


@pytest.mark.usefixtures("small_parts")
def test_a_killed_process_leaves_nothing_that_is_trusted(objects: dict[str, bytes], tmp_path: Path) -> None:
    reached = threading.Event()

    def faults(method: str, name: str, number: int) -> str:
        if method == "GET" and number >= 4:
            reached.set()
        return "hang" if reached.is_set() and method == "GET" else ""

    folder = tmp_path / "cache"
    with ObjectServer(objects, faults) as server:
        shard = described(objects)[0]
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=_fetch_and_die, args=(server.url, str(folder), shard))
        process.start()
        assert reached.wait(60)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert [path.suffix for path in folder.iterdir() if path.suffix] == [".part"]
        server.faults = lambda *_: ""
        assert fetch(RemoteShards(ObjectStore(server.url), [shard], CacheFolder(folder)), 0) == shard_bytes(0)
        assert [path.suffix for path in folder.iterdir() if path.suffix] == [".shard"]


def _read_all(url: str, folder: str, described_shards: list[Shard], start: float) -> None:
    shards = RemoteShards(ObjectStore(url), described_shards, CacheFolder(folder))
    time.sleep(max(0.0, start - time.time()))  # both processes begin at once
    for number in range(len(described_shards)):
        assert _native.crc32c(fetch(shards, number)) == described_shards[number].crc32c


def test_processes_that_share_a_cache_fetch_each_shard_once(objects: dict[str, bytes], tmp_path: Path) -> None:
    with ObjectServer(objects, lambda method, *_: "slow") as server:
        context = multiprocessing.get_context("spawn")
        arguments = (server.url, str(tmp_path / "cache"), described(objects), time.time() + 3)
        processes = [context.Process(target=_read_all, args=arguments) for _ in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0, 0]
        assert set(server.gets.values()) == {1}


# --- the folder ---------------------------------------------------------------------------------------------------


def put(cache: CacheFolder, shard: CachedShard, data: bytes) -> None:
    part = cache.begin(shard)
    assert part is not None
    os.pwrite(part.descriptor, data, 0)
    held = cache.finish(shard, part)
    assert held is not None
    held.close()


def test_the_least_recently_used_shard_that_nobody_holds_goes(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path / "cache", 3500)
    shards = [CachedShard(f"s3://bucket/{number}.tar", 1000, number) for number in range(5)]
    for number, shard in enumerate(shards[:3]):
        put(cache, shard, bytes(1000))
        os.utime((cache.path / f"{shard.file}.shard"), (number, number))
    held = cache.hold(shards[0])
    assert held is not None
    os.utime((cache.path / f"{shards[0].file}.shard"), (0, 0))
    put(cache, shards[3], bytes(1000))
    assert cache.hold(shards[1]) is None, "the oldest that is not held"
    assert (cache.path / f"{shards[0].file}.shard").exists() and cache.held_bytes() == 3000
    others = [cache.hold(shards[2]), cache.hold(shards[3])]
    with pytest.raises(NoRoom):  # everything else is held
        cache.begin(shards[4])
    part = cache.begin(shards[4], beyond=True)
    assert part is not None
    cache.discard(shards[4], part)
    for one in (held, *others):
        assert one is not None
        one.close()


def test_threads_that_list_the_folder_at_once_see_each_file_once(tmp_path: Path) -> None:
    """They shared the place in one listing: a file was seen twice, and a limit taken for exceeded."""
    cache = CacheFolder(tmp_path / "cache", 1 << 20)
    for number in range(20):
        put(cache, CachedShard(f"s3://bucket/{number}.tar", 100, number), bytes(100))
    with ThreadPoolExecutor(4) as threads:
        seen = set(threads.map(lambda _: cache.held_bytes(), range(2000)))
    assert seen == {2000}


def test_only_files_of_penstock_are_deleted(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path / "cache", 1000)
    put(cache, CachedShard("s3://bucket/0.tar", 900, 0), bytes(900))
    (tmp_path / "cache" / "notes.txt").write_text("mine")
    (tmp_path / "cache" / "x.shard").write_bytes(bytes(5000))
    put(cache, CachedShard("s3://bucket/1.tar", 900, 1), bytes(900))
    assert sorted(path.name for path in (tmp_path / "cache").iterdir() if "tar" not in path.name) == [
        "notes.txt",
        "penstock-shards",
        "x.shard",
    ]
    assert cache.held_bytes() == 900


def test_symbolic_links_are_refused_and_what_they_lead_to_is_kept(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path / "cache", 1000)
    shard = CachedShard("s3://bucket/0.tar", 900, 0)
    victim = tmp_path / "victim"
    victim.write_bytes(bytes(900))
    for ending in ("shard", "part"):
        (tmp_path / "cache" / f"{shard.file}.{ending}").symlink_to(victim)
    with pytest.raises(UnsafeCache, match="is a symbolic link"):
        cache.hold(shard)
    with pytest.raises(UnsafeCache, match="is a symbolic link"):
        cache.begin(shard)
    put(cache, CachedShard("s3://bucket/1.tar", 900, 1), bytes(900))
    assert victim.read_bytes() == bytes(900)


def test_folders_that_others_can_write_to_are_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(UnsafeCache, match=r"other users can write into the cache folder .*/open \(drwxrwxrwx\)"):
        CacheFolder(tmp_path / "open")


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(UnsafeCache, match="belongs to user"):
        CacheFolder(tmp_path / "theirs")


def test_a_full_disk_is_said_with_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = CacheFolder(tmp_path / "cache", 1 << 30)
    put(cache, CachedShard("s3://bucket/0.tar", 900, 0), bytes(900))

    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    needed = CachedShard("s3://bucket/1.tar", 900, 1)
    with pytest.raises(NoRoom):  # ahead of need: what is there serves on
        cache.begin(needed)
    with pytest.raises(OutOfSpace, match=r"is full: a shard of .* is needed now") as raised:
        cache.begin(needed, beyond=True)
    assert raised.value.errno == 28 and raised.value.missing == 900


def test_a_forked_child_lets_go_of_its_parents_locks(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path / "cache")
    shard = CachedShard("s3://bucket/0.tar", 10, 0)
    put(cache, shard, bytes(10))
    held = cache.hold(shard)
    assert held is not None

    def check() -> None:
        assert held.descriptor == -1

    assert_in_child(check)
    assert held.descriptor >= 0
    held.close()


# --- the shards of a pass -----------------------------------------------------------------------------------------


def test_a_stage_without_a_known_order_fetches_what_tickets_need(objects: dict[str, bytes], tmp_path: Path) -> None:
    with ObjectServer(objects) as server:
        shards = remote(server, tmp_path / "cache", limit=SIZE + 10_000)
        stage = ShardStage(shards)
        for number in (3, 1, 3, 0):
            ticket = stage.ticket([number])
            assert ticket.wait(30) and ticket.ready()
            ticket.release()
        here = stage.ticket([4])
        assert here.wait(30)
        both = stage.ticket([2, 5])  # more than the limit, which somebody waits for while all else is in use
        assert both.wait(30)
        both.release()
        stage.close()
        stage.close()


def test_errors_reach_who_waits_and_another_ticket_tries_once_more(
    objects: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr("penstock.storage.objects._RETRIES", {"max_retries": 0})
    with ObjectServer(objects, lambda method, name, number: "500") as server:
        shards = remote(server, tmp_path / "cache")
        stage = ShardStage(shards)
        ticket = stage.ticket([0])
        with pytest.raises(StorageError, match="data-000000"):
            ticket.wait(30)
        ticket.release()
        server.faults = lambda *_: ""
        second = stage.ticket([0])
        assert second.wait(30)
        second.release()
        stage.close()


def test_urls_are_told_from_paths() -> None:
    assert is_url("s3://bucket/prefix") and is_url("https://host/x") and is_url("file:///tmp")
    assert not is_url("/data/x") and not is_url("data") and not is_url(Path("/x")) and not is_url("c://x")


def member(data: bytes, offset: int, length: int) -> np.void:
    row = np.zeros(1, MEMBER)
    row[0] = (offset, length, _native.crc32c(data[offset : offset + length]), 0)
    return row[0]


def test_few_samples_come_by_range_and_many_with_their_shard(objects: dict[str, bytes], tmp_path: Path) -> None:
    data = objects["data-000001.tar"]
    with ObjectServer(objects) as server:
        shards = remote(server, tmp_path / "cache")
        for begin in range(0, 40_000, 10_000):
            assert shards.read(1, member(data, begin, 5000), "x", verify=True) == data[begin : begin + 5000]
        assert (shards.traffic.ranges, shards.traffic.shards, server.bytes_sent) == (4, 0, 20_000)
        for begin in range(0, 100_000, 5000):
            assert shards.read(1, member(data, begin, 5000), "x", verify=True) == data[begin : begin + 5000]
        assert shards.traffic.shards == 1 and shards.traffic.ranges < 16
        wrong = member(data, 0, 100)
        wrong["crc32c"] ^= 1
        with pytest.raises(ChecksumMismatch, match=r"sample 'x' in shard .* is damaged"):
            shards.read(1, wrong, "x", verify=True)
        wrong = member(objects["data-000002.tar"], 0, 100)
        wrong["crc32c"] ^= 1
        with pytest.raises(ChecksumMismatch, match=r"sample 'x' in http://127.*/data-000002.tar is damaged"):
            shards.read(2, wrong, "x", verify=True)
        with pytest.raises(CorruptShards, match="index of another dataset"):
            shards.read(2, member(data, SIZE - 10, 20), "x", verify=True)


def test_forked_children_read_what_is_in_the_cache(objects: dict[str, bytes], tmp_path: Path) -> None:
    data = objects["data-000001.tar"]
    with ObjectServer(objects) as server:
        shards = remote(server, tmp_path / "cache")
        assert fetch(shards, 1) == data

        def read() -> None:
            assert shards.read(1, member(data, 10, 5000), "x", verify=True) == data[10:5010]
            other = objects["data-000002.tar"]
            with pytest.raises(StorageError, match=r"forked after its first use: .*context='spawn', or .*'thread'"):
                shards.read(2, member(other, 0, 10), "x", verify=True)

        assert_in_child(read)


def test_who_finds_that_another_process_fetches_a_shard_waits_for_it(objects: dict[str, bytes], tmp_path: Path) -> None:
    data = objects["data-000001.tar"]
    with ObjectServer(objects) as server:
        shards, others = (remote(server, tmp_path / "cache") for _ in range(2))
        assert not shards.cache.is_coming(shards.cached[1])
        part = others.cache.begin(others.cached[1])
        assert part is not None and shards.cache.is_coming(shards.cached[1])
        asked, is_coming = threading.Event(), shards.cache.is_coming

        def noted(shard: CachedShard) -> bool:
            found = is_coming(shard)
            asked.set()
            return found

        shards.cache.is_coming = noted  # type: ignore[method-assign]
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(shards.read, 1, member(data, 10, 20), "x", verify=True)
            assert asked.wait(60)
            others.cache.discard(others.cached[1], part)
            assert reading.result() == data[10:30]
        assert (shards.traffic.shards, shards.traffic.ranges) == (1, 0)
