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
