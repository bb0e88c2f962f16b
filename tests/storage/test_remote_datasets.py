"""penstock.Shards of an object store: the same epochs as of the folder that was uploaded, with a bounded cache."""

from __future__ import annotations

import gc
import pickle
import signal
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


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_an_epoch_is_that_of_the_folder(server: ObjectServer, packed: Path, tmp_path: Path, workers: int) -> None:
    local = penstock.Shards(packed, window=WINDOW)
    limit = limit_for(packed, 9)
    over = loader(remote(server, tmp_path / "cache", cache_limit=limit), num_workers=workers, batch_size=8)
    over.dataset.files.cache.begin = bounded(over.dataset.files.cache, limit)
    assert_equal_passes(over, loader(local, num_workers=workers, batch_size=8))
    assert set(downloads(server).values()) == {1} and len(downloads(server)) == len(list(packed.glob("*.tar"))) >= 8
    assert "window of 3 shards" in over.explain()
    assert "native   read" in over.explain() and "19 shards fetched so far" in over.explain()


def test_later_epochs_fetch_what_was_deleted_and_no_more(server: ObjectServer, packed: Path, tmp_path: Path) -> None:
    shards = len(list(packed.glob("*.tar")))
    over = loader(remote(server, tmp_path / "cache"))
    ours = [torch.cat([labels for _, labels in over]) for _ in range(3)]
    assert sum(downloads(server).values()) == shards
    theirs = loader(penstock.Shards(packed, window=WINDOW))
    for labels in ours:
        assert torch.equal(labels, torch.cat([labels for _, labels in theirs]))


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


def test_the_end_of_an_epoch_and_few_samples_come_by_range(server: ObjectServer, packed: Path, tmp_path: Path) -> None:
    local, over = penstock.Shards(packed, window=WINDOW), remote(server, tmp_path / "cache")
    few = [3, 100, 101, 222]
    assert_equal_passes(loader(Subset(over, few), batch_size=2), loader(Subset(local, few), batch_size=2))
    assert_same(loader(over, batch_size=4).batch_at(0, 58), loader(local, batch_size=4).batch_at(0, 58))
    assert_same(over[17], local[17])
    assert over.files.traffic.shards == 0  # type: ignore[union-attr]
    assert not list((tmp_path / "cache").glob("*.tar-*.shard"))
    assert over.files.traffic.ranges == 4 + 4 + 1  # type: ignore[union-attr]


def test_images_with_transforms(packed_images: Path, tmp_path: Path) -> None:
    transform = v2.Compose(
        [v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    )
    with ObjectServer(objects_of(packed_images)) as server:
        over = remote(server, tmp_path / "cache", transform=transform)
        local = penstock.Shards(packed_images, window=WINDOW, transform=transform)
        assert_equal_passes(loader(over, batch_size=8), loader(local, batch_size=8))
        assert_same(loader(over).batch_at(1, 1), loader(local).batch_at(1, 1))


@pytest.mark.parametrize("options", [{"worker_method": "thread"}, {"worker_method": "process"}, {"num_workers": 0}])
def test_datasets_that_python_reads(
    server: ObjectServer, packed: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    over = remote(server, tmp_path / "cache", transform=_negative)
    local = penstock.Shards(packed, window=WINDOW, transform=_negative)
    assert_equal_passes(loader(over, **options), loader(local, **options))
    assert sum(downloads(server).values()) < SAMPLES


def _negative(tensor: torch.Tensor) -> torch.Tensor:
    return -tensor


def test_samplers_and_concatenations(server: ObjectServer, packed: Path, tmp_path: Path) -> None:
    local, over = penstock.Shards(packed, window=WINDOW), remote(server, tmp_path / "cache")
    given = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(0)).tolist()
    options = {"shuffle": None, "sampler": given, "seed": None}
    assert_equal_passes(loader(over, **options), loader(local, **options))
    assert_equal_passes(loader(ConcatDataset([local, over])), loader(ConcatDataset([local, local])))


def test_an_early_exit_and_close_end_the_downloads(server: ObjectServer, tmp_path: Path) -> None:
    over = loader(remote(server, tmp_path / "cache"))
    for _ in over:
        break
    batches = iter(over)
    next(batches)
    batches.close()
    server.faults = lambda method, name, number: "hang" if name.endswith(".tar") and method == "GET" else ""
    hanging = loader(remote(server, tmp_path / "empty"), timeout=0.5)
    batches = iter(hanging)
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


def test_a_shard_that_cannot_be_fetched_is_the_error_of_its_batches(
    server: ObjectServer, packed: Path, tmp_path: Path
) -> None:
    name = damage_a_shard(server, packed)
    over = loader(remote(server, tmp_path / "cache"), shuffle=False, batch_size=8)
    assert_all_but_a_damaged_shard(over, name)


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
    first = sorted(path.name for path in packed.glob("*.tar"))[0]
    server.objects[first] += b"x"
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
