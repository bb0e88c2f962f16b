"""Datasets that use OpenCV and Albumentations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

from tests.own_datasets.conformance import assert_conforms, kinds, optional

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


class Decoded(ReadByOpenCv):
    def __getitem__(self, index: int) -> Any:
        content = np.fromfile(self.photos[index], dtype=np.uint8)
        image = cv2.imdecode(content, cv2.IMREAD_GRAYSCALE)
        image = cv2.GaussianBlur(cv2.resize(image, (16, 16)), (3, 3), 0)
        return image[None].astype(np.float32), index


class Albumentations(ReadByOpenCv):
    """An image opened by Pillow, a pipeline kept in self."""

    needs = ("cv2", "albumentations")

    def pipeline(self) -> Any:
        return A.Compose([A.RandomCrop(24, 24), A.HorizontalFlip(), A.RandomBrightnessContrast(p=0.5), A.Normalize()])

    def __getitem__(self, index: int) -> Any:
        image = np.array(Image.open(self.photos[index]).convert("RGB"))
        return torch.from_numpy(self.transform(image=image)["image"].transpose(2, 0, 1)), index


class AlbumentationsPairs(Albumentations):
    """An image and its mask, read by OpenCV, and a ToTensorV2."""

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


@kinds(ReadByOpenCv, Decoded, Albumentations, AlbumentationsPairs)
def test_opencv_and_albumentations(kind: Any, photos: list[Path], masks: list[Path]) -> None:
    assert_conforms(kind(photos, masks))
