"""Recognised folders whose samples end in a step of the user's: their own __getitem__ reads them, with native calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as tud
import torchvision
from PIL import Image, ImageDraw
from torch.utils.data import ConcatDataset, Subset
from torchvision import transforms as v1
from torchvision.transforms import v2

import penstock
from tests.own_datasets.conformance import assert_conforms, listed
from tests.same import assert_same, outcomes

KINDS = pytest.mark.parametrize("kind", [penstock.ImageFolder, torchvision.datasets.ImageFolder], ids=["ours", "tv"])


@pytest.fixture(scope="module")
def folder(photos: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of two classes of photos, of which one is a PNG."""
    root = tmp_path_factory.mktemp("classes")
    for number, photo in enumerate(photos):
        place = root / "ab"[number % 2]
        place.mkdir(exist_ok=True)
        (place / photo.name).write_bytes(photo.read_bytes())
    with Image.open(photos[0]) as image:
        image.save(root / "a" / "z.png")
    return root


def itself(value: Any) -> Any:
    return value


def as_array(image: Any) -> Any:
    return np.asarray(image).astype(np.float32)[::-1] / 3


def drawn(image: Any) -> Any:
    """Return an image that was drawn on, and written to in every way."""
    ImageDraw.Draw(image).rectangle((1, 1, 9, 9), fill="red")
    image.putpixel((0, 0), (1, 2, 3))
    image.load()[3, 3] = (9, 8, 7)
    image.paste((4, 4, 4), (10, 10, 12, 12))
    return image


def orientation(image: Any) -> Any:
    return image.getexif().get(0x0112, 0)


def own_steps(t: Any) -> dict[str, Callable[[Any], Any]]:
    """Return transforms of one generation of torchvision's, each with a step of the user's."""
    compose: Callable[..., Any] = t.Compose
    return {
        "first": compose([drawn, t.Resize(20), t.CenterCrop(18), t.PILToTensor()]),
        "last": compose([t.Resize(32), t.CenterCrop(30), t.PILToTensor(), itself]),
        "between": compose([t.RandomResizedCrop(24), t.RandomHorizontalFlip(), itself, t.PILToTensor()]),
        "grey": compose([t.Grayscale(3), t.Resize((20, 30)), as_array]),
        "nested": compose([t.Compose([t.Resize((20, 24)), t.RandomVerticalFlip(0.5)]), itself, t.PILToTensor()]),
        "padded": compose([t.Pad(3, fill=7), t.CenterCrop(40), as_array]),
    }


@pytest.mark.parametrize(("kind", "t"), [(penstock.ImageFolder, v2), (torchvision.datasets.ImageFolder, v1)])
@pytest.mark.parametrize("name", own_steps(v1))
def test_photos_with_a_step_of_the_users(folder: Path, kind: Any, t: Any, name: str) -> None:
    dataset = kind(str(folder), own_steps(t)[name], target_transform=lambda label: -label)
    assert_conforms(dataset, seed=7 if name in ("between", "nested") else None, batch_size=4)


@KINDS
@pytest.mark.parametrize("step", [itself, np.asarray, orientation, drawn])
def test_functions_of_the_users_own(folder: Path, kind: Any, step: Any) -> None:
    assert_conforms(kind(str(folder), step, target_transform=str), seed=None, collate_fn=listed, batch_size=4)


@pytest.mark.parametrize("suffix", [".pt", ".npy", ".npz"])
def test_tensors_with_a_step_of_the_users(saved: Path, suffix: str) -> None:
    ids = [str(i) for i in range(12)]
    step = (lambda found: found["x"] * 2) if suffix == ".npz" else torch.neg
    dataset = penstock.TensorFolder(saved, ids, {name: int(name) for name in ids}, suffix=suffix, transform=step)
    assert_conforms(dataset, seed=None, batch_size=5)
    packed: Any = ConcatDataset([Subset(dataset, [5, -3, 5]), dataset])
    assert_conforms(packed, seed=None, batch_size=5)


def test_tensors_are_the_users_own(saved: Path) -> None:
    seen = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor)
        return tensor.zero_()

    dataset = penstock.TensorFolder(saved, ["0", "1"], transform=keep)
    list(penstock.DataLoader(dataset, num_workers=0))
    list(penstock.DataLoader(dataset, num_workers=0))
    assert len({tensor.untyped_storage().data_ptr() for tensor in seen}) == 4
    assert torch.load(saved / "0.pt").abs().sum() > 0


@KINDS
@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 1, "worker_method": "thread"}], ids=str)
def test_errors_and_odd_indices(folder: Path, kind: Any, options: dict[str, Any], tmp_path: Path) -> None:
    def refusing(image: Any) -> Any:
        raise KeyError("mine")

    inner = kind(str(folder), np.asarray)
    numbers: list[Any] = [np.array([5, 0, 2]), [3, -1, True, np.int32(2)]]
    listed_part: Any = [("no", "image")]
    parts: Any = ConcatDataset([Subset(inner, numbers[0]), listed_part, Subset(inner, numbers[1])])
    ours: Any = partial(penstock.DataLoader, batch_size=1, collate_fn=listed, **options)
    theirs: Any = partial(tud.DataLoader, batch_size=1, collate_fn=listed)
    assert_same(list(ours(parts)), list(theirs(parts)))
    assert_same(list(ours(Subset(parts, range(5, -1, -1)))), list(theirs(Subset(parts, range(5, -1, -1)))))
    for dataset, sampler in ((inner, [len(inner)]), (inner, [-len(inner) - 1]), (kind(str(folder), refusing), [0])):
        ((found, _),) = outcomes(ours(dataset, sampler=sampler))
        ((expected, _),) = outcomes(theirs(dataset, sampler=sampler))
        assert found == expected


@KINDS
def test_explain_says_who_reads(folder: Path, kind: Any) -> None:
    dataset = kind(str(folder), v1.Compose([v1.Resize(32), v1.Lambda(itself), v1.ToTensor()]))
    loader = penstock.DataLoader(dataset, cache="8MiB")
    said = loader.explain()
    assert "because  Lambda: Penstock has no native form" in said
    assert "cache    nothing is kept: Python reads the files" in said
