"""Packed shards in random order beside the same samples as loose files: tensors of 3x64x64 float32, and photos."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import bare, photos, tensor_files
from benchmarks.contestants import epochs_of, ffcv_epochs, penstock_loader, torch_loader
from benchmarks.question import Contestant, Options, Question, Role, Running, Setup, Table, Target, made

_DATA = 49_152


def prepare(options: Options) -> Setup:
    """The data of `tensor_files` and `photos`, and shards of both of 64 MiB."""
    import penstock

    loose, images = tensor_files.prepare(options), photos.prepare(options)
    folder = tensor_files.folder_of("pt", loose)
    kind = "quick" if options.quick else "whole"
    shards = made(options.cache / f"shards-tensors-{kind}", lambda out: _pack(folder, out))
    packed = made(options.cache / f"shards-photos-{kind}", lambda out: _pack(penstock.ImageFolder(images.data), out))
    facts = {**loose.facts, **images.facts, "photo_samples": images.samples, "shard_mib": 64}
    paths = {"tensors": str(shards), "photos": str(packed), "loose_photos": images.data}
    return replace(loose, facts={**facts, **paths})


def _pack(dataset: Any, out: Path) -> None:
    import penstock

    penstock.pack(dataset, out, shard_size="64MiB")


def tensors(setup: Setup, **options: Any) -> Any:
    import penstock

    return penstock.Shards(setup.facts["tensors"], **options)


def transform(setup: Setup) -> Any:
    from torchvision import transforms

    cut = [transforms.RandomResizedCrop(photos.SIZE), transforms.RandomHorizontalFlip()]
    return transforms.Compose([*cut, *photos.CHANNELS.torchvision("uint8")])


def packed_photos(setup: Setup) -> Any:
    import penstock

    return penstock.Shards(setup.facts["photos"], transform=transform(setup))


def loose_photos(setup: Setup) -> Any:
    import penstock

    return penstock.ImageFolder(setup.facts["loose_photos"], transform=transform(setup))


def torch_photos(setup: Setup) -> Any:
    from torchvision.datasets import ImageFolder

    return ImageFolder(setup.facts["loose_photos"], transform=transform(setup))


def bare_loop(setup: Setup) -> Running:
    """C++: pread of the elements at offsets known beforehand from open shards, and a copy into the row; no checksum."""
    dataset = tensors(setup)
    rows = dataset.index.rows(np.arange(len(dataset)))
    skip = dataset.read_bytes(0)["id-0.pt"].find(dataset[0][0].numpy().tobytes())
    offsets = rows["members"]["offset"][:, 0].astype(np.int64) + skip
    names = bare.names([dataset.files.path(number) for number in range(len(dataset.files.shards))])
    shard = rows["shard"].astype(np.int64)
    return bare.loop(setup, "shards.cc", "shards", *names, len(dataset.files.shards), shard, offsets, _DATA)


def ffcv(setup: Setup) -> Running:
    """FFCV's packed file of the same tensors (NDArrayField), random order, 2 threads."""
    from ffcv.fields import NDArrayField
    from ffcv.fields.decoders import NDArrayDecoder
    from ffcv.transforms import ToTensor

    dataset = tensor_files.tutorial(setup)

    def sample(row: int) -> tuple[Any, int]:
        tensor, label = dataset[row]
        return tensor.numpy(), int(label)

    field = NDArrayField(np.dtype("float32"), tensor_files.SHAPE)
    return ffcv_epochs(setup, "shards", field, sample, [NDArrayDecoder(), ToTensor()])


SHARDS = "penstock.DataLoader over penstock.Shards, checksums compared."
UNVERIFIED = "The same with verify=False."
TENSORS = (
    Contestant("torch", Role.TORCH, epochs_of(torch_loader, tensor_files.tutorial), tensor_files.TORCH),
    Contestant("penstock shards", Role.PENSTOCK, epochs_of(penstock_loader, tensors, seed=0), SHARDS),
    Contestant(
        "penstock shards, verify=False",
        Role.PENSTOCK,
        epochs_of(penstock_loader, partial(tensors, verify=False), seed=0),
        UNVERIFIED,
    ),
    Contestant(
        "penstock files", Role.PENSTOCK, epochs_of(penstock_loader, partial(tensor_files.folder_of, "pt"), seed=0),
        tensor_files.PT,
    ),
    Contestant("bare", Role.BARE, bare_loop),
    Contestant("FFCV", Role.PEER, ffcv, peers=("ffcv", "numba")),
)  # fmt: skip
PHOTOS = (
    Contestant("torch", Role.TORCH, epochs_of(torch_loader, torch_photos), "torch over torchvision's ImageFolder."),
    Contestant("penstock shards", Role.PENSTOCK, epochs_of(penstock_loader, packed_photos, seed=0), SHARDS),
    Contestant("penstock files", Role.PENSTOCK, epochs_of(penstock_loader, loose_photos, seed=0), "ImageFolder."),
)
QUESTION = Question(
    "shards",
    "Packed shards in random order",
    (
        Table(
            "tensors",
            "3x64x64 float32 in shards, batch 64, shuffled, 2 workers or threads",
            TENSORS,
            (Target("penstock shards", 1, "FFCV"), Target("penstock shards", 1, "penstock files")),
        ),
        Table(
            "photos",
            "photos in shards, RandomResizedCrop(224), flip, uint8, batch 64, shuffled, 2 workers or threads",
            PHOTOS,
            (Target("penstock shards", 1, "penstock files"),),
        ),
    ),
    prepare,
)
