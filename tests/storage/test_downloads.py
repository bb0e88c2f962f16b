"""Shards from an object store into the local cache: verified, shared, and held while a pass needs them."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock._native as _native
import penstock.storage.remote_shards as download
from penstock import errors
from penstock.storage.cache_folder import CachedShard, CacheFolder, NoRoom
from penstock.storage.description import Shard
from penstock.storage.index import MEMBER
from penstock.storage.objects import ObjectStore
from penstock.storage.remote_shards import RemoteShards
from penstock.storage.stage import ShardStage
from penstock.system.urls import is_url
from tests.forking import assert_in_child
from tests.object_server import ObjectServer

pytest.importorskip("obstore", reason="the client of object stores (extra 'remote') is not installed")

SIZE = 300_000


def shard_bytes(number: int, size: int = SIZE) -> bytes:
    return np.random.default_rng(number).integers(0, 256, size, dtype=np.uint8).tobytes()


def described(objects: dict[str, bytes]) -> list[Shard]:
    return [Shard(name, len(data), _native.crc32c(data), 1) for name, data in sorted(objects.items())]


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "PART_BYTES", 64 << 10)
    monkeypatch.setattr(download, "_FIRST_PAUSE", 0.001)


@pytest.fixture
def server(objects: dict[str, bytes]) -> Iterator[ObjectServer]:
    with ObjectServer(objects) as serving:
        yield serving


@pytest.fixture
def shards(server: ObjectServer, tmp_path: Path) -> RemoteShards:
    return remote(server, tmp_path / "cache")


@pytest.fixture
def objects() -> dict[str, bytes]:
    return {f"data-{number:06d}.tar": shard_bytes(number) for number in range(6)}


def remote(server: ObjectServer, folder: Path, limit: int = 1 << 30) -> RemoteShards:
    return RemoteShards(ObjectStore(server.url), described(server.objects), CacheFolder(folder, limit))


def fetch(shards: RemoteShards, number: int) -> bytes:
    with contextlib.closing(shards.download(number).run(beyond=True)):
        return Path(shards.path(number)).read_bytes()


def test_a_shard_comes_in_parts_into_a_private_folder(server: ObjectServer, shards: RemoteShards) -> None:
    for _ in range(2):  # the second time from the cache
        assert fetch(shards, 2) == server.objects["data-000002.tar"]
    assert shards.traffic.shards == 1
    assert server.gets["data-000002.tar"] == shards.traffic.requests == 5


def test_wrong_bytes_are_fetched_once_more_and_then_refused(server: ObjectServer, shards: RemoteShards) -> None:
    faults = iter(["wrong"])
    server.faults = lambda method, *_: next(faults, "") if method == "GET" else ""
    assert fetch(shards, 0) == server.objects["data-000000.tar"]
    assert server.gets["data-000000.tar"] == 10
    server.faults = lambda method, *_: "wrong" if method == "GET" else ""
    with pytest.raises(errors.CorruptDownload, match=r"data-000001.tar: the 300,000 bytes .* do not have the checksum"):
        fetch(shards, 1)
    assert sorted(path.suffix for path in shards.cache.path.iterdir()) == ["", ".shard"], "nothing is left"


@pytest.mark.parametrize("size", [SIZE, SIZE + 1, SIZE // 2, 0])
def test_an_object_that_changes_in_the_middle_is_an_error(
    size: int, server: ObjectServer, shards: RemoteShards
) -> None:
    def change(method: str, name: str, number: int) -> str:
        if number == 3:
            server.objects[name] = shard_bytes(99, size)
        return ""

    server.faults = change
    with pytest.raises(errors.CorruptDownload if size == SIZE else errors.ChangedObject, match="damaged or replaced"):
        fetch(shards, 0)


def _read_all(url: str, folder: str, described_shards: list[Shard], start: float) -> None:
    shards = RemoteShards(ObjectStore(url), described_shards, CacheFolder(folder))
    time.sleep(max(0.0, start - time.time()))  # both processes begin at once
    for number in range(len(described_shards)):
        assert _native.crc32c(fetch(shards, number)) == described_shards[number].crc32c


def test_processes_that_share_a_cache_fetch_each_shard_once(server: ObjectServer, tmp_path: Path) -> None:
    server.faults = lambda method, *_: "slow"
    context = multiprocessing.get_context("spawn")
    arguments = (server.url, str(tmp_path / "cache"), described(server.objects), time.time() + 3)
    processes = [context.Process(target=_read_all, args=arguments) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert set(server.gets.values()) == {1}


def shard_of(number: int, size: int = 900) -> CachedShard:
    return CachedShard(f"s3://bucket/{number}.tar", size, number)


def put(cache: CacheFolder, shard: CachedShard) -> None:
    part = cache.begin(shard)
    assert part is not None
    os.pwrite(part.descriptor, bytes(shard.size), 0)
    held = cache.finish(shard, part)
    assert held is not None
    held.close()


def test_the_least_recently_used_shard_that_nobody_holds_goes(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path / "cache", 3500)
    shards = [shard_of(number, 1000) for number in range(5)]
    paths = [cache.path / f"{shard.file}.shard" for shard in shards]
    for number, shard in enumerate(shards[:3]):
        put(cache, shard)
        os.utime(paths[number], (number, number))
    held = [cache.hold(shards[0])]
    os.utime(paths[0], (0, 0))
    put(cache, shards[3])
    assert cache.hold(shards[1]) is None, "the oldest that is not held"
    assert paths[0].exists() and cache.held_bytes() == 3000
    held += [cache.hold(shards[2]), cache.hold(shards[3])]
    with pytest.raises(NoRoom):  # everything else is held
        cache.begin(shards[4])
    part = cache.begin(shards[4], beyond=True)
    assert part is not None
    cache.discard(shards[4], part)
    for one in held:
        assert one is not None
        one.close()


def test_a_shard_that_has_just_come_is_held(tmp_path: Path) -> None:
    """It could be deleted between the two locks, where all others were held: it then came once more, over the limit."""
    cache, other = CacheFolder(tmp_path / "cache", 1000), CacheFolder(tmp_path / "cache", 1000)
    part: Any = cache.begin(shard_of(0))
    refused: list[type[BaseException]] = []

    def begin() -> None:
        try:
            other.begin(shard_of(1))
        except NoRoom as error:
            refused.append(type(error))

    thread, close = threading.Thread(target=begin), part.close

    def closed() -> None:
        close()
        thread.start()
        thread.join(0.2)  # it waits until the shard is held

    part.close = closed
    held = cache.finish(shard_of(0), part)
    thread.join()
    assert held is not None and refused == [NoRoom]
    held.close()


def test_threads_that_list_the_folder_at_once_see_each_file_once(tmp_path: Path) -> None:
    """They shared the place in one listing: a file was seen twice, and a limit taken for exceeded."""
    cache = CacheFolder(tmp_path / "cache", 1 << 20)
    for number in range(20):
        put(cache, shard_of(number, 100))
    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(lambda _: cache.held_bytes(), range(2000))) == {2000}


def test_only_files_of_penstock_are_deleted(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path / "cache", 1000)
    put(cache, shard_of(0))
    (cache.path / "notes.txt").write_text("mine")
    (cache.path / "x.shard").write_bytes(bytes(5000))
    put(cache, shard_of(1))
    others = {path.name for path in cache.path.iterdir() if "tar" not in path.name}
    assert others == {"notes.txt", "penstock-shards", "x.shard"}
    assert cache.held_bytes() == 900


def test_a_full_disk_is_said_with_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = CacheFolder(tmp_path / "cache", 1 << 30)
    put(cache, shard_of(0))

    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(NoRoom):  # ahead of need: what is there serves on
        cache.begin(shard_of(1))
    with pytest.raises(errors.OutOfSpace, match=r"is full: a shard of .* is needed now") as raised:
        cache.begin(shard_of(1), beyond=True)
    assert (raised.value.errno, raised.value.missing) == (28, 900)


def test_a_forked_child_lets_go_of_its_parents_locks(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path / "cache")
    put(cache, shard_of(0))
    held: Any = cache.hold(shard_of(0))

    def check() -> None:
        assert held.descriptor == -1

    assert_in_child(check)
    assert held.descriptor >= 0
    held.close()


def test_a_stage_without_a_known_order_fetches_what_tickets_need(server: ObjectServer, tmp_path: Path) -> None:
    stage = ShardStage(remote(server, tmp_path / "cache", limit=SIZE + 10_000))
    for number in (3, 1, 3, 0):
        ticket = stage.ticket([number])
        assert ticket.wait(30) and ticket.ready()
        ticket.release()
    assert stage.ticket([4]).wait(30)
    both = stage.ticket([2, 5])  # more than the limit, which somebody waits for while all else is in use
    assert both.wait(30)
    both.release()
    for _ in range(2):
        stage.close()


def test_errors_reach_who_waits_and_another_ticket_tries_once_more(
    server: ObjectServer, shards: RemoteShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.storage.objects._RETRIES", {"max_retries": 0})
    monkeypatch.setattr(download, "PATIENCE", 0.1)
    server.faults = lambda method, name, number: "500"
    stage = ShardStage(shards)
    ticket = stage.ticket([0])
    with pytest.raises(errors.StorageError, match="data-000000"):
        ticket.wait(30)
    ticket.release()
    server.faults = lambda *_: ""
    second = stage.ticket([0])
    assert second.wait(30)
    second.release()
    stage.close()


def test_a_download_that_is_ended_before_it_begins_leaves_no_lock(shards: RemoteShards) -> None:
    """The error of another shard held its file, and the next pass of the process waited for it."""
    (shards.cache.path / f"{shards.cached[0].file}.shard").symlink_to("nowhere")
    stage: Any = ShardStage(shards)
    begin = stage._begin

    def last(*arguments: Any) -> Any:
        begin(*arguments)
        stage.closing = True

    stage._begin = last
    gc.disable()
    try:
        stage.ticket([0, 1])
        stage._thread.join()
        stage.close()
        assert not shards.cache.is_coming(shards.cached[1])
    finally:
        gc.enable()


def test_urls_are_told_from_paths() -> None:
    assert all(map(is_url, ("s3://bucket/prefix", "https://host/x", "file:///tmp")))
    assert not any(map(is_url, ("/data/x", "data", Path("/x"), "c://x")))


def member(data: bytes, offset: int, length: int) -> np.void:
    row = np.zeros(1, MEMBER)
    row[0] = (offset, length, _native.crc32c(data[offset : offset + length]), 0)
    return row[0]


def test_few_samples_come_by_range_and_many_with_their_shard(server: ObjectServer, shards: RemoteShards) -> None:
    data, other = server.objects["data-000001.tar"], server.objects["data-000002.tar"]
    for end, step in ((40_000, 10_000), (100_000, 5000)):
        for begin in range(0, end, step):
            assert shards.read(1, member(data, begin, 5000), "x", verify=True) == data[begin : begin + 5000]
        if end == 40_000:
            assert (shards.traffic.ranges, shards.traffic.shards, server.bytes_sent) == (4, 0, 20_000)
    assert shards.traffic.shards == 1 and shards.traffic.ranges < 16
    for number, of, words in (
        (1, data, r"sample 'x' in shard .* is damaged"),
        (2, other, r"sample 'x' in http://127.*/data-000002.tar is damaged"),
    ):
        wrong = member(of, 0, 100)
        wrong["crc32c"] ^= 1
        with pytest.raises(errors.ChecksumMismatch, match=words):
            shards.read(number, wrong, "x", verify=True)
    with pytest.raises(errors.CorruptShards, match="index of another dataset"):
        shards.read(2, member(data, SIZE - 10, 20), "x", verify=True)


def test_forked_children_read_what_is_in_the_cache(server: ObjectServer, shards: RemoteShards) -> None:
    data, other = server.objects["data-000001.tar"], server.objects["data-000002.tar"]
    assert fetch(shards, 1) == data

    def read() -> None:
        assert shards.read(1, member(data, 10, 5000), "x", verify=True) == data[10:5010]
        with pytest.raises(errors.StorageError, match=r"forked after its first use: .*context='spawn', or .*'thread'"):
            shards.read(2, member(other, 0, 10), "x", verify=True)

    assert_in_child(read)


def test_who_finds_that_another_process_fetches_a_shard_waits_for_it(
    server: ObjectServer, shards: RemoteShards
) -> None:
    data, others = server.objects["data-000001.tar"], remote(server, shards.cache.path)
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
