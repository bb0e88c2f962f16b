"""Datasets that people write themselves, unchanged: torch.load, numpy.load, torchvision.io, a class of transforms.

Others have samples that cost nothing, or are pure Python. Worker processes are kept between epochs, torch's as
Penstock's. A class that opens photos with Pillow is measured in python_datasets.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import photos, tensor_files
from benchmarks.contestants import Samples, epochs_of, penstock_persistent, torch_loader
from benchmarks.python_datasets import arithmetic
from benchmarks.question import Contestant, Options, Question, Role, Setup, Table, Target, made


def prepare(options: Options) -> Setup:
    """The files of the questions `tensor_files` and `photos`, and dict/ID.pt: two tensors of 24 KB and a number."""
    setup = tensor_files.prepare(options)
    folder = made(options.cache / f"own_classes-{setup.samples}", partial(write_dicts, samples=setup.samples))
    facts = {"dicts": str(folder), "cheap": setup.samples // 10, "photos": photos.prepare(options).data}
    return dataclasses.replace(setup, facts={**setup.facts, **facts})


def write_dicts(folder: Path, samples: int) -> None:
    generator = torch.Generator().manual_seed(0)
    for name in tensor_files.ids(samples):
        image, mask = torch.randn(2, 3, 32, 64, generator=generator).unbind(0)
        torch.save({"image": image.clone(), "mask": mask.clone(), "label": 1}, folder / f"{name}.pt")


def arrays(setup: Setup) -> Any:
    """numpy.load of one file a sample."""
    names = [str(setup.path("npy", f"{name}.npy")) for name in tensor_files.ids(setup.samples)]
    return Samples(setup.samples, lambda index: (np.load(names[index]), index % 10))


def dicts(setup: Setup) -> Any:
    """torch.load of a dict a sample."""
    names = [f"{setup.facts['dicts']}/{name}.pt" for name in tensor_files.ids(setup.samples)]
    return Samples(setup.samples, lambda index: torch.load(names[index]))


def decoded(setup: Setup) -> Any:
    """torchvision.io's decode_image(read_file(path)) and version 2's transforms of the tensor."""
    from torchvision.io import decode_image, read_file
    from torchvision.transforms import v2

    names = [str(path) for path in sorted(Path(setup.facts["photos"]).rglob("*.jpg"))]
    steps = [v2.RandomResizedCrop(photos.SIZE, antialias=True), v2.RandomHorizontalFlip()]
    transform = v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True), v2.Normalize(*photos.CHANNELS)])
    return Samples(len(names), lambda index: (transform(decode_image(read_file(names[index]), "RGB")), index % 10))


class Preset:
    """torchvision's references/classification/presets.py: ClassificationPresetTrain as that of ResNet-50 calls it."""

    def __init__(self) -> None:
        from torchvision import transforms

        steps = [transforms.RandomResizedCrop(photos.SIZE, antialias=True), transforms.RandomHorizontalFlip(0.5)]
        conversions = [transforms.PILToTensor(), transforms.ConvertImageDtype(torch.float)]
        self.transforms = transforms.Compose([*steps, *conversions, transforms.Normalize(*photos.CHANNELS)])

    def __call__(self, img: Any) -> Any:
        return self.transforms(img)


def preset(setup: Setup) -> Any:
    """torchvision's ImageFolder over a class that holds a Compose."""
    from torchvision.datasets import ImageFolder

    return ImageFolder(setup.facts["photos"], Preset())


def held(kilobytes: int, setup: Setup) -> Any:
    """One tensor in memory, given for each sample."""
    sample = torch.randn(kilobytes * 256)
    return Samples(setup.samples * 48 // kilobytes, lambda index: (sample, index))


DATASETS: dict[str, Callable[[Setup], Any]] = {
    "tutorial": tensor_files.tutorial,
    "dicts": dicts,
    "arrays": arrays,
    "decode_image": decoded,
    "preset": preset,
    "held_48": partial(held, 48),
    "held_600": partial(held, 600),
    "nothing_known": lambda setup: Samples(setup.facts["cheap"], arithmetic),
}


def dataset(setup: Setup) -> Any:
    """The dataset of the table."""
    return DATASETS[setup.variant](setup)


TORCH = Contestant("torch", Role.TORCH, epochs_of(torch_loader, dataset), "torch.utils.data.DataLoader, unchanged.")
PROCESSES = Contestant(
    "penstock", Role.PENSTOCK, epochs_of(penstock_persistent, dataset), "penstock.DataLoader with the same parameters."
)
THREADS = Contestant(
    "penstock thread",
    Role.PENSTOCK,
    epochs_of(penstock_persistent, dataset, worker_method="thread"),
    'The same with worker_method="thread".',
)


def table(name: str, title: str, processes: float, threads: float | None = None) -> Table:
    targets = [Target("penstock", processes, "torch")]
    if threads is not None:
        targets.append(Target("penstock thread", threads, "torch"))
    return Table(name, f"{title}, batch 64, shuffled, 2 workers", (TORCH, PROCESSES, THREADS), tuple(targets))


TABLES = (
    table("tutorial", "torch.load of ID.pt, 3x64x64 float32", 2.5, 8),
    table("dicts", "torch.load of a dict of two tensors of 24 KB and a number", 2, 5),
    table("arrays", "numpy.load of ID.npy, 3x64x64 float32", 2.5, 8),
    table(
        "decode_image", "decode_image(read_file(path)), v2 RandomResizedCrop(224), flip, ToDtype, Normalize", 2.2, 2.2
    ),
    table("preset", "ImageFolder with torchvision's ClassificationPresetTrain", 4.5),
    table("held_48", "48 KB samples that cost nothing", 2),
    table("held_600", "600 KB samples that cost nothing", 2.5),
    table("nothing_known", "a millisecond of pure Python a sample", 0.98),
)
QUESTION = Question("own_classes", "Your own Dataset class, unchanged", TABLES, prepare)
