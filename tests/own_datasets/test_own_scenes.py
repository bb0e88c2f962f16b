"""torchvision's datasets of images with masks, boxes, points and attributes, with transforms of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision import datasets, tv_tensors
from torchvision import transforms as v1
from torchvision.datasets import wrap_dataset_for_transforms_v2
from torchvision.transforms import v2

from tests.filled_batches import listed as columns
from tests.own_datasets.conformance import assert_conforms
from tests.own_datasets.torchvision_files import (
    coco_tools,
    write_caltech,
    write_celeba,
    write_cityscapes,
    write_coco,
    write_pets,
    write_voc,
)


@pytest.fixture(scope="module")
def voc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_voc(tmp_path_factory.mktemp("voc"))


@pytest.fixture(scope="module")
def coco(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    coco_tools()
    return write_coco(tmp_path_factory.mktemp("coco"))


def segmenting() -> Any:
    """Return the transforms of torchvision's references for segmentation, of version 2."""
    return v2.Compose(
        [
            v2.RandomResizedCrop((32, 40), scale=(0.5, 1.0)),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype({tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}, scale=True),
            v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            v2.ToPureTensor(),
        ]
    )


def detecting() -> Any:
    """Return transforms of torchvision's references for detection."""
    return v2.Compose(
        [
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.SanitizeBoundingBoxes(labels_getter=None),
            v2.ToPureTensor(),
        ]
    )


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


SEGMENTED: dict[str, tuple[dict[str, Any], Any]] = {
    "joint": ({"transforms": segmenting()}, 7),
    "functions": ({"transforms": Functional()}, 7),
    "separate": ({"transform": RESIZED, "target_transform": NEAREST}, None),
}


@pytest.mark.parametrize("name", SEGMENTED)
def test_voc_segmentation(voc: Path, name: str) -> None:
    options, seed = SEGMENTED[name]
    dataset = datasets.VOCSegmentation(voc, **options)
    assert_conforms(wrap_dataset_for_transforms_v2(dataset) if name == "joint" else dataset, seed=seed)


def test_voc_detection(voc: Path) -> None:
    dataset = wrap_dataset_for_transforms_v2(datasets.VOCDetection(voc, transforms=detecting()))
    assert_conforms(dataset, collate_fn=columns)


def test_coco_detection(coco: tuple[Path, Path]) -> None:
    dataset = datasets.CocoDetection(*coco, transforms=detecting())
    assert_conforms(wrap_dataset_for_transforms_v2(dataset), collate_fn=columns)
    assert_conforms(datasets.CocoDetection(*coco, transform=RESIZED), collate_fn=columns, seed=None)


@pytest.mark.parametrize("target", ["semantic", "instance"])
def test_cityscapes(tmp_path: Path, target: str) -> None:
    dataset = datasets.Cityscapes(write_cityscapes(tmp_path), target_type=target, transforms=segmenting())
    collate: dict[str, Any] = {"collate_fn": columns} if target == "instance" else {}
    assert_conforms(wrap_dataset_for_transforms_v2(dataset), **collate)


@pytest.mark.parametrize("kinds", ["segmentation", ["segmentation", "category"]])
def test_pets(kinds: Any, tmp_path: Path) -> None:
    dataset = datasets.OxfordIIITPet(write_pets(tmp_path), target_types=kinds, transforms=segmenting())
    assert_conforms(wrap_dataset_for_transforms_v2(dataset))


@pytest.mark.parametrize("dataset", [datasets.Caltech101, datasets.Caltech256])
def test_caltech(dataset: Any, tmp_path: Path) -> None:
    assert_conforms(dataset(write_caltech(tmp_path), transform=RESIZED), seed=None)


@pytest.mark.parametrize("kinds", ["attr", "identity", ["attr", "bbox", "landmarks"]])
def test_celeba(kinds: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as checksums:
        checksums.setattr(datasets.CelebA, "_check_integrity", lambda self: True)
        dataset = datasets.CelebA(write_celeba(tmp_path), target_type=kinds, transform=RESIZED)
    assert_conforms(dataset, seed=None)
