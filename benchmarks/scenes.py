"""Images with masks and boxes: torchvision's VOCSegmentation and CocoDetection with joint v2 transforms.

The photos are those of the question `photos`, with sides of at most 640 pixels; masks and boxes are made up.
"""

from __future__ import annotations

import json
import sys
import types
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.contestants import Make, penstock_persistent, torch_loader
from benchmarks.photos import CHANNELS, SUFFIXES, shipped
from benchmarks.question import Build, Contestant, Options, Question, Role, Running, Setup, Table, Target, made

BATCH, BOXES, LONGEST = 16, 7, 640


def prepare(options: Options) -> Setup:
    """folder/VOCdevkit/VOC2012 and folder/instances.json: the photos, with masks and boxes."""
    count = 48 if options.quick else 480
    origin = options.photos or shipped()
    found = sorted(path for path in origin.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not found:
        raise FileNotFoundError(f"no JPEG below {origin}: give --photos an image folder")
    name = "shipped" if options.photos is None else origin.name
    folder = made(options.cache / f"scenes-{name}-{count}", partial(write, found, count))
    said = "the two photos that scikit-learn ships" if options.photos is None else "the image folder given"
    facts = {"photos": said, "different_photos": min(len(found), count), "longest_side": LONGEST}
    return Setup(str(folder), count, batch=BATCH, facts=facts)


def write(photos: list[Path], count: int, folder: Path) -> None:
    from PIL import Image

    base = folder / "VOCdevkit" / "VOC2012"
    for kind in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (base / kind).mkdir(parents=True)
    draw = np.random.default_rng(0)
    images, annotations = [], []
    for number in range(count):
        with Image.open(photos[number % len(photos)]) as opened:
            image = opened.convert("RGB")
        image.thumbnail((LONGEST, LONGEST))
        image.save(base / "JPEGImages" / f"{number}.jpg", quality=90)
        coarse = Image.fromarray(draw.integers(0, 21, (6, 8), dtype=np.uint8))
        mask = coarse.resize(image.size, Image.Resampling.NEAREST)
        mask.putpalette(draw.integers(0, 256, 768, dtype=np.uint8).tobytes())
        mask.save(base / "SegmentationClass" / f"{number}.png")
        width, height = image.size
        images.append({"id": number, "file_name": f"{number}.jpg", "width": width, "height": height})
        for box in range(BOXES):
            left, top = int(draw.integers(0, width // 2)), int(draw.integers(0, height // 2))
            bbox = [left, top, width // 3, height // 3]
            facts = {"area": bbox[2] * bbox[3], "iscrowd": 0, "category_id": box % 5 + 1}
            annotations.append({"id": number * BOXES + box, "image_id": number, "bbox": bbox, **facts})
    (base / "ImageSets" / "Segmentation" / "train.txt").write_text("".join(f"{n}\n" for n in range(count)))
    content = {
        "images": images,
        "annotations": annotations,
        "categories": [{"id": n, "name": str(n)} for n in range(6)],
    }
    (folder / "instances.json").write_text(json.dumps(content))


def segmentation(setup: Setup) -> Any:
    """VOCSegmentation, wrapped, with the transforms of torchvision's references for segmentation, to 512 x 512."""
    from torchvision import tv_tensors
    from torchvision.datasets import VOCSegmentation, wrap_dataset_for_transforms_v2
    from torchvision.transforms import v2

    steps = v2.Compose(
        [
            v2.RandomResizedCrop((512, 512), scale=(0.5, 1.0)),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype({tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}, scale=True),
            v2.Normalize(*CHANNELS),
            v2.ToPureTensor(),
        ]
    )
    return wrap_dataset_for_transforms_v2(VOCSegmentation(setup.data, transforms=steps))


def detection(setup: Setup) -> Any:
    """CocoDetection, wrapped, with the transforms of torchvision's references for detection."""
    from torchvision.datasets import CocoDetection, wrap_dataset_for_transforms_v2
    from torchvision.transforms import v2

    coco_tools()
    steps = v2.Compose(
        [
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.SanitizeBoundingBoxes(),
            v2.ToPureTensor(),
        ]
    )
    images = setup.path() / "VOCdevkit" / "VOC2012" / "JPEGImages"
    return wrap_dataset_for_transforms_v2(CocoDetection(images, setup.path() / "instances.json", transforms=steps))


class COCO:
    """What CocoDetection needs of pycocotools, where that is not installed."""

    def __init__(self, path: Any) -> None:
        content = json.loads(Path(path).read_text())
        self.imgs = {one["id"]: one for one in content["images"]}
        self.anns = {one["id"]: one for one in content["annotations"]}
        self.of_image = defaultdict(list)
        for one in content["annotations"]:
            self.of_image[one["image_id"]].append(one["id"])

    def loadImgs(self, number: int) -> list[Any]:
        return [self.imgs[number]]

    def getAnnIds(self, number: int) -> list[int]:
        return list(self.of_image[number])

    def loadAnns(self, numbers: list[int]) -> list[Any]:
        return [self.anns[number] for number in numbers]


def coco_tools() -> None:
    try:
        import pycocotools.coco  # noqa: F401
    except ImportError:
        module: Any = types.ModuleType("pycocotools.coco")
        module.COCO = COCO
        sys.modules["pycocotools"], sys.modules["pycocotools.coco"] = types.ModuleType("pycocotools"), module


def detected(samples: Any) -> Any:
    """The collate_fn of torchvision's references for detection."""
    return tuple(zip(*samples, strict=True))


DATASETS = {"segmentation": segmentation, "detection": detection}


def epochs_of(make: Make) -> Build:
    """The `build` of a contestant: epochs of a loader of its table's dataset; one element of each batch is read."""

    def build(setup: Setup) -> Running:
        own = {"collate_fn": detected} if setup.variant == "detection" else {}
        batches = make(setup, DATASETS[setup.variant](setup), **own)

        def epoch() -> int:
            count = 0
            for images, _ in batches:
                images[0][0, 0, 0].item()
                count += len(images)
            return count

        return Running(epoch, getattr(batches, "explain", None))

    return build


TORCH = "torch.utils.data.DataLoader over torchvision's dataset; worker processes kept between epochs."
PENSTOCK = "penstock.DataLoader over the same dataset, unmodified."
THREAD = 'The same with worker_method="thread".'
CONTESTANTS = (
    Contestant("torch", Role.TORCH, epochs_of(torch_loader), TORCH, ("torch", "torchvision", "pillow")),
    Contestant("penstock", Role.PENSTOCK, epochs_of(penstock_persistent), PENSTOCK),
    Contestant(
        "penstock thread", Role.PENSTOCK, epochs_of(partial(penstock_persistent, worker_method="thread")), THREAD
    ),
)
TABLES = tuple(
    Table(name, f"{title}; batch {BATCH}, shuffled, 2 workers", CONTESTANTS, (Target(best, 2, "torch"),))
    for name, best, title in (
        ("segmentation", "penstock", "VOCSegmentation: RandomResizedCrop(512), flip, Normalize of image and mask"),
        ("detection", "penstock", "CocoDetection: flip, float32, boxes"),
    )
)
QUESTION = Question("scenes", "Images with masks and boxes", TABLES, prepare)
