"""What every adapter answers: IDs, files, labels and batches agree with the dataset's own samples."""

from __future__ import annotations

import os
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
from penstock.recipe.steps import Refusal
from penstock.sources.labels import label_values
from penstock.sources.naming import catalogue, id_of, ids_of, name_of, names_of
from penstock.sources.native_source import NativeSource
from penstock.sources.source import Source
from penstock.sources.tree import SOURCES, build, source_of
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


NAMES = ["tensor files", "our photos", "photos", "rows", "arrays", "CIFAR10", "MNIST", "subset", "concat"]
NAMES += ["shards", "packed photos", "listed photos", "named photos"]


def test_each_adapter_is_tried_here(datasets: dict[str, Any]) -> None:
    tried = {type(source_of(dataset)).__name__ for dataset in datasets.values()}
    # tests/sources/test_hugging_face.py has the other: its package may be missing.
    assert tried == {name for *_, name in SOURCES} - {"HuggingFaceSource"}


@pytest.mark.parametrize("name", NAMES)
def test_names_and_labels_are_those_of_the_samples(datasets: dict[str, Any], name: str) -> None:
    dataset = datasets[name]
    everything = range(len(dataset))
    found = catalogue(dataset)
    assert found.size == len(dataset)
    assert [text.decode() for text in found.texts()] == ids_of(dataset, everything)
    assert ids_of(dataset, everything) == [id_of(dataset, index) for index in everything]
    assert list(names_of(dataset, everything)) == [name_of(dataset, index) for index in everything]
    assert all(path is None or os.path.isfile(path) for _, path in names_of(dataset, everything))
    if found.labels is not None:
        assert found.labels.tolist() == label_values([dataset[index][1] for index in everything]).tolist()


@pytest.mark.parametrize("name", NAMES)
def test_native_batches_are_the_samples(datasets: dict[str, Any], name: str) -> None:
    dataset = datasets[name]
    assert not isinstance(build(dataset), Refusal)
    batch = next(iter(penstock.DataLoader(dataset, batch_size=len(dataset), num_workers=0)))
    wanted = torch.utils.data.default_collate([dataset[index] for index in range(len(dataset))])
    for ours, theirs in zip(batch, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_what_no_adapter_knows_is_named_by_its_attributes(tmp_path: Path) -> None:
    files: Any = Made(size=2)
    files.root, files.samples = str(tmp_path), ((str(tmp_path / "a/1.bin"), 7), (str(tmp_path / "b/2.bin"), 8))
    assert type(source_of(files)) is Source
    assert ids_of(files, [1, -2, 5, "x"]) == ["b/2.bin", "a/1.bin", "5", "'x'"]
    assert name_of(Subset(files, [1]), 0) == (str(tmp_path / "b/2.bin"),) * 2
    assert catalogue(files).labels is not None
    assert isinstance(build(files), Refusal)


def test_messages_count_one_thing_in_the_singular(tmp_path: Path) -> None:
    (tmp_path / "photos/cat").mkdir(parents=True)
    Image.new("RGB", (4, 3)).save(tmp_path / "photos/cat/0.png")
    torch.save(torch.zeros(2), tmp_path / "0.pt")
    tensors = penstock.TensorFolder(tmp_path, ["0"])
    photos = penstock.ImageFolder(tmp_path / "photos", IMAGE)
    arrays = penstock.Arrays(np.zeros((1, 2)))
    digit = in_memory("MNIST", IMAGE, 1)
    steps = [step.what for dataset in (tensors, photos, arrays, digit) for step in native(dataset).steps]
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
    images, _ = next(iter(penstock.DataLoader(digit)))
    assert torch.equal(images[0], digit[0][0])
    native(digit)


def native(dataset: Any) -> NativeSource:
    found = build(dataset)
    assert not isinstance(found, Refusal)
    return found[1][0]


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8:UserWarning")
def test_indices_that_torch_takes_for_a_mask() -> None:
    rows = TensorDataset(torch.arange(6.0))
    for indices in (torch.tensor([2, 0], dtype=torch.uint8), [torch.tensor(2, dtype=torch.uint8)]):
        chosen: Any = Subset(rows, indices)  # type: ignore[arg-type]
        assert_same(list(penstock.DataLoader(chosen)), list(torch.utils.data.DataLoader(chosen)))
