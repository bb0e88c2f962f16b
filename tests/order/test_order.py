"""Orders: torch's permutation, the keyed one, and batches that do not depend on the number of workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from torchvision import transforms as v1

import penstock
from penstock.order.permutations import InSequence, KeyedShuffle, TorchShuffle
from tests.photos import photo_files

pytestmark = pytest.mark.native


@pytest.mark.parametrize("size", [0, 1, 2, 3, 100, 65_537])
@pytest.mark.parametrize("seed", [0, 7, 2**32 + 5, 2**63 - 1])
def test_torch_shuffle_is_randperm(size: int, seed: int) -> None:
    expected = torch.randperm(size, generator=torch.Generator().manual_seed(seed)).numpy()
    whole = TorchShuffle(size, seed)
    assert np.array_equal(whole.take(0, size), expected)
    parts = TorchShuffle(size, seed)
    for begin in range(0, size, 4099):
        count = min(4099, size - begin)
        assert np.array_equal(parts.take(begin, count), expected[begin : begin + count])
    late = TorchShuffle(size, seed)
    assert np.array_equal(late.take(size // 2, size - size // 2), expected[size // 2 :])


@pytest.mark.parametrize("order", [TorchShuffle(10, 1), KeyedShuffle(10, 1, 0), KeyedShuffle(5000, 1, 0)])
def test_positions_past_the_end_are_refused(order: Any) -> None:
    for begin, count in ((0, 5001), (11, 1), (5001, 0), (2**63, 1)):
        if begin + count > 10 and (count > 10 or begin > 5000):
            with pytest.raises((IndexError, TypeError)):
                order.take(begin, count)


def test_torch_shuffle_refuses_sizes_of_another_algorithm() -> None:
    with pytest.raises(ValueError, match="torch's limit"):
        TorchShuffle(TorchShuffle.max_size, 0)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 17, 1024, 1025, 4096, 100_003])
def test_keyed_shuffle_is_a_permutation(size: int) -> None:
    values = KeyedShuffle(size, 3, 1).take(0, size)
    assert np.array_equal(np.sort(values), np.arange(size))
    middle = KeyedShuffle(size, 3, 1).take(size // 3, size // 2)
    assert np.array_equal(middle, values[size // 3 : size // 3 + size // 2])  # any position at once


def test_keyed_shuffle_differs_by_seed_and_epoch() -> None:
    orders = {tuple(KeyedShuffle(5000, seed, epoch).take(0, 50)) for seed in range(10) for epoch in range(10)}
    assert len(orders) == 100


def test_in_sequence() -> None:
    assert InSequence().take(5, 3).tolist() == [5, 6, 7]


# --- the same bytes for any number of workers --------------------------------------------------------------------


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photo_files(tmp_path_factory.mktemp("photos"), 30, (50, 80), ("png", "jpg", "jpg", "jpg", "jpg"))


AUGMENT = v1.Compose([v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.RandomCrop(24, padding=3), v1.ToTensor()])


@pytest.mark.parametrize("seed", [None, 5])
def test_same_bytes_for_any_number_of_workers(photos: Path, seed: int | None) -> None:
    dataset = torchvision.datasets.ImageFolder(str(photos), AUGMENT)
    runs = []
    for workers in (0, 1, 2, 8, 2):
        torch.manual_seed(1)
        loader = penstock.DataLoader(dataset, batch_size=7, shuffle=True, num_workers=workers, seed=seed)
        runs.append([torch.cat([x for x, _ in loader]) for _ in range(2)])
    for run in runs[1:]:
        assert torch.equal(run[0], runs[0][0])
        assert torch.equal(run[1], runs[0][1])
    assert not torch.equal(runs[0][0], runs[0][1])  # epochs differ


def test_draws_belong_to_the_sample_and_its_position_not_to_its_batch(photos: Path) -> None:
    dataset = torchvision.datasets.ImageFolder(str(photos), AUGMENT)
    by_sample: list[dict[int, torch.Tensor]] = []
    for options in (
        dict(shuffle=True, batch_size=7),
        dict(shuffle=True, batch_size=4),
        dict(sampler=range(29, -1, -1)),
    ):
        dataset.samples = [(path, i) for i, (path, _) in enumerate(dataset.samples)]
        loader = penstock.DataLoader(dataset, num_workers=2, seed=9, **options)
        by_sample.append({int(y): x for images, labels in loader for x, y in zip(images, labels, strict=True)})
    assert all(torch.equal(by_sample[1][i], by_sample[0][i]) for i in range(30))
    assert sum(torch.equal(by_sample[2][i], by_sample[0][i]) for i in range(30)) < 5
