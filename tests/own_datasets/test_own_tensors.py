"""Datasets of tensors and arrays: files, memory maps, what they keep; and stores: HDF5, LMDB, archives, pickles."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils import data
from torch.utils.data import Dataset
from torchvision import transforms as T

import penstock
from penstock.testing import assert_same_as_torch
from tests.own_datasets.conformance import Files, Read, assert_conforms, kinds, optional


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


#: By name: how a sample is read, and the seed.
READS: dict[str, tuple[Callable[[Path, int], Any], int | None]] = {
    "saved": (lambda root, i: torch.load(root / f"{i}.dict.pt"), 7),
    "changed": (changed, 7),
    "noisy": (noisy, 7),
    "any object": (any_object, None),
    "mapped": (lambda root, i: torch.load(root / f"{i}.pt", mmap=True)[1], None),
    "drawing": (drawing, 7),
    "archives": (archives, None),
    "raw file": (raw_file, None),
}


@pytest.mark.parametrize("name", READS)
def test_files(name: str, saved: Path) -> None:
    read, seed = READS[name]
    assert_conforms(Read(saved, read), seed=seed)


class Cached(Files):
    """Loads each file once and keeps the tensor."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.cache: dict[int, torch.Tensor] = {}

    def __getitem__(self, index: int) -> Any:
        if index not in self.cache:
            self.cache[index] = torch.load(self.root / f"{index}.pt")
        return self.cache[index]


class Scaled(Files):
    """Statistics kept in self, and an array that each sample is written into."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.mean, self.buffer = np.float32(0.25), np.zeros((3, 6, 5), np.float32)

    def __getitem__(self, index: int) -> Any:
        np.subtract(np.load(self.root / f"{index}.npy"), self.mean, out=self.buffer)
        return self.buffer.copy()


@kinds(Scaled, unseeded=(Cached,))
def test_what_is_kept(kind: Any, seed: int | None, saved: Path) -> None:
    assert_conforms(kind(saved), seed=seed)


def missing(root: Path, index: int) -> Any:
    """Read files of which one is missing, with labels of which some are."""
    x = torch.load(root / ("none.pt" if index == 5 else f"{index}.pt"))
    return x, {i: i for i in range(10)}[index]


def test_what_is_missing(saved: Path) -> None:
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


h5py, lmdb = optional("h5py"), optional("lmdb")
TRANSFORM = T.Compose([T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.ToTensor()])
SIZE = 12


def transformed(file: Any) -> Any:
    return TRANSFORM(Image.open(file).convert("RGB"))


class Store(Dataset):
    """A store that is written by `write` and opened at the first sample of each worker: an archive here."""

    needs: tuple[str, ...] = ()

    def __init__(self, folder: Path, photos: list[Path]) -> None:
        self.folder, self.path = folder, folder / "store"
        self.store: Any = None
        self.write(photos)

    def __len__(self) -> int:
        return SIZE

    def write(self, photos: list[Path]) -> None:
        with zipfile.ZipFile(self.path, "w") as archive:
            for i, photo in enumerate(photos):
                archive.write(photo, f"{i}.jpg")

    def __getitem__(self, index: int) -> Any:
        if self.store is None:
            self.store = zipfile.ZipFile(self.path)
        with self.store.open(f"{index}.jpg") as file:
            return transformed(file), index

    def __del__(self) -> None:
        if self.store is not None:
            self.store.close()


class Hdf5(Store):
    """A file that each worker opens at its first sample."""

    needs = ("h5py",)

    def write(self, photos: list[Path]) -> None:
        with h5py.File(self.path, "w") as file:
            file["images"] = np.random.default_rng(0).integers(0, 256, (SIZE, 10, 8, 3), dtype=np.uint8)
            file.create_dataset("labels", data=np.arange(SIZE, dtype=np.int32), chunks=(4,), compression="gzip")

    def __getitem__(self, index: int) -> Any:
        if self.store is None:
            self.store = h5py.File(self.path, "r")
        image = Image.fromarray(self.store["images"][index])
        return T.ToTensor()(image), self.store["labels"][index], self.store["images"].attrs.get("none", "no")


class Lmdb(Store):
    """JPEG files in LMDB, which is opened by each process and shared by its threads."""

    needs = ("lmdb",)

    def write(self, photos: list[Path]) -> None:
        with lmdb.open(str(self.path), map_size=1 << 24) as environment, environment.begin(write=True) as writer:
            for i, photo in enumerate(photos):
                writer.put(b"%03d" % i, photo.read_bytes())

    def __getitem__(self, index: int) -> Any:
        with lmdb.open(str(self.path), readonly=True, lock=False) as store, store.begin(buffers=True) as reader:
            return transformed(io.BytesIO(reader.get(b"%03d" % index))), index


class LmdbKept(Lmdb):
    """LMDB opened once a process: it cannot be opened a second time in one process, so threads are not for it."""

    def __getitem__(self, index: int) -> Any:
        if self.store is None:
            self.store = lmdb.open(str(self.path), readonly=True, lock=False, readahead=False, meminit=False)
        with self.store.begin(write=False) as reader:
            return transformed(io.BytesIO(reader.get(b"%03d" % index)))


@kinds(Store, Hdf5)
def test_stores(kind: Any, tmp_path: Path, photos: list[Path]) -> None:
    assert_conforms(kind(tmp_path, photos))


@kinds(Lmdb, LmdbKept)
def test_stores_that_a_process_opens_once(kind: Any, tmp_path: Path, photos: list[Path]) -> None:
    assert_conforms(kind(tmp_path, photos), worker_methods=(None, "process"))


class OpenInInit(Hdf5):
    """The file is opened by __init__: it works with fork, and cannot be copied for threads."""

    def __init__(self, folder: Path, photos: list[Path]) -> None:
        super().__init__(folder, photos)
        self.store = h5py.File(self.path, "r")


@kinds(OpenInInit)
def test_a_file_that_init_opens(kind: Any, tmp_path: Path, photos: list[Path]) -> None:
    dataset = kind(tmp_path, photos)
    assert_conforms(dataset, worker_methods=(None, "process"), seed=None)
    with pytest.raises(penstock.InvalidOption, match="gives each thread a copy"):
        list(penstock.DataLoader(dataset, num_workers=2, worker_method="thread"))
    assert_same_as_torch(dataset, worker_methods=("thread",), num_workers=(0,), seed=None)
