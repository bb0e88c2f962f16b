"""A training run that may be killed at any time and started again; started by test_killed.py.

    torchrun --nproc-per-node N run_killed.py FOLDER [STEP]

It reads three datasets side by side, by one loader each. After each step rank 0 appends one line to FOLDER/delivered:
what all ranks were handed, and the states behind it. A run begins behind the last of these lines.

With STEP it waits, a few steps after that one, to be killed: so it is killed within the epoch however late its parent
is. Without STEP it goes on to the end of the epoch, and writes FOLDER/done.
"""

from __future__ import annotations

import hashlib
import json
import random
import signal
import sys
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torchvision import datasets
from torchvision.transforms import v2

import penstock
from tests.data import Made
from tests.frameworks.launching import begin

PATIENCE_SECONDS = 60
BATCH, SEED = 2, 11
SAMPLES = {"tensors": 150, "images": 139, "python": 143}
BEHIND = 3
"""How many steps after the one that the parent waits for a run goes on at the most."""

Delivered = dict[str, list[tuple[int, str]]]
"""For each dataset the number and the checksum of each sample."""


def tensors(folder: Path) -> Any:
    """Return the samples in files; the label of each is its number."""
    names = [f"id-{number}" for number in range(SAMPLES["tensors"])]
    return penstock.TensorFolder(folder / "tensors", names, {name: number for number, name in enumerate(names)})


def images(folder: Path) -> Any:
    """Return the images, each a class of its own: the label of each is its number."""
    steps = v2.RandomResizedCrop(16, antialias=True), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)
    return datasets.ImageFolder(str(folder / "images"), v2.Compose([v2.ToImage(), *steps]))


def loaders(folder: Path, **options: Any) -> dict[str, Any]:
    """Return a loader of each dataset; no worker processes, which could not be forked beside gloo's threads."""
    drawing = Made(lambda index: (torch.rand(5) + index, index, random.random()), SAMPLES["python"])
    settings: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "seed": SEED, **options}
    return {
        "tensors": penstock.DataLoader(tensors(folder), num_workers=2, **settings),
        "images": penstock.DataLoader(images(folder), num_workers=1, **settings),
        "python": penstock.DataLoader(drawing, num_workers=0, **settings),
    }


def handed(loader: Any, batch: Any) -> list[tuple[int, str]]:
    """Return number and checksum of each sample of a batch, without padding."""
    data, numbers, *rest = batch
    real = len(numbers) - loader.padded
    return [
        (int(number), hashlib.sha256(b"".join(field[row].numpy().tobytes() for field in (data, *rest))).hexdigest())
        for row, number in enumerate(numbers[:real])
    ]


def steps(given: dict[str, Any]) -> Iterator[Delivered]:
    """Yield what this rank is handed at each step, until the longest dataset is done."""
    for batches in zip_longest(*given.values()):
        yield {
            name: handed(given[name], batch) for name, batch in zip(given, batches, strict=True) if batch is not None
        }


def lines(folder: Path) -> list[dict[str, Any]]:
    """Return what was delivered, without a line that a run was killed over."""
    path = folder / "delivered"
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
    return [json.loads(line) for line in whole.split(b"\n") if line]


def main() -> None:
    begin(PATIENCE_SECONDS)
    folder, until = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    given = loaders(folder, shard="auto")
    before = lines(folder)
    for name, loader in given.items() if before else ():
        loader.load_state_dict(before[-1]["states"][name])
    begun: list[int | None] = [None] * world
    dist.all_gather_object(begun, len(before))  # all have read the file before rank 0 writes
    path = folder / "delivered"
    if rank == 0 and before:
        path.write_bytes(path.read_bytes().rpartition(b"\n")[0] + b"\n")  # a line that was begun goes
    with path.open("ab", buffering=0) as out:
        for step, mine in enumerate(steps(given), len(before)):
            if until is not None and step > until + BEHIND:
                signal.pause()
            gathered: list[Any] | None = [None] * world if rank == 0 else None
            dist.gather_object(mine, gathered)
            if gathered is None:
                continue
            line = {
                "world": world,
                "handed": {name: [pair for share in gathered for pair in share.get(name, [])] for name in given},
                "states": {name: loader.state_dict() for name, loader in given.items()},
            }
            out.write(json.dumps(line).encode() + b"\n")
    dist.barrier()
    if rank == 0:
        (folder / "done").touch()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
