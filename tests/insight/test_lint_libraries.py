"""The lint remarks on nothing in datasets of torchvision, torch, Hugging Face and Penstock."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ChainDataset, ConcatDataset, StackDataset, Subset, TensorDataset, random_split

import penstock
from penstock.insight import lint as state
from penstock.insight.lint import lint
from tests.photos import in_memory, noise_image
from tests.sample_datasets import tensor_files

torchvision = pytest.importorskip("torchvision", reason="torchvision is not installed: pip install torchvision")
# Pillow's datasets come with torchvision, which is needed from here on.
from torchvision.transforms import v2  # noqa: E402

v1 = torchvision.transforms
CLASSES = [
    kind
    for name, kind in sorted(vars(torchvision.datasets).items())
    if inspect.isclass(kind) and issubclass(kind, torch.utils.data.Dataset)
]


@pytest.fixture(autouse=True)
def _everything_is_costly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make any list of more than a few entries worth a remark, where it is the user's own."""
    monkeypatch.setattr(state, "COSTLY_BYTES", 2_000)


def steps(module: Any) -> Any:
    return module.Compose(
        [
            module.RandomResizedCrop(8),
            module.RandomHorizontalFlip(),
            module.ColorJitter(0.3),
            module.RandAugment(),
            module.RandomErasing(),
            module.RandomApply([module.GaussianBlur(3)]),
            module.Normalize([0.5], [0.5]),
        ]
    )


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_datasets_of_torchvision(kind: type) -> None:
    """Of each class an object that was not initialised: its methods are what there is to look at."""
    dataset: Any = object.__new__(kind)
    assert lint(dataset) == []
    dataset.transform = steps(v1)
    dataset.samples = [(f"{i}.jpg", i) for i in range(1000)]
    assert lint(dataset) == []


@pytest.mark.parametrize("name", ["CIFAR10", "CIFAR100", "MNIST", "FashionMNIST"])
@pytest.mark.parametrize("module", [v1, v2], ids=["v1", "v2"])
def test_datasets_in_memory(name: str, module: Any) -> None:
    assert lint(in_memory(name, steps(module))) == []


def image_folder(root: Path) -> Path:
    for kind in ("cat", "dog"):
        (root / kind).mkdir(parents=True)
        for i in range(40):
            noise_image(i, 8, 8).save(root / kind / f"{i}.png")
    return root


def test_folders_and_what_is_made_of_them(tmp_path: Path) -> None:
    images = image_folder(tmp_path / "images")
    tensors = penstock.TensorFolder(tensor_files(tmp_path / "tensors", 40))
    rows = TensorDataset(torch.zeros(40, 2))
    folders = [torchvision.datasets.ImageFolder(images, steps(v1)), penstock.ImageFolder(images, steps(v2))]
    whole: list[Any] = [
        *folders,
        tensors,
        rows,
        penstock.Arrays(np.zeros((40, 3))),
        torchvision.datasets.DatasetFolder(str(images), Image.open, extensions=(".png",)),
        penstock.Mix({"a": (rows, 0.5), "b": (TensorDataset(torch.ones(40, 2)), 0.5)}),
        ConcatDataset([rows, rows]),
        Subset(folders[0], list(range(1000, 1080))),
        Subset(folders[1], list(range(1000, 1080))),
        StackDataset(rows, rows),
        ChainDataset([]),
        *random_split(tensors, [20, 20]),
    ]
    for dataset in whole:
        assert lint(dataset) == [], dataset


def test_packed_shards(tmp_path: Path) -> None:
    penstock.pack(penstock.TensorFolder(tensor_files(tmp_path / "tensors", 20)), tmp_path / "packed")
    assert lint(penstock.Shards(tmp_path / "packed")) == []


def test_hugging_face() -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")
    table = datasets.Dataset.from_dict({"x": list(range(1000, 1200)), "name": [f"id-{i}" for i in range(200)]})
    assert lint(table.with_format("torch")) == []


def test_a_subclass_is_the_users_own(tmp_path: Path) -> None:
    class Mine(torchvision.datasets.ImageFolder):  # type: ignore[name-defined]
        pass

    mine = Mine(image_folder(tmp_path))
    mine.samples = [(f"{i}.jpg", i) for i in range(1000)]
    (remark,) = [one for one in lint(mine) if "samples" in one.what]
    assert remark.rule == "python-objects" and remark.where.startswith("Mine (")
