"""penstock.Shards of an object store: the epochs of the folder, brought ahead of need, once, within the limit."""

from __future__ import annotations

import copy
import gc
import pickle
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Subset
from torchvision.transforms import v2

import penstock
from penstock.errors import MissingObject, StorageError
from penstock.storage.remote_shards import RemoteShards
from tests.forking import assert_in_child
from tests.object_server import ObjectServer
from tests.python_processes import Program
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
    objects_of,
    remote,
)
from tests.values import loaded
from tests.waiting import wait_until

pytest.importorskip("obstore", reason="the client of object stores (extra 'remote') is not installed")
pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def negative(tensor: torch.Tensor) -> torch.Tensor:
    return -tensor


#: Who reads: native threads, threads with copies of the
#: dataset, threads that share it, the caller's thread, and spawned processes.
READERS: dict[str, dict[str, Any]] = {
    "native": {},
    "native, one": {"num_workers": 1},
    "native, caller": {"num_workers": 0},
    "threads": {"worker_method": "thread"},
    "one thread": {"worker_method": "thread", "num_workers": 1},
    "shared": {"worker_method": "thread", "share_dataset": True},
    "caller": {"num_workers": 0},
    "any order": {"worker_method": "thread", "in_order": False},
    "processes": {"worker_method": "process"},
    "processes in any order": {"worker_method": "process", "in_order": False},
}


def transform_of(who: str) -> Any:
    return None if who.startswith("native") else negative


@pytest.fixture(scope="module")
def packed_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of shards of JPEG files."""
    source = tmp_path_factory.mktemp("images")
    generator = np.random.default_rng(0)
    for number in range(60):
        folder = source / f"class{number % 3}"
        folder.mkdir(exist_ok=True)
        pixels = generator.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((80, 60)).save(folder / f"{number}.jpg")
    out = tmp_path_factory.mktemp("packed-images")
    penstock.pack(penstock.ImageFolder(source), out, shard_size=20_000)
    return out


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
def test_an_epoch_is_that_of_the_folder(server: ObjectServer, packed: Path, tmp_path: Path, who: str) -> None:
    options, transform = READERS[who], transform_of(who)
    limit = limit_for(packed, 9)
    dataset = remote(server, tmp_path / "cache", transform=transform, cache_limit=limit)
    dataset.files.cache.begin = bounded(dataset.files.cache, limit)  # type: ignore[union-attr, method-assign]
    over = loader(dataset, batch_size=8, **options)
    for words in ("native   read", "window of 3 shards") if transform is None else ("because  ",):
        assert words in over.explain()
    theirs = list(loader(penstock.Shards(packed, window=WINDOW, transform=transform), batch_size=8, **options))
    ours = list(over)
    if not options.get("in_order", True):
        ours, theirs = sorted_batches(ours), sorted_batches(theirs)
    assert_equal_passes(ours, theirs)
    assert_each_came_once(dataset, server, processes=options.get("worker_method") == "process")
    assert transform is not None or "19 shards fetched so far" in over.explain()


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


@pytest.mark.parametrize("who", ["native", "threads", "processes"])
def test_later_passes_fetch_no_more(server: ObjectServer, packed: Path, tmp_path: Path, who: str) -> None:
    options = {**READERS[who], "persistent_workers": True}
    over = loader(remote(server, tmp_path / "cache", transform=transform_of(who)), **options)
    local = loader(penstock.Shards(packed, window=WINDOW, transform=transform_of(who)), **options)
    for _ in range(3):
        assert_equal_passes(over, local)
    assert_each_came_once(over.dataset, server, processes=who == "processes")
    for one in (over, local):
        next(iter(one))
    assert_equal_passes(over, local)
    for one in (over, local):
        one._iterator._shutdown_workers()


def test_two_ranks_share_a_cache(server: ObjectServer, packed: Path, tmp_path: Path) -> None:
    local = loader(penstock.Shards(packed, window=WINDOW), batch_size=16)
    ranks = [loader(remote(server, tmp_path / "cache"), batch_size=8, shard=(rank, 2)) for rank in range(2)]
    for first, second, theirs in zip(*ranks, local, strict=True):
        assert_same([torch.cat(pair) for pair in zip(first, second, strict=True)], theirs)
    assert set(downloads(server).values()) == {1}


def test_a_resume_fetches_what_is_left(server: ObjectServer, packed: Path, tmp_path: Path) -> None:
    whole = list(loader(penstock.Shards(packed, window=WINDOW)))
    first = loader(remote(server, tmp_path / "first"))
    batches = iter(first)
    for _ in range(9):
        next(batches)
    state = first.state_dict()
    del batches
    gc.collect()
    server.gets.clear()
    second = loaded(loader(remote(server, tmp_path / "second")), state)
    assert_equal_passes(second, whole[9:])
    assert len(downloads(server)) < len(list(packed.glob("*.tar")))


@pytest.mark.parametrize("who", ["native", "threads", "caller", "processes"])
def test_few_samples_come_by_range(server: ObjectServer, packed: Path, tmp_path: Path, who: str) -> None:
    over = remote(server, tmp_path / "cache", transform=transform_of(who))
    local = penstock.Shards(packed, window=WINDOW, transform=transform_of(who))
    few = [3, 100, -19, 222]
    assert_equal_passes(
        loader(Subset(over, few), batch_size=2, **READERS[who]), loader(Subset(local, few), batch_size=2)
    )
    ranges = 0 if who == "processes" else 4  # which the processes read themselves
    assert (over.files.traffic.shards, over.files.traffic.ranges) == (0, ranges)  # type: ignore[union-attr]
    assert sum(downloads(server).values()) == 4
    assert not over.files._brought  # type: ignore[union-attr]
    assert_same(loader(over, batch_size=4).batch_at(0, 58), loader(local, batch_size=4).batch_at(0, 58))
    assert_same(over[17], local[17])
    assert not list((tmp_path / "cache").glob("*.tar-*.shard"))
    assert over.files.traffic.ranges == ranges + 4 + 1  # type: ignore[union-attr]


def test_images_with_transforms(packed_images: Path, tmp_path: Path) -> None:
    transform = v2.Compose(
        [v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    )
    with ObjectServer(objects_of(packed_images)) as server:
        over = remote(server, tmp_path / "cache", transform=transform)
        local = penstock.Shards(packed_images, window=WINDOW, transform=transform)
        assert_equal_passes(loader(over, batch_size=8), loader(local, batch_size=8))
        assert_same(loader(over).batch_at(1, 1), loader(local).batch_at(1, 1))


def test_samplers_and_concatenations(server: ObjectServer, packed: Path, tmp_path: Path) -> None:
    local, over = penstock.Shards(packed, window=WINDOW), remote(server, tmp_path / "cache")
    given = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(0)).tolist()
    options = {"shuffle": None, "sampler": given, "seed": None}
    assert_equal_passes(loader(over, **options), loader(local, **options))
    assert_equal_passes(loader(ConcatDataset([local, over])), loader(ConcatDataset([local, local])))


def test_parts_that_lie_elsewhere(server: ObjectServer, packed: Path, tmp_path: Path) -> None:
    over = remote(server, tmp_path / "cache", transform=negative)
    local = penstock.Shards(packed, window=WINDOW, transform=negative)
    chosen = list(range(0, SAMPLES, 2))
    options = {"worker_method": "thread", "batch_size": 8}
    mixed: Any = ConcatDataset([local, Subset(over, chosen), over])
    wanted: Any = ConcatDataset([local, Subset(local, chosen), local])
    assert_equal_passes(loader(mixed, **options), loader(wanted, **options))
    assert_each_came_once(over, server)


@pytest.mark.parametrize("who", ["native", "threads"])
def test_a_shard_that_cannot_be_fetched_is_the_error_of_its_batches(
    server: ObjectServer, packed: Path, tmp_path: Path, who: str
) -> None:
    name = damage_a_shard(server, packed)
    dataset = remote(server, tmp_path / "cache", transform=transform_of(who))
    assert_all_but_a_damaged_shard(loader(dataset, shuffle=False, batch_size=8, **READERS[who]), name)


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


def test_an_early_exit_ends_the_downloads(server: ObjectServer, tmp_path: Path) -> None:
    over = loader(remote(server, tmp_path / "cache"))
    for _ in over:
        break
    batches = iter(over)
    next(batches)
    batches.close()


@pytest.mark.parametrize("who", ["native", "threads"])
def test_the_end_of_downloads_that_hang(server: ObjectServer, tmp_path: Path, who: str) -> None:
    server.faults = lambda method, name, number: "hang" if name.endswith(".tar") and method == "GET" else ""
    dataset = remote(server, tmp_path / "cache", transform=transform_of(who))
    batches = iter(loader(dataset, timeout=0.5, seed=None, **READERS[who]))
    with pytest.raises(penstock.WorkerStuck, match=r"still on their way from the object store: http://127.*\.tar"):
        next(batches)
    begun = time.monotonic()
    batches.close()
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize("act", ["next(iter(loader))", "dataset[0]"], ids=["pass", "sample"])
def test_ctrl_c_while_a_shard_is_on_its_way(server: ObjectServer, tmp_path: Path, act: str) -> None:
    script = f"""
import signal, penstock
signal.signal(signal.SIGINT, signal.default_int_handler)
dataset = penstock.Shards({server.url!r}, window={WINDOW}, cache_folder={str(tmp_path / "cache")!r})
loader = penstock.DataLoader(dataset, batch_size=8, num_workers=2, shuffle=True, seed=1)
try:
    {act}
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    server.faults = lambda method, name, number: "hang" if name.endswith(".tar") and method == "GET" else ""
    with Program(script) as process:
        wait_until(lambda: bool(downloads(server)))
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        assert process.wait() == 0


def test_what_is_wrong_is_said_at_the_opening(server: ObjectServer, packed: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingObject, match=r"nothing/dataset.json: there is no such object"):
        penstock.Shards(f"{server.url}/nothing", cache_folder=tmp_path / "cache")
    with pytest.raises(
        penstock.InvalidOption, match=r"does not hold a window of 8 shards and the next one.*lower window"
    ):
        penstock.Shards(server.url, cache_folder=tmp_path / "cache", cache_limit=300_000)
    for options in ({"window": 0}, {"cache_limit": 0}, {"cache_limit": "1GiB"}):
        with pytest.raises(penstock.InvalidOption):
            penstock.Shards(server.url, cache_folder=tmp_path / "cache", **options)
    server.objects["data.index.npy"] += b"x"
    with pytest.raises(StorageError, match=r"bytes, and dataset.json says"):
        remote(server, tmp_path / "cache")


def test_datasets_are_pickled_by_their_url(server: ObjectServer, packed: Path, tmp_path: Path) -> None:
    over = remote(server, tmp_path / "cache")
    twin = pickle.loads(pickle.dumps(over))
    assert isinstance(twin.files, RemoteShards)
    assert_same(twin[5], penstock.Shards(packed)[5])
    assert twin.root == server.url and len(twin) == SAMPLES and repr(server.url) in repr(twin)


def test_a_folder_by_url(packed: Path, tmp_path: Path) -> None:
    over = penstock.Shards(packed.as_uri(), window=WINDOW, cache_folder=tmp_path / "cache")
    assert_equal_passes(loader(over), loader(penstock.Shards(packed, window=WINDOW)))


def test_a_pass_in_a_forked_child(server: ObjectServer, packed: Path, tmp_path: Path) -> None:
    over = loader(remote(server, tmp_path / "cache"))
    batches = iter(over)
    next(batches)

    def leave() -> None:
        nonlocal batches
        del batches
        gc.collect()

    assert_in_child(leave)
    assert sum(len(labels) for _, labels in batches) == SAMPLES - 16


def test_a_copy_for_a_thread_reads_by_the_same_files(server: ObjectServer, tmp_path: Path) -> None:
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
