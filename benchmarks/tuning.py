"""num_workers=None beside fixed numbers of threads on five workloads: whether a thread for each CPU is fast enough.

The same loader and samples everywhere; fixed numbers from 1 to twice the CPUs. Before anything is measured, the loop of
"None" has run for 10 seconds (of its own time). Passes of all alternate, in one process, for half a second each:
processes, and minutes of a shared machine, differ from each other by more than is looked for. The share is that of the
median of None in the greatest of the others' medians, over all passes until then.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks import arrays, cold, tensor_files
from benchmarks.photos import image_folder
from benchmarks.question import (
    SPEED,
    Build,
    Contestant,
    Facts,
    Measure,
    Options,
    Question,
    Role,
    Running,
    Setup,
    Table,
    Target,
    made,
)

CPUS = len(os.sched_getaffinity(0))
NUMBERS = [n for n in range(1, 2 * CPUS + 1) if n <= 4 or n & (n - 1) == 0 or n in (CPUS - 1, CPUS, 2 * CPUS)]
TUNED_SECONDS, TURN_SECONDS = 10.0, 0.5
QUICK_TUNED_SECONDS, QUICK_TURN_SECONDS = 2.0, 0.1
#: Turns of each in a round.
TURNS = 5
SHARE = Measure("share_of_best", "of the best fixed number")
#: Sides of the photos, and of the matrices that the trainer multiplies, once a batch.
HEIGHT, WIDTH, SIDE = 375, 500, 1024
#: Samples of a batch, where photos are read.
PHOTOS = 16

Step = Callable[[Any], Any]


def prepare(options: Options) -> Setup:
    """The files of tensor_files, and photos/CLASS/NUMBER.jpg made of smooth noise."""
    samples = 512 if options.quick else 8_000
    folder = made(options.cache / f"tuning-{samples}", partial(write, samples=samples))
    seconds = [QUICK_TUNED_SECONDS, QUICK_TURN_SECONDS] if options.quick else [TUNED_SECONDS, TURN_SECONDS]
    facts = {"seconds": seconds, "threads": NUMBERS, "photos": len(list((folder / "photos").rglob("*.jpg")))}
    return Setup(str(folder), samples, facts=facts)


def machine() -> Facts:
    """What the trainer's operations run on."""
    return {"torch_threads": torch.get_num_threads()}


def write(folder: Path, samples: int) -> None:
    from PIL import Image

    tensor_files.write(folder, samples)
    random = np.random.default_rng(0)
    for i in range(samples // 8):
        kind = folder / "photos" / f"{i % 10}"
        kind.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(random.integers(0, 256, (HEIGHT // 8, WIDTH // 8, 3), dtype=np.uint8))
        noise = random.normal(0, 6, (HEIGHT, WIDTH, 3))
        pixels = np.asarray(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)) + noise
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(kind / f"{i}.jpg", quality=90)


# --- the loops --------------------------------------------------------------------------------------------------------


def alternating(dataset: Callable[[Setup], Any], make_step: Callable[[], Step | None]) -> Build:
    """Passes of loaders with None and with each number of threads in turn, and a step on each batch."""

    def build(setup: Setup) -> Running:
        import penstock

        batch = PHOTOS if dataset is photos_of else setup.batch
        loaders: dict[int | None, Any] = {
            workers: penstock.DataLoader(dataset(setup), batch, shuffle=True, seed=0, num_workers=workers)
            for workers in (None, *NUMBERS)
        }
        tuned, turn_seconds = setup.facts["seconds"]
        step = make_step()
        rates: dict[int | None, list[float]] = {workers: [] for workers in loaders}

        def rate(loader: Any, seconds: float) -> float:
            began, count = time.perf_counter(), 0
            while (spent := time.perf_counter() - began) < seconds or not count:
                for x, *_ in loader:
                    x[(0,) * x.ndim].item()
                    count += len(x)
                    if step is not None:
                        step(x)
            return count / spent

        for workers, loader in loaders.items():
            rate(loader, tuned if workers is None else turn_seconds)

        def epoch() -> dict[str, float]:
            for _ in range(TURNS):
                for workers, loader in loaders.items():
                    rates[workers].append(rate(loader, turn_seconds))
            medians = {workers: median(found) for workers, found in rates.items()}
            none = medians.pop(None)
            return {"samples_per_s": none, "share_of_best": none / max(medians.values())}

        def explain() -> dict[str, Any]:
            found = {str(workers): round(median(found)) for workers, found in rates.items()}
            return {"samples_per_s": found, "None": loaders[None].explain()}

        return Running(epoch, explain)

    return build


def trainer() -> Step:
    """Return a step that keeps all cores busy with torch's operations."""
    left, right = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)

    def step(batch: Any) -> None:
        torch.mm(left, right)

    return step


def photos_of(setup: Setup) -> Any:
    return image_folder(str(setup.path("photos")))


def files_of(setup: Setup) -> Any:
    return tensor_files.folder_of("pt", setup)


# --- what is asked ----------------------------------------------------------------------------------------------------

HOW = f"num_workers=None, after {TUNED_SECONDS:.0f} s; fixed: {', '.join(map(str, NUMBERS))}."


def table(
    name: str,
    title: str,
    dataset: Callable[[Setup], Any],
    make_step: Callable[[], Step | None] = lambda: None,
    around: Callable[[Build], Build] = lambda build: build,
) -> Table:
    """Return the table of a workload."""
    none = Contestant("None", Role.PENSTOCK, around(alternating(dataset, make_step)), HOW)
    return Table(name, title, (none,), (Target("None", 0.95, None, SHARE),), (SPEED, SHARE))


TABLES = (
    table("files", "ID.pt of 3x64x64 float32 in the page cache, batch 64", files_of),
    table(
        "photos",
        f"JPEG of {WIDTH}x{HEIGHT}, RandomResizedCrop(224), flip, to normalised float32, batch {PHOTOS}",
        photos_of,
    ),
    table("rows", "rows of 3x64x64 float32 in memory", arrays.tensors),
    table("trainer", "the photos, and matrix products on all cores between the batches", photos_of, trainer),
    table("slow store", f"ID.pt on a FUSE store that takes {cold.SLOW_MS} ms a read", files_of, around=cold.slow),
)
QUESTION = Question("tuning", "num_workers=None beside fixed numbers of threads", TABLES, prepare, machine)
