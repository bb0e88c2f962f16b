"""Files that are not in memory: a page cache that is dropped before each epoch, and a store that is slow.

8,000 `ID.pt` of 3x64x64 float32, as tensor_files has them, batches of 64, shuffled; 2,000 of them on the store, which
takes 5 ms for each open and each read.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import bare, tensor_files
from benchmarks.contestants import epochs_of, penstock_loader, torch_loader
from benchmarks.question import Build, Contestant, Facts, Options, Question, Role, Running, Setup, Table, Target

#: Threads of the bare reader, and files that it has under way in an io_uring: its best of these is the limit.
DEPTHS = (1, 2, 4, 8, 16, 32, 64)
RINGS = (32, 64, 128)
#: Passes of each of them before the best is known.
TRIES = 3
SLOW_MS, SLOW_THREADS, SLOW_SAMPLES = 5, 128, 2_000
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18
DROP = Path("/proc/sys/vm/drop_caches")


def prepare(options: Options) -> Setup:
    """The files of tensor_files."""
    setup = tensor_files.prepare(options)
    return dataclasses.replace(setup, facts={**setup.facts, "slow_samples": min(SLOW_SAMPLES, setup.samples)})


def machine() -> Facts:
    """How the page cache is dropped."""
    return {"page_cache": "drop_caches: data, entries and inodes" if may_drop() else "posix_fadvise: data only"}


def may_drop() -> bool:
    """Whether all of the page cache can be dropped, as root can; else the data of clean files is."""
    return os.access(DROP, os.W_OK)


def drop(folder: Path) -> None:
    """Write files back and forget what of them is in memory."""
    os.sync()
    if may_drop():
        DROP.write_text("3")
        return
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# --- a cold page cache ------------------------------------------------------------------------------------------------


def cold(build: Build) -> Build:
    """Epochs of another build, each with a cold page cache; dropping it is not counted."""

    def dropping(setup: Setup) -> Running:
        inner = build(setup)

        def epoch() -> dict[str, float]:
            drop(setup.path("pt"))
            return timed(inner.epoch)

        return Running(epoch, inner.explain)

    return dropping


def timed(epoch: Callable[[], Any]) -> dict[str, float]:
    """The measures of an epoch that returns its samples."""
    began = time.perf_counter()
    done = epoch()
    seconds = time.perf_counter() - began
    return {"samples_per_s": done / seconds, "seconds": seconds}


def readers(setup: Setup, folder: Path) -> dict[str, Callable[..., int]]:
    """C++: read all files at each depth (openat, pread, close); no tensors. io_uring where it is allowed."""
    files = [f"{name}.pt" for name in tensor_files.ids(setup.samples)]
    texts, stride = bare.names(files)
    largest = max((folder / name).stat().st_size for name in files)

    def reader(source: str, function: str, depth: int) -> Callable[..., int]:
        called = bare.library(source, setup.path().parent)[function]
        called.restype = ctypes.c_long

        def read(samples: int = setup.samples) -> int:
            order = np.random.permutation(setup.samples)
            given = (order, samples, depth, os.fsencode(folder), texts, stride, largest + 1)
            done = int(called(*(bare.in_c(one) for one in given)))
            if done != samples and source == "cold.cc":
                raise RuntimeError(f"the bare reader read {done} of {samples} files")
            return done

        return read

    found = {f"{depth} threads": reader("cold.cc", "cold_files", depth) for depth in DEPTHS}
    rings = {f"{depth} in io_uring": reader("cold_ring.cc", "cold_files_in_ring", depth) for depth in RINGS}
    return {**found, **{name: read for name, read in rings.items() if read(1) == 1}}


def best_depth(setup: Setup, folder: Path, forget: Callable[[], None]) -> Running:
    """The bare reader at the depth that is the fastest in the warm-up: of all depths in turn, by the medians of TRIES.

    What is in memory is forgotten before each pass. The best of all depths in each round would be the luckiest one: one
    depth differs more from pass to pass than most of them differ from each other.
    """
    reads = readers(setup, folder)
    found: dict[str, float] = {}

    def measured(depth: str) -> dict[str, float]:
        forget()
        return timed(reads[depth])

    def epoch() -> dict[str, float]:
        if not found:
            tries = [{depth: measured(depth)["samples_per_s"] for depth in reads} for _ in range(TRIES)]
            found.update({depth: round(statistics.median(one[depth] for one in tries)) for depth in reads})
        return measured(max(found, key=lambda depth: found[depth]))

    return Running(epoch, lambda: found)


def bare_cold(setup: Setup) -> Running:
    folder = setup.path("pt")
    return best_depth(setup, folder, partial(drop, folder))


# --- a slow store -----------------------------------------------------------------------------------------------------


def slow(build: Build) -> Build:
    """Another build over a mount of its own of the slow store, which ends with the contestant's process."""
    return lambda setup: build(mounted(setup))


def mounted(setup: Setup) -> Setup:
    """A setup whose folder `pt` is slow: bare/slow_store.cc in a mount namespace of this process. Needs root."""
    program = setup.path().parent / "slow_store"
    if not program.exists():
        source = str(bare.HERE / "slow_store.cc")
        unfinished = program.with_suffix(f".{os.getpid()}")
        subprocess.run(["g++", "-O2", "-std=c++20", "-pthread", source, "-o", str(unfinished)], check=True)
        unfinished.rename(program)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) or libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None):
        raise OSError(ctypes.get_errno(), "a mount namespace needs root")
    place = setup.path().parent / "slow_mounts" / "pt"
    place.mkdir(parents=True, exist_ok=True)
    command = [str(program), str(setup.path("pt")), str(place), str(SLOW_MS), str(SLOW_THREADS)]
    store = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert store.stdout is not None
    if store.stdout.readline() != "mounted\n":
        raise RuntimeError("the slow store could not be mounted: it needs root and /dev/fuse")
    return dataclasses.replace(setup, data=str(place.parent), samples=min(SLOW_SAMPLES, setup.samples))


def bare_slow(setup: Setup) -> Running:
    within = mounted(setup)
    return best_depth(within, within.path("pt"), lambda: None)


# --- what is asked ----------------------------------------------------------------------------------------------------

TORCH = epochs_of(torch_loader, tensor_files.tutorial, persistent_workers=False)
PENSTOCK = epochs_of(penstock_loader, partial(tensor_files.folder_of, "pt"), seed=0)
BARE = (
    "C++: 1, 2, 4 ... 64 threads read whole files (openat, pread, close), and one with 32 ... 128 under way in an "
    "io_uring, each with a cold cache; the best counts."
)
BARE_SLOW = "The same on the slow store."
CONTESTANTS = (
    Contestant("torch", Role.TORCH, cold(TORCH), tensor_files.TORCH),
    Contestant("penstock", Role.PENSTOCK, cold(PENSTOCK), tensor_files.PT),
    Contestant("bare", Role.BARE, bare_cold, BARE),
)
SLOW = (
    Contestant("torch", Role.TORCH, slow(TORCH), tensor_files.TORCH),
    Contestant("penstock", Role.PENSTOCK, slow(PENSTOCK), tensor_files.PT),
    Contestant("bare", Role.BARE, bare_slow, BARE_SLOW),
)
TITLE = "ID.pt of 3x64x64 float32, batch 64, shuffled, 2 workers or threads; page cache dropped before each epoch"
SLOW_TITLE = f"{SLOW_SAMPLES:,} of them on a FUSE store that takes {SLOW_MS} ms for each open and each read"
QUESTION = Question(
    "cold",
    "Files that are not in memory",
    (
        Table("cold cache", TITLE, CONTESTANTS, (Target("penstock", 0.9, "bare"), Target("penstock", 6, "torch"))),
        Table("slow store", SLOW_TITLE, SLOW, (Target("penstock", 20, "torch"),)),
    ),
    prepare,
    machine,
)
