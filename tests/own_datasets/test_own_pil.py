"""Datasets that open images with Pillow, as people write it; and torchvision's, with masks, boxes and attributes."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter, ImageOps
from torch.utils.data import Dataset
from torchvision import datasets, io as vision_io, transforms as T, transforms as v1, tv_tensors
from torchvision.datasets import wrap_dataset_for_transforms_v2
from torchvision.transforms import functional as F, v2

from tests.data import Made
from tests.filled_batches import listed as columns
from tests.own_datasets import torchvision_files as files
from tests.own_datasets.conformance import assert_conforms, listed

NORMAL = T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
TRAIN = T.Compose([T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ToTensor(), NORMAL])
EVAL = T.Compose([T.Resize(32), T.CenterCrop(24), T.ToTensor(), NORMAL])
TRAIN_V2 = v2.Compose(
    [
        v2.RandomResizedCrop((24, 24), antialias=True), v2.RandomHorizontalFlip(), v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.5] * 3),
    ]
)  # fmt: skip
CONVOLVED = T.Compose(
    [T.Resize(40), T.Lambda(lambda image: image.rotate(7)), T.RandomCrop(24), T.ToTensor(), lambda x: x * 2 - 1]
)
JITTERED = T.Compose(
    [
        T.Resize((24, 24)), T.RandomApply([T.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8), T.RandomGrayscale(0.2),
        T.RandomRotation(10), T.ToTensor(), T.RandomErasing(),
    ]
)  # fmt: skip
AUTOMATIC = v2.Compose([v2.RandAugment(), v2.RandomResizedCrop(20), v2.PILToTensor(), v2.RandomErasing(p=1.0)])
READ_IMAGE = v2.Compose([v2.RandomResizedCrop(20, antialias=True), v2.ToDtype(torch.float32, scale=True)])


class Photos(Dataset):
    """Opens by path, converts, calls a Compose."""

    def __init__(self, paths: list[Path], transform: Any = TRAIN) -> None:
        self.paths = [str(path) for path in paths]
        self.transform = transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index]).convert("RGB")
        return self.transform(image), index % 3


class WithStatement(Photos):
    def __getitem__(self, index: int) -> Any:
        with open(self.paths[index], "rb") as file, Image.open(file) as image:
            return EVAL(image.convert("RGB")), index


class Folder(datasets.ImageFolder):
    """A subclass of torchvision's, which returns the path too."""

    def __init__(self, paths: list[Path]) -> None:
        super().__init__(str(paths[0].parent.parent), TRAIN, is_valid_file=lambda path: path.endswith(".jpg"))

    def __getitem__(self, index: int) -> Any:
        return *super().__getitem__(index), self.samples[index][0]


def in_memory(paths: list[Path]) -> Any:
    contents = [path.read_bytes() for path in paths]
    return Made(lambda i: (TRAIN_V2(Image.open(io.BytesIO(contents[i])).convert("RGB")), torch.tensor(i)), len(paths))


def from_array(paths: list[Path]) -> Any:
    """Return a CIFAR of the user's own."""
    data = np.random.default_rng(3).integers(0, 256, (len(paths), 16, 16, 3), dtype=np.uint8)
    transform = T.Compose([T.RandomCrop(16, padding=4), T.RandomHorizontalFlip(), T.ToTensor()])
    return Made(lambda i: transform(Image.fromarray(data[i])), len(paths))


def functional(path: Path, index: int) -> Any:
    image = F.resize(Image.open(path).convert("RGB"), [32, 32])
    if torch.rand(1) < 0.5:
        image = F.hflip(image)
    top, left, height, width = T.RandomCrop.get_params(image, (24, 24))
    return F.normalize(F.to_tensor(F.crop(image, top, left, height, width)), [0.5] * 3, [0.5] * 3)


def size_first(path: Path, index: int) -> Any:
    """Pad to a square of the image's size, which needs no pixels."""
    image = Image.open(path)
    width, height = image.size
    side = max(width, height)
    square = Image.new("RGB", (side, side), (127, 127, 127))
    square.paste(image.convert("RGB"), ((side - width) // 2, (side - height) // 2))
    return EVAL(square), torch.tensor([width, height])


def operations(path: Path, index: int) -> Any:
    image = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    image = ImageOps.autocontrast(ImageOps.fit(image, (24, 24), Image.Resampling.BICUBIC))
    return F.pil_to_tensor(image.filter(ImageFilter.GaussianBlur(1)))


def as_bytes(path: Path, index: int) -> Any:
    """Take numpy's view of the pixels, and move the channels by hand."""
    array = np.array(Image.open(path).convert("RGB"), dtype=np.float32) / 255
    return torch.from_numpy(array[:32, :32].transpose(2, 0, 1))


def decode_image(path: Path, index: int) -> Any:
    image = vision_io.decode_image(vision_io.read_file(path), mode="RGB", apply_exif_orientation=True)
    return READ_IMAGE(image), index


def read(function: Callable[[Path, int], Any]) -> Callable[[list[Path]], Any]:
    """Return what makes a dataset of samples that a function reads."""
    return lambda paths: Made(lambda index: function(paths[index], index), len(paths))


#: By name: the dataset of the photos, and the seed.
IMAGES: dict[str, tuple[Callable[[list[Path]], Any], int | None]] = {
    "photos": (Photos, 7),
    "folder": (Folder, 7),
    "in memory": (in_memory, 7),
    "from array": (from_array, 7),
    "convolved": (lambda paths: Photos(paths, CONVOLVED), 7),
    "jittered": (lambda paths: Photos(paths, JITTERED), 7),
    "automatic": (lambda paths: Photos(paths, AUTOMATIC), 7),
    **{one.__name__: (read(one), 7) for one in (functional, decode_image)},
    "with statement": (WithStatement, None),
    **{one.__name__: (read(one), None) for one in (size_first, operations, as_bytes)},
}


@pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning")  # of torchvision
@pytest.mark.parametrize("name", IMAGES)
def test_images(name: str, photos: list[Path]) -> None:
    make, seed = IMAGES[name]
    assert_conforms(make(photos), seed=seed)


def test_images_as_samples(photos: list[Path]) -> None:
    dataset = read(lambda path, index: (Image.open(path).convert("RGB"), index))(photos)
    assert_conforms(dataset, collate_fn=listed, seed=None)


@pytest.mark.parametrize("harm", ["truncated", "empty", "text", "missing"])
def test_bad_files(harm: str, photos: list[Path], tmp_path: Path) -> None:
    """The fifth file is bad, and both loaders say so in the same words."""
    paths = []
    for i, photo in enumerate(photos[:8]):
        paths.append(tmp_path / f"{i}.jpg")
        content = photo.read_bytes()
        bad = {"truncated": content[: len(content) // 2], "empty": b"", "text": b"no image\n" * 99, "missing": None}
        kept = bad[harm] if i == 5 else content
        if kept is not None:
            paths[i].write_bytes(kept)
    assert_conforms(WithStatement(paths), shuffle=False, seed=None)
    assert_conforms(Photos(paths), shuffle=False, num_workers=(0,))


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


RESIZED = v1.Compose([v1.Resize((24, 20)), v1.ToTensor(), v1.Normalize((0.5,) * 3, (0.5,) * 3)])


def coco(root: Path, **options: Any) -> Any:
    files.coco_tools()
    return datasets.CocoDetection(*files.write_coco(root), **options)


def voc(root: Path, **options: Any) -> Any:
    return datasets.VOCSegmentation(files.write_voc(root), **options)


COLUMNS = {"collate_fn": columns}
#: Datasets that are wrapped for transforms of version 2, and the loaders' options.
WRAPPED: dict[str, tuple[Callable[[Path], Any], dict[str, Any]]] = {
    "VOC, segmentation": (lambda root: voc(root, transforms=SEGMENTING), {}),
    "VOC, detection": (lambda root: datasets.VOCDetection(files.write_voc(root), transforms=DETECTING), COLUMNS),
    "COCO": (lambda root: coco(root, transforms=DETECTING), COLUMNS),
}
PLAIN: dict[str, tuple[Callable[[Path], Any], dict[str, Any]]] = {
    "COCO": (lambda root: coco(root, transform=RESIZED), {**COLUMNS, "seed": None})
}


@pytest.mark.parametrize("name", WRAPPED)
def test_datasets_with_transforms_of_both(name: str, tmp_path: Path) -> None:
    make, options = WRAPPED[name]
    assert_conforms(wrap_dataset_for_transforms_v2(make(tmp_path)), **options)


@pytest.mark.parametrize("name", PLAIN)
def test_datasets_as_they_are(name: str, tmp_path: Path) -> None:
    make, options = PLAIN[name]
    assert_conforms(make(tmp_path), **options)
