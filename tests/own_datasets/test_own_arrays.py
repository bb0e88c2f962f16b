"""Datasets of numpy arrays: files, memory maps, and arrays that the dataset keeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.own_datasets.conformance import Files, Read, assert_conforms, kinds, listed


def as_arrays(root: Path, index: int) -> Any:
    x = np.load(f"{root}/{index}.npy")
    return x, x.astype(np.float64).sum(), np.uint8(index), x[::-1, ::2], np.asfortranarray(x[0])


def archives(root: Path, index: int) -> Any:
    with np.load(root / f"{index}.npz") as archive:
        return {name: archive[name] for name in archive.files}


def raw_file(root: Path, index: int) -> Any:
    row = np.fromfile(root / f"{index}.npy", dtype=np.float32, count=8, offset=128)
    return row.reshape(2, 4), np.memmap(root / f"{index}.npy", dtype=np.uint8, mode="r", shape=(6,)).sum()


def drawing(root: Path, index: int) -> Any:
    x = np.load(root / f"{index}.npy")
    top = np.random.randint(3)
    return x[:, top : top + 3] * np.random.normal(1, 0.1), np.random.permutation(4)


READS: dict[str, Callable[[Path, int], Any]] = {
    "arrays": lambda root, i: (torch.from_numpy(np.load(root / f"{i}.npy")), i),
    "as arrays": as_arrays,
    "drawing": drawing,
    "archives": archives,
    "mapped": lambda root, i: torch.tensor(np.load(root / f"{i}.npy", mmap_mode="r")[1]) + 1,
    "raw file": raw_file,
}


@pytest.mark.parametrize("name", READS)
def test_files(name: str, saved: Path) -> None:
    assert_conforms(Read(saved, READS[name]), seed=7 if name in ("arrays", "as arrays", "drawing") else None)


class MappedWhole(Files):
    """One memory map of all samples, made by __init__."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        whole = np.stack([np.load(root / f"{i}.npy") for i in range(12)])
        np.save(root / "whole.npy", whole)
        self.whole = np.load(root / "whole.npy", mmap_mode="r")

    def __getitem__(self, index: int) -> Any:
        return np.array(self.whole[index]), torch.from_numpy(self.whole[index, 0].copy())


class Views(Files):
    """Views of one big array."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.big = np.arange(12 * 40, dtype=np.int16).reshape(40, 12)

    def __getitem__(self, index: int) -> Any:
        return self.big[:, index], self.big[index : index + 3].T, self.big[index, 3]


class Scaled(Files):
    """Statistics kept in self, and an array that each sample is written into."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.mean, self.buffer = np.float32(0.25), np.zeros((3, 6, 5), np.float32)

    def __getitem__(self, index: int) -> Any:
        np.subtract(np.load(self.root / f"{index}.npy"), self.mean, out=self.buffer)
        return self.buffer.copy()


@kinds(Scaled, unseeded=(MappedWhole, Views))
def test_arrays_that_are_kept(kind: Any, seed: int | None, saved: Path) -> None:
    assert_conforms(kind(saved), seed=seed)


class Records(Files):
    """Structured arrays, strings, dates and objects, which default_collate refuses."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.records = np.zeros(12, dtype=[("name", "U4"), ("box", "f4", 4), ("label", "i8")])
        self.records["label"] = np.arange(12)
        self.objects = np.array([{"i": i} for i in range(12)], dtype=object)

    def __getitem__(self, index: int) -> Any:
        day = np.datetime64("2024-01-01") + index
        return self.records[index], self.records[index : index + 1], self.objects[index], day, np.array([f"n{index}"])


@pytest.mark.parametrize("collate_fn", [listed, None], ids=["listed", "refused"])
def test_arrays_that_are_not_stacked(collate_fn: Any, saved: Path) -> None:
    assert_conforms(Records(saved), collate_fn=collate_fn, seed=None)


class Objects(Files):
    """A file of a pickled object, which numpy refuses without allow_pickle."""

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            np.save(self.root / "object.npy", np.array([{}], dtype=object))
            return np.load(self.root / "object.npy")
        return np.load(self.root / ("none.npy" if index == 9 else f"{index}.npy"))


def test_files_that_numpy_refuses(saved: Path) -> None:
    assert_conforms(Objects(saved), shuffle=False, seed=None)
