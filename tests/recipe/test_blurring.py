"""GaussianBlur in the native core's own draws: torch gives the weights before they are needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

import penstock
import penstock._native as _native
from penstock.recipe import blurring, keyed_methods
from penstock.recipe.blurring import foresee
from tests.filled_batches import batches, save_pictures
from tests.recipe.against_torchvision import GENERATIONS, of_sample, picture, recipe_of, refusal_of
from tests.same import assert_same

pytestmark = [pytest.mark.native, pytest.mark.filterwarnings("ignore:The transform `ToTensor")]


@pytest.fixture(autouse=True)
def _no_sizes_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test find no table that other tests have filled."""
    monkeypatch.setattr(blurring, "_alike", {})


def blurring_of(t: Any, size: int = 24, kernel: Any = 5) -> Any:
    blur = t.RandomApply([t.ColorJitter(0.3), t.GaussianBlur(kernel, (0.1, 2.0))], p=0.7)
    steps = [t.RandomResizedCrop(size), t.RandomHorizontalFlip(), blur, t.ToTensor(), t.RandomErasing(0.5)]
    return t.Compose(steps)


@GENERATIONS
@pytest.mark.parametrize(("size", "kernel"), [(24, 5), (40, (3, 7)), (70, 23), (33, (9, 1)), (131, 13)])
def test_torchvision_draws_what_the_native_core_draws(t, size, kernel):
    compose, image = blurring_of(t, size, kernel), picture(90, 160)
    found = recipe_of(compose)
    assert found.blurs
    numbers = np.arange(20, dtype=np.int64)
    foresee(found.native, 0, 3, 1, numbers, numbers + 100)
    for sample in range(20):
        with keyed_methods.of_sample(3, 1, sample, sample + 100):
            wanted = compose(image)
        assert torch.equal(of_sample(found, image, 3, 1, sample, sample + 100), wanted)


def test_what_was_not_foreseen_is_pythons():
    found = recipe_of(blurring_of(v1))
    missing = 0
    for sample in range(30):
        try:
            of_sample(found, picture(40, 40), 991, 1, sample, sample)
        except ValueError as error:
            assert "whose weights only torch knows" in str(error)
            missing += 1
    assert 5 < missing < 30


def test_weights_are_forgotten_in_the_end():
    found = recipe_of(blurring_of(v1))
    numbers = np.arange(60, dtype=np.int64)
    foresee(found.native, 0, 17, 0, numbers, numbers)
    assert _native.foreseen_blurs(found.native, 17, 0, numbers, numbers, 0) == []
    for number in range(8200):
        _native.keep_blur_weights(np.ones((1, 1), np.float32), float(number), False)
    assert len(_native.foreseen_blurs(found.native, 17, 0, numbers, numbers, 0)) > 20


def test_blurs_of_pictures_of_many_sizes_are_pythons():
    refused = refusal_of(v1.Compose([v1.Resize(30), v1.GaussianBlur(3), v1.ToTensor()]))
    assert "pictures of many sizes" in refused.why
    refusal_of(v1.Compose([v1.Resize((3, 3)), v1.GaussianBlur(23), v1.ToTensor()]))


def test_an_even_number_of_weights_is_refused():
    with pytest.raises(ValueError, match="odd"):
        _native.keep_blur_weights(np.ones((2, 3), np.float32), 1.0, False)


@GENERATIONS
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_blurs_natively(tmp_path, t, workers):
    folder = save_pictures(tmp_path)
    dataset = ImageFolder(folder, blurring_of(t))
    loader = penstock.DataLoader(dataset, batch_size=8, num_workers=workers, seed=6)
    assert "native   augment RandomApply" in loader.explain()
    ours = batches(penstock.DataLoader, dataset, num_workers=workers, seed=6)
    python = batches(penstock.DataLoader, dataset, num_workers=2, seed=6, worker_method="process")
    assert_same(ours, python)
    for _ in loader:
        pass
    assert sum(loader.stats().read_by_python.values()) <= 3  # the PNG files
