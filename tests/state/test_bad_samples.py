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
from tests.sample_datasets import tensor_files

pytestmark = pytest.mark.native

BAD = "id-13"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tensor_files(tmp_path, 20, (2, 3), "id-{:02}")


def fails_at_batch_three(dataset: Any, kind: type[Exception], *words: str) -> penstock.SampleError:
    """Assert that sample 13 in batches of 4 raises this at the fourth batch, for every number of workers."""
    error: Any = None  # the traceback of an error holds frames, and so the batch: it is cut below
    held = set()
    for workers in (0, 1, 2, 8):
        loader = penstock.DataLoader(dataset, batch_size=4, num_workers=workers)
        assert "because" not in loader.explain(), loader.explain()
        for _ in range(2):  # the loader can be used again
            iterator = iter(loader)
            for number in range(3):
                first = next(iterator)
                assert float((first[0] if isinstance(first, list) else first)[0].flatten()[0]) == 4 * number
            with pytest.raises(kind) as caught:
                next(iterator)
            error = caught.value
            assert isinstance(error, penstock.PenstockError)
            for word in words:
                assert word in str(error), f"{word!r} is not in {error}"
            last = next(iterator)  # and so can the iterator
            assert float((last[0] if isinstance(last, list) else last)[0].flatten()[0]) == 16
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
def test_shape_that_does_not_fit(folder: Path, other: torch.Tensor) -> None:
    torch.save(other, folder / f"{BAD}.pt")
    words = [BAD, f"{BAD}.pt", str(tuple(other.shape)), "(2, 3)", "'id-12'", "collate_fn="]
    fails_at_batch_three(penstock.TensorFolder(folder), penstock.ShapeMismatch, *words)


def test_first_sample_of_a_batch_does_not_fit(folder: Path) -> None:
    torch.save(torch.zeros(2, 4), folder / "id-12.pt")
    words = ["'id-13'", "(2, 3)", "(2, 4)", "'id-12'"]
    fails_at_batch_three(penstock.TensorFolder(folder), penstock.ShapeMismatch, *words)


def test_batches_may_differ_from_each_other(folder: Path) -> None:
    for i in range(8, 12):
        torch.save(torch.full((7,), i), folder / f"id-{i:02}.pt")
    for workers in (0, 2):
        batches = list(penstock.DataLoader(penstock.TensorFolder(folder), batch_size=4, num_workers=workers))
        assert [tuple(batch.shape) for batch in batches] == [(4, 2, 3), (4, 2, 3), (4, 7), (4, 2, 3), (4, 2, 3)]
        assert batches[2][:, 0].tolist() == [8, 9, 10, 11]


def test_missing_label(folder: Path) -> None:
    labels = {f"id-{i:02}": i for i in range(20) if i != 13}
    error = fails_at_batch_three(penstock.TensorFolder(folder, labels=labels), KeyError, BAD, "has no label")
    assert isinstance(error, penstock.MissingLabel)
    with pytest.raises(penstock.MissingLabel, match=BAD):
        penstock.TensorFolder(folder, labels=labels)[13]


@pytest.mark.parametrize("name", ["../id-1", "/etc/passwd", "a/../../b", "", ".."])
def test_ids_that_are_no_names(folder: Path, name: str) -> None:
    with pytest.raises(penstock.InvalidID, match="not a name inside"):
        penstock.TensorFolder(folder, ["id-01", name])


def test_arguments(folder: Path) -> None:
    made: Any = penstock.TensorFolder
    for make, kind, words in (
        (lambda: made(folder, ["id-01", 7]), TypeError, "an ID is a string"),
        (lambda: made(folder, "id-01"), TypeError, "not one string"),
        (lambda: made(folder, labels=[1, 2]), TypeError, "labels must be a dict"),
        (lambda: made(folder, ["a\0b"]), penstock.InvalidID, "NUL"),
        (lambda: made(folder / "nowhere"), FileNotFoundError, "no such folder"),
        (lambda: made(folder, suffix=".npy"), FileNotFoundError, r"ends in '\.npy'"),
    ):
        with pytest.raises(kind, match=words):
            make()
    with pytest.raises(penstock.InvalidOption, match="exclude each other"):
        penstock.DataLoader(penstock.TensorFolder(folder), seed=1, generator=torch.Generator())
    with pytest.raises(TypeError, match="seed must be an integer"):
        penstock.DataLoader(penstock.TensorFolder(folder), seed="1")  # type: ignore[arg-type]
    with pytest.raises(IndexError):
        penstock.TensorFolder(folder)[20]


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


def test_bad_sampler() -> None:
    dataset = penstock.Arrays(np.arange(8))
    for sampler, kind, words in (
        ([0, 1, 8, 2], IndexError, "index 8 is out of range"),
        ([0, 1, -9, 2], IndexError, "index -9 is out of range"),
        ([0, 1, "two", 2], TypeError, "must be integers"),
    ):
        iterator = iter(penstock.DataLoader(dataset, batch_size=2, sampler=sampler, num_workers=2))
        assert next(iterator)[0].tolist() == [0, 1]
        with pytest.raises(kind, match=words):
            next(iterator)

    def broken() -> Any:
        yield [0, 1]
        raise LookupError("the sampler broke")

    class Sampler:
        __iter__ = staticmethod(broken)

    iterator = iter(penstock.DataLoader(dataset, batch_sampler=Sampler(), num_workers=2))
    assert next(iterator)[0].tolist() == [0, 1]
    with pytest.raises(LookupError, match="the sampler broke"):
        next(iterator)


# --- images ----------------------------------------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (tmp_path / "class").mkdir()
    for i in range(20):
        Image.new("RGB", (40, 30), (i, i, i)).save(tmp_path / "class" / f"{i:02}.jpg", quality=100)
    return tmp_path


def image_folder(root: Path, kind: Any) -> Any:
    return kind(str(root), v1.Compose([v1.Resize((16, 16)), v1.PILToTensor()]))


@pytest.mark.parametrize("kind", [torchvision.datasets.ImageFolder, penstock.ImageFolder], ids=["torchvision", "ours"])
@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "text", "bomb"])
def test_bad_image(photos: Path, damage: str, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = photos / "class" / "13.jpg"
    dataset = image_folder(photos, kind)
    words = {
        "missing": "No such file",
        "empty": "is an empty file",
        "truncated": "truncated",
        "text": "not an image",
        "bomb": "MAX_IMAGE_PIXELS",
    }
    if damage == "missing":
        path.unlink()
    elif damage == "bomb":
        Image.new("RGB", (400, 300)).save(path)
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50_000)
    else:
        content = {"empty": b"", "truncated": path.read_bytes()[:-30], "text": b"no pixels here"}[damage]
        path.write_bytes(content)
    wanted = penstock.MissingSample if damage == "missing" else penstock.CorruptSample
    error = fails_at_batch_three(dataset, wanted, str(path), words[damage])
    assert isinstance(error, penstock.ImageTooLarge) is (damage == "bomb")


def test_images_of_different_sizes(photos: Path) -> None:
    Image.new("RGB", (50, 30), (13, 13, 13)).save(photos / "class" / "13.jpg", quality=100)
    dataset = torchvision.datasets.ImageFolder(str(photos), v1.PILToTensor())
    fails_at_batch_three(dataset, penstock.ShapeMismatch, "13.jpg", "(3, 30, 50)", "(3, 30, 40)", "12.jpg")
