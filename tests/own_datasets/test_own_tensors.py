"""Datasets of tensors: files that torch.save wrote, and tensors that the dataset keeps."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import data

from tests.own_datasets.conformance import Files, Read, assert_conforms, kinds, listed


class Tutorial(data.Dataset):
    """The class of the well-known tutorial."""

    def __init__(self, root: Path, list_IDs: list[str], labels: dict[str, int]) -> None:
        self.root = str(root)
        self.labels = labels
        self.list_IDs = list_IDs

    def __len__(self) -> int:
        return len(self.list_IDs)

    def __getitem__(self, index: int) -> Any:
        ID = self.list_IDs[index]
        X = torch.load(self.root + "/" + ID + ".pt")
        y = self.labels[ID]
        return X, y


def test_the_tutorials_class(saved: Path) -> None:
    names = [str(i) for i in range(12)]
    assert_conforms(Tutorial(saved, names, {name: int(name) % 3 for name in names}))


def any_object(root: Path, index: int) -> Any:
    with open(root / f"{index}.dict.pt", "rb") as file:
        return torch.load(file, weights_only=False)


def changed(root: Path, index: int) -> Any:
    """Write into the tensor that was loaded, and keep views of it."""
    x = torch.load(io.BytesIO((root / f"{index}.pt").read_bytes()))
    x.mul_(2).clamp_(-1, 1)
    return {"x": x, "rows": x[0].t(), "mean": x.mean(), "sum": x.sum().item()}


def noisy(root: Path, index: int) -> Any:
    x = torch.load(root / f"{index}.pt")
    return x + 0.1 * torch.randn_like(x), torch.randint(10, ())


READS: dict[str, Callable[[Path, int], Any]] = {
    "saved": lambda root, i: torch.load(root / f"{i}.dict.pt"),
    "changed": changed,
    "noisy": noisy,
    "tuples": lambda root, i: torch.load(str(root / f"{i}.tuple.pt"), map_location="cpu", weights_only=True),
    "any object": any_object,
    "mapped": lambda root, i: torch.load(root / f"{i}.pt", mmap=True)[1],
    "differentiable": lambda root, i: torch.load(root / f"{i}.pt").requires_grad_(i % 2 == 0).detach(),
}


@pytest.mark.parametrize("name", READS)
def test_files(name: str, saved: Path) -> None:
    assert_conforms(Read(saved, READS[name]), seed=7 if name in ("saved", "changed", "noisy") else None)


class Cached(Files):
    """Loads each file once and keeps the tensor."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.cache: dict[int, torch.Tensor] = {}

    def __getitem__(self, index: int) -> Any:
        if index not in self.cache:
            self.cache[index] = torch.load(self.root / f"{index}.pt")
        return self.cache[index]


class Kept(Files):
    """All tensors in self, of several dtypes and layouts."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.x = torch.stack([torch.load(root / f"{i}.pt") for i in range(12)])
        self.bits, self.half = self.x > 0, self.x.to(torch.bfloat16)
        self.complex = torch.view_as_complex(self.x[..., :2].contiguous())

    def __getitem__(self, index: int) -> Any:
        return self.x[index].permute(2, 0, 1), self.bits[index], self.half[index, 0], self.complex[index]


class Pickled(Files):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.contents = [pickle.dumps(torch.load(root / f"{i}.pt")) for i in range(12)]

    def __getitem__(self, index: int) -> Any:
        return pickle.loads(self.contents[index])


@kinds(Cached, Kept, Pickled)
def test_tensors_that_are_kept(kind: Any, saved: Path) -> None:
    assert_conforms(kind(saved), seed=None)


def layouts(root: Path, index: int) -> Any:
    """Return what default_collate does not stack."""
    x = torch.load(root / f"{index}.pt")
    return x[0].t(), x[1].to_sparse(), x.to(memory_format=torch.contiguous_format).expand(2, 3, 6, 5), x[:, :index]


def test_tensors_that_are_not_stacked(saved: Path) -> None:
    assert_conforms(Read(saved, layouts), collate_fn=listed, seed=None)


@pytest.mark.parametrize(("batch_size", "drop_last"), [(None, False), (1, False), (5, True)])
def test_sizes_of_batches(batch_size: Any, drop_last: bool, saved: Path) -> None:
    dataset = Read(saved, READS["saved"])
    assert_conforms(dataset, batch_size=batch_size, drop_last=drop_last, samples=7, seed=None)


def missing(root: Path, index: int) -> Any:
    """Read files of which one is missing, with labels of which some are."""
    x = torch.load(root / ("none.pt" if index == 5 else f"{index}.pt"))
    return x, {i: i for i in range(10)}[index]


def test_missing_files_and_labels(saved: Path) -> None:
    assert_conforms(Read(saved, missing), shuffle=False, seed=None)


@pytest.mark.parametrize("harm", ["cut", "empty", "text", "flipped"])
def test_damaged_files(harm: str, saved: Path, tmp_path: Path) -> None:
    for i in range(8):
        content = (saved / f"{i}.pt").read_bytes()
        at = len(content) // 2
        flipped = content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :]
        harmed = {"cut": content[:at], "empty": b"", "text": b"no tensor", "flipped": flipped}[harm]
        (tmp_path / f"{i}.pt").write_bytes(harmed if i == 5 else content)
    labels = dict.fromkeys(map(str, range(8)), 1)
    assert_conforms(Tutorial(tmp_path, list(labels), labels), shuffle=False, seed=None)
