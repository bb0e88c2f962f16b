"""Datasets whose samples are several images, or an image with what lies in it: segmentation, crops, detection."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter
from torchvision import transforms as T
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import functional as F

from tests.filled_batches import listed as columns
from tests.own_datasets.conformance import Pictures, assert_conforms, kinds


class Pairs(Pictures):
    """The same crop and flip of an image and its mask, by functional calls."""

    def images(self, index: int) -> tuple[Image.Image, Image.Image]:
        return self.photo(index), Image.open(self.masks[index])

    def __getitem__(self, index: int) -> Any:
        image, mask = self.images(index)
        where = T.RandomCrop.get_params(image, output_size=(24, 20))
        image, mask = F.crop(image, *where), F.crop(mask, *where)
        if random.random() > 0.5:
            image, mask = F.hflip(image), F.hflip(mask)
        return F.to_tensor(image), torch.from_numpy(np.array(mask)).long()


class SeededTwice(Pairs):
    """One Compose for both, with torch's generator set to the same seed before each."""

    transform = T.Compose([T.RandomResizedCrop(20, interpolation=InterpolationMode.NEAREST), T.RandomHorizontalFlip()])

    def __getitem__(self, index: int) -> Any:
        image, mask = self.images(index)
        seed = int(torch.randint(2**31, ()))
        torch.manual_seed(seed)
        image = self.transform(image)
        torch.manual_seed(seed)
        return F.to_tensor(image), F.pil_to_tensor(self.transform(mask)).squeeze(0)


class StateKept(Pairs):
    """The generator's state is read, and set again."""

    def __getitem__(self, index: int) -> Any:
        image, mask = self.images(index)
        crop = T.RandomCrop(20)
        state = torch.get_rng_state()
        image = crop(image)
        torch.set_rng_state(state)
        return F.pil_to_tensor(image), F.pil_to_tensor(crop(mask))


class Scaled(Pairs):
    def __getitem__(self, index: int) -> Any:
        image, mask = self.images(index)
        angle, scale = T.RandomRotation.get_params([-10, 10]), float(np.random.uniform(0.5, 1.5))
        size = [max(24, int(scale * side)) for side in image.size[::-1]]
        image = F.rotate(F.resize(image, size), angle)
        mask = F.rotate(F.resize(mask, size, InterpolationMode.NEAREST), angle)
        return {
            "image": F.to_tensor(F.center_crop(image, [24, 24])),
            "mask": F.pil_to_tensor(F.center_crop(mask, [24, 24])),
        }


class TvTensors(Pairs):
    """v2 on an image and a tv_tensors.Mask together."""

    transform = v2.Compose(
        [
            v2.RandomResizedCrop((24, 24), antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )

    def __getitem__(self, index: int) -> Any:
        image, mask = self.images(index)
        return self.transform(tv_tensors.Image(image), tv_tensors.Mask(mask))


class PilAndMask(TvTensors):
    transform = v2.Compose([v2.RandomCrop(24), v2.ColorJitter(0.2), v2.ToImage()])

    def __getitem__(self, index: int) -> Any:
        image, mask = self.images(index)
        image, target = self.transform(image, {"mask": tv_tensors.Mask(mask), "name": str(index)})
        return image, target


@kinds(Pairs, SeededTwice, StateKept, Scaled, TvTensors, PilAndMask)
def test_segmentation(kind: Any, photos: list[Path], masks: list[Path]) -> None:
    assert_conforms(kind(photos, masks))


class TwoViews(Pictures):
    """SimCLR: one image, transformed twice."""

    def __init__(self, photos: list[Path], masks: list[Path]) -> None:
        super().__init__(photos, masks)
        jitter = T.RandomApply([T.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8)
        steps = [T.RandomResizedCrop(24, scale=(0.2, 1.0)), T.RandomHorizontalFlip(), jitter, T.RandomGrayscale(p=0.2)]
        self.transform = T.Compose([*steps, T.ToTensor()])

    def __getitem__(self, index: int) -> Any:
        image = self.photo(index)
        return [self.transform(image) for _ in range(2)], index


class Blur:
    """MoCo's blur, which draws from random."""

    def __call__(self, image: Image.Image) -> Image.Image:
        return image.filter(ImageFilter.GaussianBlur(radius=random.uniform(0.1, 2.0)))


class MultiCrop(TwoViews):
    """DINO: large and small crops, by several Compose objects over one image."""

    def __init__(self, photos: list[Path], masks: list[Path]) -> None:
        super().__init__(photos, masks)
        flip = T.Compose([T.RandomHorizontalFlip(), Blur()])
        end = T.Compose([T.ToTensor(), T.Normalize([0.5] * 3, [0.5] * 3)])
        self.large = T.Compose(
            [T.RandomResizedCrop(24, (0.4, 1.0), interpolation=InterpolationMode.BICUBIC), flip, end]
        )
        self.small = T.Compose([T.RandomResizedCrop(12, (0.05, 0.4)), flip, end])

    def __getitem__(self, index: int) -> Any:
        image = self.photo(index)
        return [self.large(image) for _ in range(2)] + [self.small(image) for _ in range(3)]


class FiveCrops(TwoViews):
    def __init__(self, photos: list[Path], masks: list[Path]) -> None:
        super().__init__(photos, masks)
        crops = T.Lambda(lambda images: torch.stack([F.to_tensor(image) for image in images]))
        self.transform = T.Compose([T.Resize(32), T.FiveCrop(20), crops])

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.photo(index))


@kinds(TwoViews, MultiCrop, FiveCrops)
def test_several_crops(kind: Any, photos: list[Path], masks: list[Path]) -> None:
    assert_conforms(kind(photos, masks))


class Boxes(Pictures):
    """Images of their own sizes, boxes in a dictionary."""

    def __getitem__(self, index: int) -> Any:
        image = self.photo(index)
        count = index % 3
        boxes = torch.tensor([[i, i, i + 10, i + 8 + index] for i in range(count)], dtype=torch.float32).reshape(-1, 4)
        target = {"boxes": boxes, "labels": torch.arange(count), "image_id": index, "area": boxes.prod(1)}
        if random.random() < 0.5:
            image = F.hflip(image)
            target["boxes"] = image.width - boxes[:, [2, 1, 0, 3]]
        return F.to_tensor(image), target


class Masks(Boxes):
    """The tutorial of torchvision: instances found in the mask's colours."""

    def __getitem__(self, index: int) -> Any:
        image = F.pil_to_tensor(self.photo(index))
        mask = F.pil_to_tensor(Image.open(self.masks[index]))
        ids = torch.unique(mask)[1:]
        masks = (mask == ids[:, None, None]).to(dtype=torch.uint8)
        size = F.get_size(image) if hasattr(F, "get_size") else list(image.shape[-2:])
        boxes = tv_tensors.BoundingBoxes(
            torch.tensor([[1, 2, 9, 11]] * len(ids)), format="XYXY", canvas_size=tuple(size)
        )
        return tv_tensors.Image(image), {"boxes": boxes, "masks": tv_tensors.Mask(masks), "labels": ids}


class TransformedBoxes(Masks):
    transform = v2.Compose(
        [
            v2.RandomPhotometricDistort(p=1),
            v2.RandomZoomOut(side_range=(1.0, 1.5), fill=0),
            v2.RandomIoUCrop(),
            v2.RandomHorizontalFlip(p=0.5),
            v2.SanitizeBoundingBoxes(),
            v2.Resize((24, 24), antialias=True),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )

    def __getitem__(self, index: int) -> Any:
        return self.transform(*super().__getitem__(index))


@kinds(Boxes, Masks, TransformedBoxes)
def test_detection(kind: Any, photos: list[Path], masks: list[Path]) -> None:
    assert_conforms(kind(photos[:7], masks[:7]), collate_fn=columns)
