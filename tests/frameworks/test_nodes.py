"""Several ranks on each of several nodes: one order over all of them, and one scan of a tree for each node.

A node is played by forked processes with a cache folder of their own: what else nodes have apart, this does not show.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
import traceback
from pathlib import Path
from typing import Any

import pytest
import torchvision

import penstock
import penstock._native as _native
from penstock.sources.image_folder import RACY_NS
from penstock.system import cache_folder
from tests.cluster.conftest import wait_until
from tests.photos import photo_files

NODES, RANKS = 2, 2
WORLD = NODES * RANKS


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Return a folder of 22 photos, that nobody has changed for a while."""
    root = photo_files(tmp_path / "photos", 22, (8, 9))
    old = time.time_ns() - 10 * RACY_NS
    for folder in (root, *root.iterdir()):
        os.utime(folder, ns=(old, old))
    return root


def be_rank(rank: int, photos: Path, folder: Path, start: Any) -> None:
    """Read this rank's part of an epoch, and write down which samples came, and which scans were made."""
    scan, alone, node = _native.scan_image_folder, cache_folder.alone, rank // RANKS

    def coming(entry: Path) -> Any:
        (folder / f"came-{rank}").touch()
        return alone(entry)

    def counting(*arguments: Any) -> Any:
        with (folder / f"scans-{node}").open("a") as file:
            file.write(f"{rank}\n")
        came = [folder / f"came-{other}" for other in range(node * RANKS, (node + 1) * RANKS)]
        assert wait_until(lambda: all(one.exists() for one in came)), "all have seen that no scan is kept"
        return scan(*arguments)

    _native.scan_image_folder, cache_folder.alone = counting, coming  # type: ignore[assignment]
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(WORLD), LOCAL_RANK=str(rank % RANKS), LOCAL_WORLD_SIZE=str(RANKS),
        XDG_CACHE_HOME=str(folder / f"node-{node}"),
    )  # fmt: skip
    start.wait()
    dataset = penstock.ImageFolder(photos, torchvision.transforms.ToTensor())
    options: dict[str, Any] = {"shuffle": True, "seed": 4, "num_workers": 0, "cache": str(folder / f"bytes-{node}")}
    loader: Any = penstock.DataLoader(dataset, 3, shard="auto", **options)
    ids = [loader.ids(0, step) for step in range(len(loader))]
    list(loader)
    start.wait()
    neighbour: Any = penstock.DataLoader(dataset, 3, shard=(rank ^ 1, WORLD), **options)
    list(neighbour)
    (tier,) = neighbour.stats().cache.values()
    read = neighbour.stats().samples
    assert tier.samples == read * RANKS, "the cache holds what both ranks have read, each once"
    assert tier.hits >= read, "and none of it was read again; the first batch comes from it twice, to learn its shape"
    (folder / f"rank-{rank}.json").write_text(json.dumps(ids))


def run(rank: int, *arguments: Any) -> None:
    code = 1
    try:
        be_rank(rank, *arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def test_ranks_of_several_nodes(photos: Path, tmp_path: Path) -> None:
    forking = multiprocessing.get_context("fork")
    start = forking.Barrier(WORLD)
    ranks = [forking.Process(target=run, args=(rank, photos, tmp_path, start)) for rank in range(WORLD)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    assert [process.exitcode for process in ranks] == [0] * WORLD
    parts = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(WORLD)]
    alone: Any = penstock.DataLoader(penstock.ImageFolder(photos), 3 * WORLD, shuffle=True, seed=4)
    for step in range(len(alone)):
        together = [one for part in parts for one in part[step]]
        assert together[: len(alone.ids(0, step))] == alone.ids(0, step) or set(together) == set(alone.ids(0, step))
    for node in range(NODES):
        assert len((tmp_path / f"scans-{node}").read_text().split()) == 1, "one rank of the node has listed the tree"
