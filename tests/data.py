"""What tests read: datasets of a program's own, samplers, rows in memory, and folders of tensors and of photos."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, Sampler, TensorDataset, get_worker_info

# --- datasets and samplers of a program's own -------------------------------------------------------------------------


class Made(Dataset[Any]):
    """Samples that a function makes of their index."""

    def __init__(self, make: Callable[[int], Any] = int, size: int = 23) -> None:
        self.make = make
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        if not -self.size <= index < self.size:
            raise IndexError(index)
        return self.make(*(index,))  # a starred argument is more than indexing: Python reads the samples


class Whole(Made):
    """Samples that are fetched a batch at a time."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Numbers(Made):
    """Sample i is the number i; bad ones raise an error."""

    def __init__(
        self, bad: Collection[int] = (), size: int = 23, error: Callable[[str], Exception] = ValueError
    ) -> None:
        super().__init__(self.number, size)
        self.bad = bad
        self.error = error

    def number(self, index: int) -> int:
        if index in self.bad:
            raise self.error(f"number {index} is bad")
        return index


class Told(Numbers):
    """Samples that say which worker has made them."""

    def number(self, index: int) -> Any:
        info: Any = get_worker_info()
        if index < 0:
            raise KeyError("below 0")
        return torch.tensor([index, info.id, info.num_workers])


class Drawing(Made):
    """Each sample holds its number, and a draw from each of the global generators."""

    def __init__(self, size: int = 23) -> None:
        super().__init__(self.draw, size)

    def draw(self, index: int) -> Any:
        return index, random.random(), float(np.random.rand()), torch.rand(2)


class Opening(Dataset[Any]):
    """Numbers in a file that is opened at the first sample; two workers must not share the file's position."""

    def __init__(self, path: Path, size: int, between: Callable[[], object]) -> None:
        path.write_bytes(np.arange(size, dtype="<i8").tobytes())
        self.path, self.size, self.between = path, size, between
        self.file: Any = None

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        if self.file is None:
            self.file = self.path.open("rb", buffering=0)
        self.file.seek(8 * index)
        self.between()
        return int.from_bytes(self.file.read(8), "little")

    def __del__(self) -> None:
        if self.file is not None:
            self.file.close()


class Stream(IterableDataset[Any]):
    """Samples 0 to size - 1 in order, each in one of the workers, or (not shared) in every worker."""

    def __init__(self, size: int = 23, make: Callable[[int], Any] = int, *, shared: bool = True) -> None:
        self.size = size
        self.make = make
        self.shared = shared

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info() if self.shared else None
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return map(self.make, range(first, self.size, step))


class Placed(IterableDataset[Any]):
    """Samples 0 to size - 1 in order, that says itself where it is; `read` has those that it has given."""

    def __init__(self, size: int, make: Callable[[int], Any] = int) -> None:
        self.size, self.make, self.at = size, make, 0
        self.read: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        while self.at < self.size:
            self.at += 1
            self.read.append(self.at - 1)
            yield self.make(self.at - 1)
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"place": {"at": self.at, "shard": None}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["place"]["at"]


class Order(Sampler[Any]):
    """A sampler of the user's that gives these, and counts in `asked` how many it has given."""

    def __init__(self, given: Collection[Any]) -> None:
        self.given = given
        self.asked = 0

    def __len__(self) -> int:
        return len(self.given)

    def __iter__(self) -> Iterator[Any]:
        for one in self.given:
            self.asked += 1
            yield one


class Doubling(TensorDataset):
    """Reads otherwise than its base."""

    def __getitem__(self, index: Any) -> Any:
        return tuple(2 * value for value in super().__getitem__(index))


def rows(size: int = 53) -> Any:
    """Return numbers in memory, which are read natively."""
    return TensorDataset(torch.arange(size))


# --- tensors in files -------------------------------------------------------------------------------------------------


def tensor_files(root: Path, count: int, shape: tuple[int, ...] = (3,), name: str = "{:02}") -> Path:
    """Write tensors that are full of their number, one a file, and return their folder."""
    root.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        torch.save(torch.full(shape, float(number)), root / f"{name.format(number)}.pt")
    return root


def write_tensors(folder: Path, *, count: int = 30, suffix: str = ".pt") -> Path:
    """Write a folder of tensors (3, 5) of float32, ID.pt or ID.npy; return it."""
    folder.mkdir(parents=True)
    for number in range(count):
        tensor = torch.arange(15, dtype=torch.float32).reshape(3, 5) + number
        if suffix == ".npy":
            np.save(folder / f"id-{number}.npy", tensor.numpy())
        else:
            torch.save(tensor, folder / f"id-{number}{suffix}")
    return folder


# --- photos in files, and datasets of images in memory ----------------------------------------------------------------


def grey_files(root: Path, count: int, side: int = 9) -> Path:
    """Write PNG files of one class that are full of their number, and return their root."""
    (root / "class").mkdir(parents=True, exist_ok=True)
    for number in range(count):
        Image.new("RGB", (side, side), (number, number, number)).save(root / "class" / f"{number:02}.png")
    return root


def noise_image(seed: int, height: int, width: int) -> Image.Image:
    """Return a picture in which no two pixels are alike."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def smooth_photos(root: Path, count: int, sides: tuple[int, int]) -> Iterator[tuple[Path, Image.Image]]:
    """Yield smooth pictures of random sizes and where to save them (without a suffix): folders of three classes."""
    draw = np.random.default_rng(0)
    for number in range(count):
        folder = root / f"class{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        height, width = (int(side) for side in draw.integers(*sides, 2))
        coarse = Image.fromarray(draw.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        yield folder / str(number), coarse.resize((width, height))


#: How photo_files saves a picture: the suffix, the mode, and Pillow's options.
FORMS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "jpg": (".jpg", "RGB", {"quality": 90}),
    "4:4:4": (".jpg", "RGB", {"quality": 90, "subsampling": 0}),
    "upper case": (".JPEG", "RGB", {"quality": 75}),
    "grey": (".jpg", "L", {}),
    "CMYK": (".jpg", "CMYK", {}),
    "progressive": (".jpg", "RGB", {"progressive": True}),
    "png": (".png", "RGB", {}),
}


def photo_files(root: Path, count: int, sides: tuple[int, int] = (40, 90), forms: Sequence[str] = ("jpg",)) -> Path:
    """Save smooth pictures in folders of three classes, in each of these forms in turn, and return their root."""
    for (path, image), form in zip(smooth_photos(root, count, sides), itertools.cycle(forms), strict=False):
        suffix, mode, options = FORMS[form]
        image.convert(mode).save(f"{path}{suffix}", **options)
    return root


def write_photos(folder: Path, *, count: int = 12, png: bool = True) -> Path:
    """Write an image folder of two classes, of JPEGs and one PNG a class; return it."""
    random = np.random.default_rng(0)
    for kind in ("cat", "dog"):
        (folder / kind / "deep").mkdir(parents=True)
        for number in range(count):
            pixels = random.integers(0, 256, (6, 8, 3), np.uint8)
            image = Image.fromarray(pixels).resize((80 + number, 60), Image.Resampling.BICUBIC)
            image.save(folder / kind / (f"deep/{number}.jpg" if number % 5 == 0 else f"{number}.jpg"), quality=80)
        if png:
            image.save(folder / kind / "picture.png")
    return folder


def save_pictures(root: Path) -> Path:
    """Save 30 images in three classes, of which Pillow alone reads some, and return the folder."""
    draw = np.random.default_rng(0)
    for i in range(30):
        (root / f"{i % 3}").mkdir(exist_ok=True)
        pixels = draw.integers(0, 256, (30 + i % 4, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / f"{i % 3}" / f"{i:02}.{'png' if i % 10 == 4 else 'jpg'}")
    return root


def in_memory(name: str, transform: Any, samples: int = 50, *, planar: bool = True) -> Any:
    """Return a torchvision dataset of noise, of exactly the class of this name, without its files.

    CIFAR holds a view of its files' planes; a program may put an array of its own there (planar=False).
    """
    draw = np.random.default_rng(4)
    kind = getattr(torchvision.datasets, name)
    dataset = kind.__new__(kind)
    torchvision.datasets.VisionDataset.__init__(dataset, "nowhere", transform=transform)
    dataset.train = True
    targets = draw.integers(0, 10, samples)
    if name.startswith("CIFAR"):
        view = draw.integers(0, 256, (samples, 3, 32, 32), dtype=np.uint8).transpose(0, 2, 3, 1)
        dataset.data, dataset.targets = view if planar else np.ascontiguousarray(view), targets.tolist()
    else:
        dataset.data = torch.from_numpy(draw.integers(0, 256, (samples, 28, 28), dtype=np.uint8))
        dataset.targets = torch.from_numpy(targets)
    return dataset
