"""The files of torchvision's datasets of images with masks, boxes and attributes, a few samples each."""

from __future__ import annotations

import json
import sys
import types
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.own_datasets.conformance import optional

COUNT = 7


def photo(path: Path, number: int, suffix: str = ".jpg") -> tuple[int, int]:
    """Write an image and return its (width, height)."""
    path.mkdir(parents=True, exist_ok=True)
    width, height = 60 + 3 * number, 50 - 2 * number
    rows, columns = np.mgrid[:height, :width]
    pixels = np.stack([rows * 4, columns * 3, rows + columns + 9 * number], -1).astype(np.uint8)
    Image.fromarray(pixels).convert("L" if number == 3 and suffix == ".jpg" else "RGB").save(path / f"{number}{suffix}")
    return width, height


def classes(path: Path, size: tuple[int, int], *, palette: bool = False, most: int = 21) -> None:
    """Write a mask of classes as a PNG file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(size[0]).integers(0, most, size[::-1], dtype=np.uint8)
    image = Image.fromarray(pixels)
    if palette:
        image.putpalette(bytes(range(48)) * 16)
    image.save(path)


def write_voc(root: Path) -> Path:
    """Write VOC 2012."""
    base = root / "VOCdevkit" / "VOC2012"
    for number in range(COUNT):
        width, height = photo(base / "JPEGImages", number)
        classes(base / "SegmentationClass" / f"{number}.png", (width, height), palette=True)
        objects = "".join(
            f"<object><name>dog</name><bndbox><xmin>{2 + i}</xmin><ymin>3</ymin><xmax>{20 + i}</xmax>"
            f"<ymax>{25 - i}</ymax></bndbox></object>"
            for i in range(1 + number % 2)
        )
        (base / "Annotations").mkdir(exist_ok=True)
        text = f"<annotation><filename>{number}.jpg</filename>{objects}</annotation>"
        (base / "Annotations" / f"{number}.xml").write_text(text)
    for kind in ("Main", "Segmentation"):
        (base / "ImageSets" / kind).mkdir(parents=True)
        (base / "ImageSets" / kind / "train.txt").write_text("".join(f"{number}\n" for number in range(COUNT)))
    return root


def write_coco(root: Path) -> tuple[Path, Path]:
    """Write images and an annotation file, and return where they lie."""
    images, annotations = [], []
    for number in range(COUNT):
        width, height = photo(root / "images", number)
        images.append({"id": number + 10, "file_name": f"{number}.jpg", "width": width, "height": height})
        for i in range(number % 3):
            one = {"id": 10 * number + i, "image_id": number + 10, "bbox": [2 + i, 3, 12.5, 9], "category_id": i + 1}
            annotations.append({**one, "area": 112.5, "iscrowd": 0})
    categories = [{"id": i + 1, "name": str(i)} for i in range(3)]
    path = root / "instances.json"
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return root / "images", path


def write_cityscapes(root: Path) -> Path:
    """Write Cityscapes, its training part."""
    for number in range(COUNT):
        folder = root / "leftImg8bit" / "train" / "ulm"
        size = photo(folder, number, "_leftImg8bit.png")
        for kind in ("labelIds", "instanceIds"):
            classes(root / "gtFine" / "train" / "ulm" / f"{number}_gtFine_{kind}.png", size, most=5)
    return root


def write_pets(root: Path) -> Path:
    """Write OxfordIIITPet."""
    base = root / "oxford-iiit-pet"
    lines = []
    for number in range(COUNT):
        size = photo(base / "images", number)
        classes(base / "annotations" / "trimaps" / f"{number}.png", size, most=4)
        lines.append(f"{number} {1 + number % 3} {1 + number % 2} 1\n")
    (base / "annotations" / "trainval.txt").write_text("".join(lines))
    return root


def write_caltech(root: Path) -> Path:
    """Write Caltech101 and Caltech256."""
    (root / "caltech101" / "101_ObjectCategories" / "BACKGROUND_Google").mkdir(parents=True)
    for category in range(2):
        for number in range(1, 4):
            for folder, name in (
                (f"caltech101/101_ObjectCategories/{category}", f"image_{number:04}.jpg"),
                (f"caltech256/256_ObjectCategories/{category + 1:03}.a", f"{category + 1:03}_{number:04}.jpg"),
            ):
                photo(root / folder, 4 + number)
                (root / folder / f"{4 + number}.jpg").rename(root / folder / name)
    return root


def write_celeba(root: Path) -> Path:
    """Write CelebA, with checksums that are not its own."""
    base = root / "celeba"
    names = [f"{number}.jpg" for number in range(4, 4 + COUNT)]
    for number in range(4, 4 + COUNT):
        photo(base / "img_align_celeba", number)
    for file, columns, header in (
        ("list_eval_partition.txt", (0,), False),
        ("identity_CelebA.txt", (5,), False),
        ("list_bbox_celeba.txt", (1, 2, 30, 40), True),
        ("list_landmarks_align_celeba.txt", tuple(range(10)), True),
        ("list_attr_celeba.txt", (1, -1, 1), True),
    ):
        lines = [f"{name} {' '.join(map(str, columns))}" for name in names]
        (base / file).write_text("\n".join([str(COUNT), "a b c"] * header + lines) + "\n")
    return root


def coco_tools() -> None:
    """Put a stand-in for pycocotools.coco into sys.modules where that package is not installed."""
    if optional("pycocotools.coco") is None:
        package, module = types.ModuleType("pycocotools"), types.ModuleType("pycocotools.coco")
        module.COCO = COCO  # type: ignore[attr-defined]
        sys.modules["pycocotools"], sys.modules["pycocotools.coco"] = package, module


class COCO:
    """What CocoDetection needs of pycocotools.coco.COCO."""

    def __init__(self, path: str) -> None:
        content = json.loads(Path(path).read_text())
        self.imgs = {one["id"]: one for one in content["images"]}
        self.anns = {one["id"]: one for one in content["annotations"]}
        self.of_image: dict[int, list[int]] = defaultdict(list)
        for one in content["annotations"]:
            self.of_image[one["image_id"]].append(one["id"])

    def loadImgs(self, number: int) -> list[Any]:
        return [self.imgs[number]]

    def getAnnIds(self, number: int) -> list[int]:
        return list(self.of_image.get(number, ()))

    def loadAnns(self, numbers: list[int]) -> list[Any]:
        return [self.anns[number] for number in numbers]
