"""The shards of `remote` in the peers' formats, written in their environment: `... remote_peers PEER FOLDER`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

SHARD_BYTES = 4 << 20


def mosaic(folder: Path) -> None:
    from streaming import MDSWriter

    rows = np.load(folder / "rows.npy", mmap_mode="r")
    columns = {"x": "ndarray:float32:3,64,64", "y": "int"}
    with MDSWriter(out=str(folder / "mosaic"), columns=columns, size_limit=SHARD_BYTES) as writer:
        for number, row in enumerate(rows):
            writer.write({"x": np.array(row), "y": number % 10})


def sample(number: int, folder: Path) -> tuple[Any, int]:
    return torch.from_numpy(np.load(folder / "rows.npy", mmap_mode="r")[number].copy()), number % 10


def litdata(folder: Path) -> None:
    import litdata as ld

    samples = len(np.load(folder / "rows.npy", mmap_mode="r"))
    ld.optimize(
        partial(sample, folder=folder),
        list(range(samples)),
        str(folder / "litdata"),
        chunk_bytes=SHARD_BYTES,
        num_workers=1,
    )


if __name__ == "__main__":
    {"mosaic": mosaic, "litdata": litdata}[sys.argv[1]](Path(sys.argv[2]))
