"""Loaders that start, end, fail and are left at random: `python -m tests.faults.native_stress --seconds 150`."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import random
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import torch
from torchvision import transforms

import penstock
from penstock import _native
from tests.data import Made, tensor_files, write_photos, write_tensors
from tests.forking import assert_in_child
from tests.same import assert_same

#: ThreadSanitizer cannot follow threads that a forked child starts; AddressSanitizer's own allocator may be locked in a
#: child that is forked while another thread allocates.
FORKS = "san" not in os.environ.get("LD_PRELOAD", "")


class Stop(BaseException):
    """Raised where a program happens to be."""

    is_due = False
    """Whether a timer of `abort` may raise it: the last one may come late."""


def _stop(number: int, frame: FrameType | None) -> None:
    """Raise Stop, but in the standard library, whose locks an error may leave locked."""
    file = "" if frame is None else frame.f_code.co_filename
    if Stop.is_due and ("penstock" in file or file == __file__):
        raise Stop


def datasets(root: Path) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Return datasets and the options of their loaders; "bad" has files that are cut off."""
    recipe = transforms.Compose([transforms.RandomResizedCrop(24), transforms.ToTensor()])
    middle = transforms.Compose([transforms.CenterCrop(30), transforms.PILToTensor()])
    tensors, bad = tensor_files(root / "tensors", 24, (30, 40)), tensor_files(root / "bad", 24, (30, 40))
    os.truncate(bad / "07.pt", 900)
    os.truncate(bad / "19.pt", 0)
    photos = write_photos(root / "photos", count=6)
    penstock.pack(penstock.TensorFolder(write_tensors(root / "source")), root / "shards", shard_size=6000)
    penstock.pack(penstock.ImageFolder(photos), root / "packed", states=True)
    files = sorted(tensors.iterdir())
    return {
        "tensors": (penstock.TensorFolder(tensors), {}),
        "bad": (penstock.TensorFolder(bad), {}),
        "replaced": (penstock.TensorFolder(bad), {"on_error": "replace"}),
        "in memory": (penstock.TensorFolder(tensors), {"cache": "1MiB"}),
        "in a folder": (penstock.TensorFolder(tensors), {"cache": root / "cache"}),
        "rows": (torch.utils.data.TensorDataset(torch.arange(30_000.0).reshape(100, 300), torch.arange(100)), {}),
        "shards": (penstock.Shards(root / "shards"), {}),
        "photos": (penstock.ImageFolder(photos, recipe), {}),
        "middles": (penstock.ImageFolder(photos, middle), {}),
        "packed photos": (penstock.Shards(root / "packed", transform=middle), {"cache": root / "pixels"}),
        "called": (Made(lambda index: (torch.load(files[index]), index), 24), {"worker_method": "thread"}),
    }


def take(loader: Any, most: int) -> None:
    for _ in zip(range(most), loader, strict=False):
        pass


def leave(loader: Any, draw: random.Random) -> None:
    """Start two passes and leave them, one after some batches."""
    iter(loader)
    take(loader, draw.randrange(5))


def end(loader: Any, draw: random.Random) -> None:
    """Go through one epoch twice: both times it has the same batches."""
    loader.set_epoch(0)
    first = list(loader)
    loader.set_epoch(0)
    assert_same(list(loader), first)


def fail(loader: Any, draw: random.Random) -> None:
    """Fail in the loop, with an error that holds the pass."""
    errors = []
    for _ in range(2):
        try:
            for number, _ in enumerate(loader):
                if number == draw.randrange(3):
                    raise Stop
        except Stop as error:
            errors.append(error)


def abort(loader: Any, draw: random.Random) -> None:
    """Raise an error wherever the program is after some milliseconds."""
    with contextlib.suppress(Stop):
        try:
            Stop.is_due = True
            signal.setitimer(signal.ITIMER_REAL, 0.0001 + 0.02 * draw.random(), 0.01)
            while True:
                take(loader, 100)
        finally:
            Stop.is_due = False
            signal.setitimer(signal.ITIMER_REAL, 0)


def in_threads(loader: Any, draw: random.Random) -> None:
    """Go through one loader in several threads, and leave it in others."""
    works = [threading.Thread(target=take, args=(loader, draw.choice((1, 3, 100)))) for _ in range(3)]
    for work in works:
        work.start()
    for work in works:
        work.join()


def fork(loader: Any, draw: random.Random) -> None:
    """Fork in the middle of a pass; the child goes through passes of its own."""
    batches = iter(loader)
    next(batches)

    def take_own() -> None:
        with contextlib.suppress(penstock.PenstockError):
            take(loader, 3)

    assert_in_child(take_own)
    list(batches)


WAYS: tuple[Callable[[Any, random.Random], None], ...] = (leave, end, fail, abort, in_threads, *[fork] * FORKS)


def begin_readers(draw: random.Random) -> Any:
    """Have readers in some passes, though nothing blocks."""
    make = _native.Pool

    def pool(*arguments: Any, **named: Any) -> Any:
        made = make(*arguments, **named)
        if draw.random() < 0.5:
            made.start_readers()
        return made

    return mock.patch.object(_native, "Pool", pool)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.native_stress", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    draw, counts = random.Random(options.seed), Counter[str]()
    signal.signal(signal.SIGALRM, _stop)
    warnings.simplefilter("ignore")
    sys.unraisablehook = lambda _: None  # of Stop, where nobody can raise it
    threading.excepthook = lambda _: None  # of what a bad file raises
    with tempfile.TemporaryDirectory() as folder, begin_readers(draw):
        os.environ["XDG_CACHE_HOME"] = folder
        made = datasets(Path(folder))
        deadline = time.monotonic() + options.seconds
        while time.monotonic() < deadline:
            dataset, own = made[draw.choice(list(made))]
            given: dict[str, Any] = {"num_workers": draw.randrange(4), "shuffle": draw.random() < 0.5, "seed": 3, **own}
            if given["num_workers"]:
                given |= {"prefetch_factor": draw.choice((1, 2, 4)), "persistent_workers": draw.random() < 0.3}
            loader: Any = penstock.DataLoader(dataset, draw.choice((1, 4, 16)), **given)
            way = draw.choice(WAYS)
            try:
                way(loader, draw)
                counts[way.__name__] += 1
            except (penstock.PenstockError, EOFError, RuntimeError):
                counts["error"] += 1
            del loader
            if draw.random() < 0.05:
                gc.collect()
    sys.stdout.write(f"{counts.total():,} loaders: {dict(counts)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
