"""Every order: any part is that of the whole; and batches that do not depend on the number of workers."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
import torchvision
from torchvision import transforms as v1

import penstock
from penstock.errors import InvalidOption
from tests.data import photo_files, rows
from tests.same import assert_same

pytestmark = pytest.mark.native


def mix(**options: Any) -> Any:
    return penstock.Mix({"a": (rows(90), 3), "b": (rows(30), 1)}).sampler(**options)


def weights(**options: Any) -> Any:
    return penstock.Weighted([1, 2, 3], 120, **options)


@pytest.mark.parametrize("make", [mix, weights])
def test_a_pass_follows_torchs_generator_and_the_epoch(make: Any) -> None:
    sampler = make()
    torch.manual_seed(1)
    first, second = list(sampler), list(sampler)
    assert first != second
    torch.manual_seed(1)
    assert [list(sampler), list(sampler)] == [first, second]
    seed = int(torch.empty((), dtype=torch.int64).random_(generator=torch.Generator().manual_seed(1)).item())
    assert first == sampler.order(seed, 0).take(0, 120).tolist()
    before = torch.get_rng_state()
    own = make(generator=torch.Generator().manual_seed(1))
    assert list(own) == first and torch.equal(torch.get_rng_state(), before)
    own.set_epoch(3)
    twin = pickle.loads(pickle.dumps(own))
    assert (len(twin), twin.epoch, repr(twin)) == (120, 3, repr(own)) or make is mix
    assert list(twin) == list(own)
    torch.manual_seed(1)
    sampler.set_epoch(1)
    assert list(sampler) == sampler.order(seed, 1).take(0, 120).tolist() != first
    with pytest.raises(InvalidOption, match="epoch=-1 is out of range"):
        sampler.set_epoch(-1)
    with pytest.raises(TypeError):
        sampler.set_epoch("1")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return photos with random augmentations, and with their numbers in the places of their labels."""
    root = photo_files(tmp_path_factory.mktemp("photos"), 30, (50, 80), ("png", "jpg", "jpg", "jpg", "jpg"))
    steps = [v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.RandomCrop(24, padding=3), v1.ToTensor()]
    found = torchvision.datasets.ImageFolder(str(root), v1.Compose(steps))
    found.samples = [(path, i) for i, (path, _) in enumerate(found.samples)]
    return found


@pytest.mark.parametrize("seed", [None, 5])
def test_same_bytes_for_any_number_of_workers(dataset: Any, seed: int | None) -> None:
    runs = []
    for workers in (0, 1, 2, 8, 2):
        torch.manual_seed(1)
        loader = penstock.DataLoader(dataset, batch_size=7, shuffle=True, num_workers=workers, seed=seed)
        runs.append([torch.cat([x for x, _ in loader]) for _ in range(2)])
    for run in runs[1:]:
        assert_same(run, runs[0])
    assert not torch.equal(*runs[0])  # epochs differ
