"""A loader over 1,000,000 IDs: time to the first batch, memory, time to the first batch of a second epoch.

The files are hard links of a few real ones. Each round is a fresh process; the list of IDs and the dict of labels exist
before the clock starts, and memory is counted with and without them: resident memory of the process and what its
worker processes hold alone, over what the process had after `import torch`.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.contestants import Tutorial, penstock_loader, torch_loader
from benchmarks.question import (
    Contestant,
    Host,
    Numbers,
    Options,
    Question,
    Role,
    Running,
    Setup,
    Table,
    Target,
    lower,
    made,
)

LINKS_PER_FILE = 50_000  # below ext4's limit of 65,000
BATCHES_BEFORE_SECOND = 4
FIRST = lower("first_batch_s", "s")
SECOND = lower("second_epoch_ms", "ms")
MEMORY = lower("over_torch_mb", "MB")
OWN_MEMORY = lower("loader_mb", "MB")


def prepare(options: Options) -> Setup:
    """pt/NUMBER.pt: links to real files of 3x64x64 float32."""
    samples = options.ids or (20_000 if options.quick else 1_000_000)
    folder = made(options.cache / f"startup-{samples}", partial(write, samples=samples))
    facts = {"ids": samples, "made": f"hard links, {LINKS_PER_FILE} to a file", "memory": "MB of 1,000,000 bytes"}
    return Setup(str(folder), samples, facts=facts)


def write(folder: Path, samples: int) -> None:
    (folder / "pt").mkdir()
    with_folder = os.open(folder / "pt", os.O_RDONLY)
    first = ""
    for i, name in enumerate(ids(samples)):
        if i % LINKS_PER_FILE == 0:
            first = f"{name}.pt"
            torch.save(torch.randn(3, 64, 64), folder / "pt" / first)
        else:
            os.link(first, f"{name}.pt", src_dir_fd=with_folder, dst_dir_fd=with_folder)
    os.close(with_folder)


def ids(samples: int) -> list[str]:
    return [f"{i:07d}" for i in range(samples)]


def resident_mb() -> float:
    """Resident memory of this process, freed memory given back first."""
    ctypes.CDLL(None).malloc_trim(0)
    return memory_mb("self", "Rss")


def workers_mb() -> float:
    """What the child processes hold alone (pages shared with this process are counted here already)."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return sum(memory_mb(child, "Private_Clean") + memory_mb(child, "Private_Dirty") for child in children)


def memory_mb(process: str, field: str) -> float:
    text = Path(f"/proc/{process}/smaps_rollup").read_text()
    found = re.search(rf"^{field}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 / 1e6 if found else 0.0


def timed(after_torch: float, samples: int, make: Callable[[list[str], dict[str, int]], Any]) -> Running:
    """`make(ids, labels)` gives the loader; `after_torch` is the resident MB before anything but torch was there."""
    before = resident_mb()
    names = ids(samples)
    labels = {name: i % 10 for i, name in enumerate(names)}
    given = resident_mb() - before

    def epoch() -> Numbers:
        began = time.perf_counter()
        loader = make(names, labels)
        batches = iter(loader)
        next(batches)
        first = time.perf_counter() - began
        for _ in range(BATCHES_BEFORE_SECOND):
            next(batches)
        del batches
        began = time.perf_counter()
        batches = iter(loader)
        next(batches)
        second = time.perf_counter() - began
        over = resident_mb() + workers_mb() - after_torch
        return {FIRST.key: first, SECOND.key: 1000 * second, MEMORY.key: over, OWN_MEMORY.key: over - given}

    return Running(epoch)


def torch_start(setup: Setup) -> Running:
    """torch.utils.data.DataLoader over the tutorial's Dataset, worker processes kept; a second epoch begun after five
    batches of the first."""
    dataset = partial(Tutorial, setup.path("pt"))
    return timed(resident_mb(), setup.samples, lambda *given: torch_loader(setup, dataset(*given)))


def penstock_start(setup: Setup, with_ids: bool = True) -> Running:
    """penstock.DataLoader over penstock.TensorFolder(root, ids=list, labels=dict); `import penstock` counts as memory
    but not as time."""
    after_torch = resident_mb()
    import penstock

    def make(names: list[str], labels: dict[str, int]) -> Any:
        listed: dict[str, Any] = {"ids": names, "labels": labels} if with_ids else {}
        return penstock_loader(setup, penstock.TensorFolder(str(setup.path("pt")), **listed), seed=0)

    return timed(after_torch, setup.samples if with_ids else 0, make)


LISTED = "The same with ids=None, labels=None: the folder is listed and sorted within the time to the first batch."
MILLION = Table(
    "million",
    "TensorFolder over 1,000,000 IDs (or --ids), batch 64, shuffled, 2 workers or threads",
    (
        Contestant("torch", Role.TORCH, torch_start),
        Contestant("penstock", Role.PENSTOCK, penstock_start),
        Contestant("penstock, folder listed", Role.PENSTOCK, partial(penstock_start, with_ids=False), LISTED),
    ),
    (Target("penstock", 0.3, None, FIRST), Target("penstock", 200, None, MEMORY), Target("penstock", 5, None, SECOND)),
    (FIRST, MEMORY, OWN_MEMORY, SECOND),
    Host.FRESH,
)
QUESTION = Question("startup", "The start of a loader over a million IDs", (MILLION,), prepare)
