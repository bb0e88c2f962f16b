"""Transforms of images that were decoded to tensors, in our workers: what torchvision does, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchvision import transforms as v1, tv_tensors
from torchvision.io import decode_image
from torchvision.transforms import v2

from tests.hooks.jpegs import jpeg, picture
from tests.in_workers import Worker, within
from tests.recipe.against_torchvision import MEAN, STD, assert_as_torchvision, runs

pytestmark = [
    pytest.mark.native,
    pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning"),
]


def tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


TRAIN = [v2.RandomResizedCrop(24, antialias=True), v2.RandomHorizontalFlip()]
FLOATS = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]


def decoded(mode: str = "RGB", apart: bool = False, size: tuple[int, int] = (50, 40)) -> torch.Tensor:
    image = decode_image(tensor(jpeg(picture(*size))), mode)
    return image.contiguous() if apart else image


STEPS: dict[str, list[Any]] = {
    "train": TRAIN + FLOATS,
    "evaluation": [v2.Resize(32, antialias=True), v2.CenterCrop(24), *FLOATS],
    "to its size": [v2.Resize((40, 50), antialias=True), *FLOATS],
    "to image first": [v2.ToImage(), *TRAIN, *FLOATS, v2.ToPureTensor()],
    "dtype first": [v2.ToDtype(torch.uint8, scale=True), *TRAIN, *FLOATS],
    "first generation": [v1.RandomCrop(24, padding=3), v1.RandomVerticalFlip(), v1.ConvertImageDtype(torch.float32)],
    "erased": [*TRAIN, *FLOATS, v2.RandomErasing(1.0)],
    "cropped later": [*TRAIN, *FLOATS, v2.RandomCrop(12)],
    "bicubic": [v2.RandomResizedCrop(24, interpolation=v2.InterpolationMode.BICUBIC, antialias=True), *FLOATS],
    "not antialiased": [v2.Resize((20, 20), antialias=False), *FLOATS],
    "nearest": [v2.Resize((20, 20), interpolation=v2.InterpolationMode.NEAREST), *FLOATS],
    "padded": [v2.Pad(3, fill=7), v2.RandomCrop(24), *FLOATS],
    "halves": [*TRAIN, v2.ToDtype(torch.float16, scale=True)],
    "unscaled": [*TRAIN, v2.ToDtype(torch.float32)],
    "still bytes": TRAIN,
    "nothing done": [v2.RandomHorizontalFlip(0.0), v2.RandomCrop((40, 50))],
    "only a conversion": FLOATS,
    "own function": [v2.RandomResizedCrop(30, antialias=True), v2.Lambda(lambda image: image + 1), *TRAIN, *FLOATS],
    "colours": [*TRAIN, v2.ColorJitter(0.4, 0.4), *FLOATS],
    "grey": [v2.Grayscale(), *TRAIN, *FLOATS],
}


@pytest.mark.parametrize("apart", [False, True], ids=["side by side", "apart"])
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("t", [v1, v2], ids=["v1", "v2"])
def test_transforms_of_tensors(t: Any, name: str, apart: bool) -> None:
    transform = t.Compose(STEPS[name])
    for kind in (torch.Tensor, tv_tensors.Image):
        for size in ((50, 40), (24, 24), (31, 90), (24, 60)):
            given = decoded(apart=apart, size=size).as_subclass(kind)
            for _ in range(2):  # what one has taught is used by the next
                assert_as_torchvision(transform, given, range(4))
    if name in ("train", "evaluation", "to image first", "erased", "first generation"):
        assert runs(transform) and runs(transform)[0][1] >= len(STEPS[name]) - (name == "cropped later")
    assert name != "still bytes" or runs(transform) == []


def test_tensors_that_lie_otherwise() -> None:
    transform = v2.Compose(TRAIN + FLOATS)
    whole = decoded()
    for given in (
        whole[:, 1:],
        whole[..., ::2],
        whole[:1],
        whole.float(),
        whole[None],
        whole.flip(-1).permute(0, 2, 1),
    ):
        assert_as_torchvision(transform, given, range(3))
    assert_as_torchvision(transform, decoded("GRAY"), range(3))
    assert_as_torchvision(transform, torch.zeros(3, 0, 4, dtype=torch.uint8))
    assert_as_torchvision(transform, torch.zeros(3, 5, 1, dtype=torch.uint8))
    assert within(transform, torch.zeros(3, 5, 5, dtype=torch.uint8, device="meta")).is_meta


def test_nothing_is_shared_with_the_image() -> None:
    image = decoded()
    kept, transform = image.clone(), v2.Compose([*TRAIN, *FLOATS])
    worker = Worker()
    for _ in range(100):  # the first of each kind are compared with torchvision's
        worker(transform, image).zero_()
    assert torch.equal(image, kept) and worker.answered > 10
