"""Transforms of samples, images with masks, boxes and keypoints, in our workers: what torchvision does, bit for bit."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torchvision import transforms as v1, tv_tensors
from torchvision.transforms import v2

from tests.recipe.against_torchvision import MEAN, STD, assert_as_torchvision, natively, picture, runs

pytestmark = pytest.mark.native

IMAGE, MASK = tv_tensors.Image, tv_tensors.Mask
KEYPOINTS: Any = getattr(tv_tensors, "KeyPoints", None)


def mask(width: int, height: int, count: int = 1) -> Any:
    draw = torch.Generator().manual_seed(width)
    return MASK(torch.randint(0, 21, (count, height, width), generator=draw, dtype=torch.uint8))


def boxes(width: int, height: int) -> Any:
    given = [[1, 2, width // 2, height // 2], [width // 3, 3, width - 2, height - 1]]
    return tv_tensors.BoundingBoxes(given, format="XYXY", canvas_size=(height, width))


class Pair(NamedTuple):
    image: Any
    mask: Any


#: What a Compose is called with, by name: made of (width, height).
SAMPLES: dict[str, Callable[[int, int], tuple[Any, ...]]] = {
    "image, mask": lambda w, h: (picture(w, h), mask(w, h)),
    "mask, image": lambda w, h: (mask(w, h), picture(w, h)),
    "grey, mask": lambda w, h: (picture(w, h, "L"), mask(w, h)),
    "dictionary": lambda w, h: ({"image": picture(w, h), "mask": mask(w, h), "name": "a", "number": 3},),
    "ordered": lambda w, h: (OrderedDict(mask=mask(w, h), image=picture(w, h)),),
    "pair": lambda w, h: (Pair(picture(w, h), mask(w, h)),),
    "one tuple": lambda w, h: ((picture(w, h), 5),),
    "detection": lambda w, h: (
        picture(w, h),
        {"boxes": boxes(w, h), "masks": mask(w, h, 2), "labels": torch.tensor([1, 2]), "image_id": 7, "area": [1.5]},
    ),
    "no boxes": lambda w, h: (
        picture(w, h),
        {"boxes": tv_tensors.BoundingBoxes(torch.zeros(0, 4), format="XYXY", canvas_size=(h, w)), "crowd": None},
    ),
    "two pictures": lambda w, h: (picture(w, h), picture(w, h, seed=1)),
    "a palette": lambda w, h: (picture(w, h), picture(w, h, "P")),
    "a label before": lambda w, h: (torch.tensor([3]), picture(w, h)),
    "an array": lambda w, h: (picture(w, h), np.arange(5)),
}
if KEYPOINTS is not None:
    SAMPLES["keypoints"] = lambda w, h: (
        picture(w, h),
        {"points": KEYPOINTS([[1.0, 2.0], [w - 1.5, h / 2]], canvas_size=(h, w)), "score": np.float32(0.5)},
    )


def floats() -> list[Any]:
    return [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]


TRANSFORMS: dict[str, Callable[[], list[Any]]] = {
    "segmentation": lambda: [
        *(v2.RandomResizedCrop((40, 30)), v2.RandomHorizontalFlip(), v2.ToImage()),
        *(v2.ToDtype({IMAGE: torch.float32, MASK: torch.int64, "others": None}, scale=True), v2.Normalize(MEAN, STD)),
    ],
    "evaluation": lambda: [v2.Resize((33, 20)), *floats()],
    "resized before": lambda: [v2.Resize(40), v2.CenterCrop(36), v2.RandomVerticalFlip(), v2.PILToTensor()],
    "detection": lambda: [v2.RandomHorizontalFlip(), *floats(), v2.ToPureTensor()],
    "padded": lambda: [
        v2.RandomCrop((64, 50), padding=3, pad_if_needed=True, fill={MASK: 255, "others": 7}),
        *(v2.RandomHorizontalFlip(0.7), v2.ToImage()),
    ],
    "colours": lambda: [
        *(v2.ColorJitter(0.4, 0.4, 0.4, 0.1), v2.RandomResizedCrop(32, scale=(0.2, 1)), v2.RandomGrayscale(0.5)),
        *(v2.RandomVerticalFlip(), *floats()),
    ],
    "a picture": lambda: [v2.RandomCrop(24), v2.Resize((30, 31)), v2.Pad(2)],
    "tensors first": lambda: [v2.ToImage(), v2.RandomResizedCrop((24, 20), antialias=True), v2.RandomHorizontalFlip()],
    "unknown between": lambda: [
        *(v2.RandomPhotometricDistort(), v2.RandomZoomOut({IMAGE: (1, 2, 3), "others": 0}, (1.0, 2.0))),
        *(v2.RandomHorizontalFlip(), v2.Resize((32, 32)), v2.ToImage()),
    ],
    "nested": lambda: [v2.Compose([v2.RandomCrop(20), v2.RandomHorizontalFlip()]), v2.Compose([v2.PILToTensor()])],
    "rotated": lambda: [v2.RandomRotation(20), v2.RandomResizedCrop(24), v2.ToImage()],
    "of the first generation": lambda: [v2.Resize(20), v1.Compose([v2.ToImage()])],
}


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.filterwarnings("ignore")
def test_the_same_as_torchvision(name: str, sample: str) -> None:
    if (name, sample) == ("a picture", "a palette"):
        pytest.skip("Pillow's palettes are not compared")
    random.seed(1)
    compose = v2.Compose(TRANSFORMS[name]())
    for size in [(90, 60), (50, 81), (64, 64), (33, 40), (90, 60)]:
        assert_as_torchvision(compose, partial(SAMPLES[sample], *size))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("segmentation", (0, 5)), ("detection", (0, 4)), ("padded", (0, 3)), ("colours", (0, 6)), ("rotated", (1, 2))],
)
def test_all_is_run_at_once(name: str, expected: tuple[int, int]) -> None:
    compose = v2.Compose(TRANSFORMS[name]())
    natively(compose, *SAMPLES["detection"](70, 60))
    assert runs(compose, of_samples=True) == [expected]


def test_the_sample_that_was_given_stays_as_it_was() -> None:
    compose = v2.Compose(TRANSFORMS["segmentation"]())
    image, target = picture(50, 40), {"mask": mask(50, 40), "boxes": boxes(50, 40)}
    before = image.tobytes(), {name: value.clone() for name, value in target.items()}
    for _ in range(3):
        natively(compose, image, target)
    assert image.tobytes() == before[0]
    assert all(torch.equal(target[name], before[1][name]) for name in target)


def test_sizes_that_differ_are_torchvisions_error() -> None:
    compose = v2.Compose(TRANSFORMS["segmentation"]())
    assert_as_torchvision(compose, lambda: (picture(50, 40), mask(40, 50)))
    with pytest.raises(ValueError, match="multiple HxW"):
        natively(compose, picture(50, 40), mask(40, 50))


def test_values_of_classes_of_ones_own_are_torchvisions() -> None:
    class Own(tv_tensors.Mask):
        pass

    compose = v2.Compose(TRANSFORMS["segmentation"]())
    natively(compose, picture(50, 40), mask(50, 40).as_subclass(Own))
    assert runs(compose, of_samples=True) == []


def test_a_mask_whose_flip_was_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    compose, given = v2.Compose([v2.RandomHorizontalFlip(1), v2.ToImage()]), (picture(50, 40), mask(50, 40))
    natively(compose, *given)
    monkeypatch.setattr(v2.RandomHorizontalFlip, "transform", lambda flip, value, params: value)
    image, kept = natively(compose, *given)
    assert torch.equal(kept, given[1]) and torch.equal(image, v2.functional.to_image(given[0]))


def test_a_transform_that_changes_how_many_values_there_are() -> None:
    class Drop(torch.nn.Module):
        def forward(self, image: Any, target: Any) -> Any:
            return (image,)

    compose = v2.Compose([Drop(), v2.Resize((20, 20)), v2.ToImage()])
    assert_as_torchvision(compose, lambda: (picture(50, 40), mask(50, 40)))
