"""penstock.Shards of an object store: the epochs of the folder, brought ahead of need, once, within the limit."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, Subset
from torchvision.transforms import v2

import penstock
from tests.data import photo_files
from tests.forking import assert_in_child
from tests.object_server import ObjectServer
from tests.packing.packed import contents
from tests.python_processes import Program
from tests.same import assert_same
from tests.values import loaded, stopped
from tests.waiting import wait_until

pytest.importorskip("obstore", reason="the client of object stores (extra 'remote') is not installed")


SAMPLES = 240  # of the fixture `packed`
WINDOW = 3


def loader(dataset: Any, **options: Any) -> penstock.DataLoader[Any]:
    return penstock.DataLoader(dataset, **{"batch_size": 16, "shuffle": True, "seed": 3, "num_workers": 2, **options})


def downloads(server: ObjectServer) -> dict[str, int]:
    return {name: count for name, count in server.gets.items() if name.endswith(".tar")}


def assert_equal_passes(ours: Any, theirs: Any) -> None:
    """Assert that two loaders give the same batches, which are compared one by one."""
    for one, other in zip(ours, theirs, strict=True):
        assert_same(one, other)


def remote(server: ObjectServer, cache: Path, **options: Any) -> Any:
    return penstock.Shards(server.url, window=WINDOW, cache_folder=cache, **options)


def negative(tensor: torch.Tensor) -> torch.Tensor:
    return -tensor


#: Who reads: native threads, threads with copies of the dataset, threads that share it, the caller's thread, and
#: spawned processes.
READERS: dict[str, dict[str, Any]] = {
    "native": {},
    "native, one": {"num_workers": 1},
    "native, caller": {"num_workers": 0},
    "threads": {"worker_method": "thread"},
    "one thread": {"worker_method": "thread", "num_workers": 1},
    "shared": {"worker_method": "thread", "share_dataset": True},
    "caller": {"num_workers": 0},
    "any order": {"worker_method": "thread", "in_order": False},
    "processes": {"worker_method": "process", "num_workers": 1},  # each takes seconds to start
    "processes in any order": {"worker_method": "process", "in_order": False},
}


def transform_of(who: str) -> Any:
    return None if who.startswith("native") else negative


def assert_each_came_once(dataset: Any, server: ObjectServer, *, processes: bool = False) -> None:
    """Assert that each shard was fetched once, and nothing but them.

    Processes read the samples that they need before a shard has begun to come.
    """
    shards, traffic = len(dataset.files.shards), dataset.files.traffic
    assert len(downloads(server)) == shards
    if processes:
        assert sum(downloads(server).values()) < SAMPLES // 2
    else:
        assert (traffic.shards, traffic.ranges, sum(downloads(server).values())) == (shards, 0, shards)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    """Assert that a test leaves no thread of ours that fetches."""
    before = threading.enumerate()
    yield
    gc.collect()
    left = [thread.name for thread in threading.enumerate() if thread not in before]
    assert not {"penstock-download", "penstock-fetch"} & set(left)


@pytest.fixture
def server(packed: Path) -> Iterator[ObjectServer]:
    with ObjectServer(contents(packed)) as serving:
        yield serving


@pytest.fixture
def far(server: ObjectServer, tmp_path: Path) -> Callable[..., Any]:
    """What makes a dataset of the server's."""
    return lambda transform=None, **options: remote(server, tmp_path / "cache", transform=transform, **options)


@pytest.fixture
def near(packed: Path) -> Callable[..., penstock.Shards]:
    """What makes the dataset of the folder."""
    return lambda transform=None: penstock.Shards(packed, window=WINDOW, transform=transform)


def hanging(method: str, name: str, number: int) -> str:
    return "hang" if name.endswith(".tar") and method == "GET" else ""


def limit_of(packed: Path) -> int:
    """Return how many bytes a cache needs for the index and nine shards of a folder."""
    sizes = [path.stat().st_size for path in packed.glob("*.tar")]
    return 9 * (max(sizes) + 1024) + sum(path.stat().st_size for path in packed.glob("*.npy")) + 4096


@pytest.mark.parametrize("who", [who for who in READERS if who != "processes"])  # whose epochs later passes compare
def test_an_epoch_is_that_of_the_folder(server: ObjectServer, packed: Path, far: Any, near: Any, who: str) -> None:
    options, transform = READERS[who], transform_of(who)
    limit = limit_of(packed)
    dataset = far(transform, cache_limit=limit)
    cache, opened = dataset.files.cache, dataset.files.cache.open

    def looked(*arguments: Any, **given: Any) -> Any:
        found = opened(*arguments, **given)
        assert cache.held_bytes() <= limit
        return found

    cache.open = looked
    over = loader(dataset, batch_size=8, **options)
    for words in ("native   read", "window of 3 shards") if transform is None else ("because  ",):
        assert words in over.explain()
    ours, theirs = list(over), list(loader(near(transform), batch_size=8, **options))
    if not options.get("in_order", True):
        for batches in (ours, theirs):
            batches.sort(key=lambda batch: batch[0].flatten().tolist())
    assert_equal_passes(ours, theirs)
    assert_each_came_once(dataset, server, processes=options.get("worker_method") == "process")
    assert transform is not None or "19 shards fetched so far" in over.explain()


def test_files_of_others_in_the_cache_folder_stay(far: Any, near: Any, packed: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(0o700)
    for name in ("notes.txt", "x.shard"):
        (tmp_path / "cache" / name).write_bytes(bytes(5_000_000))
    assert_equal_passes(loader(far(cache_limit=limit_of(packed))), loader(near()))
    assert {"notes.txt", "x.shard"} < set(os.listdir(tmp_path / "cache"))


def test_a_shard_that_is_finished_between_two_looks_is_not_fetched_again(far: Any, tmp_path: Path) -> None:
    files = far().files
    files.download(0).run(beyond=False).close()
    hold, looks = files.cache.hold, [None]  # the first look comes too early
    files.cache.hold = lambda shard: looks.pop() if looks else hold(shard)
    held, part = files.cache.open(files.cached[0], beyond=False)
    assert held is not None and part is None and not list((tmp_path / "cache").glob("*.part"))
    held.close()


def test_a_full_disk_is_said_with_what_is_missing(far: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    over = far()
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(penstock.OutOfSpace, match=r"is full: a shard of .* is needed now") as raised:
        list(loader(over))
    assert raised.value.errno == 28 and raised.value.missing > 0


def test_shards_are_fetched_before_a_sample_of_them_is_read(server: ObjectServer, far: Any) -> None:
    gate = threading.Event()
    ahead = {"shuffle": False, "num_workers": 1, "prefetch_factor": 1, "worker_method": "thread", "share_dataset": True}
    batches = iter(loader(far(lambda tensor: gate.wait(60) and tensor), batch_size=4, **ahead))
    wait_until(lambda: len(downloads(server)) > 3)
    gate.set()
    assert sum(len(labels) for _, labels in batches) == SAMPLES


@pytest.mark.parametrize("who", ["native", "threads", "processes"])
def test_later_passes_fetch_no_more(server: ObjectServer, far: Any, near: Any, who: str) -> None:
    options = {**READERS[who], "persistent_workers": True}
    over, local = (loader(make(transform_of(who)), **options) for make in (far, near))
    for _ in range(3):
        assert_equal_passes(over, local)
    assert_each_came_once(over.dataset, server, processes=who == "processes")
    for one in (over, local):
        next(iter(one))
    assert_equal_passes(over, local)
    for one in (over, local):
        one._iterator._shutdown_workers()


def test_two_ranks_share_a_cache(server: ObjectServer, far: Any, near: Any) -> None:
    ranks = [loader(far(), batch_size=8, shard=(rank, 2)) for rank in range(2)]
    for first, second, theirs in zip(*ranks, loader(near()), strict=True):
        assert_same([torch.cat(pair) for pair in zip(first, second, strict=True)], theirs)
    assert set(downloads(server).values()) == {1}


def test_a_resume_fetches_what_is_left(server: ObjectServer, packed: Path, near: Any, tmp_path: Path) -> None:
    whole = list(loader(near()))
    first, second = (loader(remote(server, tmp_path / name)) for name in ("first", "second"))
    _, state, batches = stopped(first, 9)
    del batches
    gc.collect()
    server.gets.clear()
    assert_equal_passes(loaded(second, state), whole[9:])
    assert len(downloads(server)) < len(list(packed.glob("*.tar")))


@pytest.mark.parametrize("who", ["native", "threads", "caller", "processes"])
def test_few_samples_come_by_range(server: ObjectServer, far: Any, near: Any, tmp_path: Path, who: str) -> None:
    over, local, few = far(transform_of(who)), near(transform_of(who)), [3, 100, -19, 222]
    theirs = loader(Subset(local, few), batch_size=2)
    assert_equal_passes(loader(Subset(over, few), batch_size=2, **READERS[who]), theirs)
    ranges = 0 if who == "processes" else 4  # which the processes read themselves
    assert (over.files.traffic.shards, over.files.traffic.ranges) == (0, ranges)
    assert sum(downloads(server).values()) == 4
    assert not over.files._brought
    assert_same(loader(over, batch_size=4).batch_at(0, 58), loader(local, batch_size=4).batch_at(0, 58))
    assert_same(over[17], local[17])
    assert not list((tmp_path / "cache").glob("*.tar-*.shard"))
    assert over.files.traffic.ranges == ranges + 4 + 1


def test_images_with_transforms(tmp_path: Path) -> None:
    penstock.pack(penstock.ImageFolder(photo_files(tmp_path / "photos", 60)), tmp_path / "packed", shard_size=20_000)
    steps = [v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    with ObjectServer(contents(tmp_path / "packed")) as server:
        over = remote(server, tmp_path / "cache", transform=v2.Compose(steps))
        local = penstock.Shards(tmp_path / "packed", window=WINDOW, transform=v2.Compose(steps))
        assert_equal_passes(loader(over, batch_size=8), loader(local, batch_size=8))
        assert_same(loader(over).batch_at(1, 1), loader(local).batch_at(1, 1))


def test_samplers_and_concatenations(far: Any, near: Any) -> None:
    local, over = near(), far()
    given = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(0)).tolist()
    options = {"shuffle": None, "sampler": given, "seed": None}
    assert_equal_passes(loader(over, **options), loader(local, **options))
    assert_equal_passes(loader(ConcatDataset([local, over])), loader(ConcatDataset([local, local])))


def test_parts_that_lie_elsewhere(server: ObjectServer, far: Any, near: Any) -> None:
    over, local, chosen = far(negative), near(negative), list(range(0, SAMPLES, 2))
    mixed, wanted = (
        loader(ConcatDataset([local, Subset(one, chosen), one]), worker_method="thread", batch_size=8)
        for one in (over, local)
    )
    assert_equal_passes(mixed, wanted)
    assert_each_came_once(over, server)


def test_a_pass_that_ends_by_an_error_lets_its_shards_go(server: ObjectServer, packed: Path, far: Any) -> None:
    """Its thread, which is not to be left, held them as long as the program ran."""
    name = sorted(path.name for path in packed.glob("*.tar"))[4]
    server.objects[name] = server.objects[name][::-1]
    with pytest.raises(penstock.StorageError, match="damaged or replaced"):
        list(loader(far(), shuffle=False))


def test_indices_that_the_dataset_refuses(far: Any) -> None:
    given = [[0, 1], [2, SAMPLES], [3, 4]]
    batches = iter(penstock.DataLoader(far(negative), batch_sampler=given, num_workers=2, worker_method="thread"))
    assert len(next(batches)[1]) == 2
    with pytest.raises(IndexError, match=f"sample index {SAMPLES} is out of range"):
        next(batches)
    assert len(next(batches)[1]) == 2


def test_shards_are_fetched_before_worker_processes_ask(server: ObjectServer, far: Any) -> None:
    dataset = far(negative)
    options: dict[str, Any] = {"batch_size": 4, "shuffle": False, "num_workers": 1, "prefetch_factor": 1}
    batches = iter(loader(dataset, worker_method="process", **options))
    wait_until(lambda: len(downloads(server)) > 3)  # the loop has asked for nothing, one batch of a shard is in flight
    assert sum(len(labels) for _, labels in batches) == SAMPLES
    assert_each_came_once(dataset, server, processes=True)
    with pytest.raises(penstock.InvalidOption, match="give multiprocessing_context='spawn'"):
        iter(loader(dataset, worker_method="process", multiprocessing_context="fork"))


def test_an_early_exit_ends_the_downloads(far: Any) -> None:
    over = loader(far())
    for _ in over:
        break
    batches = iter(over)
    next(batches)
    batches.close()


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
    server.faults = hanging
    with Program(script) as process:
        wait_until(lambda: bool(downloads(server)))
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        assert process.wait() == 0


def test_what_is_wrong_is_said_at_the_opening(server: ObjectServer, far: Any, tmp_path: Path) -> None:
    small = r"does not hold a window of 8 shards and the next one.*lower window"
    wrong: list[tuple[str, dict[str, Any], Any, str]] = [
        ("/nothing", {}, penstock.MissingObject, r"nothing/dataset.json: the object does not exist"),
        ("", {"cache_limit": 300_000}, penstock.InvalidOption, small),
        *(
            ("", options, penstock.InvalidOption, next(iter(options)))
            for options in ({"window": 0}, {"cache_limit": 0}, {"cache_limit": "1GiB"})
        ),
    ]
    for folder, options, error, words in wrong:
        with pytest.raises(error, match=words):
            penstock.Shards(server.url + folder, cache_folder=tmp_path / "cache", **options)
    server.objects["data.index.npy"] += b"x"
    with pytest.raises(penstock.StorageError, match=r"bytes, and dataset.json says"):
        far()


def test_datasets_are_pickled_by_their_url(server: ObjectServer, far: Any, near: Any) -> None:
    twin = pickle.loads(pickle.dumps(far()))
    assert_same(twin[5], near()[5])
    assert twin.root == server.url and len(twin) == SAMPLES and repr(server.url) in repr(twin)


def test_a_folder_by_url(packed: Path, near: Any, tmp_path: Path) -> None:
    over = penstock.Shards(packed.as_uri(), window=WINDOW, cache_folder=tmp_path / "cache")
    assert_equal_passes(loader(over), loader(near()))


def test_a_pass_in_a_forked_child(far: Any) -> None:
    batches = iter(loader(far()))
    next(batches)

    def leave() -> None:
        nonlocal batches
        del batches
        gc.collect()

    assert_in_child(leave)
    assert sum(len(labels) for _, labels in batches) == SAMPLES - 16


def test_a_copy_for_a_thread_reads_by_the_same_files(server: ObjectServer, far: Any, tmp_path: Path) -> None:
    class Noted(penstock.Shards):
        """A user's subclass, with a state of its own."""

        def __getstate__(self) -> dict[str, Any]:
            return {**super().__getstate__(), "noted": True}

    over = far(negative)
    server.gets.clear()
    twin = copy.deepcopy(over)
    assert twin.files is over.files and twin.index is over.index and twin.classes == over.classes
    assert_same(twin[7], over[7])
    assert "dataset.json" not in server.gets
    own: Any = copy.deepcopy(Noted(server.url, window=WINDOW, cache_folder=tmp_path / "cache"))
    assert own.noted
    assert_same(own[7][1], over[7][1])
