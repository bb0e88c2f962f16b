"""Datasets that live on a device: their batches are the host's, bit for bit. The device is the CPU here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torchvision
from torch.utils.data import ConcatDataset, Subset, TensorDataset
from torchvision import transforms as v1
from torchvision.transforms import v2

import penstock
from tests.accelerator import replaced_by_the_cpu
from tests.data import in_memory, tensor_files
from tests.same import assert_same, outcomes

pytestmark = pytest.mark.native

CIFAR = ((0.49, 0.48, 0.45), (0.25, 0.24, 0.26))
MNIST = ((0.13,), (0.31,))
DATASETS = torchvision.datasets


@pytest.fixture(autouse=True)
def _device(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced_by_the_cpu(monkeypatch)


def loader_of(dataset: Any, *, there: bool = True, **options: Any) -> Any:
    device = penstock.Feed("cuda", cache="device") if there else None
    return penstock.DataLoader(dataset, device=device, seed=7, num_workers=1, **options)


def assert_refused(dataset: Any, why: str) -> None:
    """Assert that a dataset stays on the host, and why."""
    explained = loader_of(dataset).explain()
    assert "of arrays on cpu" not in explained and why in explained, explained


def assert_equal(dataset: Any, *, epochs: int = 2, **how: Any) -> None:
    """Assert that all batches of some epochs are those of the loader on the host."""
    options = how if "batch_sampler" in how else {"batch_size": 16, "shuffle": True, **how}
    there, host = loader_of(dataset, **options), loader_of(dataset, there=False, **options)
    assert "of arrays on cpu" in there.explain()
    for _ in range(epochs):
        assert_same(list(there), list(host))


def images(name: str, *steps: Any, t: Any = v1, planar: bool = True, samples: int = 50) -> Any:
    return in_memory(name, t.Compose(steps), samples, planar=planar)


def to_float(t: Any, statistics: Any = CIFAR) -> list[Any]:
    scaled = [t.ToTensor()] if t is v1 else [t.ToImage(), t.ToDtype(torch.float32, scale=True)]
    return [*scaled, t.Normalize(*statistics)]


@pytest.mark.parametrize("t", [v1, v2], ids=["v1", "v2"])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
def test_crops_in_every_padding_mode(t: Any, mode: str) -> None:
    steps = [t.RandomCrop(32, padding=4, padding_mode=mode), t.RandomHorizontalFlip(), *to_float(t)]
    for planar in (False, True):
        assert_equal(images("CIFAR10", *steps, t=t, planar=planar))


PIPELINES: dict[str, list[Any]] = {
    "nothing": [],
    "both flips": [v1.RandomHorizontalFlip(0.4), v1.RandomVerticalFlip(0.6)],
    "uneven pad": [v1.Pad((1, 2, 3, 4), fill=(9, 80, 200))],
    "two fills": [v1.Pad((3, 0, 1, 5), fill=200), v1.RandomCrop(44, padding=(6, 4), fill=(1, 2, 3))],
    "fill, then edge": [v1.Pad(2, fill=90), v1.RandomCrop(36, padding=3, padding_mode="edge")],
    "reflected fill": [v1.RandomVerticalFlip(), v1.Pad(2, fill=90), v1.Pad(4, padding_mode="reflect")],
    "centre, larger": [v1.RandomHorizontalFlip(), v1.CenterCrop((41, 50))],
    "centre, smaller": [v1.CenterCrop((20, 7)), v1.RandomHorizontalFlip()],
    "only where needed": [v1.RandomCrop((40, 20), pad_if_needed=True, fill=77)],
    "resized to its size": [v1.Resize(32), v1.RandomCrop(32, padding=4)],
}


@pytest.mark.parametrize("steps", PIPELINES.values(), ids=PIPELINES.keys())
def test_what_moves_pixels(steps: list[Any]) -> None:
    assert_equal(images("CIFAR10", *steps, v1.PILToTensor()), epochs=1)
    assert_equal(images("CIFAR100", *steps, *to_float(v1), planar=False))


@pytest.mark.parametrize("name", ["MNIST", "FashionMNIST"])
@pytest.mark.parametrize("t", [v1, v2], ids=["v1", "v2"])
def test_grey_images(name: str, t: Any) -> None:
    moves = [t.RandomCrop(28, padding=3, fill=50), t.RandomHorizontalFlip(), t.Pad(2, fill=7), t.CenterCrop(34)]
    assert_equal(images(name, *moves, *to_float(t, MNIST), t=t))
    assert_equal(images(name, *moves, t.PILToTensor(), t=t))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.uint8], ids=str)
def test_dtypes_that_a_table_gives(dtype: torch.dtype) -> None:
    crop = v2.RandomCrop(32, padding=4, fill=31)
    assert_equal(images("CIFAR10", crop, v2.ToImage(), v2.ToDtype(dtype, scale=True), t=v2))


def columns(samples: int = 53) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    numbers = torch.randint(0, 200, (samples, 3, 5), generator=generator)
    kinds = (torch.float32, torch.uint8, torch.int64, torch.bfloat16, torch.bool, torch.complex128, torch.int16)
    rows = [numbers.to(kind) for kind in kinds]
    wide = numbers.float()[:, :, :4]  # rows with gaps between them
    single = [torch.arange(samples), torch.arange(samples) % 2 == 0, torch.arange(samples).to(torch.complex128)]
    return [*rows, wide[:, 0], *single, numbers[:, :, :0].contiguous()]


def test_rows_of_every_kind() -> None:
    for dataset in (TensorDataset(*columns()), penstock.Arrays(*columns()), TensorDataset(columns()[0])):
        assert_equal(dataset, epochs=1)


def test_pieces_of_memory_mapped_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.device.resident._PIECE", 1000)
    rng = np.random.default_rng(1)
    for name, array in (("x", rng.normal(size=(300, 11))), ("y", rng.integers(0, 9, 300))):
        np.save(tmp_path / f"{name}.npy", array)
    assert_equal(penstock.Arrays(tmp_path / "x.npy", tmp_path / "y.npy"), epochs=1)
    assert_equal(images("CIFAR10", *to_float(v1)), epochs=1)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("size", [1, 7, 25, 60])
def test_batches_of_any_size(size: int, shuffle: bool, drop_last: bool) -> None:
    crop = images("CIFAR10", v1.RandomCrop(32, padding=4), *to_float(v1))
    assert_equal(crop, batch_size=size, shuffle=shuffle, drop_last=drop_last)


def test_samplers_of_the_users() -> None:
    moved = images("CIFAR10", v1.RandomCrop(32, padding=4), v1.RandomHorizontalFlip(), *to_float(v1))
    indices = [[4, 4, -1], [torch.tensor(3)], [np.int64(9), 0, -50], list(range(40))]
    rows, no_indices = TensorDataset(torch.arange(10), torch.arange(10) * 2), [[1, 2], [slice(0, 3), slice(3, 6)], [5]]
    samplers: tuple[Any, ...] = (moved, indices), (rows, no_indices)
    for dataset, sampler in samplers:
        assert_equal(dataset, batch_sampler=sampler)


class Failing:
    """Batches of indices, of which two are out of range, and an error."""

    def __iter__(self) -> Iterator[list[int]]:
        yield from ([0, 1, 2, 3], [4, 5, 6, 7], [8, 50], [9, 10, 11, 12], [-51], [13, 14, 15, 16])
        raise KeyError("no more")


def test_errors_are_raised_at_their_batch() -> None:
    found = outcomes(loader_of(images("CIFAR10", *to_float(v1)), batch_sampler=Failing()))
    told = "index {} is out of range for a dataset of 50 samples".format
    said = [one if isinstance(one[0], str) else len(one[1]) for one in found]
    assert said == [4, 4, ("IndexError", told(50)), 4, ("IndexError", told(-51)), 4, ("KeyError", "'no more'")]


def test_labels_of_every_kind() -> None:
    dataset = images("CIFAR10", v1.ToTensor())
    loader = loader_of(dataset, batch_size=5)
    for change in (0, 1, 2):
        dataset.targets[3] = 70 + change
        assert int(next(iter(loader))[1][3]) == 70 + change
    kinds: tuple[Callable[[int], Any], ...] = (lambda i: 0.5 * i, lambda i: f"class {i}", lambda i: (i, str(i)), int)
    for label in kinds:
        dataset.targets = [label(i) for i in range(50)]
        assert_equal(dataset, epochs=1)
    asked: Any = []
    dataset.target_transform = lambda label: asked.append(label) or 2 * label
    assert_equal(dataset, epochs=1)
    assert len(asked) == 100  # once a sample, by either way


def test_subsets() -> None:
    crop = v1.RandomCrop(32, padding=4, fill=(1, 2, 3))
    train = images("CIFAR10", v1.Pad(1, fill=9), crop, v1.RandomHorizontalFlip(), *to_float(v1), samples=30)
    for dataset in (train, TensorDataset(*columns(30))):
        assert_equal(Subset(dataset, [5, 3, 3, 28]), batch_size=3)
        assert_equal(Subset(Subset(dataset, range(10, 20)), range(0, 10, 3)), batch_size=4)


def test_what_stays_on_the_host(tmp_path: Path) -> None:
    reflected = v1.Compose([v1.Pad(20, padding_mode="reflect"), v1.Resize(16)])
    for step in (v1.Resize(40), v1.RandomResizedCrop(32), v1.Grayscale(3), v1.RandomCrop(50), reflected):
        assert_refused(images("CIFAR10", step, v1.ToTensor()), "resized")
    assert_refused(penstock.TensorFolder(tensor_files(tmp_path, 3, (4,), "{}")), "files *.pt")
    assert_refused(ConcatDataset([TensorDataset(torch.zeros(3, 4)), TensorDataset(torch.zeros(2, 4))]), "joined")
    moves = [v1.RandomCrop(32, padding=4), v1.RandomHorizontalFlip()]  # zeros, which no pixel becomes
    assert_refused(images("CIFAR10", *to_float(v1), *moves), "converted")


def test_what_does_not_fit_stays_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = TensorDataset(torch.zeros(1000, 250))
    monkeypatch.setattr("penstock.device.resident.available", lambda device: 1_300_000)
    assert_refused(dataset, "977 KiB of arrays do not fit on cpu, which has 1.2 MiB left")
    monkeypatch.setattr("penstock.device.resident.available", lambda device: 1_400_000)
    assert "977 KiB of arrays on cpu" in loader_of(dataset).explain()
    assert_equal(dataset, epochs=1)
    monkeypatch.setattr("penstock.device.resident.Rows", mock.Mock(side_effect=torch.OutOfMemoryError("no room")))
    assert len(list(loader_of(dataset, batch_size=100))) == 10


def test_a_pass_has_the_arrays_as_they_were_when_it_began() -> None:
    array = np.arange(3000).reshape(100, 30)
    loader, before = loader_of(penstock.Arrays(array), batch_size=50), array.copy()
    batches = iter(loader)
    first = next(batches)
    array[99, 29] += 1
    assert_same([batch.numpy() for [batch] in (first, *batches)], np.split(before, 2))
    assert_same([batch.numpy() for [batch] in loader], np.split(array, 2))


def test_a_batch_has_memory_of_its_own() -> None:
    loader = loader_of(images("MNIST", v1.PILToTensor()), batch_size=4)
    wanted, kept = list(loader), []
    for batch in loader:
        kept.append([field.clone() for field in batch])
        for field in batch:
            assert field.untyped_storage().nbytes() == field.nbytes
            field.zero_()
    assert_same(kept, wanted)
    assert_same(list(loader_of(images("MNIST", v1.PILToTensor()), batch_size=4)), wanted)


def test_a_pass_can_be_closed_and_begun_again() -> None:
    loader = loader_of(TensorDataset(torch.arange(20)), batch_size=2, persistent_workers=True)
    batches = iter(loader)
    next(batches)
    batches.close()
    assert list(batches) == []
    assert [batch[0].tolist() for batch in loader] == [[2 * i, 2 * i + 1] for i in range(10)]
