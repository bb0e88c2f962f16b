"""Augmentations against torchvision: the same pixels after the same draws, and the same generator afterwards."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torchvision import transforms as v1
from torchvision.models import EfficientNet_V2_S_Weights, ResNet50_Weights
from torchvision.models.detection import FasterRCNN_ResNet50_FPN_Weights
from torchvision.models.segmentation import FCN_ResNet50_Weights
from torchvision.transforms import v2

from penstock.recipe import keyed_methods
from penstock.recipe.installed import draws_alike, effects_alike, magnitudes_alike
from tests.recipe.against_torchvision import (
    GENERATIONS,
    MEAN,
    MODES,
    STD,
    assert_as_torchvision,
    first_run,
    natively,
    of_sample,
    picture,
    recipe_of,
    refusal_of,
)

pytestmark = [pytest.mark.native, pytest.mark.filterwarnings("ignore:The transform `ToTensor")]

SIZES = [(37, 50), (32, 32), (2, 3), (1, 1), (5, 70)]

MODE = v2.InterpolationMode

AUGMENTATIONS = {
    "jitter": lambda t: t.ColorJitter(0.4, 0.5, 0.6, 0.2),
    "jitter of one": lambda t: t.ColorJitter(contrast=(0.1, 3.0)),
    "jitter beyond": lambda t: t.ColorJitter(brightness=3.0, saturation=(0.0, 4.0), hue=0.5),
    "no jitter": lambda t: t.ColorJitter(),
    "grey": lambda t: t.RandomGrayscale(0.6),
    "invert": lambda t: t.RandomInvert(0.5),
    "posterize": lambda t: t.RandomPosterize(3, 0.7),
    "solarize": lambda t: t.RandomSolarize(100.5, 0.7),
    "sharper": lambda t: t.RandomAdjustSharpness(2.5, 0.7),
    "softer": lambda t: t.RandomAdjustSharpness(0.3, 1.0),
    "autocontrast": lambda t: t.RandomAutocontrast(0.7),
    "equalize": lambda t: t.RandomEqualize(0.7),
    "rotation": lambda t: t.RandomRotation(40),
    "rotation about": lambda t: t.RandomRotation((-200, 200), MODE.BILINEAR, center=(3, 4.5), fill=9),
    "right angles": lambda t: t.RandomRotation((90, 90)),
    "half a turn": lambda t: t.RandomRotation((-180, -180), MODE.BICUBIC),
    "no turn": lambda t: t.RandomRotation((0, 0)),
    "affine": lambda t: t.RandomAffine(30, (0.2, 0.3), (0.7, 1.4), (-10, 10, -5, 20)),
    "affine, bilinear": lambda t: t.RandomAffine(15, None, (0.9, 1.1), 8, interpolation=MODE.BILINEAR, fill=(200,)),
    "affine, bicubic": lambda t: t.RandomAffine(0, (0.1, 0.1), interpolation=MODE.BICUBIC, center=(0, 0)),
    "shift": lambda t: t.RandomAffine(0, translate=(0.4, 0.4), fill=300),
    "trivial": lambda t: t.TrivialAugmentWide(),
    "trivial, bilinear": lambda t: t.TrivialAugmentWide(11, MODE.BILINEAR, fill=[7]),
    "rand": lambda t: t.RandAugment(),
    "rand of many": lambda t: t.RandAugment(5, 30, 31, MODE.BICUBIC, 100),
    "imagenet": lambda t: t.AutoAugment(),
    "cifar": lambda t: t.AutoAugment(t.AutoAugmentPolicy.CIFAR10, MODE.BILINEAR),
    "svhn": lambda t: t.AutoAugment(t.AutoAugmentPolicy.SVHN, fill=128),
    "simclr": lambda t: t.RandomApply([t.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8),
    "applied": lambda t: t.RandomApply([t.RandomInvert(0.5), t.Compose([t.RandAugment(1)])], 0.7),
}


def test_the_installed_pillow_and_torch_are_reproduced() -> None:
    effects = "brightness contrast saturation sharpness hue posterize solarize invert autocontrast equalize grayscale"
    for effect in (*effects.split(), "affine nearest", "affine bilinear", "affine bicubic"):
        assert effect in effects_alike(), effect
    assert draws_alike()
    assert magnitudes_alike(150.0 / 331.0, 31)


@GENERATIONS
@MODES
@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_a_dataset_of_the_users_gets_torchvisions_pixels_and_draws(t: Any, mode: str, name: str) -> None:
    compose = t.Compose([AUGMENTATIONS[name](t), t.PILToTensor()])
    for size in SIZES:
        assert_as_torchvision(compose, picture(*size, mode), range(4))
    assert first_run(compose) == 2


@GENERATIONS
@pytest.mark.parametrize("name", ["trivial", "rand", "imagenet", "cifar", "svhn", "jitter", "affine"])
def test_every_choice_of_a_class_is_exact(t: Any, name: str) -> None:
    compose = t.Compose([AUGMENTATIONS[name](t), t.PILToTensor()])
    assert_as_torchvision(compose, picture(48, 48), range(100, 190))


@GENERATIONS
@pytest.mark.parametrize("name", ["jitter", "grey", "trivial", "rotation", "simclr"])
def test_a_picture_has_the_info_and_the_class_of_torchvisions(t: Any, name: str) -> None:
    compose = t.Compose([t.RandomResizedCrop(30), AUGMENTATIONS[name](t)])
    for mode in ("RGB", "L"):
        assert_as_torchvision(compose, picture(60, 50, mode), range(12))


@GENERATIONS
def test_the_recipe_of_torchvisions_reference_script_is_native_from_end_to_end(t: Any) -> None:
    steps = [t.RandomResizedCrop(30, antialias=True), t.RandomHorizontalFlip(), t.TrivialAugmentWide(), t.PILToTensor()]
    compose = t.Compose([*steps, t.ConvertImageDtype(torch.float32), t.Normalize(MEAN, STD), t.RandomErasing(0.5)])
    assert_as_torchvision(compose, picture(70, 90), range(40))
    assert first_run(compose) == 7
    assert recipe_of(compose).shape == (3, 30, 30)


@GENERATIONS
@pytest.mark.parametrize("value", [0, 1.5, (0.1, 0.2, 0.3)])
@pytest.mark.parametrize("scaled", [True, False])
def test_random_erasing_gives_its_value(t: Any, value: Any, scaled: bool) -> None:
    steps = [t.ToTensor() if scaled else t.PILToTensor(), t.RandomErasing(0.8, (0.02, 0.9), (0.2, 5.0), value)]
    compose = t.Compose([t.Resize(20), *steps, t.ConvertImageDtype(torch.float64)])
    assert_as_torchvision(compose, picture(40, 30), range(20))
    assert first_run(compose) == len(compose.transforms)


CLASSIFIERS = (ResNet50_Weights.IMAGENET1K_V2, EfficientNet_V2_S_Weights.DEFAULT)
OTHERS = (FCN_ResNet50_Weights.DEFAULT, FasterRCNN_ResNet50_FPN_Weights.DEFAULT)


@pytest.mark.parametrize("weights", [*CLASSIFIERS, *OTHERS], ids=str)
def test_the_preprocessing_of_weights_is_native(weights: Any) -> None:
    preset = weights.transforms()
    if weights in CLASSIFIERS:
        refusal_of(preset, "L")  # three means for one channel
    image = picture(300, 401)
    assert torch.equal(of_sample(recipe_of(preset), image, 0, 0, 0, 0), preset(image))
    assert_as_torchvision(v1.Compose([preset]), image)


def drawn(transform: Any, image: Any, sample: int) -> torch.Tensor:
    """Return what the native core makes of the image as that sample."""
    return of_sample(recipe_of(transform, image.mode), image, 3, 1, sample, sample)


def keyed(transform: Any, sample: int, image: Any) -> Any:
    with keyed_methods.of_sample(3, 1, sample, sample):
        return transform(image)


@GENERATIONS
@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_torchvision_draws_for_a_keyed_sample_what_the_native_core_draws(t: Any, name: str) -> None:
    tail = [t.RandomHorizontalFlip(), t.ToTensor(), t.RandomErasing(0.5)]
    compose, image = t.Compose([t.RandomResizedCrop(24), AUGMENTATIONS[name](t), *tail]), picture(50, 40)
    for sample in range(12):
        before = torch.get_rng_state()
        wanted, found = keyed(compose, sample, image), keyed(partial(natively, compose), sample, image)
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.equal(found, wanted) and torch.equal(drawn(compose, image, sample), wanted)


TORCHVISIONS: dict[str, Callable[[Any], Any]] = {
    "blur": lambda t: t.GaussianBlur((5, 3), (0.3, 2.0)),
    "blurred": lambda t: t.RandomApply([t.ColorJitter(0.5), t.GaussianBlur(7)], 0.8),
    "perspective": lambda t: t.RandomPerspective(0.5, 0.8),
    "choice": lambda t: t.RandomChoice([t.RandomInvert(0.5), t.RandomCrop(9), t.ColorJitter(0.4, hue=0.1)]),
    "applied choice": lambda t: t.RandomApply([t.RandomChoice([t.RandomInvert(0.5), t.ColorJitter(0.4)])], 0.7),
    "order": lambda t: t.RandomOrder([t.ColorJitter(0.3), t.RandomInvert(0.5), t.Compose([t.RandomRotation(9)])]),
}


@GENERATIONS
@pytest.mark.parametrize("name", TORCHVISIONS)
def test_what_torchvision_does_draws_as_torchvision_and_by_the_sample(t: Any, name: str) -> None:
    compose = t.Compose([t.Resize((20, 30)), TORCHVISIONS[name](t), t.PILToTensor()])
    assert_as_torchvision(compose, picture(), range(6))
    for sample in range(0 if t is v1 and name in ("choice", "applied choice", "order") else 4):
        first = keyed(compose, sample, picture())
        torch.rand(1)
        assert torch.equal(keyed(compose, sample, picture()), first)


@GENERATIONS
def test_samples_draw_apart(t: Any) -> None:
    image = picture(40, 40)
    transform = t.Compose([t.ColorJitter(0.5, 0.5, 0.5, 0.5), t.ToTensor()])
    assert len({drawn(transform, image, sample).numpy().tobytes() for sample in range(40)}) == 40


@GENERATIONS
def test_what_is_not_reproduced_is_left_to_torchvision(t: Any) -> None:
    class Mine(t.ColorJitter):
        pass

    for step, why in (
        (t.RandomRotation(10, expand=True), "expand=True"),
        (Mine(0.1), "a subclass of ColorJitter"),
        (t.RandomApply([Mine(0.1)]), "Mine is not an augmentation"),
        (t.RandomApply(torch.nn.ModuleList([t.ColorJitter(0.1)])), "ModuleList"),
        (t.RandomAffine(10, interpolation=MODE.LANCZOS), "lanczos"),
        (t.GaussianBlur(3), "no native form"),
        (t.RandomApply([t.GaussianBlur(3)]), "GaussianBlur is not an augmentation"),
        (t.RandomPerspective(), "no native form"),
        (t.AugMix(), "no native form"),
    ):
        assert why in str(refusal_of(t.Compose([t.Resize(20), step, t.ToTensor()])))
    assert "only for PIL images" in str(refusal_of(t.Compose([t.PILToTensor(), t.ColorJitter(0.1)])))
    assert "a number for each pixel" in str(refusal_of(t.Compose([t.ToTensor(), t.RandomErasing(value="random")])))
    assert "after RandomErasing" in str(refusal_of(t.Compose([t.ToTensor(), t.RandomErasing(), t.CenterCrop(8)])))


def test_a_replaced_method_is_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    transform = v1.Compose([v1.TrivialAugmentWide(), v1.ToTensor()])
    recipe_of(transform)
    with monkeypatch.context() as patched:
        patched.setattr(v1.TrivialAugmentWide, "forward", lambda self, image: image)
        assert "forward" in str(refusal_of(transform))
        assert_as_torchvision(transform, picture(20, 20), range(4))


@GENERATIONS
def test_changes_between_two_images_are_noticed(t: Any) -> None:
    jitter, inner = t.ColorJitter(0.5), t.RandomApply([t.RandomInvert(1.0)], 1.0)
    compose = t.Compose([jitter, inner, t.PILToTensor()])
    image = picture(20, 30)
    for change in (
        lambda: None,
        lambda: setattr(jitter, "brightness", (2.0, 2.0)),
        lambda: setattr(inner.transforms[0], "p", 0.0),
        lambda: inner.transforms.append(t.RandomPosterize(1, 1.0)),
        lambda: setattr(inner, "transforms", [t.Grayscale(3)]),
    ):
        change()
        assert_as_torchvision(compose, image, range(3))
