"""Datasets that only Python can read: few-microsecond samples, Pillow and torchvision, pure Python, a million strings.

What `worker_method=` makes of each, beside torch's worker processes; and what seeding by sample costs.
"""

# Each contestant imports its own libraries, which may be missing here.
# ruff: noqa: PLC0415

from __future__ import annotations

import dataclasses
import time
from typing import Any

from benchmarks import photos
from benchmarks.harness import (
    Contestant,
    Measure,
    Numbers,
    Options,
    Question,
    Role,
    Running,
    Setup,
    Table,
    Target,
)
from benchmarks.startup import resident_mb, workers_mb

FIRST = Measure("first_batch_ms", "ms", higher_is_better=False)
GROWTH = Measure("growth_mb", "MB", higher_is_better=False)
EPOCH = Measure("two_epochs_s", "s", higher_is_better=False)
SEEDING = Measure("us_per_sample", "us", higher_is_better=False)


def prepare(options: Options) -> Setup:
    """The photos of the question `photos`; all else is made in memory by each contestant."""
    setup = photos.prepare(options)
    counts = {
        "tiny": 4_000 if options.quick else 64_000,
        "slow": 400 if options.quick else 4_000,
        "strings": 20_000 if options.quick else 1_000_000,
    }
    return dataclasses.replace(setup, facts={**setup.facts, **counts})


def tiny(setup: Setup) -> Any:
    """base + i of 3x64x64 float32: a few microseconds."""
    import torch

    class Dataset(torch.utils.data.Dataset[Any]):
        def __init__(self) -> None:
            self.base = torch.randn(3, 64, 64)

        def __len__(self) -> int:
            return int(setup.facts["tiny"])

        def __getitem__(self, index: int) -> Any:
            return self.base + index

    return Dataset()


def pillow(setup: Setup) -> Any:
    """A user's own Dataset: Image.open, convert, and torchvision's v1 transforms to normalised float32."""
    import torch
    from PIL import Image

    names = photos.files(setup)
    transform = photos.recipe(dataclasses.replace(setup, variant="float32"))

    class Dataset(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return len(names)

        def __getitem__(self, index: int) -> Any:
            with Image.open(setup.path(names[index])) as image:
                return transform(image.convert("RGB")), index % 10

    return Dataset()


def unknown_transform(setup: Setup) -> Any:
    """torchvision's ImageFolder with a function of the user's among its transforms."""
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    known = photos.recipe(dataclasses.replace(setup, variant="float32")).transforms
    return ImageFolder(setup.data, transforms.Compose([*known[:2], transforms.Lambda(lambda image: image), *known[2:]]))


def pure_python(setup: Setup) -> Any:
    """About a millisecond of Python's own arithmetic a sample."""
    import torch

    class Dataset(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return int(setup.facts["slow"])

        def __getitem__(self, index: int) -> int:
            state = index
            for _ in range(15_000):
                state = (state * 1103515245 + 12345) & 0x7FFFFFFF
            return state

    return Dataset()


DATASETS = {"tiny": tiny, "pillow": pillow, "unknown_transform": unknown_transform, "pure_python": pure_python}


def counted(loader: Any) -> Running:
    """Epochs of a loader of tensors, or of lists that begin with one."""

    def epoch() -> int:
        count = 0
        for batch in loader:
            x = batch[0] if isinstance(batch, list) else batch
            x[(0,) * x.ndim].item()
            count += len(x)
        return count

    return Running(epoch, getattr(loader, "explain", None))


def torch_loader(setup: Setup, workers: int) -> Running:
    import torch

    return counted(
        torch.utils.data.DataLoader(
            DATASETS[setup.variant](setup),
            batch_size=setup.batch,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
        )
    )


def torch_processes(setup: Setup) -> Running:
    """torch.utils.data.DataLoader with worker processes, kept between epochs."""
    return torch_loader(setup, setup.workers)


def torch_here(setup: Setup) -> Running:
    """torch.utils.data.DataLoader with num_workers=0: everything in the caller's thread."""
    return torch_loader(setup, 0)


def penstock_loader(setup: Setup, method: str | None, workers: int) -> Running:
    import penstock

    return counted(
        penstock.DataLoader(
            DATASETS[setup.variant](setup),
            batch_size=setup.batch,
            shuffle=True,
            num_workers=workers,
            worker_method=method,  # type: ignore[arg-type]
            persistent_workers=workers > 0,
        )
    )


def penstock_default(setup: Setup) -> Running:
    """penstock.DataLoader over the same dataset, without a word on methods: torch's worker processes."""
    return penstock_loader(setup, None, setup.workers)


def penstock_threads(setup: Setup) -> Running:
    """penstock.DataLoader(worker_method="thread") over the same dataset."""
    return penstock_loader(setup, "thread", setup.workers)


def penstock_here(setup: Setup) -> Running:
    """The same with num_workers=0: rows in place, in the caller's thread."""
    return penstock_loader(setup, "thread", 0)


def penstock_auto(setup: Setup) -> Running:
    """penstock.DataLoader(worker_method="auto"); what it measures at its start is in the warm-up."""
    return penstock_loader(setup, "auto", setup.workers)


def bare_rows(setup: Setup) -> Running:
    """A loop in one thread: calls the dataset in a shuffled order and copies each tensor into its row of a batch that
    is used over and over; no collation of labels, no hand-over."""
    import torch

    dataset = DATASETS[setup.variant](setup)
    first = dataset[0]
    first = first[0] if isinstance(first, tuple) else first
    batch = torch.empty((setup.batch, *first.shape), dtype=first.dtype)
    rows = batch.unbind(0)

    def epoch() -> int:
        for number, index in enumerate(torch.randperm(len(dataset)).tolist()):
            sample = dataset[index]
            rows[number % setup.batch].copy_(sample[0] if isinstance(sample, tuple) else sample)
        return len(dataset)

    return Running(epoch)


# --- a million strings ------------------------------------------------------------------------------------------------


def strings(setup: Setup, make: Any) -> Running:
    """The dataset object holds a list of strings before the clock starts; `make(dataset)` gives the loader."""
    import torch

    class Dataset(torch.utils.data.Dataset[Any]):
        def __init__(self) -> None:
            self.names = [f"sample-{number:09d}" for number in range(int(setup.facts["strings"]))]

        def __len__(self) -> int:
            return len(self.names)

        def __getitem__(self, index: int) -> int:
            return int(self.names[index][-1])

    dataset = Dataset()

    def epoch() -> Numbers:
        began = time.perf_counter()
        loader = make(dataset)
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


def strings_torch(setup: Setup) -> Running:
    """torch.utils.data.DataLoader with worker processes, kept between epochs."""
    import torch

    return strings(
        setup,
        lambda dataset: torch.utils.data.DataLoader(
            dataset, batch_size=1024, shuffle=True, num_workers=setup.workers, persistent_workers=True
        ),
    )


def strings_penstock(setup: Setup) -> Running:
    """penstock.DataLoader(worker_method="thread") over the same dataset."""
    import penstock

    return strings(
        setup,
        lambda dataset: penstock.DataLoader(
            dataset,
            batch_size=1024,
            shuffle=True,
            num_workers=setup.workers,
            persistent_workers=True,
            worker_method="thread",
        ),
    )


# --- seeding by sample ------------------------------------------------------------------------------------------------


def seeding(setup: Setup) -> Running:
    """What setting random, numpy.random and torch's generator adds to fetching a sample in a worker process: the same
    batches fetched with and without, in this process."""
    from torch.utils.data import default_collate

    from penstock.executors.fetch import Fetch
    from penstock.state.delivery import Task

    dataset = list(range(int(setup.facts["slow"])))
    plain, seeded = (Fetch(dataset, batched=True, collate_fn=default_collate, seeded=on) for on in (False, True))

    def seconds(fetch: Fetch) -> float:
        began = time.perf_counter()
        for begin in range(0, len(dataset), setup.batch):
            given = dataset[begin : begin + setup.batch]
            fetch.load(Task(given, 1, 2, range(begin, begin + len(given))))
        return time.perf_counter() - began

    def epoch() -> Numbers:
        return {SEEDING.key: 1e6 * (seconds(seeded) - seconds(plain)) / len(dataset)}

    return Running(epoch)


PROCESSES = Contestant("torch", Role.TORCH, torch_processes, ("torch", "torchvision"))
HERE = Contestant("torch, 0 workers", Role.ASIDE, torch_here)
DEFAULT = Contestant("penstock", Role.PENSTOCK, penstock_default, ("penstock",))
THREADS = Contestant("penstock thread", Role.PENSTOCK, penstock_threads, ("penstock",))
THREADS_HERE = Contestant("penstock thread, 0 workers", Role.PENSTOCK, penstock_here)
AUTO = Contestant("penstock auto", Role.PENSTOCK, penstock_auto)
BARE = Contestant("bare loop", Role.BARE, bare_rows)

QUESTION = Question(
    "python_datasets",
    "Datasets that only Python can read",
    (
        Table(
            "tiny",
            "base + i of 3x64x64 float32, batch 64, 2 workers",
            (PROCESSES, DEFAULT, HERE, THREADS, THREADS_HERE, AUTO, BARE),
            (Target("penstock thread", 7, "torch"), Target("penstock thread", 1, "torch, 0 workers")),
        ),
        Table(
            "pillow",
            "Image.open, RandomResizedCrop(224), flip, ToTensor, Normalize in a user's Dataset; batch 64, 2 workers",
            (PROCESSES, DEFAULT, THREADS, AUTO),
            (Target("penstock thread", 1.2, "torch"),),
        ),
        Table(
            "unknown_transform",
            "ImageFolder with RandomResizedCrop(224), flip, a function of the user's, ToTensor, Normalize; 2 workers",
            (PROCESSES, DEFAULT, THREADS, AUTO),
        ),
        Table(
            "pure_python",
            "a millisecond of pure Python a sample, batch 64, 2 workers",
            (PROCESSES, DEFAULT, THREADS, AUTO),
            (Target("penstock auto", 0.97, "torch"),),
        ),
        Table(
            "strings",
            "a dataset that holds 1,000,000 strings, batch 1024, 2 workers; two epochs",
            (
                Contestant("torch", Role.TORCH, strings_torch, ("torch",)),
                Contestant("penstock thread", Role.PENSTOCK, strings_penstock, ("penstock",)),
            ),
            (Target("penstock thread", 50, None, FIRST), Target("penstock thread", 5, None, GROWTH)),
            (FIRST, GROWTH, EPOCH),
            fresh=True,
        ),
        Table(
            "seeding",
            "what seed= adds to a sample in a worker process",
            (Contestant("penstock", Role.PENSTOCK, seeding, ("penstock",)),),
            (Target("penstock", 30, None, SEEDING),),
            (SEEDING,),
        ),
    ),
    prepare,
)
