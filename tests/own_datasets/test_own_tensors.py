"""Datasets of tensors: files that torch.save wrote, and tensors that the dataset keeps."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import data

from tests.own_datasets.conformance import Files, assert_conforms, kinds, listed


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


class Saved(Files):
    def __getitem__(self, index: int) -> Any:
        return torch.load(self.root / f"{index}.dict.pt")


class Tuples(Saved):
    def __getitem__(self, index: int) -> Any:
        return torch.load(str(self.root / f"{index}.tuple.pt"), map_location="cpu", weights_only=True)


class AnyObject(Saved):
    def __getitem__(self, index: int) -> Any:
        with open(self.root / f"{index}.dict.pt", "rb") as file:
            return torch.load(file, weights_only=False)


class Mapped(Saved):
    def __getitem__(self, index: int) -> Any:
        return torch.load(self.root / f"{index}.pt", mmap=True)[1]


class Changed(Saved):
    """Writes into the tensor that it loaded, and keeps views of it."""

    def __getitem__(self, index: int) -> Any:
        x = torch.load(io.BytesIO((self.root / f"{index}.pt").read_bytes()))
        x.mul_(2).clamp_(-1, 1)
        return {"x": x, "rows": x[0].t(), "mean": x.mean(), "sum": x.sum().item()}


class Noisy(Saved):
    def __getitem__(self, index: int) -> Any:
        x = torch.load(self.root / f"{index}.pt")
        return x + 0.1 * torch.randn_like(x), torch.randint(10, ())


class Cached(Saved):
    """Loads each file once and keeps the tensor."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.cache: dict[int, torch.Tensor] = {}

    def __getitem__(self, index: int) -> Any:
        if index not in self.cache:
            self.cache[index] = torch.load(self.root / f"{index}.pt")
        return self.cache[index]


class Kept(Saved):
    """All tensors in self, of several dtypes and layouts."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.x = torch.stack([torch.load(root / f"{i}.pt") for i in range(12)])
        self.bits, self.half = self.x > 0, self.x.to(torch.bfloat16)
        self.complex = torch.view_as_complex(self.x[..., :2].contiguous())

    def __getitem__(self, index: int) -> Any:
        return self.x[index].permute(2, 0, 1), self.bits[index], self.half[index, 0], self.complex[index]


class Pickled(Saved):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.contents = [pickle.dumps(torch.load(root / f"{i}.pt")) for i in range(12)]

    def __getitem__(self, index: int) -> Any:
        return pickle.loads(self.contents[index])


class Differentiable(Saved):
    def __getitem__(self, index: int) -> Any:
        return torch.load(self.root / f"{index}.pt").requires_grad_(index % 2 == 0).detach()


@kinds(Saved, Changed, Noisy)
def test_tensors(kind: Any, saved: Path) -> None:
    assert_conforms(kind(saved))


@kinds(Tuples, AnyObject, Mapped, Cached, Kept, Pickled, Differentiable)
def test_tensors_without_a_seed(kind: Any, saved: Path) -> None:
    assert_conforms(kind(saved), seed=None)


class Layouts(Saved):
    """What default_collate does not stack."""

    def __getitem__(self, index: int) -> Any:
        x = torch.load(self.root / f"{index}.pt")
        return x[0].t(), x[1].to_sparse(), x.to(memory_format=torch.contiguous_format).expand(2, 3, 6, 5), x[:, :index]


def test_tensors_that_are_not_stacked(saved: Path) -> None:
    assert_conforms(Layouts(saved), collate_fn=listed, seed=None)


@pytest.mark.parametrize(("batch_size", "drop_last"), [(None, False), (1, False), (5, True)])
def test_sizes_of_batches(batch_size: Any, drop_last: bool, saved: Path) -> None:
    assert_conforms(Saved(saved), batch_size=batch_size, drop_last=drop_last, samples=7, seed=None)


class Missing(Saved):
    """Labels of which one is missing, files of which one is damaged."""

    def __getitem__(self, index: int) -> Any:
        x = torch.load(self.root / ("none.pt" if index == 5 else f"{index}.pt"))
        return x, {i: i for i in range(10)}[index]


def test_missing_files_and_labels(saved: Path) -> None:
    assert_conforms(Missing(saved), shuffle=False, seed=None)


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
