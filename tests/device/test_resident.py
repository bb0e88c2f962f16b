"""Datasets that live on a device: rows, labels and samplers of all kinds, and what stays on the host.

The device is the CPU. Images are for test_pixels.py; ends, states and errors of a pass for tests/conformance.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset
from torchvision import transforms as v1

import penstock
from penstock.device import resident
from tests.accelerator import replaced_by_the_cpu
from tests.data import Made, in_memory, rows, tensor_files
from tests.same import assert_same

pytestmark = pytest.mark.native

TO_FLOAT = [v1.ToTensor(), v1.Normalize((0.49, 0.48, 0.45), (0.25, 0.24, 0.26))]
CROP = v1.RandomCrop(32, padding=4, fill=(1, 2, 3))


@pytest.fixture(autouse=True)
def _device(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced_by_the_cpu(monkeypatch)


def loader_of(dataset: Any, *, there: bool = True, **options: Any) -> Any:
    device = penstock.Feed("cuda", cache="device") if there else None
    return penstock.DataLoader(dataset, device=device, **{"seed": 7, "num_workers": 1, **options})


def assert_refused(dataset: Any, why: str) -> None:
    """Assert that a dataset stays on the host, and why."""
    loader = loader_of(dataset)
    explained = loader.explain()
    assert "of arrays on cpu" not in explained and why in explained, explained


def assert_equal(dataset: Any, **how: Any) -> None:
    """Assert that all batches of an epoch are those of the loader on the host."""
    options = how if "batch_sampler" in how else {"batch_size": 16, "shuffle": True, **how}
    there, host = loader_of(dataset, **options), loader_of(dataset, there=False, **options)
    assert "of arrays on cpu" in there.explain()
    assert_same(list(there), list(host))


def images(*steps: Any, samples: int = 50) -> Any:
    return in_memory("CIFAR10", v1.Compose(steps), samples)


def columns(samples: int = 53) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    numbers = torch.randint(0, 200, (samples, 3, 5), generator=generator)
    kinds = (torch.float32, torch.uint8, torch.int64, torch.bfloat16, torch.bool, torch.complex128, torch.int16)
    rows = [numbers.to(kind) for kind in kinds]
    wide = numbers.float()[:, :, :4]  # rows with gaps between them
    single = [torch.arange(samples), torch.arange(samples) % 2 == 0, torch.arange(samples).to(torch.complex128)]
    return [*rows, wide[:, 0], *single, numbers[:, :, :0].contiguous()]


@pytest.mark.parametrize("size", [1, 16, 60])
def test_rows_of_every_kind(size: int) -> None:
    for dataset in (TensorDataset(*columns()), penstock.Arrays(*columns()), TensorDataset(columns()[0])):
        assert_equal(dataset, batch_size=size, drop_last=size == 16)


def test_pieces_of_memory_mapped_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.device.resident._PIECE", 1000)
    rng = np.random.default_rng(1)
    for name, array in (("x", rng.normal(size=(300, 11))), ("y", rng.integers(0, 9, 300))):
        np.save(tmp_path / f"{name}.npy", array)
    assert_equal(penstock.Arrays(tmp_path / "x.npy", tmp_path / "y.npy"))
    assert_equal(images(*TO_FLOAT))


def test_samplers_of_the_users_and_subsets() -> None:
    moved = images(v1.Pad(1, fill=9), CROP, v1.RandomHorizontalFlip(), *TO_FLOAT)
    indices = [[4, 4, -1], [torch.tensor(3)], [np.int64(9), 0, -50], list(range(40))]
    assert_equal(moved, batch_sampler=indices)
    assert_equal(TensorDataset(torch.arange(10)), batch_sampler=[[1, 2], [slice(0, 3), slice(3, 6)], [5]])
    for dataset in (moved, TensorDataset(*columns(30))):
        assert_equal(Subset(dataset, [5, 3, 3, 28]), batch_size=3)
        assert_equal(Subset(Subset(dataset, range(10, 20)), range(0, 10, 3)), batch_size=4)


def test_labels_of_every_kind() -> None:
    dataset = images(v1.ToTensor())
    loader = loader_of(dataset, batch_size=5)
    for change in (0, 1, 2):
        dataset.targets[3] = 70 + change
        assert int(next(iter(loader))[1][3]) == 70 + change
    kinds: tuple[Callable[[int], Any], ...] = (lambda i: 0.5 * i, lambda i: f"class {i}", lambda i: (i, str(i)), int)
    for label in kinds:
        dataset.targets = [label(i) for i in range(50)]
        assert_equal(dataset)
    asked: Any = []
    dataset.target_transform = lambda label: asked.append(label) or 2 * label
    assert_equal(dataset)
    assert len(asked) == 100  # once a sample, by either way


def test_what_stays_on_the_host(tmp_path: Path) -> None:
    reflected = v1.Compose([v1.Pad(20, padding_mode="reflect"), v1.Resize(16)])
    for step in (v1.Resize(40), v1.RandomResizedCrop(32), v1.Grayscale(3), v1.RandomCrop(50), reflected):
        assert_refused(images(step, v1.ToTensor()), "resized")
    assert_refused(penstock.TensorFolder(tensor_files(tmp_path, 3, (4,), "{}")), "files *.pt")
    assert_refused(ConcatDataset([TensorDataset(torch.zeros(3, 4)), TensorDataset(torch.zeros(2, 4))]), "joined")
    moves = [v1.RandomCrop(32, padding=4), v1.RandomHorizontalFlip()]  # zeros, which no pixel becomes
    assert_refused(images(*TO_FLOAT, *moves), "converted")
    assert_refused(Made(), "the data stays on the host: Python reads it")
    assert [int(one) for one in loader_of(Made())] == list(range(23))


def test_what_does_not_fit_stays_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = TensorDataset(torch.zeros(1000, 250))
    monkeypatch.setattr("penstock.device.resident.available", lambda device: 1_300_000)
    assert_refused(dataset, "977 KiB of arrays do not fit on cpu, which has 1.2 MiB left")
    monkeypatch.setattr("penstock.device.resident.available", lambda device: 1_400_000)
    assert "977 KiB of arrays on cpu" in loader_of(dataset).explain()
    assert_equal(dataset)
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
    dataset = images(v1.PILToTensor())
    wanted, kept = list(loader_of(dataset, batch_size=4)), []
    for batch in loader_of(dataset, batch_size=4):
        kept.append([field.clone() for field in batch])
        for field in batch:
            assert field.untyped_storage().nbytes() == field.nbytes
            field.zero_()
    assert_same(kept, wanted)
    assert_same(list(loader_of(dataset, batch_size=4)), wanted)


def test_data_lives_on_the_device_as_long_as_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[weakref.ref[Any]] = []
    hold = resident.hold

    def seen(*given: Any) -> Any:
        plan = hold(*given)
        held.append(weakref.ref(plan))
        return plan

    monkeypatch.setattr(resident, "hold", seen)
    loader = loader_of(rows())
    batches = iter(loader)
    loader.set_epoch(1)  # begins the pass anew
    next(batches)
    gc.collect()
    assert [plan() is None for plan in held] == [False]
    list(batches)
    gc.collect()
    assert held[0]() is None
