"""torchvision's datasets of images with masks, boxes, points and attributes, with transforms of both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision import datasets, tv_tensors
from torchvision import transforms as v1
from torchvision.datasets import wrap_dataset_for_transforms_v2
from torchvision.transforms import v2

from tests.filled_batches import listed as columns
from tests.own_datasets import torchvision_files as files
from tests.own_datasets.conformance import assert_conforms

#: The transforms of torchvision's references for segmentation, of version 2.
SEGMENTING = v2.Compose(
    [
        v2.RandomResizedCrop((32, 40), scale=(0.5, 1.0)), v2.RandomHorizontalFlip(), v2.ToImage(),
        v2.ToDtype({tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}, scale=True),
        v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), v2.ToPureTensor(),
    ]
)  # fmt: skip
#: Transforms of torchvision's references for detection.
DETECTING = v2.Compose(
    [
        v2.RandomHorizontalFlip(), v2.ToImage(), v2.ToDtype(torch.float32, scale=True),
        v2.SanitizeBoundingBoxes(labels_getter=None), v2.ToPureTensor(),
    ]
)  # fmt: skip


class Functional:
    """A joint transform of one's own, as in torchvision's references of the first generation."""

    def __call__(self, image: Any, target: Any) -> Any:
        where = v1.RandomCrop.get_params(image, output_size=(24, 20))
        image, target = v1.functional.crop(image, *where), v1.functional.crop(target, *where)
        if torch.rand(1) < 0.5:
            image, target = v1.functional.hflip(image), v1.functional.hflip(target)
        return v1.functional.to_tensor(image), v1.functional.pil_to_tensor(target)


RESIZED = v1.Compose([v1.Resize((24, 20)), v1.ToTensor(), v1.Normalize((0.5,) * 3, (0.5,) * 3)])
NEAREST = v1.Compose([v1.Resize((24, 20), v1.InterpolationMode.NEAREST), v1.PILToTensor()])


def coco(root: Path, **options: Any) -> Any:
    files.coco_tools()
    return datasets.CocoDetection(*files.write_coco(root), **options)


def cityscapes(root: Path, target: str) -> Any:
    return datasets.Cityscapes(files.write_cityscapes(root), target_type=target, transforms=SEGMENTING)


def pets(root: Path, kinds: Any) -> Any:
    return datasets.OxfordIIITPet(files.write_pets(root), target_types=kinds, transforms=SEGMENTING)


def celeba(root: Path, kinds: Any) -> Any:
    with pytest.MonkeyPatch.context() as checksums:
        checksums.setattr(datasets.CelebA, "_check_integrity", lambda self: True)
        return datasets.CelebA(files.write_celeba(root), target_type=kinds, transform=RESIZED)


def voc(root: Path, **options: Any) -> Any:
    return datasets.VOCSegmentation(files.write_voc(root), **options)


COLUMNS = {"collate_fn": columns}
#: Datasets that are wrapped for transforms of version 2, and the loaders' options.
WRAPPED: dict[str, tuple[Callable[[Path], Any], dict[str, Any]]] = {
    "VOC, segmentation": (lambda root: voc(root, transforms=SEGMENTING), {}),
    "VOC, detection": (lambda root: datasets.VOCDetection(files.write_voc(root), transforms=DETECTING), COLUMNS),
    "COCO": (lambda root: coco(root, transforms=DETECTING), COLUMNS),
    "Cityscapes": (lambda root: cityscapes(root, "semantic"), {}),
    "Cityscapes, instances": (lambda root: cityscapes(root, "instance"), COLUMNS),
    "pets": (lambda root: pets(root, "segmentation"), {}),
    "pets, categories": (lambda root: pets(root, ["segmentation", "category"]), {}),
}
PLAIN: dict[str, tuple[Callable[[Path], Any], dict[str, Any]]] = {
    "VOC, functions": (lambda root: voc(root, transforms=Functional()), {}),
    "VOC, separate": (lambda root: voc(root, transform=RESIZED, target_transform=NEAREST), {"seed": None}),
    "COCO": (lambda root: coco(root, transform=RESIZED), {**COLUMNS, "seed": None}),
    "Caltech101": (lambda root: datasets.Caltech101(files.write_caltech(root), transform=RESIZED), {"seed": None}),
    "Caltech256": (lambda root: datasets.Caltech256(files.write_caltech(root), transform=RESIZED), {"seed": None}),
    "CelebA": (lambda root: celeba(root, "attr"), {"seed": None}),
    "CelebA, identities": (lambda root: celeba(root, "identity"), {"seed": None}),
    "CelebA, all": (lambda root: celeba(root, ["attr", "bbox", "landmarks"]), {"seed": None}),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_datasets_with_transforms_of_both(name: str, tmp_path: Path) -> None:
    make, options = WRAPPED[name]
    assert_conforms(wrap_dataset_for_transforms_v2(make(tmp_path)), **options)


@pytest.mark.parametrize("name", PLAIN)
def test_datasets_as_they_are(name: str, tmp_path: Path) -> None:
    make, options = PLAIN[name]
    assert_conforms(make(tmp_path), **options)
