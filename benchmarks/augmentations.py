"""Recipes that people train and evaluate with, over an image folder: torch's loader and Penstock's, batches of 64.

The photos are those of the question `photos`. Each table is a recipe; its transforms are torchvision's, unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.contestants import epochs_of, penstock_persistent, torch_loader
from benchmarks.photos import CHANNELS, prepare
from benchmarks.question import Contestant, Question, Role, Setup, Table, Target


def reference() -> Any:
    """torchvision's reference training recipe (references/classification, v2 transforms), without MixUp."""
    from torchvision.transforms import v2

    return v2.Compose(
        [
            v2.RandomResizedCrop(176, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.TrivialAugmentWide(),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(*CHANNELS),
            v2.RandomErasing(0.1),
        ]
    )


def jitter() -> Any:
    """A crop, a flip and ColorJitter, to normalised float32."""
    from torchvision import transforms as v1

    steps = [v1.RandomResizedCrop(224), v1.RandomHorizontalFlip(), v1.ColorJitter(0.4, 0.4, 0.4, 0.1)]
    return v1.Compose([*steps, *CHANNELS.torchvision("float32")])


def rand_augment() -> Any:
    """A crop, a flip and RandAugment with magnitude 9, to normalised float32."""
    from torchvision import transforms as v1

    steps = [v1.RandomResizedCrop(224), v1.RandomHorizontalFlip(), v1.RandAugment(2, 9)]
    return v1.Compose([*steps, *CHANNELS.torchvision("float32")])


def simclr(*, blurs: bool) -> Any:
    """SimCLR's augmentation of one view."""
    from torchvision import transforms as v1

    jittered = v1.RandomApply([v1.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8)
    steps = [v1.RandomResizedCrop(224), v1.RandomHorizontalFlip(), jittered, v1.RandomGrayscale(0.2)]
    blur = [v1.RandomApply([v1.GaussianBlur(23, (0.1, 2.0))], p=0.5)] if blurs else []
    return v1.Compose([*steps, *blur, v1.ToTensor()])


def dino() -> list[Any]:
    """DINO's augmentations: of two global crops and of eight local ones."""
    from torchvision import transforms as v1

    jittered = v1.RandomApply([v1.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8)
    colours = v1.Compose([v1.RandomHorizontalFlip(), jittered, v1.RandomGrayscale(0.2)])
    end = v1.Compose(CHANNELS.torchvision("float32"))

    def view(size: int, scale: tuple[float, float], blurred: float, *then: Any) -> Any:
        crop = v1.RandomResizedCrop(size, scale, interpolation=v1.InterpolationMode.BICUBIC)
        blur = v1.RandomApply([v1.GaussianBlur(9, (0.1, 2.0))], p=blurred)
        return v1.Compose([crop, colours, blur, *then, end])

    first, second = view(224, (0.4, 1.0), 1.0), view(224, (0.4, 1.0), 0.1, v1.RandomSolarize(128, 0.2))
    return [first, second, *[view(96, (0.05, 0.4), 0.5)] * 8]


class ViewsOfOnesOwn:
    """A transform that makes several views, as people write it."""

    def __init__(self, transforms: list[Any]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> list[Any]:
        return [transform(image) for transform in self.transforms]


def timm_training() -> Any:
    """timm's training recipe: RandAugment with magnitude 9, bicubic, RandomErasing by pixels."""
    import timm.data

    data: Any = timm.data
    given: dict[str, Any] = {
        "auto_augment": "rand-m9-inc1",
        "interpolation": "bicubic",
        "re_prob": 0.25,
        "re_mode": "pixel",
    }
    return data.create_transform(224, is_training=True, **given)


def evaluation() -> Any:
    """The preprocessing of a ResNet-50's second weights, as the weights name it."""
    from torchvision.models import ResNet50_Weights

    return ResNet50_Weights.IMAGENET1K_V2.transforms()


RECIPES: dict[str, tuple[str, Callable[[], Any]]] = {
    "reference": ("RandomResizedCrop(176), flip, TrivialAugmentWide, Normalize, RandomErasing", reference),
    "evaluation": ("weights.transforms(): Resize(232), CenterCrop(224), Normalize", evaluation),
    "jitter": ("RandomResizedCrop(224), flip, ColorJitter with hue", jitter),
    "rand augment": ("RandomResizedCrop(224), flip, RandAugment", rand_augment),
    "simclr": ("SimCLR's view without its blur: crop, flip, ColorJitter, grey", lambda: simclr(blurs=False)),
    "simclr, blurred": ("SimCLR's view with GaussianBlur(23)", lambda: simclr(blurs=True)),
    "simclr, views": ("SimCLR's two views of each image", lambda: ViewsOfOnesOwn([simclr(blurs=True)] * 2)),
    "dino, views": ("DINO's two global and eight local crops of each image", lambda: ViewsOfOnesOwn(dino())),
    "timm": ("timm's training recipe: RandAugment m9, bicubic, RandomErasing", timm_training),
}


def dataset(setup: Setup) -> Any:
    from torchvision.datasets import ImageFolder

    return ImageFolder(setup.data, RECIPES[setup.variant][1]())


def dataset_of_views(setup: Setup) -> Any:
    """The same dataset with penstock.Views in the place of the class of one's own."""
    from penstock import Views

    made = dataset(setup)
    made.transform = Views(made.transform.transforms)
    return made


TORCH = "torch.utils.data.DataLoader over torchvision.datasets.ImageFolder; worker processes kept between epochs."
PENSTOCK = "penstock.DataLoader over the same dataset, unmodified."
CONTESTANTS = (
    Contestant("torch", Role.TORCH, epochs_of(torch_loader, dataset), TORCH, ("torch", "torchvision", "pillow")),
    Contestant("penstock", Role.PENSTOCK, epochs_of(penstock_persistent, dataset, seed=0), PENSTOCK),
)
VIEWS = Contestant(
    "penstock.Views",
    Role.PENSTOCK,
    epochs_of(penstock_persistent, dataset_of_views, seed=0),
    "penstock.DataLoader with penstock.Views in the place of the class that makes the views.",
)
TARGETS = {**dict.fromkeys(("reference", "evaluation", "rand augment"), 2.5), "simclr": 3.0}
TABLES = tuple(
    Table(
        name,
        f"{title}; batch 64, shuffled, 2 workers or threads",
        (*CONTESTANTS, VIEWS) if name.endswith("views") else CONTESTANTS,
        (Target("penstock", TARGETS[name], "torch"),) if name in TARGETS else (),
    )
    for name, (title, _) in RECIPES.items()
)
QUESTION = Question("augmentations", "An image folder with the recipes that people train with", TABLES, prepare)
