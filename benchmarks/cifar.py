"""50,000 images of 3x32x32 in memory: RandomCrop(32, padding=4), flip, to float32 or uint8; batches of 256, shuffled.

The images are random bytes in CIFAR-10's own files (nothing is decoded, so what they show costs nothing).
"""

# Each contestant imports its own libraries, which may be missing here.
# ruff: noqa: PLC0415
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks import bare
from benchmarks.contestants import ffcv_epochs
from benchmarks.harness import Contestant, Options, Question, Role, Running, Setup, Table, Target, made, over

MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)
SIDE = 32
BATCHES = 5


def prepare(options: Options) -> Setup:
    """cifar-10-batches-py as torchvision.datasets.CIFAR10 reads it, and the same images as images.npy (NHWC)."""
    samples = 2_500 if options.quick else 50_000
    folder = made(options.cache / f"cifar-{samples}", lambda unfinished: write(unfinished, samples))
    facts = {"shape": (3, SIDE, SIDE), "dtype": "uint8", "made": "random bytes"}
    return Setup(str(folder), samples, batch=256, facts=facts)


def write(folder: Path, samples: int) -> None:
    import numpy as np

    draw = np.random.default_rng(0)
    planes = draw.integers(0, 256, (samples, 3, SIDE, SIDE), np.uint8)
    labels = draw.integers(0, 10, samples)
    batches = folder / "cifar-10-batches-py"
    batches.mkdir()
    for i in range(BATCHES):
        part = slice(i * samples // BATCHES, (i + 1) * samples // BATCHES)
        entry = {"data": planes[part].reshape(-1, 3 * SIDE * SIDE), "labels": labels[part].tolist()}
        (batches / f"data_batch_{i + 1}").write_bytes(pickle.dumps(entry))
    (batches / "batches.meta").write_bytes(pickle.dumps({"label_names": [f"class{i}" for i in range(10)]}))
    np.save(folder / "images.npy", np.ascontiguousarray(planes.transpose(0, 2, 3, 1)))
    np.save(folder / "labels.npy", labels)


def dataset(setup: Setup) -> Any:
    """torchvision's CIFAR10, exactly that class; only the check of the real files' MD5 sums is put aside."""
    from torchvision import transforms
    from torchvision.datasets import CIFAR10

    if setup.variant == "uint8":
        tail = [transforms.PILToTensor()]
    else:
        tail = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    steps = [transforms.RandomCrop(SIDE, padding=4), transforms.RandomHorizontalFlip(), *tail]
    with mock.patch("torchvision.datasets.cifar.check_integrity", return_value=True):
        return CIFAR10(setup.data, train=True, transform=transforms.Compose(steps))


def torch_loader(setup: Setup) -> Running:
    """torch.utils.data.DataLoader over torchvision.datasets.CIFAR10 with v1 transforms; worker processes kept between
    epochs."""
    import torch

    return over(
        torch.utils.data.DataLoader(
            dataset(setup), batch_size=setup.batch, shuffle=True, num_workers=setup.workers, persistent_workers=True
        )
    )


def penstock_loader(setup: Setup) -> Running:
    """penstock.DataLoader over the same dataset object, unmodified."""
    import penstock

    return over(
        penstock.DataLoader(dataset(setup), batch_size=setup.batch, shuffle=True, num_workers=setup.workers, seed=0)
    )


def bare_gather(setup: Setup) -> Running:
    """C++: copies each image into recycled batch buffers (for float32: as normalised planes by multiply and add);
    no crop, no flip, no labels, no hand-over."""
    import numpy as np

    images = np.load(setup.path("images.npy"))
    library = bare.library("arrays.cc", setup.path().parent)
    scale = np.array([1 / (255 * s) for s in STD], np.float32)
    shift = np.array([-m / s for m, s in zip(MEAN, STD, strict=True)], np.float32)

    def epoch() -> int:
        order = np.random.permutation(setup.samples)
        given = (bare.pointer(images), bare.pointer(order), setup.samples, setup.batch)
        if setup.variant == "uint8":
            return bare.call(library.gather, *given, images[0].nbytes, setup.workers)
        return bare.call(
            library.gather_float, *given, SIDE * SIDE, bare.pointer(scale), bare.pointer(shift), setup.workers
        )

    return Running(epoch)


def ffcv(setup: Setup) -> Running:
    """FFCV's packed file of raw images: SimpleRGBImageDecoder, flip, RandomTranslate(4) (and NormalizeImage),
    os_cache, OrderOption.RANDOM."""
    import numpy as np
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.decoders import SimpleRGBImageDecoder
    from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, RandomTranslate, ToTensor, ToTorchImage
    from ffcv.writer import DatasetWriter

    packed = setup.path().parent / f"cifar-{setup.samples}.beton"
    if not packed.exists():
        stored, labels = np.load(setup.path("images.npy")), np.load(setup.path("labels.npy"))

        class Samples:
            def __len__(self) -> int:
                return len(stored)

            def __getitem__(self, index: int) -> tuple[Any, int]:
                return stored[index], int(labels[index])

        unfinished = f"{packed}.{os.getpid()}"
        DatasetWriter(
            unfinished, {"x": RGBImageField(write_mode="raw"), "y": IntField()}, num_workers=2
        ).from_indexed_dataset(Samples())
        os.rename(unfinished, packed)
    normal = []
    if setup.variant == "float32":
        normal = [NormalizeImage(255 * np.array(MEAN), 255 * np.array(STD), np.float32)]
    images = [
        SimpleRGBImageDecoder(),
        RandomHorizontalFlip(),
        RandomTranslate(padding=4),
        *normal,
        ToTensor(),
        ToTorchImage(),
    ]
    return ffcv_epochs(packed, images, setup)


def dali(setup: Setup) -> Running:
    """DALI on the CPU, fed by external_source (one gathered batch per call, as DALI has no reader for CIFAR's files):
    crop of the padded image and flip by crop_mirror_normalize; its default prefetching."""
    import numpy as np
    from nvidia.dali import Pipeline, fn, types

    images = np.load(setup.path("images.npy"))
    batches = -(-setup.samples // setup.batch)
    normal: dict[str, Any] = {"dtype": types.UINT8}
    if setup.variant == "float32":
        normal = {"dtype": types.FLOAT, "mean": [255 * m for m in MEAN], "std": [255 * s for s in STD]}

    def gathered() -> Any:
        while True:
            order = np.random.permutation(setup.samples)
            yield from (images[order[i * setup.batch : (i + 1) * setup.batch]] for i in range(batches))

    pipeline = Pipeline(batch_size=setup.batch, num_threads=setup.workers, device_id=None)
    with pipeline:
        source = fn.external_source(source=gathered(), layout="HWC")
        place = {f"crop_pos_{axis}": fn.random.uniform(range=[0, 1]) for axis in "xy"}
        padded = fn.slice(source, start=[-4, -4], end=[SIDE + 4, SIDE + 4], axes=[0, 1], out_of_bounds_policy="pad")
        pipeline.set_outputs(
            fn.crop_mirror_normalize(
                padded, crop=[SIDE, SIDE], mirror=fn.random.coin_flip(), output_layout="CHW", **place, **normal
            )
        )
    pipeline.build()

    def epoch() -> int:
        count = 0
        for _ in range(batches):
            batch = np.asarray(pipeline.run()[0].as_tensor())
            batch[0, 0, 0, 0].item()
            count += len(batch)
        return count

    return Running(epoch)


CONTESTANTS = (
    Contestant("torch", Role.TORCH, torch_loader, ("torch", "torchvision")),
    Contestant("penstock", Role.PENSTOCK, penstock_loader, ("penstock",)),
    Contestant("bare gather", Role.BARE, bare_gather),
    Contestant("FFCV packed", Role.PEER, ffcv, ("ffcv", "numba"), peers_venv=True),
    Contestant("DALI external", Role.PEER, dali, ("nvidia-dali-cuda130",), peers_venv=True),
)

QUESTION = Question(
    "cifar",
    "Small images in memory",
    (
        Table(
            "float32",
            "RandomCrop(32, padding=4), flip, ToTensor, Normalize; batch 256, 2 workers or threads",
            CONTESTANTS,
            (Target("penstock", 40, "torch"),),
        ),
        Table(
            "uint8",
            "RandomCrop(32, padding=4), flip, PILToTensor; batch 256, 2 workers or threads",
            CONTESTANTS,
            (Target("penstock", 80, "torch"),),
        ),
    ),
    prepare,
)
