"""A rank of a job on two nodes; started by test_two_nodes.py.

    torchrun --nnodes 2 --nproc-per-node 2 run_nodes.py FOLDER

XDG_CACHE_HOME is the node's own. Each rank reads an epoch of photos through a cache, and one of remote shards, and
writes FOLDER/rank-N.json: where it ran, which samples it got, and what it listed, read and fetched for them.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torchvision

import penstock
import penstock._native as _native
from penstock.system import cache_folder
from tests.frameworks.launching import begin, end
from tests.waiting import wait_until

PATIENCE_SECONDS = 60


def main(folder: Path) -> None:
    begin(PATIENCE_SECONDS)
    dist.init_process_group("gloo")
    rank, local = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    node, scans = Path(os.environ["XDG_CACHE_HOME"]), [0]
    scan, alone = _native.scan_image_folder, cache_folder.alone

    def coming(entry: Path) -> Any:
        (node / f"came-{local}").touch()
        return alone(entry)

    def counted(*arguments: Any) -> Any:
        scans[0] += 1
        came = [node / f"came-{other}" for other in range(int(os.environ["LOCAL_WORLD_SIZE"]))]
        wait_until(lambda: all(one.exists() for one in came))  # all have seen that no scan is kept
        return scan(*arguments)

    _native.scan_image_folder, cache_folder.alone = counted, coming  # type: ignore[assignment]
    dist.barrier()
    photos = penstock.ImageFolder(folder / "photos", torchvision.transforms.ToTensor())
    options: dict[str, Any] = {"shuffle": True, "seed": 4, "num_workers": 1, "cache": str(node / "bytes")}
    loader: Any = penstock.DataLoader(photos, 3, shard="auto", **options)
    found: dict[str, Any] = {"photos": [loader.ids(0, step) for step in range(len(loader))]}
    read = sum(len(images) for images, _ in loader)
    dist.barrier()
    neighbour: Any = penstock.DataLoader(photos, 3, shard=(rank ^ 1, dist.get_world_size()), **options)
    list(neighbour)
    shards = penstock.Shards((folder / "packed").as_uri(), cache_folder=node / "shards")
    remote: Any = penstock.DataLoader(shards, 4, shard="auto", **{**options, "cache": None})
    found["labels"] = [labels.tolist() for _, labels in remote]
    dist.barrier()
    (tier,), (again,) = loader.stats().cache.values(), neighbour.stats().cache.values()
    found |= {
        "host": socket.gethostname(),
        "rank": rank,
        "group": int(os.environ["GROUP_RANK"]),
        "read": read,
        "scans": scans[0],
        "cached": [tier.samples, again.samples],
        "hits": again.hits,
        "samples": neighbour.stats().samples,
        "explained": remote.explain(),
    }
    end(folder / "rank", found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
