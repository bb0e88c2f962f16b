"""Row 18: a soak: thousands of small epochs, early breaks, errors, states, and loaders made anew, for ten minutes.

The slopes of memory, descriptors, threads, processes, maps and /dev/shm entries are zero: by Theil-Sen, after a
warm-up, less than 1 MB of memory, and less than one of each of the others, in 1,000 epochs.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import multiprocessing
import os
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

import penstock
from tests import python_processes
from tests.data import Numbers, tensor_files
from tests.faults.conftest import is_full
from tests.resources import collect, native_threads
from tests.values import resumed, taken

SIZE, BATCH, BAD = 23, 4, 13
NUMBERS = list(range(SIZE))
HELD = ("bytes", "descriptors", "threads", "processes", "maps", "/dev/shm entries")
#: Less than this in 1,000 epochs is no growth: in full, and in the short form, which has some 200 epochs.
FULL, SHORT = (1e6, 1, 1, 1, 1, 1), (200e6, 20, 20, 20, 150, 20)


def tensors(folder: Path) -> Any:
    return penstock.TensorFolder(tensor_files(folder, SIZE, (1,)))


def images(folder: Path) -> Any:
    (folder / "class").mkdir(parents=True)
    for number in NUMBERS:
        Image.new("RGB", (20, 16), (number, number, number)).save(folder / "class" / f"{number:02}.jpg")
    return penstock.ImageFolder(folder, transforms.PILToTensor())


class Large(Numbers):
    """Samples of which four are more than worker processes send by a pipe."""

    def number(self, index: int) -> Any:
        return torch.full((9000,), super().number(index))


class Way:
    """A way to have batches made: loaders over a dataset without a bad sample, and over one with one."""

    def __init__(self, folder: Path, make: Callable[[Path], Any] | None, **options: Any) -> None:
        self.good, self.bad = Large(size=SIZE), Large([BAD], SIZE)
        if make is not None:
            self.good, self.bad = make(folder / "good"), make(folder / "bad")
            next((folder / "bad").rglob(f"{BAD}.*")).write_bytes(b"broken")
        self.options = options
        self.epochs_in_turn = 1 if options.get("worker_method") == "process" else 3
        self._persistent: dict[int, Any] = {}

    def loader(self, dataset: Any = None) -> Any:
        """Return a loader made anew; of workers that persist the one that they belong to."""
        dataset = self.good if dataset is None else dataset
        found = self._persistent.get(id(dataset))
        if found is None:
            found = penstock.DataLoader(dataset, BATCH, **{"num_workers": 2, **self.options})
            if "persistent_workers" in self.options:
                self._persistent[id(dataset)] = found
        return found


WAYS: dict[str, Any] = {
    "native": (tensors, {}),
    "images": (images, {}),
    "fed": (tensors, {"device": "cpu"}),
    "threads": (None, {"worker_method": "thread"}),
    "processes": (None, {"worker_method": "process"}),
    "persistent": (None, {"worker_method": "process", "persistent_workers": True}),
}


def seen(batches: Any) -> list[int]:
    """Return the numbers of all samples."""
    firsts = (batch[0] if isinstance(batch, list) else batch for batch in batches)
    return [int(number) for first in firsts for number in first.reshape(len(first), -1)[:, 0]]


# --- what an epoch may be ---------------------------------------------------------------------------------------------


def whole(way: Way) -> None:
    assert seen(way.loader()) == NUMBERS


def broken_off(way: Way) -> None:
    assert seen(taken(iter(way.loader()), 2)) == NUMBERS[: 2 * BATCH]


def in_a_cycle(way: Way) -> None:
    iterator = iter(way.loader())
    next(iterator)
    iterator.itself = iterator


def failed(way: Way) -> None:
    iterator = iter(way.loader(way.bad))
    assert seen(taken(iterator, BAD // BATCH)) == NUMBERS[: BAD // BATCH * BATCH]
    with contextlib.suppress(penstock.PenstockError, ValueError):
        raise AssertionError(next(iterator))
    assert seen(iterator) == NUMBERS[(BAD // BATCH + 1) * BATCH :]


def stopped_and_resumed(way: Way) -> None:
    first, again = resumed(way.loader(), way.loader(), 2)
    assert seen(first) + seen(again) == NUMBERS


def batches_kept(way: Way) -> None:
    kept = list(way.loader())
    assert seen(list(way.loader())) == seen(kept) == NUMBERS


def two_at_once(way: Way) -> None:
    loader = way.loader()
    first, second = iter(loader), iter(loader)
    assert seen([next(second)]) == NUMBERS[:BATCH]
    del first


EPOCHS = (whole, broken_off, in_a_cycle, failed, stopped_and_resumed, batches_kept, two_at_once)


def held(shared_before: set[str]) -> list[int]:
    """Return what this process holds, in the order of HELD; memory with that of its workers."""
    collect()
    workers = multiprocessing.active_children()
    pages = sum(
        int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in [os.getpid(), *(w.pid for w in workers)]
    )
    maps = Path("/proc/self/maps").read_text().count("\n")
    shared = sum(map(is_ours, set(os.listdir("/dev/shm")) - shared_before))
    descriptors = len(os.listdir("/proc/self/fd"))
    return [pages * os.sysconf("SC_PAGE_SIZE"), descriptors, native_threads(), len(workers), maps, shared]


def is_ours(name: str) -> bool:
    """Return whether an entry of /dev/shm may be of this process or of one that it had; other programs have theirs."""
    owner = re.match(r"torch_(\d+)_", name)
    return "penstock" in name or (
        owner is not None and (int(owner[1]) == os.getpid() or not Path("/proc", owner[1]).exists())
    )


def soak(folder: Path, seconds: float, names: list[str]) -> Iterator[list[int]]:
    """Yield how many epochs there have been, and what is held behind them, for so many seconds, and 16 times."""
    ways = [Way(folder / name, WAYS[name][0], **WAYS[name][1]) for name in names]
    chance, shared_before, epochs = random.Random(18), set(os.listdir("/dev/shm")), 0
    gc.freeze()  # what the imports have made is no work for each collection
    end = time.monotonic() + seconds
    for times in itertools.count():
        if times > 16 and time.monotonic() > end:
            return
        for way in ways:
            for epoch in chance.sample(EPOCHS, way.epochs_in_turn):
                epoch(way)
                epochs += 1
        yield [epochs, *held(shared_before)]


def slopes(samples: Any) -> Any:
    """Return the growth in 1,000 epochs of each quantity: the median over all pairs of samples (Theil-Sen)."""
    samples = samples[:: max(1, len(samples) // 500)]
    one, other = np.triu_indices(len(samples), 1)
    between = samples[other] - samples[one]
    return 1000 * np.median(between[:, 1:] / between[:, :1], axis=0)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Have each way soaked by itself in full, else all of them in turn."""
    names = [[name] for name in WAYS] if is_full(metafunc.config) else [list(WAYS)]
    metafunc.parametrize("names", names, ids=" ".join)


@pytest.mark.timeout(300)
def test_nothing_grows(names: list[str], tmp_path: Path, full: bool, cases: Callable[[int], None]) -> None:
    program = "from tests.faults.test_18_soak import main; main()"
    done = python_processes.run(program, tmp_path, 100 if full else 0, *names)
    assert done.returncode == 0, done.stderr
    samples = np.array([json.loads(line) for line in done.stdout.splitlines()])
    cases(int(samples[-1, 0]))
    growth = slopes(samples[len(samples) // 2 :])
    found = dict(zip(HELD, growth.round(2).tolist(), strict=True))
    assert (np.abs(growth) < (FULL if full else SHORT)).all(), (found, samples[-1].tolist())


def main() -> None:
    """Soak as the program's arguments say (a folder, seconds, names of WAYS), and write the samples to stdout."""
    folder, seconds, *names = sys.argv[1:]
    for sample in soak(Path(folder), float(seconds), names):  # a list of them would grow
        sys.stdout.write(json.dumps(sample) + "\n")
