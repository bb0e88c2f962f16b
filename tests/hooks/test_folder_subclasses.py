"""Subclasses of ImageFolder that call super().__getitem__ and add to it: the same as with torch's loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import get_worker_info
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import penstock
from tests.data import noise_image
from tests.own_datasets.conformance import assert_conforms
from tests.same import assert_same

pytestmark = pytest.mark.native

NORMAL = v1.Normalize([0.5] * 3, [2] * 3)
TRAIN = v1.Compose([v1.RandomResizedCrop(20), v1.RandomHorizontalFlip(), v1.ToTensor(), NORMAL])
SECOND = v2.Compose([v2.RandomCrop(20, padding=2), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
JPEGS, COUNT = 20, 26


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a folder of JPEG files, and of some that Pillow opens itself."""
    root = tmp_path_factory.mktemp("images")
    exif = Image.Exif()
    exif[0x0112] = 6
    modes = {JPEGS + 1: "L", JPEGS + 2: "CMYK"}  # the native core takes grey ones
    options: dict[int, dict[str, Any]] = {JPEGS: {"exif": exif}, JPEGS + 3: {"progressive": True}}
    for i in range(COUNT):
        (root / f"{i % 2}").mkdir(exist_ok=True)
        path = root / f"{i % 2}" / f"{i:02}.{'png' if i > JPEGS + 3 else 'jpg'}"
        noise_image(i, 30 + i % 3, 40).convert(modes.get(i, "RGB")).save(path, **options.get(i, {}))
    return str(root)


class Indexed(ImageFolder):
    def __getitem__(self, index: int) -> Any:
        return (*super().__getitem__(index), index)


class Named(ImageFolder):
    def __getitem__(self, index: int) -> Any:
        path = Path(self.samples[index][0])
        image, label = super().__getitem__(index)
        return {"label": label, "image": image, "name": path.name, "noise": torch.rand(2)}


class Pairs(ImageFolder):
    """Another image of the class, and the first view a second time."""

    def __getitem__(self, index: int) -> Any:
        first, label = super().__getitem__(index)
        other, _ = super().__getitem__(len(self) - 1 - index)
        return super().__getitem__(-1 - index)[0], label, first, other


class Changing(ImageFolder):
    def __getitem__(self, index: int) -> Any:
        self.transform = v1.Compose([v1.Resize((10, 10)), v1.ToTensor()]) if index % 3 else TEN
        if index % 4 == 0:
            self.transform.transforms[0] = v1.CenterCrop(10)
        return super().__getitem__(index)


TEN = v1.Compose([v1.Resize((10, 10)), v1.ToTensor()])


class Loading(Indexed):
    def __init__(self, root: str, transform: Any) -> None:
        super().__init__(root, transform, loader=lambda path: Image.open(path).convert("RGB").rotate(90))


class Half(ImageFolder):
    """Half of the files, by a property in the place of the list."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index), -1 if get_worker_info() is None else get_worker_info().id  # type: ignore[union-attr]

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def samples(self) -> Any:
        return self._kept[::2]

    @samples.setter
    def samples(self, value: Any) -> None:
        self._kept = value


class Classes(ImageFolder):
    """Defines nothing that samples come from: read as the class itself."""

    def find_classes(self, directory: str) -> Any:
        return ["1"], {"1": 5}


@pytest.mark.parametrize("transform", [TRAIN, SECOND], ids=["v1", "v2"])
@pytest.mark.parametrize("kind", [Named, Pairs, Loading, Half])
def test_subclasses_that_call_the_method(folder, kind, transform):
    assert_conforms(kind(folder, transform), invariant=kind is not Half, seed=None, batch_size=5)


def test_transforms_that_change_in_the_middle(folder):
    assert_conforms(Changing(folder), seed=None, batch_size=5, num_workers=(0,))


def test_calls_are_counted(folder):
    dataset = Indexed(folder, TRAIN, lambda label: label + 1)
    for method in (None, "thread"):
        loader: Any = penstock.DataLoader(dataset, batch_size=4, num_workers=2, worker_method=method)
        labels = torch.cat([labels for _, labels, _ in loader])
        assert labels.tolist() == [label + 1 for label in dataset.targets]
        assert loader.stats().calls["PIL.Image.convert"].answered == JPEGS + 2
        assert f"calls    PIL.Image.convert: {JPEGS + 2} answered natively" in loader.explain()


def test_draws_by_sample(folder):
    dataset = Indexed(folder, TRAIN)
    passes: list[Any] = []
    for workers in (0, 2):
        loader: Any = penstock.DataLoader(dataset, batch_size=4, shuffle=True, seed=4, num_workers=workers)
        passes.append(list(loader))
    assert_same(*passes)
    plain = penstock.DataLoader(ImageFolder(folder, TRAIN), batch_size=4, shuffle=True, seed=4)
    assert_same([images for images, _ in plain], [images for images, *_ in passes[0]])


def test_a_subclass_that_reads_as_its_base(folder, monkeypatch):
    evaluate = v1.Compose([v1.Resize(24), v1.CenterCrop(20), v1.ToTensor()])
    dataset = Classes(folder, evaluate)
    assert set(dataset.targets) == {5}
    loader: Any = penstock.DataLoader(dataset, batch_size=5, num_workers=2)
    assert "native threads fill" in loader.explain()
    assert_same(list(loader), list(torch.utils.data.DataLoader(dataset, batch_size=5)))
    monkeypatch.setattr(Classes, "__getitem__", lambda self, index: (torch.zeros(1), index))
    assert "native threads fill" not in loader.explain()
    assert_same(list(loader), list(torch.utils.data.DataLoader(dataset, batch_size=5)))
