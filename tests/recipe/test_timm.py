"""timm's transforms: what a program's own dataset gets from them, and what an image folder gives."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import ImageFolder

import penstock
from penstock.hooks import calls
from penstock.recipe import compose_hook, timm_transforms
from penstock.recipe.reader import read
from penstock.recipe.recipe import Recipe
from penstock.recipe.steps import Refusal
from tests.filled_batches import batches, save_pictures
from tests.pictures import picture
from tests.same import assert_same

pytestmark = pytest.mark.native
timm_data: Any = pytest.importorskip("timm.data", reason="timm is not installed")
automatic: Any = pytest.importorskip("timm.data.auto_augment", reason="timm is not installed")

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


def states() -> list[Any]:
    numbers: Any = np.random.get_state()
    return [torch.get_rng_state().tolist(), random.getstate(), [str(part) for part in numbers], numbers[1].sum()]


def outcome(transform: Any, image: Any, seed: int) -> Any:
    """Return what a transform gives or raises, and the global generators after it."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    try:
        value = transform(image)
    except ValueError as error:  # Pillow keeps one bit at least, timm asks for none
        value = str(error)
    return value, states()


def assert_as_timm(transform: Any, image: Any, seeds: range) -> None:
    for seed in seeds:
        with calls.natively():
            found = outcome(transform, image.copy(), seed)
        assert_same(found, outcome(transform, image.copy(), seed))


def native_runs(compose: Any) -> int:
    """Return how many of the first transforms of a Compose were run together, natively."""
    known = compose_hook._entries[id(compose)].known
    runs = {} if known is None else known._runs
    return max((run.length for (begin, *_), run in runs.items() if run is not None and begin == 0), default=0)


@pytest.mark.parametrize("name", TRAIN)
def test_training_gets_timms_pixels_and_draws(name):
    compose = train(**TRAIN[name])
    assert_as_timm(compose, picture(60, 70), range(60))
    own = [step for step in compose.transforms if type(step).__name__ == "RandomErasing"]
    assert native_runs(compose) == len(compose.transforms) - len(own)


@pytest.mark.parametrize("operation", automatic.NAME_TO_OP)
@pytest.mark.parametrize("magnitude", [0, 3, 10])
def test_each_operation_is_exact(operation, magnitude):
    ops = [automatic.AugmentOp(operation, 1.0, magnitude, {"magnitude_std": 2.0, "translate_const": 20})]
    compose = type(train())([automatic.RandAugment(ops, 2), train().transforms[-2]])
    assert_as_timm(compose, picture(31, 43), range(8))
    assert native_runs(compose) == (0 if operation.startswith("GaussianBlur") else 2)


def test_grey_images_are_timms():
    compose = train()
    grey = Image.fromarray(np.asarray(picture(40, 50))[..., 0])
    compose.transforms.pop()  # of three channels
    assert_as_timm(compose, grey, range(4))


def test_weighted_choices_are_timms():
    assert_as_timm(train(auto_augment="rand-tweights"), picture(40, 50), range(6))


def test_changes_are_noticed():
    compose = train(auto_augment="rand-m9-p1")
    image = picture(40, 50)
    augment = next(step for step in compose.transforms if type(step) is automatic.RandAugment)
    assert_as_timm(compose, image, range(3))
    for one in augment.ops:
        one.magnitude = 1
    assert_as_timm(compose, image, range(3))
    augment.ops[2].kwargs["fillcolor"] = (1, 2, 3)
    assert_as_timm(compose, image, range(6))
    del augment.ops[4:]
    assert_as_timm(compose, image, range(3))
    augment.ops[1].aug_fn = lambda picture, *_, **__: picture
    assert_as_timm(compose, image, range(6))


def test_a_replaced_operation_is_the_programs(monkeypatch):
    monkeypatch.setattr(automatic.AugmentOp, "__call__", lambda _, image: image.transpose(Image.Transpose.ROTATE_180))
    assert_as_timm(train(auto_augment="rand-m9-p1"), picture(40, 50), range(3))


def test_subclasses_are_their_own():
    class Mine(automatic.RandAugment):
        def __call__(self, image):
            return super().__call__(image).rotate(3)

    compose = train(auto_augment="rand-m9-p1")
    number = next(n for n, step in enumerate(compose.transforms) if type(step) is automatic.RandAugment)
    compose.transforms[number] = Mine(compose.transforms[number].ops)
    assert_as_timm(compose, picture(40, 50), range(4))


def test_an_image_too_large_for_effects_draws_once(monkeypatch):
    """Where the native core refuses an image behind the draws, timm draws the same once more."""
    compose = train(auto_augment="rand-m9-p1-mstd0.5", interpolation="random")
    monkeypatch.setattr("penstock.recipe.composed_run._transform", lambda *_: "no reason")
    assert_as_timm(compose, picture(40, 50), range(4))


@pytest.mark.parametrize("name", EVAL)
def test_evaluation_is_native_from_end_to_end(folder, name):
    compose = timm_data.create_transform(24, **EVAL[name])
    assert isinstance(read(compose, mode="RGB"), Recipe)
    dataset = ImageFolder(folder, compose)
    ours = batches(penstock.DataLoader, dataset, num_workers=2)
    assert_same(ours, batches(torch.utils.data.DataLoader, dataset))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["rand", "any interpolation", "pixels erased"])
def test_an_image_folder_gives_timms_samples(folder, name, workers):
    dataset = ImageFolder(folder, train(**TRAIN[name]))
    refusal = read(dataset.transform, mode="RGB")
    assert isinstance(refusal, Refusal)
    assert "generators of Python's and NumPy's" in refusal.why
    ours = batches(penstock.DataLoader, dataset, num_workers=workers)
    assert_same(ours, batches(torch.utils.data.DataLoader, dataset, num_workers=workers))


def test_a_seed_gives_the_same_for_any_number_of_workers(folder):
    dataset = ImageFolder(folder, train(**TRAIN["rand"]))
    one, two = (batches(penstock.DataLoader, dataset, num_workers=n, seed=3) for n in (1, 2))
    assert_same(one, two)


def test_all_known_functions_are_timms():
    assert timm_transforms._EFFECTS.keys() <= {function.__name__ for function in automatic.NAME_TO_OP.values()}
