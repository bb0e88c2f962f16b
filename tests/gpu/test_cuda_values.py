"""What arrives on the device, or lives there with Feed(cache="device"), is what the host's path gives."""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torchvision import transforms as v1, tv_tensors
from torchvision.transforms import v2

import penstock
from tests.data import Made, in_memory, photo_files
from tests.gpu.on_device import (
    DEVICE,
    assert_as_on_host,
    assert_converted,
    numbered,
    on_host,
    settled_bytes,
    sleep,
    slowly,
)
from tests.same import assert_same

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def tensor_folder(folder: Path) -> Any:
    generator = torch.Generator().manual_seed(0)
    ids = [f"id-{number}" for number in range(37)]
    for name in ids:
        torch.save(torch.randn(3, 5, 4, generator=generator), folder / f"{name}.pt")
    return penstock.TensorFolder(folder, ids, {name: number for number, name in enumerate(ids)})


def arrays(folder: Path) -> Any:
    rng = np.random.default_rng(0)
    kinds: list[Any] = [np.uint8, np.int16, np.int64, np.float16, np.float32, np.float64, np.bool_]
    fields = [rng.integers(0, 100, (41, 3, number + 1)).astype(kind) for number, kind in enumerate(kinds)]
    np.save(folder / "rows.npy", fields[4])
    return penstock.Arrays(*fields, folder / "rows.npy")


def normalised(*steps: Any) -> Any:
    return v1.Compose([*steps, v1.ToTensor(), v1.Normalize(MEAN, STD)])


def folder_of(kind: Any, transform: Any) -> Any:
    return lambda folder: kind(photo_files(folder, 23), transform=transform)


def of_cifar(*steps: Any) -> Any:
    return lambda folder: in_memory("CIFAR10", v2.Compose(steps), 500, planar=False)


FLIP, SCALED = v1.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)
NATIVE: dict[str, Any] = {
    "tensor folder": tensor_folder,
    "arrays": arrays,
    "image folder": folder_of(penstock.ImageFolder, normalised(v1.RandomResizedCrop(32), FLIP)),
    "torchvision's folder": folder_of(torchvision.datasets.ImageFolder, normalised(v1.Resize(40), v1.CenterCrop(32))),
    "bytes": folder_of(penstock.ImageFolder, v1.Compose([v1.Resize(40), v1.CenterCrop(32), v1.PILToTensor()])),
    "cifar": of_cifar(normalised(v1.RandomCrop(32, padding=4), FLIP)),
    "cifar, v2": of_cifar(v2.ToImage(), v2.RandomCrop(32, padding=4), SCALED, v2.Normalize(MEAN, STD)),
    "mnist": lambda folder: in_memory("MNIST", v1.ToTensor(), 500),
}


OPTIONS: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3}


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("name", NATIVE)
def test_native_plans_give_the_hosts_batches(tmp_path: Path, name: str, workers: int) -> None:
    assert_as_on_host(NATIVE[name](tmp_path), num_workers=workers, **OPTIONS)


@pytest.mark.parametrize("name", ["tensor folder", "image folder", "cifar", "cifar, v2", "mnist"])
def test_dtype_and_layout_are_made_on_the_device(tmp_path: Path, name: str) -> None:
    feed = penstock.Feed("cuda", dtype=torch.bfloat16, channels_last=True, depth=3)
    assert_converted(NATIVE[name](tmp_path), feed, num_workers=2, **OPTIONS)


def square(index: int) -> Any:
    return {"x": torch.full((3, 4), float(index * index)), "y": index, "name": f"id-{index}"}


@pytest.mark.parametrize("method", [None, "thread", "process"])
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_python_plans_give_the_hosts_batches(method: Any, workers: int, persistent: bool) -> None:
    options: dict[str, Any] = {"worker_method": method, "persistent_workers": persistent}
    assert_as_on_host(Made(square, 43), num_workers=workers, **OPTIONS, **options)


class Halve(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.tensor(0.5))

    def forward(self, batch: Any) -> Any:
        assert not torch.is_grad_enabled()
        sleep()
        images, labels = batch
        return images * self.factor, labels + 1


def test_a_module_as_transform() -> None:
    dataset = numbered()
    module = Halve().to(DEVICE)
    torch.cuda.synchronize()
    loader = penstock.DataLoader(dataset, batch_size=8, num_workers=2, device=penstock.Feed("cuda", transform=module))
    for (images, labels), (x, y) in zip(loader, penstock.DataLoader(dataset, batch_size=8), strict=True):
        assert torch.equal(images.cpu(), x * 0.5) and torch.equal(labels.cpu(), y + 1)


def test_transforms_of_torchvision() -> None:
    transform = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
    source = [(torch.arange(8 * 3 * 5 * 5, dtype=torch.uint8).view(8, 3, 5, 5), torch.arange(8))] * 4
    found = list(penstock.prefetch(source, "cuda", transform=transform))
    assert len(found) == 4
    for images, labels in found:
        torch.testing.assert_close(images.cpu(), transform(source[0][0]))
        assert torch.equal(labels.cpu(), source[0][1])


Pair = namedtuple("Pair", "image label")


@dataclasses.dataclass(frozen=True)
class Sample:
    image: torch.Tensor
    name: str


def moved(value: Any) -> Any:
    """Return what prefetch() makes of a batch."""
    (found,) = penstock.prefetch([value], "cuda")
    return found


def test_any_structure() -> None:
    x = torch.rand(4, 3)
    source = {"pair": Pair(x, x.half()), "list": [x > 0.5, None, "text", 3], "sample": Sample(x.double(), "name")}
    found = moved(source)
    assert_same([on_host(found["pair"]), on_host(found["list"])], [source["pair"], source["list"]])
    assert type(found["sample"]) is Sample and torch.equal(on_host(found["sample"].image), x.double())


def test_types_that_move_themselves() -> None:
    packed = pack_padded_sequence(torch.arange(6.0).view(3, 2), torch.tensor([3, 2]))
    found = moved(packed)
    assert type(found) is PackedSequence and found.data.device == DEVICE
    assert torch.equal(found.data.cpu(), packed.data)


TENSORS = {
    "empty": torch.zeros(0, 3), "0-d": torch.tensor(7), "bool": torch.tensor([True, False]),
    "complex": torch.randn(5, dtype=torch.complex64), "transposed": torch.arange(24.0).view(2, 3, 4).transpose(0, 2),
    "strided": torch.arange(24.0).view(4, 6)[:, ::2], "grad": torch.ones(3, requires_grad=True),
    "channels last": torch.arange(48.0).view(2, 3, 4, 2).to(memory_format=torch.channels_last),
    "expanded": torch.ones(1, 3).expand(4, 3), "sparse": torch.randn(4, 4).to_sparse(),
}  # fmt: skip


@pytest.mark.parametrize("name", TENSORS)
def test_kinds_of_tensors(name: str) -> None:
    tensor = TENSORS[name]
    found, wanted = moved(tensor), tensor.detach().to(DEVICE)
    assert (found.device, found.dtype, found.shape) == (DEVICE, tensor.dtype, tensor.shape)
    if tensor.layout is torch.strided:
        assert found.stride() == wanted.stride() or 0 in tensor.stride()
        assert torch.equal(found.detach(), wanted)
    else:
        assert torch.equal(found.to_dense(), wanted.to_dense())


def test_tensors_that_are_there_already() -> None:
    there = torch.arange(3.0, device=DEVICE)
    assert moved(there).data_ptr() == there.data_ptr()


def test_images_of_torchvision_keep_their_type() -> None:
    found = moved(tv_tensors.Image(torch.rand(3, 4, 4)))
    assert type(found) is tv_tensors.Image and found.device == DEVICE


CACHED = penstock.Feed("cuda", cache="device")
EPOCH: dict[str, Any] = {"batch_size": 64, "shuffle": True, "seed": 7, "num_workers": 2}


def images(name: str, transform: Any) -> Any:
    return in_memory(name, transform, 500, planar=False)


def augmented(name: str, version: str) -> Any:
    side, mean, std = (32, (0.5, 0.4, 0.3), (0.2, 0.3, 0.1)) if name.startswith("CIFAR") else (28, (0.13,), (0.31,))
    if version == "v1":
        t, first, last = v1, [], [v1.ToTensor()]
    else:
        t, first, last = v2, [v2.ToImage()], [v2.ToDtype(torch.float32, scale=True)]
    return t.Compose([*first, t.RandomCrop(side, padding=4), t.RandomHorizontalFlip(), *last, t.Normalize(mean, std)])


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("name", ["CIFAR10", "CIFAR100", "MNIST", "FashionMNIST"])
def test_augmented_images_equal_the_hosts(name: str, version: str) -> None:
    assert_as_on_host(images(name, augmented(name, version)), CACHED, passes=3, **EPOCH)


def test_bytes_equal_the_hosts() -> None:
    steps = [v1.RandomCrop(32, padding=4), v1.RandomHorizontalFlip(), v1.PILToTensor()]
    assert_as_on_host(images("CIFAR10", v1.Compose(steps)), CACHED, passes=1, **EPOCH)


def rows() -> Any:
    rng = np.random.default_rng(0)
    kinds: list[Any] = [np.float32, np.uint8, np.int64, np.float64, np.bool_]
    return penstock.Arrays(*[rng.integers(0, 100, (500, 3, 7)).astype(kind) for kind in kinds], np.arange(500))


@pytest.mark.parametrize("workers", [0, 2])
def test_arrays_equal_the_hosts(workers: int) -> None:
    assert_as_on_host(rows(), CACHED, **{**EPOCH, "num_workers": workers})


def test_what_the_feed_asks_is_done_to_cached_batches() -> None:
    feed = penstock.Feed("cuda", cache="device", dtype=torch.bfloat16, channels_last=True)
    assert_converted(images("CIFAR10", augmented("CIFAR10", "v1")), feed, **EPOCH)


def test_the_data_are_on_the_device_as_long_as_the_pass() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4000, 3, 32, 32), dtype=np.uint8)
    before = settled_bytes()
    loader = penstock.DataLoader(penstock.Arrays(pixels, np.arange(4000)), device=CACHED, **EPOCH)
    for _ in range(2):
        batches = iter(loader)
        first = next(batches)[1].tolist()
        assert settled_bytes() >= before + pixels.nbytes
        assert sorted(first + [int(y) for _, labels in batches for y in labels.cpu()]) == list(range(4000))
        assert settled_bytes() == before


def test_kept_batches_are_never_overwritten() -> None:
    cached = penstock.DataLoader(rows(), device=CACHED, **EPOCH)
    kept = [slowly(batch) for batch in cached]
    assert_same([on_host(batch) for batch in kept], list(penstock.DataLoader(rows(), **EPOCH)))


def test_leaving_early() -> None:
    cached = penstock.DataLoader(rows(), device=CACHED, **EPOCH)
    assert_same([on_host(batch) for batch in cached], list(penstock.DataLoader(rows(), **EPOCH)))
    before = settled_bytes()
    for _ in range(5):
        assert next(iter(cached))[0].device == DEVICE
    assert settled_bytes() == before
