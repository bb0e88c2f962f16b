"""A Hugging Face dataset on disk, in torch's format: rows of an int64 label, 1,000 float32 and an int32, shuffled."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contestants import epochs_of, penstock_loader, torch_loader
from benchmarks.question import Contestant, Options, Question, Role, Setup, Table, Target, made

ELEMENTS = 1_000


def prepare(options: Options) -> Setup:
    """table, as Dataset.save_to_disk writes it."""
    samples = 2_000 if options.quick else 20_000
    folder = made(options.cache / f"arrow-{samples}", partial(write, samples=samples))
    facts = {"columns": f"int64, float32[{ELEMENTS}], int32", "mb": round(samples * (4 * ELEMENTS + 12) / 1e6)}
    return Setup(str(folder), samples, facts=facts)


def write(folder: Path, samples: int) -> None:
    import datasets
    import pyarrow

    elements = np.random.default_rng(0).standard_normal(samples * ELEMENTS, np.float32)
    columns = {
        "label": pyarrow.array(np.arange(samples) % 10),
        "features": pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(elements), ELEMENTS),
        "number": pyarrow.array(np.arange(samples, dtype=np.int32)),
    }
    datasets.Dataset(pyarrow.table(columns)).save_to_disk(folder / "table")


def table(setup: Setup) -> Any:
    import datasets

    return datasets.load_from_disk(str(setup.path("table"))).with_format("torch")


def shuffled(setup: Setup) -> Any:
    return table(setup).shuffle(seed=0)


TORCH = "torch.utils.data.DataLoader over the dataset; worker processes kept between epochs."
NO_WORKERS = "The same with num_workers=0."
PENSTOCK = "penstock.DataLoader over the same dataset."
SHUFFLED = "The same over Dataset.shuffle(), which leads to its rows by a mapping of indices."
CONTESTANTS = (
    Contestant("torch", Role.TORCH, epochs_of(torch_loader, table), TORCH),
    Contestant("torch, 0 workers", Role.ASIDE, epochs_of(torch_loader, table, num_workers=0), NO_WORKERS, ("torch",)),
    Contestant("penstock", Role.PENSTOCK, epochs_of(penstock_loader, table, seed=0), PENSTOCK),
    Contestant("penstock, shuffled", Role.PENSTOCK, epochs_of(penstock_loader, shuffled, seed=0), SHUFFLED),
)
TITLE = "an Arrow table of three columns, batch 64, shuffled, 2 workers or threads"
TABLES = (Table("arrow", TITLE, CONTESTANTS, (Target("penstock", 10, "torch"),)),)
QUESTION = Question("arrow", "A Hugging Face dataset of numbers", TABLES, prepare)
