"""Shards of an object store for samples that Python reads: brought ahead of need, once, within the cache's limit."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, Subset

import penstock
from tests.object_server import ObjectServer
from tests.same import assert_same
from tests.storage.remote import (
    SAMPLES,
    WINDOW,
    assert_all_but_a_damaged_shard,
    assert_equal_passes,
    bounded,
    damage_a_shard,
    downloads,
    limit_for,
    loader,
    remote,
)
from tests.waiting import wait_until

pytest.importorskip("obstore", reason="the client of object stores (extra 'remote') is not installed")
pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def negative(tensor: torch.Tensor) -> torch.Tensor:
    return -tensor


#: Who reads: threads with copies of the dataset, threads that share it, the caller's thread, and spawned processes.
READERS: dict[str, dict[str, Any]] = {
    "threads": {"worker_method": "thread"},
    "one thread": {"worker_method": "thread", "num_workers": 1},
    "shared": {"worker_method": "thread", "share_dataset": True},
    "caller": {"num_workers": 0},
    "any order": {"worker_method": "thread", "in_order": False},
    "processes": {"worker_method": "process"},
    "processes in any order": {"worker_method": "process", "in_order": False},
}


def sorted_batches(batches: list[Any]) -> list[Any]:
    return sorted(batches, key=lambda batch: batch[0].flatten().tolist())


def assert_each_came_once(dataset: Any, server: ObjectServer, *, processes: bool = False) -> None:
    """Assert that each shard was fetched once, and nothing but them.

    Processes read the samples that they need before a shard has begun to come.
    """
    shards, traffic = len(dataset.files.shards), dataset.files.traffic
    if processes:
        assert len(downloads(server)) == shards and sum(downloads(server).values()) < SAMPLES // 2
        return
    assert (traffic.shards, traffic.ranges, len(downloads(server))) == (shards, 0, shards)
    assert sum(downloads(server).values()) == shards


@pytest.mark.parametrize("who", READERS)
def test_each_shard_comes_once(server: ObjectServer, packed: Path, tmp_path: Path, who: str) -> None:
    options = READERS[who]
    limit = limit_for(packed, 9)
    dataset = remote(server, tmp_path / "cache", transform=negative, cache_limit=limit)
    dataset.files.cache.begin = bounded(dataset.files.cache, limit)  # type: ignore[union-attr, method-assign]
    over = loader(dataset, batch_size=8, **options)
    assert "because  " in over.explain(), "it is not read natively"
    theirs = list(loader(penstock.Shards(packed, window=WINDOW, transform=negative), batch_size=8, **options))
    ours = list(over)
    if not options.get("in_order", True):
        ours, theirs = sorted_batches(ours), sorted_batches(theirs)
    assert_equal_passes(ours, theirs)
    assert_each_came_once(dataset, server, processes=options.get("worker_method") == "process")


def test_shards_are_fetched_before_a_sample_of_them_is_read(server: ObjectServer, tmp_path: Path) -> None:
    gate = threading.Event()

    def wait(tensor: torch.Tensor) -> torch.Tensor:
        gate.wait(60)
        return tensor

    over = loader(
        remote(server, tmp_path / "cache", transform=wait), batch_size=4, shuffle=False, num_workers=1,
        prefetch_factor=1, worker_method="thread", share_dataset=True,
    )  # fmt: skip
    batches = iter(over)
    wait_until(lambda: len(downloads(server)) > 3)
    gate.set()
    assert sum(len(labels) for _, labels in batches) == SAMPLES


@pytest.mark.parametrize("method", ["thread", "process"])
def test_later_passes_of_the_same_workers(server: ObjectServer, packed: Path, tmp_path: Path, method: str) -> None:
    options = {"worker_method": method, "persistent_workers": True}
    over = loader(remote(server, tmp_path / "cache", transform=negative), **options)
    local = loader(penstock.Shards(packed, window=WINDOW, transform=negative), **options)
    for _ in range(3):
        assert_equal_passes(over, local)
    assert_each_came_once(over.dataset, server, processes=method == "process")
    for one in (over, local):
        next(iter(one))
    assert_equal_passes(over, local)
    over._iterator._shutdown_workers()
    local._iterator._shutdown_workers()


@pytest.mark.parametrize("who", ["threads", "caller", "processes"])
def test_few_samples_come_by_range(server: ObjectServer, packed: Path, tmp_path: Path, who: str) -> None:
    over = remote(server, tmp_path / "cache", transform=negative)
    local = penstock.Shards(packed, window=WINDOW, transform=negative)
    few = [3, 100, -19, 222]
    assert_equal_passes(
        loader(Subset(over, few), batch_size=2, **READERS[who]), loader(Subset(local, few), batch_size=2)
    )
    ranges = 0 if who == "processes" else 4  # which the processes read themselves
    assert (over.files.traffic.shards, over.files.traffic.ranges) == (0, ranges)  # type: ignore[union-attr]
    assert sum(downloads(server).values()) == 4
    assert not over.files._brought  # type: ignore[union-attr]


def test_parts_that_lie_elsewhere(server: ObjectServer, packed: Path, tmp_path: Path) -> None:
    over = remote(server, tmp_path / "cache", transform=negative)
    local = penstock.Shards(packed, window=WINDOW, transform=negative)
    chosen = list(range(0, SAMPLES, 2))
    options = {"worker_method": "thread", "batch_size": 8}
    mixed: Any = ConcatDataset([local, Subset(over, chosen), over])
    wanted: Any = ConcatDataset([local, Subset(local, chosen), local])
    assert_equal_passes(loader(mixed, **options), loader(wanted, **options))
    assert_each_came_once(over, server)


def test_a_shard_that_cannot_be_fetched(server: ObjectServer, packed: Path, tmp_path: Path) -> None:
    name = damage_a_shard(server, packed)
    over = loader(
        remote(server, tmp_path / "cache", transform=negative), shuffle=False, batch_size=8, worker_method="thread"
    )
    assert_all_but_a_damaged_shard(over, name)


def test_indices_that_the_dataset_refuses(server: ObjectServer, tmp_path: Path) -> None:
    over = remote(server, tmp_path / "cache", transform=negative)
    given = [[0, 1], [2, SAMPLES], [3, 4]]
    batches = iter(penstock.DataLoader(over, batch_sampler=given, num_workers=2, worker_method="thread"))
    assert len(next(batches)[1]) == 2
    with pytest.raises(IndexError, match=f"sample index {SAMPLES} is out of range"):
        next(batches)
    assert len(next(batches)[1]) == 2


def test_shards_are_fetched_before_worker_processes_ask(server: ObjectServer, tmp_path: Path) -> None:
    dataset = remote(server, tmp_path / "cache", transform=negative)
    options: dict[str, Any] = {"batch_size": 4, "shuffle": False, "num_workers": 1, "prefetch_factor": 1}
    batches = iter(loader(dataset, worker_method="process", **options))
    wait_until(lambda: len(downloads(server)) > 3)  # the loop has asked for nothing, one batch of a shard is in flight
    assert sum(len(labels) for _, labels in batches) == SAMPLES
    assert_each_came_once(dataset, server, processes=True)
    with pytest.raises(penstock.InvalidOption, match="give multiprocessing_context='spawn'"):
        iter(loader(dataset, worker_method="process", multiprocessing_context="fork"))


def test_the_end_of_downloads_that_hang(server: ObjectServer, tmp_path: Path) -> None:
    server.faults = lambda method, name, number: "hang" if name.endswith(".tar") and method == "GET" else ""
    dataset = remote(server, tmp_path / "cache", transform=negative)
    over = loader(dataset, timeout=0.5, worker_method="thread", seed=None)
    batches = iter(over)
    with pytest.raises(penstock.WorkerStuck, match=r"still on their way from the object store: http://127.*\.tar"):
        next(batches)
    begun = time.monotonic()
    batches.close()
    assert time.monotonic() - begun < 10


def test_a_copy_for_a_thread_reads_by_the_same_files(server: ObjectServer, tmp_path: Path) -> None:
    import copy  # noqa: PLC0415

    class Noted(penstock.Shards):
        """A user's subclass, with a state of its own."""

        def __getstate__(self) -> dict[str, Any]:
            return {**super().__getstate__(), "noted": True}

    over = remote(server, tmp_path / "cache", transform=negative)
    server.gets.clear()
    twin = copy.deepcopy(over)
    assert twin.files is over.files
    assert twin.index is over.index
    assert twin.classes == over.classes
    assert_same(twin[7], over[7])
    assert "dataset.json" not in server.gets
    own = copy.deepcopy(Noted(server.url, window=WINDOW, cache_folder=tmp_path / "cache"))
    assert own.noted  # type: ignore[attr-defined]
    assert_same(own[7][1], over[7][1])
