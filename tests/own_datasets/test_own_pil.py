"""Datasets that open images with Pillow, in the ways in which people write it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFilter, ImageOps
from torch.utils.data import Dataset
from torchvision import datasets
from torchvision import io as vision_io
from torchvision import transforms as T
from torchvision.transforms import functional as F
from torchvision.transforms import v2

from tests.own_datasets.conformance import assert_conforms, kinds, listed

NORMAL = T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
TRAIN = T.Compose([T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ToTensor(), NORMAL])
EVAL = T.Compose([T.Resize(32), T.CenterCrop(24), T.ToTensor(), NORMAL])
TRAIN_V2 = v2.Compose(
    [
        v2.RandomResizedCrop((24, 24), antialias=True),
        v2.RandomHorizontalFlip(),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize([0.5] * 3, [0.5] * 3),
    ]
)


class Photos(Dataset):
    """Opens by path, converts, calls a Compose."""

    transform: Any = TRAIN

    def __init__(self, paths: list[Path]) -> None:
        self.paths = [str(path) for path in paths]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index]).convert("RGB")
        return self.transform(image), index % 3


class WithStatement(Photos):
    transform = EVAL

    def __getitem__(self, index: int) -> Any:
        with open(self.paths[index], "rb") as file, Image.open(file) as image:
            return self.transform(image.convert("RGB")), index


class LazyInWith(Photos):
    """The image is decoded inside the `with`, by the transform."""

    def __getitem__(self, index: int) -> Any:
        with Image.open(self.paths[index]) as opened:
            image: Any = ImageOps.exif_transpose(opened)
            if image.mode != "RGB":
                image = image.convert("RGB")
            return TRAIN_V2(image)


class InMemory(Photos):
    def __init__(self, paths: list[Path]) -> None:
        super().__init__(paths)
        self.contents = [path.read_bytes() for path in paths]

    def __getitem__(self, index: int) -> Any:
        return TRAIN_V2(Image.open(io.BytesIO(self.contents[index])).convert("RGB")), torch.tensor(index)


class SingleTransforms(Photos):
    def __init__(self, paths: list[Path]) -> None:
        super().__init__(paths)
        self.resize, self.crop, self.to_tensor = T.Resize((30, 28)), T.RandomCrop(20, padding=2), T.ToTensor()

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index]).convert("RGB")
        return NORMAL(self.to_tensor(self.crop(self.resize(image))))


class Functional(Photos):
    def __getitem__(self, index: int) -> Any:
        image = F.resize(Image.open(self.paths[index]).convert("RGB"), [32, 32])
        if torch.rand(1) < 0.5:
            image = F.hflip(image)
        top, left, height, width = T.RandomCrop.get_params(image, (24, 24))
        return F.normalize(F.to_tensor(F.crop(image, top, left, height, width)), [0.5] * 3, [0.5] * 3)


class KeptHandle(Photos):
    """All images in one file, which each worker opens at its first sample and keeps."""

    def __init__(self, paths: list[Path]) -> None:
        super().__init__(paths)
        self.offsets = [0]
        self.joined = paths[0].parent.parent / "joined.bin"
        with open(self.joined, "wb") as file:
            for path in paths:
                self.offsets.append(self.offsets[-1] + file.write(path.read_bytes()))
        self.file: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = open(self.joined, "rb")  # noqa: SIM115
        self.file.seek(self.offsets[index])
        content = self.file.read(self.offsets[index + 1] - self.offsets[index])
        return EVAL(Image.open(io.BytesIO(content)).convert("RGB"))

    def __del__(self) -> None:
        if self.file is not None:
            self.file.close()


class SizeFirst(Photos):
    """Pads to a square of the image's size, which needs no pixels."""

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index])
        width, height = image.size
        side = max(width, height)
        square = Image.new("RGB", (side, side), (127, 127, 127))
        square.paste(image.convert("RGB"), ((side - width) // 2, (side - height) // 2))
        return EVAL(square), torch.tensor([width, height])


class Operations(Photos):
    def __getitem__(self, index: int) -> Any:
        image = ImageOps.exif_transpose(Image.open(self.paths[index])).convert("RGB")
        image = ImageOps.autocontrast(ImageOps.fit(image, (24, 24), Image.Resampling.BICUBIC))
        return F.pil_to_tensor(image.filter(ImageFilter.GaussianBlur(1)))


class Draft(Photos):
    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index])
        image.draft("RGB", (20, 20))
        return F.to_tensor(image.convert("RGB").resize((20, 20), Image.Resampling.BILINEAR)), image.size


class Thumbnail(Photos):
    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index])
        image.thumbnail((16, 16))
        ImageDraw.Draw(image).point((1, 1), 3 if image.mode == "L" else None)
        return np.asarray(image.convert("RGB").resize((16, 16))).copy()


class Bytes(Photos):
    """numpy's view of the pixels, and the channels moved by hand."""

    def __getitem__(self, index: int) -> Any:
        array = np.array(Image.open(self.paths[index]).convert("RGB"), dtype=np.float32) / 255
        return torch.from_numpy(array[:32, :32].transpose(2, 0, 1))


class Convolved(Photos):
    """A Compose with a step of the user's own in the middle."""

    def __init__(self, paths: list[Path]) -> None:
        super().__init__(paths)
        self.transform = T.Compose(
            [T.Resize(40), T.Lambda(lambda image: image.rotate(7)), T.RandomCrop(24), T.ToTensor(), lambda x: x * 2 - 1]
        )


class Jittered(Photos):
    transform = T.Compose(
        [
            T.Resize((24, 24)),
            T.RandomApply([T.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
            T.RandomGrayscale(0.2),
            T.RandomRotation(10),
            T.ToTensor(),
            T.RandomErasing(),
        ]
    )


class Automatic(Photos):
    transform = v2.Compose([v2.RandAugment(), v2.RandomResizedCrop(20), v2.PILToTensor(), v2.RandomErasing(p=1.0)])


class Grey(Photos):
    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index]).convert("L")
        return T.Compose([T.Resize((20, 22)), T.ToTensor()])(image)  # made anew for each sample


class ReadImage(Photos):
    transform = v2.Compose([v2.RandomResizedCrop(20, antialias=True), v2.ToDtype(torch.float32, scale=True)])

    def __getitem__(self, index: int) -> Any:
        return self.transform(vision_io.read_image(self.paths[index], vision_io.ImageReadMode.RGB)), index


class DecodeJpeg(Photos):
    def __getitem__(self, index: int) -> Any:
        content = vision_io.read_file(self.paths[index])
        image = vision_io.decode_image(content, mode=vision_io.ImageReadMode.GRAY)
        return F.resize(image, [16, 16], antialias=True)


class Folder(datasets.ImageFolder):
    """A subclass of torchvision's, which returns the path too."""

    def __init__(self, paths: list[Path]) -> None:
        super().__init__(str(paths[0].parent.parent), TRAIN, is_valid_file=lambda path: path.endswith(".jpg"))

    def __getitem__(self, index: int) -> Any:
        return *super().__getitem__(index), self.samples[index][0]


class FromArray(Photos):
    """A CIFAR of the user's own."""

    def __init__(self, paths: list[Path]) -> None:
        super().__init__(paths)
        self.data = np.random.default_rng(3).integers(0, 256, (len(paths), 16, 16, 3), dtype=np.uint8)
        self.transform = T.Compose([T.RandomCrop(16, padding=4), T.RandomHorizontalFlip(), T.ToTensor()])

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.fromarray(self.data[index]))


@kinds(
    Photos, LazyInWith, InMemory, SingleTransforms, Functional, Convolved, Jittered, Automatic, ReadImage, Folder,
    FromArray,
    unseeded=(WithStatement, KeptHandle, SizeFirst, Operations, Draft, Thumbnail, Bytes, Grey, DecodeJpeg),
)  # fmt: skip
def test_images(kind: Any, seed: int | None, photos: list[Path]) -> None:
    assert_conforms(kind(photos), seed=seed)


class Described(Photos):
    """What Pillow knows of a file before and after its pixels are decoded."""

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index])
        before = image.mode, image.size, image.format, dict(image.info), dict(image.getexif()), image.getbands()
        converted = image.convert("RGB")
        return before, image.info, converted.getpixel((3, 4)), converted.info, image.copy().format, image == converted


class Undecoded(Photos):
    """Images that nobody has looked at, as samples."""

    def __getitem__(self, index: int) -> Any:
        return Image.open(self.paths[index])


class Converted(Photos):
    def __getitem__(self, index: int) -> Any:
        return Image.open(self.paths[index]).convert("RGB"), index


@kinds(Described, Converted)
def test_images_as_samples(kind: Any, photos: list[Path]) -> None:
    assert_conforms(kind(photos), collate_fn=listed, seed=None)


def test_undecoded_images_as_samples(photos: list[Path]) -> None:
    assert_conforms(Undecoded(photos), collate_fn=lambda images: [image.convert("RGB") for image in images], seed=None)


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
