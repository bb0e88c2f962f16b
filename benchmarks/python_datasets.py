"""Datasets that only Python can read: few-microsecond samples, Pillow and torchvision, pure Python, a million strings.

What `worker_method=` makes of each, beside torch's worker processes; and what seeding by sample costs.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch.utils.data

from benchmarks import photos
from benchmarks.contestants import Make, Samples, epochs_of, penstock_persistent, private, torch_loader
from benchmarks.question import Contestant, Host, Numbers, Options, Question, Role, Running, Setup, Table, Target, lower
from benchmarks.startup import resident_mb, workers_mb

FIRST = lower("first_batch_ms", "ms")
GROWTH = lower("growth_mb", "MB")
EPOCH = lower("two_epochs_s", "s")
SEEDING = lower("us_per_sample", "us")


def prepare(options: Options) -> Setup:
    """The photos of the question `photos`; all else is made in memory by each contestant."""
    setup = photos.prepare(options)
    counts = {
        "tiny": 4_000 if options.quick else 64_000,
        "slow": 400 if options.quick else 4_000,
        "strings": 20_000 if options.quick else 1_000_000,
    }
    return dataclasses.replace(setup, facts={**setup.facts, **counts})


def pillow(setup: Setup) -> Any:
    """A user's own Dataset: Image.open, convert, and torchvision's v1 transforms to normalised float32."""
    names = photos.files(setup)
    transform = photos.recipe("float32")
    return Samples(len(names), lambda index: (transform(photos.opened(setup, names[index])), index % 10))


def unknown_transform(setup: Setup) -> Any:
    """torchvision's ImageFolder with a function of the user's among its transforms."""
    from torchvision import transforms

    dataset = photos.image_folder(setup.data)
    dataset.transform.transforms.insert(2, transforms.Lambda(lambda image: image))
    return dataset


def arithmetic(index: int) -> int:
    """About a millisecond of Python's own arithmetic."""
    state = index
    for _ in range(15_000):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
    return state


DATASETS: dict[str, Callable[[Setup], Any]] = {
    "tiny": lambda setup: Samples(setup.facts["tiny"], torch.randn(3, 64, 64).add),
    "pillow": pillow,
    "unknown_transform": unknown_transform,
    "pure_python": lambda setup: Samples(setup.facts["slow"], arithmetic),
}


def dataset(setup: Setup) -> Any:
    """The dataset of the table."""
    return DATASETS[setup.variant](setup)


def bare_rows(setup: Setup) -> Running:
    """A loop in one thread: calls the dataset in a shuffled order and copies each tensor into its row of a batch that
    is used over and over; no collation of labels, no hand-over."""
    tensors = dataset(setup)
    first = tensors[0]
    rows = torch.empty((setup.batch, *first.shape), dtype=first.dtype).unbind(0)

    def epoch() -> int:
        for number, index in enumerate(torch.randperm(len(tensors)).tolist()):
            rows[number % setup.batch].copy_(tensors[index])
        return len(tensors)

    return Running(epoch)


class Strings(torch.utils.data.Dataset[Any]):
    """A dataset that holds a list of strings."""

    def __init__(self, size: int) -> None:
        self.names = [f"sample-{number:09d}" for number in range(size)]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> int:
        return int(self.names[index][-1])


def strings(setup: Setup, make: Make, **options: Any) -> Running:
    held = Strings(setup.facts["strings"])  # before the clock starts
    make(setup, range(1), persistent_workers=False)  # and so are imports

    def epoch() -> Numbers:
        began = time.perf_counter()
        loader = make(setup, held, batch_size=1024, **options)
        batches = iter(loader)
        next(batches)
        first = time.perf_counter() - began
        before = resident_mb() + workers_mb()
        began = time.perf_counter()
        most = before
        for _ in range(2):
            for _ in batches:
                pass
            most = max(most, resident_mb() + (workers_mb() if loader.persistent_workers else 0))
            batches = iter(loader)
        return {FIRST.key: 1000 * first, GROWTH.key: most - before, EPOCH.key: time.perf_counter() - began}

    return Running(epoch)


def seeding(setup: Setup) -> Running:
    """What setting random, numpy.random and torch's generator adds to fetching a sample in a worker process: the same
    batches fetched with and without, in this process."""
    worker_class = private("Worker", "penstock.workers.worker")
    task = private("Task", "penstock.state.delivery")
    numbers = list(range(setup.facts["slow"]))
    collate = torch.utils.data.default_collate
    plain, seeded = (worker_class(numbers, batched=True, collate_fn=collate, seeded=on) for on in (False, True))

    def seconds(worker: Any) -> float:
        began = time.perf_counter()
        for begin in range(0, len(numbers), setup.batch):
            given = numbers[begin : begin + setup.batch]
            worker.make(task(given, 1, 2, range(begin, begin + len(given))))
        return time.perf_counter() - began

    def epoch() -> Numbers:
        return {SEEDING.key: 1e6 * (seconds(seeded) - seconds(plain)) / len(numbers)}

    return Running(epoch)


def ours(name: str, text: str, method: str | None, **options: Any) -> Contestant:
    return Contestant(
        name, Role.PENSTOCK, epochs_of(penstock_persistent, dataset, worker_method=method, **options), text
    )


KEPT = "torch.utils.data.DataLoader with worker processes, kept between epochs."
NO_PROCESS = "torch.utils.data.DataLoader with num_workers=0: everything in the caller's thread."
UNASKED = "penstock.DataLoader over the same dataset, without a word on methods: torch's worker processes."
THREAD = 'penstock.DataLoader(worker_method="thread") over the same dataset.'
IN_PLACE = "The same with num_workers=0: rows in place, in the caller's thread."
MEASURED = 'penstock.DataLoader(worker_method="auto"); what it measures at its start is in the warm-up.'
TORCH = Contestant("torch", Role.TORCH, epochs_of(torch_loader, dataset), KEPT, ("torch", "torchvision"))
CALLER = Contestant("torch, 0 workers", Role.ASIDE, epochs_of(torch_loader, dataset, num_workers=0), NO_PROCESS)
DEFAULT = ours("penstock", UNASKED, None)
THREADS = ours("penstock thread", THREAD, "thread")
CALLER_THREAD = ours("penstock thread, 0 workers", IN_PLACE, "thread", num_workers=0)
AUTO = ours("penstock auto", MEASURED, "auto")
BARE = Contestant("bare loop", Role.BARE, bare_rows)
STRINGS = (
    Contestant("torch", Role.TORCH, partial(strings, make=torch_loader), KEPT),
    Contestant(
        "penstock thread", Role.PENSTOCK, partial(strings, make=penstock_persistent, worker_method="thread"), THREAD
    ),
)
TABLES = (
    Table(
        "tiny",
        "base + i of 3x64x64 float32, batch 64, 2 workers",
        (TORCH, DEFAULT, CALLER, THREADS, CALLER_THREAD, AUTO, BARE),
        (Target("penstock thread", 7, "torch"), Target("penstock thread", 1, "torch, 0 workers")),
    ),
    Table(
        "pillow",
        "Image.open, RandomResizedCrop(224), flip, ToTensor, Normalize in a user's Dataset; batch 64, 2 workers",
        (TORCH, DEFAULT, THREADS, AUTO),
        (Target("penstock", 2.2, "torch"), Target("penstock thread", 2.5, "torch")),
    ),
    Table(
        "unknown_transform",
        "ImageFolder with RandomResizedCrop(224), flip, a function of the user's, ToTensor, Normalize; 2 workers",
        (TORCH, DEFAULT, THREADS, AUTO),
    ),
    Table(
        "pure_python",
        "a millisecond of pure Python a sample, batch 64, 2 workers",
        (TORCH, DEFAULT, THREADS, AUTO),
        (Target("penstock auto", 0.97, "torch"),),
    ),
    Table(
        "strings",
        "a dataset that holds 1,000,000 strings, batch 1024, 2 workers; two epochs",
        STRINGS,
        (Target("penstock thread", 50, None, FIRST), Target("penstock thread", 5, None, GROWTH)),
        (FIRST, GROWTH, EPOCH),
        Host.FRESH,
    ),
    Table(
        "seeding",
        "what seed= adds to a sample in a worker process",
        (Contestant("penstock", Role.PENSTOCK, seeding),),
        (Target("penstock", 30, None, SEEDING),),
        (SEEDING,),
    ),
)
QUESTION = Question("python_datasets", "Datasets that only Python can read", TABLES, prepare)
