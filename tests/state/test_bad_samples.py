"""Bad input: one clear error at the batch it belongs to, earlier batches delivered, the loader usable again."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torchvision import transforms as v1

import penstock
from tests.data import tensor_files

pytestmark = pytest.mark.native

BAD = "id-13"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tensor_files(tmp_path, 20, (2, 3), "id-{:02}")


def first_number(batch: Any) -> float:
    return float((batch[0] if isinstance(batch, list) else batch)[0].flatten()[0])


def fails_at_batch_three(dataset: Any, kind: type[Exception], *words: str) -> penstock.SampleError:
    """Assert that sample 13 in batches of 4 raises this at the fourth batch, for every number of workers."""
    error: Any = None  # the traceback of an error holds frames, and so the batch: it is cut below
    held = set()
    for workers in (0, 1, 2, 8):
        loader = penstock.DataLoader(dataset, batch_size=4, num_workers=workers)
        assert "because" not in loader.explain(), loader.explain()
        for _ in range(2):  # the loader can be used again
            iterator = iter(loader)
            assert [first_number(next(iterator)) for _ in range(3)] == [0, 4, 8]
            with pytest.raises(kind) as caught:
                next(iterator)
            error = caught.value
            assert isinstance(error, penstock.PenstockError)
            assert [word for word in words if word not in str(error)] == [], error
            assert first_number(next(iterator)) == 16  # and so can the iterator
            assert next(iterator, None) is None
            del iterator, caught
            error.__traceback__ = error.__cause__ = error.__context__ = None
            gc.collect()
            held.add(len(os.listdir("/proc/self/fd")))
    assert len(held) == 1, "descriptors leak"
    return error


class Evil:
    """Makes a folder where a pickle of it is loaded."""

    def __init__(self, path: Path) -> None:
        self.made = path.parent / "executed"

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.made),)


def link_out_of_root(path: Path) -> None:
    outside = path.parent.parent / f"secret-{path.parent.name}.pt"
    path.rename(outside)
    path.symlink_to(outside)


def in_its_place(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


NO_TENSOR = penstock.CorruptSample, "cannot be read as a tensor"
NO_FILE = penstock.UnreadableSample, "cannot be read"
#: What becomes of a file, the error, and what it says besides the ID and the path.
DAMAGES: dict[str, tuple[Callable[[Path], object], type[penstock.SampleError], str]] = {
    "missing": (lambda path: path.unlink(), penstock.MissingSample, "No such file"),
    "empty": (lambda path: path.write_bytes(b""), penstock.CorruptSample, "empty file"),
    "zip": (lambda path: path.write_bytes(b"PK\x03\x04 no zip"), *NO_TENSOR),
    "npy": (lambda path: path.write_bytes(b"\x93NUMPY\x01\x00 no header"), *NO_TENSOR),
    "text": (lambda path: path.write_bytes(b"just text"), *NO_TENSOR),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-200]), *NO_TENSOR),
    "list": (lambda path: torch.save([torch.zeros(2, 3)], path), penstock.CorruptSample, "holds a list, not one dense"),
    "sparse": (lambda path: torch.save(torch.eye(3).to_sparse(), path), penstock.CorruptSample, "sparse"),
    "code": (lambda path: torch.save(Evil(path), path), penstock.CorruptSample, "weights"),
    "nine dimensions": (lambda path: torch.save(torch.zeros([1] * 9), path), penstock.CorruptSample, "9 dimensions"),
    "link out of root": (link_out_of_root, penstock.OutsideRoot, "out of its root folder"),
    "folder": (in_its_place(lambda path: path.mkdir()), *NO_FILE),
    "pipe": (in_its_place(os.mkfifo), *NO_FILE),
    # A link to itself cannot be opened, not even by root.
    "unreadable": (in_its_place(lambda path: path.symlink_to(path.name)), *NO_FILE),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_file(folder: Path, name: str) -> None:
    damage, kind, words = DAMAGES[name]
    path, ids = folder / f"{BAD}.pt", [f"id-{i:02}" for i in range(20)]
    damage(path)
    error = fails_at_batch_three(penstock.TensorFolder(folder, ids), kind, BAD, str(path), words)
    assert (error.sample_id, error.path) == (BAD, str(path))
    assert not (folder / "executed").exists(), "code in a file is never run"
    if name != "nine dimensions":
        with pytest.raises(kind, match=BAD):
            penstock.TensorFolder(folder, ids)[13]


@pytest.mark.parametrize(
    "other", [torch.zeros(2, 4), torch.zeros(6), torch.zeros(2, 3, dtype=torch.float64)], ids=["shape", "ndim", "dtype"]
)
@pytest.mark.parametrize("bad", ["id-13", "id-12"])  # the second of its batch, or the first
def test_shape_that_does_not_fit(folder: Path, bad: str, other: torch.Tensor) -> None:
    torch.save(other, folder / f"{bad}.pt")
    words = ["'id-13'", "id-13.pt", str(tuple(other.shape)), "(2, 3)", "'id-12'", "collate_fn="]
    fails_at_batch_three(penstock.TensorFolder(folder), penstock.ShapeMismatch, *words)


def test_batches_may_differ_from_each_other(folder: Path) -> None:
    for i in range(8, 12):
        torch.save(torch.full((7,), i), folder / f"id-{i:02}.pt")
    for workers in (0, 2):
        batches = list(penstock.DataLoader(penstock.TensorFolder(folder), batch_size=4, num_workers=workers))
        assert [tuple(batch.shape) for batch in batches] == [(4, 2, 3), (4, 2, 3), (4, 7), (4, 2, 3), (4, 2, 3)]
        assert batches[2][:, 0].tolist() == [8, 9, 10, 11]


def test_missing_label(folder: Path) -> None:
    dataset = penstock.TensorFolder(folder, labels={f"id-{i:02}": i for i in range(20) if i != 13})
    error = fails_at_batch_three(dataset, KeyError, BAD, "has no label")
    assert isinstance(error, penstock.MissingLabel)
    with pytest.raises(penstock.MissingLabel, match=BAD):
        dataset[13]


def test_arguments(folder: Path) -> None:
    made: Any = penstock.TensorFolder

    def loader(**options: Any) -> Any:
        return penstock.DataLoader(made(folder), **options)

    calls: list[tuple[Any, Any, str]] = [
        *(
            (lambda name=name: made(folder, ["id-01", name]), penstock.InvalidID, "not a name inside")
            for name in ("../id-1", "/etc/passwd", "a/../../b", "", "..")
        ),
        (lambda: made(folder, ["id-01", 7]), TypeError, "an ID is a string"),
        (lambda: made(folder, "id-01"), TypeError, "not one string"),
        (lambda: made(folder, labels=[1, 2]), TypeError, "labels must be a dict"),
        (lambda: made(folder, ["a\0b"]), penstock.InvalidID, "NUL"),
        (lambda: made(folder / "nowhere"), FileNotFoundError, "no such folder"),
        (lambda: made(folder, suffix=".npy"), FileNotFoundError, r"ends in '\.npy'"),
        (lambda: loader(seed=1, generator=torch.Generator()), penstock.InvalidOption, "exclude each other"),
        (lambda: loader(seed="1"), TypeError, "seed must be an integer"),
        (lambda: made(folder)[20], IndexError, ".*"),
    ]
    for call, kind, words in calls:
        with pytest.raises(kind, match=words):
            call()


def test_array_arguments(tmp_path: Path) -> None:
    given: list[tuple[tuple[Any, ...], Any, str]] = [
        ((), penstock.InvalidOption, "at least one"),
        ((np.array(1.0),), penstock.InvalidOption, "0-dimensional"),
        ((np.zeros(2), np.zeros(3)), penstock.InvalidOption, "has 3 rows, the first array has 2"),
        ((np.array(["a", "b"]),), TypeError, "cannot be a tensor"),
        ((np.zeros(2, dtype=">f4"),), TypeError, "byte order"),
        (([1, 2],), TypeError, "not list"),
        ((tmp_path / "none.npy",), penstock.MissingSample, "no such file"),
    ]
    for arrays, kind, words in given:
        with pytest.raises(kind, match=words):
            penstock.Arrays(*arrays)
    np.save(tmp_path / "a.npy", np.zeros(1000))
    content = (tmp_path / "a.npy").read_bytes()
    for name, part in {"short": content[:-8], "empty": b"", "header": content[:20]}.items():
        (tmp_path / f"{name}.npy").write_bytes(part)
        with pytest.raises(penstock.CorruptSample, match=f"{name}.npy is not a readable .npy file"):
            penstock.Arrays(tmp_path / f"{name}.npy")


@pytest.mark.parametrize(
    ("indices", "kind", "words"),
    [
        ([0, 1, 8, 2], IndexError, "index 8 is out of range"),
        ([0, 1, -9, 2], IndexError, "index -9 is out of range"),
        ([0, 1, "two", 2], TypeError, "must be integers"),
        (None, LookupError, "the sampler broke"),
    ],
)
def test_bad_sampler(indices: Any, kind: type[Exception], words: str) -> None:
    def broken() -> Any:
        yield [0, 1]
        raise LookupError("the sampler broke")

    class Sampler:
        __iter__ = staticmethod(broken)

    options: Any = {"batch_sampler": Sampler()} if indices is None else {"batch_size": 2, "sampler": indices}
    iterator = iter(penstock.DataLoader(penstock.Arrays(np.arange(8)), num_workers=2, **options))
    assert next(iterator)[0].tolist() == [0, 1]
    with pytest.raises(kind, match=words):
        next(iterator)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (tmp_path / "class").mkdir()
    for i in range(20):
        Image.new("RGB", (40, 30), (i, i, i)).save(tmp_path / "class" / f"{i:02}.jpg", quality=100)
    return tmp_path


#: What becomes of an image, and what the error says.
BAD_IMAGES = {
    "missing": "No such file", "empty": "is an empty file", "truncated": "truncated", "text": "not an image",
    "bomb": "MAX_IMAGE_PIXELS",
}  # fmt: skip


@pytest.mark.parametrize("kind", [torchvision.datasets.ImageFolder, penstock.ImageFolder], ids=["torchvision", "ours"])
@pytest.mark.parametrize("damage", BAD_IMAGES)
def test_bad_image(photos: Path, damage: str, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = photos / "class" / "13.jpg"
    dataset = kind(str(photos), v1.Compose([v1.Resize((16, 16)), v1.PILToTensor()]))
    contents = {"empty": b"", "truncated": path.read_bytes()[:-30], "text": b"no pixels here"}
    path.unlink()
    if damage == "bomb":
        Image.new("RGB", (400, 300)).save(path)
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50_000)
    elif damage != "missing":
        path.write_bytes(contents[damage])
    wanted = penstock.MissingSample if damage == "missing" else penstock.CorruptSample
    error = fails_at_batch_three(dataset, wanted, str(path), BAD_IMAGES[damage])
    assert isinstance(error, penstock.ImageTooLarge) is (damage == "bomb")


def test_images_of_different_sizes(photos: Path) -> None:
    Image.new("RGB", (50, 30), (13, 13, 13)).save(photos / "class" / "13.jpg", quality=100)
    dataset = torchvision.datasets.ImageFolder(str(photos), v1.PILToTensor())
    fails_at_batch_three(dataset, penstock.ShapeMismatch, "13.jpg", "(3, 30, 50)", "(3, 30, 40)", "12.jpg")
