"""Datasets of several images, or an image with what lies in it; and what OpenCV and Albumentations make of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter
from torch.utils.data import Dataset
from torchvision import transforms as T, tv_tensors
from torchvision.transforms import InterpolationMode, functional as F, v2

from tests.filled_batches import listed as columns
from tests.own_datasets.conformance import Pictures, assert_conforms, kinds, optional


class Pairs(Pictures):
    """Samples that a function makes of an image, its mask and their number."""

    def __init__(self, photos: list[Path], masks: list[Path], make: Callable[[Any, Any, int], Any]) -> None:
        super().__init__(photos, masks)
        self.make = make

    def __getitem__(self, index: int) -> Any:
        return self.make(self.photo(index), Image.open(self.masks[index]), index)


def pairs(image: Any, mask: Any, index: int) -> Any:
    """Crop and flip both in the same way, by functional calls."""
    where = T.RandomCrop.get_params(image, output_size=(24, 20))
    image, mask = F.crop(image, *where), F.crop(mask, *where)
    if random.random() > 0.5:
        image, mask = F.hflip(image), F.hflip(mask)
    return F.to_tensor(image), torch.from_numpy(np.array(mask)).long()


TV = v2.Compose(
    [
        v2.RandomResizedCrop((24, 24), antialias=True), v2.RandomHorizontalFlip(),
        v2.ToDtype(torch.float32, scale=True),
    ]
)  # fmt: skip
WITH_MASK = v2.Compose([v2.RandomCrop(24), v2.ColorJitter(0.2), v2.ToImage()])


def joint_tv_tensors(image: Any, mask: Any, index: int) -> Any:
    return TV(tv_tensors.Image(image), tv_tensors.Mask(mask))


def pil_and_mask(image: Any, mask: Any, index: int) -> Any:
    return WITH_MASK(image, {"mask": tv_tensors.Mask(mask), "name": str(index)})


class Blur:
    """MoCo's blur, which draws from random."""

    def __call__(self, image: Image.Image) -> Image.Image:
        return image.filter(ImageFilter.GaussianBlur(radius=random.uniform(0.1, 2.0)))


JITTER = T.RandomApply([T.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8)
SIMCLR = T.Compose(
    [T.RandomResizedCrop(24, (0.2, 1.0)), T.RandomHorizontalFlip(), JITTER, T.RandomGrayscale(p=0.2), T.ToTensor()]
)
FLIP = T.Compose([T.RandomHorizontalFlip(), Blur()])
END = T.Compose([T.ToTensor(), T.Normalize([0.5] * 3, [0.5] * 3)])
LARGE = T.Compose([T.RandomResizedCrop(24, (0.4, 1.0), interpolation=InterpolationMode.BICUBIC), FLIP, END])
SMALL = T.Compose([T.RandomResizedCrop(12, (0.05, 0.4)), FLIP, END])


def two_views(image: Any, mask: Any, index: int) -> Any:
    """Transform one image twice, as SimCLR does."""
    return [SIMCLR(image) for _ in range(2)], index


def multi_crop(image: Any, mask: Any, index: int) -> Any:
    """Make large and small crops, by several Compose objects over one image, as DINO does."""
    return [LARGE(image) for _ in range(2)] + [SMALL(image) for _ in range(3)]


@pytest.mark.parametrize("make", [pairs, joint_tv_tensors, pil_and_mask, two_views, multi_crop])
def test_images_with_masks_and_several_crops(make: Any, photos: list[Path], masks: list[Path]) -> None:
    assert_conforms(Pairs(photos, masks, make))


def boxes(image: Any, mask: Any, index: int) -> Any:
    """Give images of their own sizes, and boxes in a dictionary."""
    count = index % 3
    boxes = torch.tensor([[i, i, i + 10, i + 8 + index] for i in range(count)], dtype=torch.float32).reshape(-1, 4)
    target = {"boxes": boxes, "labels": torch.arange(count), "image_id": index, "area": boxes.prod(1)}
    if random.random() < 0.5:
        image = F.hflip(image)
        target["boxes"] = image.width - boxes[:, [2, 1, 0, 3]]
    return F.to_tensor(image), target


def instances(image: Any, mask: Any, index: int) -> Any:
    """Find instances in the mask's colours, as torchvision's tutorial does."""
    image, mask = F.pil_to_tensor(image), F.pil_to_tensor(mask)
    ids = torch.unique(mask)[1:]
    masks = (mask == ids[:, None, None]).to(dtype=torch.uint8)
    size: Any = tuple(F.get_size(image) if hasattr(F, "get_size") else image.shape[-2:])
    found = tv_tensors.BoundingBoxes(torch.tensor([[1, 2, 9, 11]] * len(ids)), format="XYXY", canvas_size=size)
    return tv_tensors.Image(image), {"boxes": found, "masks": tv_tensors.Mask(masks), "labels": ids}


DETECTING = v2.Compose(
    [
        v2.RandomPhotometricDistort(p=1), v2.RandomZoomOut(side_range=(1.0, 1.5), fill=0), v2.RandomIoUCrop(),
        v2.RandomHorizontalFlip(p=0.5), v2.SanitizeBoundingBoxes(), v2.Resize((24, 24), antialias=True),
        v2.ToDtype(torch.float32, scale=True),
    ]
)  # fmt: skip


def transformed(image: Any, mask: Any, index: int) -> Any:
    return DETECTING(*instances(image, mask, index))


@pytest.mark.parametrize("make", [boxes, instances, transformed])
def test_detection(make: Any, photos: list[Path], masks: list[Path]) -> None:
    assert_conforms(Pairs(photos[:7], masks[:7], make), collate_fn=columns)


cv2, A = optional("cv2"), optional("albumentations")


class ReadByOpenCv(Dataset):
    """Channels turned round, resized, and a flip that numpy draws."""

    needs: tuple[str, ...] = ("cv2",)

    def __init__(self, photos: list[Path], masks: list[Path]) -> None:
        self.photos, self.masks = [str(path) for path in photos], [str(path) for path in masks]
        self.transform = self.pipeline()

    def pipeline(self) -> Any:
        return None

    def __len__(self) -> int:
        return len(self.photos)

    def __getitem__(self, index: int) -> Any:
        image = cv2.cvtColor(cv2.imread(self.photos[index]), cv2.COLOR_BGR2RGB)
        image = cv2.resize(image, (20, 24), interpolation=cv2.INTER_AREA)
        if np.random.rand() < 0.5:
            image = image[:, ::-1]
        return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))).float() / 255


class AlbumentationsPairs(ReadByOpenCv):
    """An image and its mask, read by OpenCV, and a pipeline kept in self."""

    needs = ("cv2", "albumentations")

    def pipeline(self) -> Any:
        steps = [
            A.RandomResizedCrop(size=(24, 24)),
            A.OneOf([A.HorizontalFlip(p=1), A.VerticalFlip(p=1)]),
            A.ToTensorV2(),
        ]
        return A.Compose(steps)

    def __getitem__(self, index: int) -> Any:
        image = cv2.cvtColor(cv2.imread(self.photos[index]), cv2.COLOR_BGR2RGB)
        height, width = image.shape[:2]
        mask = cv2.resize(cv2.imread(self.masks[index], 0), (width, height), interpolation=0)
        found = self.transform(image=image, mask=mask)
        return found["image"], found["mask"].long()


@kinds(ReadByOpenCv, AlbumentationsPairs)
def test_opencv_and_albumentations(kind: Any, photos: list[Path], masks: list[Path]) -> None:
    assert_conforms(kind(photos, masks))
