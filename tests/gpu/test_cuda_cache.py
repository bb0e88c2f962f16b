"""penstock.Feed(cache="device"): the dataset lives on the device, and its batches are those of the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torchvision import transforms as v1
from torchvision.transforms import v2

import penstock
from tests.gpu.on_device import DEVICE, on_host, settled_bytes, sleep
from tests.photos import in_memory
from tests.same import assert_same

CACHED = penstock.Feed("cuda", cache="device")
OPTIONS: dict[str, Any] = {"batch_size": 64, "shuffle": True, "seed": 7, "num_workers": 2}


def images(name: str, transform: Any) -> Any:
    return in_memory(name, transform, 500, planar=False)


def augmented(name: str, version: str) -> Any:
    t: Any = {"v1": v1, "v2": v2}[version]
    side, mean, std = (32, (0.5, 0.4, 0.3), (0.2, 0.3, 0.1)) if name.startswith("CIFAR") else (28, (0.13,), (0.31,))
    first = [t.ToImage()] if version == "v2" else []
    last = [t.ToDtype(torch.float32, scale=True)] if version == "v2" else [t.ToTensor()]
    steps = [*first, t.RandomCrop(side, padding=4), t.RandomHorizontalFlip(), *last, t.Normalize(mean, std)]
    return t.Compose(steps)


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("name", ["CIFAR10", "CIFAR100", "MNIST", "FashionMNIST"])
def test_augmented_images_equal_the_hosts(name: str, version: str) -> None:
    dataset = images(name, augmented(name, version))
    plain = penstock.DataLoader(dataset, **OPTIONS)
    cached = penstock.DataLoader(dataset, device=CACHED, **OPTIONS)
    for _ in range(3):
        assert_same([on_host(batch) for batch in cached], list(plain))


def test_bytes_equal_the_hosts() -> None:
    steps = [v1.RandomCrop(32, padding=4), v1.RandomHorizontalFlip(), v1.PILToTensor()]
    dataset = images("CIFAR10", v1.Compose(steps))
    cached = penstock.DataLoader(dataset, device=CACHED, **OPTIONS)
    assert_same([on_host(batch) for batch in cached], list(penstock.DataLoader(dataset, **OPTIONS)))


def rows() -> Any:
    rng = np.random.default_rng(0)
    kinds: list[Any] = [np.float32, np.uint8, np.int64, np.float64, np.bool_]
    return penstock.Arrays(*[rng.integers(0, 100, (500, 3, 7)).astype(kind) for kind in kinds], np.arange(500))


@pytest.mark.parametrize("workers", [0, 2])
def test_arrays_equal_the_hosts(workers: int) -> None:
    options = {**OPTIONS, "num_workers": workers}
    cached = penstock.DataLoader(rows(), device=CACHED, **options)
    plain = penstock.DataLoader(rows(), **options)
    for _ in range(2):
        assert_same([on_host(batch) for batch in cached], list(plain))


def test_what_the_feed_asks_is_done_to_cached_batches() -> None:
    dataset = images("CIFAR10", augmented("CIFAR10", "v1"))
    feed = penstock.Feed("cuda", cache="device", dtype=torch.bfloat16, channels_last=True)
    wanted = list(penstock.DataLoader(dataset, **OPTIONS))
    for (x, y), (host_x, host_y) in zip(penstock.DataLoader(dataset, device=feed, **OPTIONS), wanted, strict=True):
        assert x.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(x.cpu(), host_x.bfloat16()) and torch.equal(y.cpu(), host_y)


def test_the_data_are_on_the_device_as_long_as_the_pass() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4000, 3, 32, 32), dtype=np.uint8)
    before = settled_bytes()
    loader = penstock.DataLoader(penstock.Arrays(pixels, np.arange(4000)), device=CACHED, **OPTIONS)
    for _ in range(2):
        batches = iter(loader)
        first = next(batches)[1].tolist()
        assert settled_bytes() >= before + pixels.nbytes
        assert sorted(first + [int(y) for _, labels in batches for y in labels.cpu()]) == list(range(4000))
        assert settled_bytes() == before


def test_kept_batches_are_never_overwritten() -> None:
    cached = penstock.DataLoader(rows(), device=CACHED, **OPTIONS)
    kept = []
    for batch in cached:
        sleep()
        kept.append(batch)
    assert_same([on_host(batch) for batch in kept], list(penstock.DataLoader(rows(), **OPTIONS)))


def test_leaving_early() -> None:
    cached = penstock.DataLoader(rows(), device=CACHED, **OPTIONS)
    wanted = list(penstock.DataLoader(rows(), **OPTIONS))
    assert_same([on_host(batch) for batch in cached], wanted)
    before = settled_bytes()
    for _ in range(5):
        for batch in cached:
            assert batch[0].device == DEVICE
            break
        del batch
    assert settled_bytes() == before
