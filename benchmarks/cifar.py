"""50,000 images of 3x32x32 in memory: RandomCrop(32, padding=4), flip, to float32 or uint8; batches of 256, shuffled.

The images are random bytes in CIFAR-10's own files (nothing is decoded, so what they show costs nothing).
"""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks import bare
from benchmarks.contestants import (
    Channels,
    dali_epochs,
    epochs_of,
    ffcv_epochs,
    penstock_loader,
    shuffled,
    torch_loader,
)
from benchmarks.question import Contestant, Options, Question, Role, Running, Setup, Table, Target, made

CHANNELS = Channels((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
SIDE = 32
BATCHES = 5


def prepare(options: Options) -> Setup:
    """cifar-10-batches-py as torchvision.datasets.CIFAR10 reads it, and the same images as images.npy (NHWC)."""
    samples = 2_500 if options.quick else 50_000
    folder = made(options.cache / f"cifar-{samples}", partial(write, samples=samples))
    facts = {"shape": (3, SIDE, SIDE), "dtype": "uint8", "made": "random bytes"}
    return Setup(str(folder), samples, batch=256, facts=facts)


def write(folder: Path, samples: int) -> None:
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


def recipe(kind: str) -> Any:
    """torchvision's v1 transforms, as its tutorials have them."""
    from torchvision import transforms

    steps = [transforms.RandomCrop(SIDE, padding=4), transforms.RandomHorizontalFlip()]
    return transforms.Compose([*steps, *CHANNELS.torchvision(kind)])


def dataset(setup: Setup) -> Any:
    """torchvision's CIFAR10, exactly that class; only the check of the real files' MD5 sums is put aside."""
    from torchvision.datasets import CIFAR10

    with mock.patch("torchvision.datasets.cifar.check_integrity", return_value=True):
        return CIFAR10(setup.data, train=True, transform=recipe(setup.variant))


def bare_gather(setup: Setup) -> Running:
    """C++: copies each image into recycled batch buffers (for float32: as normalised planes by multiply and add);
    no crop, no flip, no labels, no hand-over."""
    images = np.load(setup.path("images.npy"))
    if setup.variant == "uint8":
        return bare.loop(setup, "arrays.cc", "gather", images, images[0].nbytes)
    scale = np.array([1 / (255 * s) for s in CHANNELS.std], np.float32)
    shift = np.array([-m / s for m, s in zip(*CHANNELS, strict=True)], np.float32)
    return bare.loop(setup, "arrays.cc", "gather_float", images, SIDE * SIDE, scale, shift)


def ffcv(setup: Setup) -> Running:
    """FFCV's packed file of raw images: SimpleRGBImageDecoder, flip, RandomTranslate(4) (and NormalizeImage),
    os_cache, OrderOption.RANDOM."""
    from ffcv.fields import RGBImageField
    from ffcv.fields.decoders import SimpleRGBImageDecoder
    from ffcv.transforms import RandomHorizontalFlip, RandomTranslate

    stored, labels = np.load(setup.path("images.npy")), np.load(setup.path("labels.npy"))
    steps = [SimpleRGBImageDecoder(), RandomHorizontalFlip(), RandomTranslate(padding=4), *CHANNELS.ffcv(setup.variant)]
    field = RGBImageField(write_mode="raw")
    return ffcv_epochs(setup, f"cifar-{setup.samples}", field, lambda i: (stored[i], int(labels[i])), steps)


def dali(setup: Setup) -> Running:
    """DALI on the CPU, fed by external_source (one gathered batch per call, as DALI has no reader for CIFAR's files):
    crop of the padded image and flip by crop_mirror_normalize; its default prefetching."""
    from nvidia.dali import fn

    images = np.load(setup.path("images.npy"))

    def outputs() -> list[Any]:
        source = fn.external_source(source=(images[rows] for rows in shuffled(setup)), layout="HWC")
        padded = fn.slice(source, start=[-4, -4], end=[SIDE + 4, SIDE + 4], axes=[0, 1], out_of_bounds_policy="pad")
        options = {"mirror": fn.random.coin_flip(), "output_layout": "CHW", **CHANNELS.dali(setup.variant)}
        place = {f"crop_pos_{axis}": fn.random.uniform(range=[0, 1]) for axis in "xy"}
        return [fn.crop_mirror_normalize(padded, crop=[SIDE, SIDE], **place, **options)]

    return dali_epochs(setup, outputs)


TORCH = """torch.utils.data.DataLoader over torchvision.datasets.CIFAR10 with v1 transforms; worker processes kept
    between epochs."""
PENSTOCK = "penstock.DataLoader over the same dataset object, unmodified."
CONTESTANTS = (
    Contestant("torch", Role.TORCH, epochs_of(torch_loader, dataset), TORCH, ("torch", "torchvision")),
    Contestant("penstock", Role.PENSTOCK, epochs_of(penstock_loader, dataset, seed=0), PENSTOCK),
    Contestant("bare gather", Role.BARE, bare_gather),
    Contestant("FFCV packed", Role.PEER, ffcv, peers=("ffcv", "numba")),
    Contestant("DALI external", Role.PEER, dali, peers=("nvidia-dali-cuda130",)),
)
TABLES = tuple(
    Table(
        kind,
        f"RandomCrop(32, padding=4), flip, {steps}; batch 256, 2 workers or threads",
        CONTESTANTS,
        (Target("penstock", times, "torch"),),
    )
    for kind, steps, times in (("float32", "ToTensor, Normalize", 40), ("uint8", "PILToTensor", 80))
)
QUESTION = Question("cifar", "Small images in memory", TABLES, prepare)
