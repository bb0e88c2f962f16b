"""A worker_init_fn with a dataset that the native core reads: called as torch calls it, and what it changes is seen."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torch.utils.data import ConcatDataset, Subset, get_worker_info
from torchvision import transforms as v1

import penstock
from tests.filled_batches import LAST, TRAIN, check, handed_on, images, listed, reseeded
from tests.same import assert_same

pytestmark = pytest.mark.native


def _own_dataset() -> Any:
    info: Any = get_worker_info()
    return info.dataset


class Recording:
    def __init__(self) -> None:
        self.inits: list[Any] = []

    def __call__(self, label):
        draws = torch.rand(1).item(), random.random(), np.random.rand()
        info = get_worker_info()
        return label, draws, -1 if info is None else info.id, len(self.inits)


RECORDING = Recording()


def recorded(worker):
    RECORDING.inits.append(worker)
    info = get_worker_info()
    assert info is not None and info.id == worker and _own_dataset().target_transform is not None
    torch.rand(3)


def test_the_state_of_a_worker(folder):
    dataset = images(folder, target_transform=RECORDING)
    check(dataset, worker_init_fn=recorded)
    check(dataset, worker_init_fn=reseeded, persistent_workers=True, collate_fn=handed_on)


def test_targets_in_the_callers_thread(folder):
    check(images(folder, target_transform=RECORDING), workers=0, collate_fn=handed_on)


def test_a_worker_that_changes_the_transform(folder):
    def init(worker):
        _own_dataset().transform = v1.Compose([v1.Resize((10, 11 + worker)), v1.ToTensor()])

    def whole(worker):
        _own_dataset().transform = lambda image: torch.tensor(image.size)

    dataset = images(folder)
    assert {tuple(batch.shape[1:]) for batch, _ in check(dataset, worker_init_fn=init)} == {(3, 10, 11), (3, 10, 12)}
    check(dataset, worker_init_fn=whole)
    for collate in (handed_on, listed):
        check(dataset, worker_init_fn=init, collate_fn=collate)
    check(images(folder, LAST), worker_init_fn=init, filled=False, collate_fn=listed)


def test_a_worker_that_changes_more(folder):
    def other_files(worker):
        dataset = _own_dataset()
        dataset.samples = dataset.samples[::-1]
        dataset.target_transform = lambda label: 10 * worker + label

    def other_loader(worker):
        _own_dataset().loader = lambda path: Image.new("RGB", (30, 30), (worker, 2, 3))

    def other_part(worker):
        subset = _own_dataset()
        subset.dataset = images(folder, v1.Compose([v1.Resize((9, 9)), v1.ToTensor()]))

    def other_method(worker):
        torchvision.datasets.ImageFolder.__getitem__ = lambda self, index: (torch.tensor(index), worker)

    def other_parts(worker):
        _own_dataset().datasets[1] = Subset(images(folder), range(30))

    first, last = images(folder), images(folder, LAST)
    subsets = Subset(first, range(20)), Subset(last, range(20))
    own = ((init, first, last) for init in (other_files, other_loader, other_method))
    for init, dataset, of_last in (*own, (other_part, *subsets)):
        check(dataset, worker_init_fn=init)
        check(dataset, worker_init_fn=init, collate_fn=listed)
        check(of_last, filled=False, worker_init_fn=init, collate_fn=listed)
    parts: Any = ConcatDataset([subsets[1], last])
    check(parts, filled=False, worker_init_fn=other_parts, collate_fn=listed)


def test_native_draws_follow_the_workers_seed(folder):
    def seeded(worker):
        torch.manual_seed(17 + worker)

    def epoch(main: int, init: Any, **named: Any) -> list[Any]:
        torch.manual_seed(main)
        loader = penstock.DataLoader(images(folder, TRAIN), batch_size=8, num_workers=2, worker_init_fn=init, **named)
        return [image for image, _ in loader]

    assert_same(epoch(0, seeded), epoch(1, seeded))
    assert_same(epoch(0, reseeded), epoch(0, reseeded))
    assert not any(map(torch.equal, epoch(0, reseeded), epoch(1, reseeded)))
    assert_same(*(epoch(main, reseeded, generator=torch.Generator().manual_seed(3)) for main in (0, 1)))
