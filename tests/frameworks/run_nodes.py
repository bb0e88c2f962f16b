"""A rank of a job on two nodes; started by test_two_nodes.py.

    torchrun --nnodes 2 --nproc-per-node 2 run_nodes.py FOLDER

XDG_CACHE_HOME is the node's own. Each rank reads an epoch of photos through a cache, and one of remote shards, and
writes FOLDER/rank-N.json: where it ran, which samples it got, and what it listed, read and fetched for them.
"""

from __future__ import annotations

import faulthandler
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torchvision

import penstock
import penstock._native as _native

PATIENCE_SECONDS = 60


def main(folder: Path) -> None:
    faulthandler.dump_traceback_later(PATIENCE_SECONDS, exit=True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    scans, scan = [0], _native.scan_image_folder

    def counted(*arguments: Any) -> Any:
        scans[0] += 1
        return scan(*arguments)

    _native.scan_image_folder = counted  # type: ignore[assignment]
    node = Path(os.environ["XDG_CACHE_HOME"])
    dist.barrier()
    photos = penstock.ImageFolder(folder / "photos", torchvision.transforms.ToTensor())
    options: dict[str, Any] = {"shuffle": True, "seed": 4, "num_workers": 1, "shard": "auto"}
    loader: Any = penstock.DataLoader(photos, 3, cache=str(node / "bytes"), **options)
    found: dict[str, Any] = {"photos": [loader.ids(0, step) for step in range(len(loader))]}
    read = sum(len(images) for images, _ in loader)
    dist.barrier()
    shards = penstock.Shards((folder / "packed").as_uri(), cache_folder=node / "shards")
    remote: Any = penstock.DataLoader(shards, 4, **options)
    found["labels"] = [labels.tolist() for _, labels in remote]
    dist.barrier()
    (tier,) = loader.stats().cache.values()
    found |= {
        "host": socket.gethostname(),
        "rank": rank,
        "group": int(os.environ["GROUP_RANK"]),
        "read": read,
        "scans": scans[0],
        "cached": tier.samples,
        "explained": remote.explain(),
    }
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
