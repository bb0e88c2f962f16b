"""timm's transforms: what a program's own dataset gets from them, and what an image folder gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision.datasets import ImageFolder

import penstock
from tests.data import save_pictures
from tests.filled_batches import batches
from tests.recipe.against_torchvision import assert_as_torchvision as assert_as_timm, picture, recipe_of
from tests.same import assert_same

pytestmark = pytest.mark.native
timm_data: Any = pytest.importorskip("timm.data", reason="timm is not installed")

TRAIN: dict[str, dict[str, Any]] = {
    "default": {},
    "bicubic": {"interpolation": "bicubic"},
    "rand": {"auto_augment": "rand-m7-mstd0.5-inc1", "interpolation": "bicubic", "re_prob": 0.5},
    "original": {"auto_augment": "original-mstd0.5", "interpolation": "bilinear", "vflip": 0.5},
    "v0": {"auto_augment": "v0", "interpolation": "nearest"},
    "pixels erased": {"auto_augment": "rand-m8-inc1", "re_prob": 0.7, "re_mode": "pixel", "re_count": 2},
    "simclr": {"color_jitter": (0.8, 0.8, 0.8, 0.2), "color_jitter_prob": 0.8, "grayscale_prob": 0.2},
    "prefetcher": {"auto_augment": "rand-m9-mstd0.5-inc1", "use_prefetcher": True},
}
EVAL: dict[str, dict[str, Any]] = {
    "default": {},
    "bicubic": {"interpolation": "bicubic", "crop_pct": 1.0},
    "squash": {"crop_mode": "squash", "interpolation": "bicubic"},
    "prefetcher": {"use_prefetcher": True},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_pictures(tmp_path_factory.mktemp("images"))


def train(size: int = 24, **named: Any) -> Any:
    return timm_data.create_transform(size, is_training=True, **named)


@pytest.mark.parametrize("name", TRAIN)
def test_training_gets_timms_pixels_and_draws(name):
    compose = train(**TRAIN[name])
    assert_as_timm(compose, picture(60, 70), range(20))


@pytest.mark.parametrize("name", EVAL)
def test_evaluation_is_native_from_end_to_end(folder, name):
    compose = timm_data.create_transform(24, **EVAL[name])
    recipe_of(compose)
    dataset = ImageFolder(folder, compose)
    ours = batches(penstock.DataLoader, dataset, num_workers=2)
    assert_same(ours, batches(torch.utils.data.DataLoader, dataset))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["rand", "pixels erased"])
def test_an_image_folder_gives_timms_samples(folder, name, workers):
    dataset = ImageFolder(folder, train(**TRAIN[name]))
    ours = batches(penstock.DataLoader, dataset, num_workers=workers)
    assert_same(ours, batches(torch.utils.data.DataLoader, dataset, num_workers=workers))


def test_a_seed_gives_the_same_for_any_number_of_workers(folder):
    dataset = ImageFolder(folder, train(**TRAIN["rand"]))
    one, two = (batches(penstock.DataLoader, dataset, num_workers=n, seed=3) for n in (1, 2))
    assert_same(one, two)
