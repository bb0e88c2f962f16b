"""timm's transforms: what a program's own dataset gets from them, and what an image folder gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import ImageFolder

import penstock
from tests.filled_batches import batches, save_pictures
from tests.recipe.against_torchvision import assert_as_torchvision as assert_as_timm
from tests.recipe.against_torchvision import first_run, picture, recipe_of, refusal_of
from tests.same import assert_same

pytestmark = pytest.mark.native
timm_data: Any = pytest.importorskip("timm.data", reason="timm is not installed")

TRAIN: dict[str, dict[str, Any]] = {
    "default": {},
    "bicubic": {"interpolation": "bicubic"},
    "any interpolation": {"interpolation": "random", "color_jitter": None},
    "rand": {"auto_augment": "rand-m7-mstd0.5-inc1", "interpolation": "bicubic", "re_prob": 0.5},
    "rand, harder": {"auto_augment": "rand-m9-mstd0.5-inc1", "interpolation": "bicubic", "re_prob": 0.5},
    "rand, often": {"auto_augment": "rand-m15-n5-p1-mstd101-mmax20", "interpolation": "random"},
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
    assert_as_timm(compose, picture(60, 70), range(60))
    timms = ("RandAugment", "AutoAugment", "RandomErasing")
    own = [number for number, step in enumerate(compose.transforms) if type(step).__name__ in timms]
    assert first_run(compose) == min(own, default=len(compose.transforms))


def test_grey_images_are_timms():
    compose = train()
    grey = Image.fromarray(np.asarray(picture(40, 50))[..., 0])
    compose.transforms.pop()  # of three channels
    assert_as_timm(compose, grey, range(4))


def test_weighted_choices_are_timms():
    assert_as_timm(train(auto_augment="rand-tweights"), picture(40, 50), range(6))


def test_changes_are_noticed():
    compose = train(interpolation="random")
    image = picture(40, 50)
    for change in (
        lambda: None,
        lambda: vars(compose.transforms[0]).update(scale=(0.5, 0.6)),
        lambda: vars(compose.transforms[0]).update(interpolation=compose.transforms[0].interpolation[:1]),
    ):
        change()
        assert_as_timm(compose, image, range(6))


def test_an_image_too_large_for_effects_draws_once(monkeypatch):
    """Where the native core refuses an image behind the draws, timm draws the same once more."""
    compose = train(auto_augment="rand-m9-p1-mstd0.5", interpolation="random")
    monkeypatch.setattr("penstock.recipe.composed_run._transform", lambda *_: "no reason")
    assert_as_timm(compose, picture(40, 50), range(4))


@pytest.mark.parametrize("name", EVAL)
def test_evaluation_is_native_from_end_to_end(folder, name):
    compose = timm_data.create_transform(24, **EVAL[name])
    recipe_of(compose)
    dataset = ImageFolder(folder, compose)
    ours = batches(penstock.DataLoader, dataset, num_workers=2)
    assert_same(ours, batches(torch.utils.data.DataLoader, dataset))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["rand", "any interpolation", "pixels erased"])
def test_an_image_folder_gives_timms_samples(folder, name, workers):
    dataset = ImageFolder(folder, train(**TRAIN[name]))
    assert "generators of Python's and NumPy's" in refusal_of(dataset.transform).why
    ours = batches(penstock.DataLoader, dataset, num_workers=workers)
    assert_same(ours, batches(torch.utils.data.DataLoader, dataset, num_workers=workers))


def test_a_seed_gives_the_same_for_any_number_of_workers(folder):
    dataset = ImageFolder(folder, train(**TRAIN["rand"]))
    one, two = (batches(penstock.DataLoader, dataset, num_workers=n, seed=3) for n in (1, 2))
    assert_same(one, two)
