"""Datasets that read from stores of many samples: HDF5, LMDB, archives, pickles and joblib's files."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
import zipfile
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms as T

import penstock
from penstock.testing import assert_same_as_torch
from tests.own_datasets.conformance import assert_conforms, kinds, optional

h5py, joblib, lmdb = optional("h5py"), optional("joblib"), optional("lmdb")
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


class Tar(Store):
    """Members by their offsets, as WebDataset's indexed files have it."""

    def write(self, photos: list[Path]) -> None:
        with tarfile.open(self.path, "w") as archive:
            for i, photo in enumerate(photos):
                archive.add(photo, f"{i}.jpg")
        with tarfile.open(self.path) as archive:
            self.members = [(member.offset_data, member.size) for member in archive.getmembers()]

    def __getitem__(self, index: int) -> Any:
        offset, size = self.members[index]
        with open(self.path, "rb") as file:
            file.seek(offset)
            return transformed(io.BytesIO(file.read(size)))


class Gzip(Store):
    """Tensors in compressed files, one a sample, and a pickle of all labels."""

    def write(self, photos: list[Path]) -> None:
        for i in range(SIZE):
            with gzip.open(self.folder / f"{i}.pt.gz", "wb") as file:
                torch.save(torch.arange(6.0) + i, cast(Any, file))
        self.path.write_bytes(pickle.dumps({i: f"label {i}" for i in range(SIZE)}))
        with open(self.path, "rb") as file:
            self.labels = pickle.load(file)

    def __getitem__(self, index: int) -> Any:
        with gzip.open(self.folder / f"{index}.pt.gz", "rb") as file:
            return torch.load(io.BytesIO(file.read())), self.labels[index]


class Pickles(Store):
    def write(self, photos: list[Path]) -> None:
        for i in range(SIZE):
            sample = {"image": np.full((2, 3), i, np.uint8), "label": i, "tensor": torch.arange(3) * i}
            (self.folder / f"{i}.pkl").write_bytes(pickle.dumps(sample))

    def __getitem__(self, index: int) -> Any:
        with open(self.folder / f"{index}.pkl", "rb") as file:
            return pickle.load(file)


class Joblib(Store):
    needs = ("joblib",)

    def write(self, photos: list[Path]) -> None:
        for i in range(SIZE):
            joblib.dump({"x": np.arange(5) + i}, self.folder / f"{i}.joblib")

    def __getitem__(self, index: int) -> Any:
        return joblib.load(self.folder / f"{index}.joblib")["x"]


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


class Hdf5EachTime(Hdf5):
    def __getitem__(self, index: int) -> Any:
        with h5py.File(self.path, "r") as file:
            return torch.from_numpy(file["images"][index]), int(file["labels"][index])


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


@kinds(Store, Tar, Hdf5, unseeded=(Gzip, Pickles, Joblib, Hdf5EachTime))
def test_stores(kind: Any, seed: int | None, tmp_path: Path, photos: list[Path]) -> None:
    assert_conforms(kind(tmp_path, photos), seed=seed)


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
