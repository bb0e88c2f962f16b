"""cache=: epochs whose files lie on a store that takes 5 ms for each open and each read, once a tier has them, beside
epochs of files that are in memory. 2,000 `ID.pt` of 3x64x64 float32, batches of 64, shuffled.
"""

from __future__ import annotations

import atexit
import dataclasses
import os
import shutil
from functools import partial
from pathlib import Path

from benchmarks import cold, tensor_files
from benchmarks.contestants import epochs_of, penstock_loader
from benchmarks.question import Build, Contestant, Options, Question, Role, Running, Setup, Table, Target

PREFIX = "penstock-benchmark-"


def prepare(options: Options) -> Setup:
    """As many files of tensor_files as the slow store gives."""
    setup = tensor_files.prepare(options)
    return dataclasses.replace(setup, samples=min(cold.SLOW_SAMPLES, setup.samples))


def cached(cache: str, *, slow: bool) -> Build:
    """Epochs of a loader with this cache=, which an epoch before the clock has filled; slow: over the slow store."""

    def build(setup: Setup) -> Running:
        kept = cache
        if cache.startswith("/"):
            folder = Path(cache, f"{PREFIX}{os.getpid()}")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            kept = str(folder)
        files = partial(tensor_files.folder_of, "pt")
        running = epochs_of(penstock_loader, files, seed=0, cache=kept)(cold.mounted(setup) if slow else setup)
        running.epoch()
        return running

    return build


WARM = epochs_of(penstock_loader, partial(tensor_files.folder_of, "pt"), seed=0)
TITLE = f"{cold.SLOW_SAMPLES:,} ID.pt of 3x64x64 float32, batch 64, shuffled, 2 threads; samples/s of a later epoch"
HOW = "on a FUSE store that takes 5 ms for each open and each read, with"
CONTESTANTS = (
    Contestant("warm", Role.PENSTOCK, WARM, "No cache=: the files are in the page cache."),
    Contestant("shm", Role.PENSTOCK, cached("/dev/shm", slow=True), f'{HOW} cache="/dev/shm/...".'),
    Contestant("memory", Role.PENSTOCK, cached("1GiB", slow=True), f'{HOW} cache="1GiB".'),
    Contestant("warm+memory", Role.PENSTOCK, cached("1GiB", slow=False), 'Files in the page cache, with cache="1GiB".'),
    Contestant("slow", Role.PENSTOCK, cold.slow(WARM), "The slow store without cache=: what its readers reach."),
)
QUESTION = Question(
    "cache",
    "Later epochs, from the tiers of cache=",
    (Table("later epochs", TITLE, CONTESTANTS, (Target("shm", 0.95, "warm"), Target("memory", 0.95, "warm"))),),
    prepare,
    cold.machine,
)
