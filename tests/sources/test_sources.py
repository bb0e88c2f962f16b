"""What every adapter answers: IDs, files, labels and batches agree with the dataset's own samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torch.utils.data import ConcatDataset, Subset, TensorDataset
from torchvision.transforms import v2

import penstock
from tests.data import Made, in_memory, tensor_files
from tests.same import assert_same

IMAGE = v2.Compose([v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)])


def food(root: Any) -> Any:
    dataset = torchvision.datasets.Food101.__new__(torchvision.datasets.Food101)
    dataset.root, dataset.loader = str(root), torchvision.datasets.folder.default_loader
    dataset._image_files, dataset._labels = [root / "dog/0.png", root / "cat/0.png"], [1, 0]
    dataset.transform, dataset.target_transform = IMAGE, None
    return dataset


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("sources")
    for name in ("cat/0", "cat/1", "dog/0"):
        (root / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 3), (9, 8, 7)).save(root / "photos" / f"{name}.png")
    labels = {f"id-{number}": 10 * number for number in range(5)}
    folder = penstock.TensorFolder(tensor_files(root / "tensors", 5, (2,), "id-{}"), labels=labels)
    penstock.pack(folder, root / "packed")
    penstock.pack(penstock.ImageFolder(root / "photos"), root / "packed", split="photos")
    rows = TensorDataset(torch.arange(10.0).view(5, 2))
    return {
        "tensor files": folder,
        "our photos": penstock.ImageFolder(root / "photos", IMAGE),
        "photos": torchvision.datasets.ImageFolder(root / "photos", IMAGE),
        "listed photos": penstock.Images(["dog/0.png", "cat/1.png"], [1, 0], IMAGE, root=root / "photos"),
        "named photos": food(root / "photos"),
        "rows": rows,
        "arrays": penstock.Arrays(np.arange(5)),
        "CIFAR10": in_memory("CIFAR10", IMAGE, 5),
        "MNIST": in_memory("MNIST", IMAGE, 5),
        "shards": penstock.Shards(root / "packed", "data"),
        "packed photos": penstock.Shards(root / "packed", "photos", IMAGE),
        "subset": Subset(folder, [4, -5, 2]),
        "concat": ConcatDataset([rows, Subset(rows, [3])]),
    }


NUMBERS, PHOTOS = [list(map(str, range(5))), ["cat/0.png", "cat/1.png", "dog/0.png"]]
IDS = {
    "tensor files": [f"id-{number}" for number in range(5)],
    "our photos": PHOTOS,
    "photos": PHOTOS,
    "listed photos": ["dog/0.png", "cat/1.png"],
    "named photos": ["dog/0.png", "cat/0.png"],
    "rows": NUMBERS,
    "arrays": NUMBERS,
    "CIFAR10": NUMBERS,
    "MNIST": NUMBERS,
    "shards": [f"id-{number}" for number in range(5)],
    "packed photos": PHOTOS,
    "subset": ["id-4", "id-0", "id-2"],
    "concat": [*(f"0/{number}" for number in range(5)), "1/3"],
}


def known(dataset: Any) -> Any:
    """Return what a checkpoint holds of a dataset: its size, and the digests of its IDs and labels."""
    return penstock.DataLoader(dataset, seed=0).state_dict()["data"]


@pytest.mark.parametrize("name", IDS)
def test_names_and_labels_are_those_of_the_samples(datasets: dict[str, Any], name: str) -> None:
    dataset = datasets[name]
    assert penstock.DataLoader(dataset, batch_size=len(dataset), seed=0).ids(0, 0) == IDS[name]
    found, labelled = known(dataset), name not in ("rows", "arrays", "concat")
    assert found["size"] == len(dataset)
    assert (found["labels"] is not None) is labelled
    if labelled:
        samples: Any = Made(size=len(dataset))
        samples.targets = [label for _, label in map(dataset.__getitem__, range(len(dataset)))]
        assert found["labels"] == known(samples)["labels"]


@pytest.mark.parametrize("name", IDS)
def test_native_batches_are_the_samples(datasets: dict[str, Any], name: str) -> None:
    dataset = datasets[name]
    loader = penstock.DataLoader(dataset, batch_size=len(dataset), num_workers=0)
    batch = next(iter(loader))
    assert "\nnative " in loader.explain() and "Python reads" not in loader.explain()
    wanted = torch.utils.data.default_collate([dataset[index] for index in range(len(dataset))])
    for ours, theirs in zip(batch, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_what_no_adapter_knows_is_named_by_its_attributes(tmp_path: Path) -> None:
    files: Any = Made(size=2)
    files.root, files.samples = str(tmp_path), ((str(tmp_path / "a/1.bin"), 7), (str(tmp_path / "b/2.bin"), 8))
    loader = penstock.DataLoader(files, batch_size=2, seed=0)
    assert loader.ids(0, 0) == ["a/1.bin", "b/2.bin"]
    assert known(files)["labels"] is not None
    assert "is more than indexing, so Python reads it" in loader.explain()


def test_messages_count_one_thing_in_the_singular(tmp_path: Path) -> None:
    (tmp_path / "photos/cat").mkdir(parents=True)
    Image.new("RGB", (4, 3)).save(tmp_path / "photos/cat/0.png")
    torch.save(torch.zeros(2), tmp_path / "0.pt")
    tensors = penstock.TensorFolder(tmp_path, ["0"])
    photos = penstock.ImageFolder(tmp_path / "photos", IMAGE)
    arrays = penstock.Arrays(np.zeros((1, 2)))
    digit = in_memory("MNIST", IMAGE, 1)
    plans = [penstock.DataLoader(dataset).explain() for dataset in (tensors, photos, arrays, digit)]
    steps = [line.removeprefix("native   ") for plan in plans for line in plan.splitlines()]
    said = [what.split(" in ")[0].split(" of ")[0] for what in steps if what.startswith(("read", "gather"))]
    assert said == ["read    1 file *.pt", "read    1 image file", "gather  1 row", "gather  1 image"]
    shown = [repr(one) for one in (arrays, tensors.ids, photos.samples)]
    assert shown == ["Arrays(1 sample of float64[2])", "IDs(1 sample)", "Samples(1 sample)"]
    assert repr(tensors).endswith(": 1 sample, *.pt)")
    loader = penstock.DataLoader(arrays, seed=1)
    errors: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: photos[1], IndexError, r"sample index 1 is out of range: there is 1 sample$"),
        (lambda: penstock.Arrays(np.zeros(2), np.zeros(1)), penstock.InvalidOption, "has 1 row, the first array has 2"),
        (lambda: loader.batch_at(0, 0, rank=1), penstock.InvalidOption, r"rank=1: there is 1 rank$"),
    ]
    for call, error, words in errors:
        with pytest.raises(error, match=words):
            call()


def test_one_image_whose_stride_is_any_number() -> None:
    digit = in_memory("MNIST", IMAGE, 1)
    digit.data = digit.data.as_strided((1, 28, 28), (1, 28, 1))  # as older releases of torch have it
    loader = penstock.DataLoader(digit)
    images, _ = next(iter(loader))
    assert torch.equal(images[0], digit[0][0])
    assert "gather  1 image of 28x28" in loader.explain()


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8:UserWarning")
def test_indices_that_torch_takes_for_a_mask() -> None:
    rows = TensorDataset(torch.arange(6.0))
    for indices in (torch.tensor([2, 0], dtype=torch.uint8), [torch.tensor(2, dtype=torch.uint8)]):
        chosen: Any = Subset(rows, indices)  # type: ignore[arg-type]
        assert_same(list(penstock.DataLoader(chosen)), list(torch.utils.data.DataLoader(chosen)))
