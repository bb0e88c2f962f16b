"""A run that saves its loaders with torch.distributed.checkpoint, or goes on from there; see test_checkpoint.py.

    torchrun --nproc-per-node N run_checkpoint.py FOLDER save|load

Rank 0 writes what all ranks were handed to FOLDER/save.json or FOLDER/load.json.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import random
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint
from torch.utils.data import Dataset, TensorDataset

import penstock

dcp: Any = torch.distributed.checkpoint  # which does not say what it exports

PATIENCE_SECONDS = 60
SIZE, BATCH, SEED, STOP = 103, 3, 5, 6
"""STOP: steps before the states are saved."""


class Drawing(Dataset[Any]):
    """Read by Python, with draws from global generators in each sample."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        return index, torch.rand(5), random.random()


def loaders(shard: Any, folder: Path | None = None) -> dict[str, Any]:
    """Return the loaders by name; with a folder for their ledgers, one for each rank."""
    native = TensorDataset(torch.arange(SIZE), torch.arange(4.0 * SIZE).view(SIZE, 4))
    settings: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "seed": SEED, "shard": shard}
    ledger = None if folder is None else folder / "ledger-{rank}"
    return {
        "native": penstock.DataLoader(native, num_workers=2, ledger=ledger, **settings),
        "python": penstock.DataLoader(Drawing(), num_workers=0, **settings),
    }


def handed(loader: Any, batches: Any) -> Iterator[tuple[int, str]]:
    """Yield number and checksum of each sample, without padding."""
    for numbers, *rest in batches:
        for row in range(len(numbers) - loader.padded):
            content = b"".join(field[row].numpy().tobytes() for field in rest)
            yield int(numbers[row]), hashlib.sha256(content).hexdigest()


def main() -> None:
    # A rank that waits for the other for ever says where, and ends.
    faulthandler.dump_traceback_later(PATIENCE_SECONDS, exit=True)
    folder, what = Path(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    given = loaders("auto", folder)
    saved = {**given, "model": {"weight": torch.full((2, 2), float(what == "save"))}}
    passes = {}
    if what == "save":
        passes = {name: iter(loader) for name, loader in given.items()}
        mine = {name: list(handed(given[name], islice(batches, STOP))) for name, batches in passes.items()}
        dcp.save(saved, checkpoint_id=folder / "checkpoint")
    else:
        dcp.load(saved, checkpoint_id=folder / "checkpoint")
        mine = {name: list(handed(loader, loader)) for name, loader in given.items()}
    assert saved["model"]["weight"].eq(1).all()
    gathered: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(mine, gathered)
    if gathered is not None:
        (folder / f"{what}.json").write_text(json.dumps(gathered))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
