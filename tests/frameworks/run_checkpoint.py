"""A run that saves its loaders with torch.distributed.checkpoint ("save"), or goes on from there ("load")."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint
from torch.utils.data import TensorDataset

import penstock
from tests.data import Drawing
from tests.frameworks.launching import begin, end

dcp: Any = torch.distributed.checkpoint  # which does not say what it exports

SIZE, BATCH, SEED, STOP = 103, 3, 5, 6
"""STOP: steps before the states are saved."""


def loaders(shard: Any, folder: Path | None = None) -> dict[str, Any]:
    """Return the loaders by name; with a folder for their ledgers, one for each rank."""
    native = TensorDataset(torch.arange(SIZE), torch.arange(4.0 * SIZE).view(SIZE, 4))
    settings: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "seed": SEED, "shard": shard}
    ledger = None if folder is None else folder / "ledger-{rank}"
    return {
        "native": penstock.DataLoader(native, num_workers=2, ledger=ledger, **settings),
        "python": penstock.DataLoader(Drawing(SIZE), num_workers=0, **settings),
    }


def handed(loader: Any, batches: Any) -> Iterator[tuple[int, str]]:
    """Yield number and checksum of each sample, without padding."""
    for numbers, *rest in batches:
        for row in range(len(numbers) - loader.padded):
            content = b"".join(field[row].numpy().tobytes() for field in rest)
            yield int(numbers[row]), hashlib.sha256(content).hexdigest()


def main(what: str, folder: Path) -> None:
    begin()
    dist.init_process_group("gloo")
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
    end(folder / what, mine)
