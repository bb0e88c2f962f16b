"""Slips of a first hour: each is an error, when the object is made, that says what to write."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

import penstock as typed_penstock

penstock: Any = typed_penstock  # what these calls give it is of the wrong type
NUMBERS: Any = list(range(8))


class Table(dict[str, list[str]]):
    """A table whose items are its columns, as a DataFrame's are."""


class Frame(Table):
    """A table that has what a DataFrame of pandas has."""

    columns = iloc = ()


def cached(root: Path, name: str) -> None:
    """Read a folder of tensors with a cache that cannot be made."""
    torch.save(torch.zeros(1), root / "a.pt")
    (root / "file").touch()
    list(penstock.DataLoader(penstock.TensorFolder(root, ["a"]), cache=root / name))


SLIPS: dict[str, tuple[Callable[[Path], Any], type[Exception], str]] = {
    "size": (lambda _: penstock.DataLoader(NUMBERS, cache="8 gigs"), penstock.InvalidOption, "'8GiB'"),
    "size with a folder": (lambda _: penstock.DataLoader(NUMBERS, cache=["1GiB", "8gb?"]), ValueError, "'8GiB'"),
    "table": (lambda _: penstock.Images(Table(file=["a.jpg"])), TypeError, r"columns of a Table: Images\(t\['file'\]"),
    "transform": (lambda root: penstock.ImageFolder(root, 224), TypeError, r"transform=224 .*Resize\(224\)"),
    "target_transform": (lambda _: penstock.Images(['a.jpg'], target_transform=3), TypeError, "target_transform=3"),
    "padded": (lambda _: penstock.DataLoader(NUMBERS, collate_fn=penstock.Padded), ValueError, r"Padded\(\)"),
    "sampler": (
        lambda _: penstock.DataLoader(NUMBERS, sampler=penstock.Buckets([1] * 8, batch_size=2)),
        penstock.InvalidOption,
        "batch_sampler=Buckets",
    ),
    "views": (lambda _: penstock.Views(v1.ToTensor()), TypeError, r"Views\(\[ToTensor"),
    "path": (lambda _: penstock.DataLoader("data/train"), penstock.InvalidOption, r"ImageFolder\('data/train'\)"),
    "path object": (lambda root: penstock.DataLoader(root), penstock.InvalidOption, "ImageFolder"),
    "no images": (lambda _: penstock.Images([]), penstock.InvalidOption, r"Images\(\[\]\) has no sample"),
    "frame": (lambda _: penstock.DataLoader(Frame()), penstock.InvalidOption, "is a DataFrame, .* columns"),
    "keyword": (lambda _: penstock.DataLoader(NUMBERS, shufle=True), TypeError, "'shufle'. Did you mean 'shuffle'?"),
    "text": (lambda _: penstock.DataLoader(NUMBERS, shuffle="False"), penstock.InvalidOption, "shuffle='False'.*write"),
    "in_order": (lambda _: penstock.DataLoader(NUMBERS, in_order="no"), penstock.InvalidOption, "in_order='no'"),
    "shard size": (lambda root: penstock.pack(NUMBERS, root, shard_size=5), ValueError, "'256MiB'"),
    "cache": (lambda root: cached(root, "file"), NotADirectoryError, "cache=.*file. is not a folder that can"),
    "cache below a file": (lambda root: cached(root, "file/x"), NotADirectoryError, "cache='.*file/x' is not a folder"),
    "class": (lambda _: penstock.DataLoader(Table), penstock.InvalidOption, r"class Table: give .* Table\(\.\.\.\)"),
    "state": (
        lambda _: penstock.DataLoader(NUMBERS).load_state_dict(torch.nn.Linear(2, 1).state_dict()),
        penstock.InvalidOption,
        "state_dict.*of a loader.*'weight', 'bias'",
    ),
    "manifest": (lambda _: penstock.Replace(manifest=3), penstock.InvalidOption, "manifest=3"),
}  # fmt: skip


class Photos(Dataset[Any]):
    """Photos with a transform, which only Python reads."""

    def __init__(self, folder: Path, transform: Any) -> None:
        self.files, self.transform = sorted(folder.glob("*/*.png")), transform or (lambda image: image)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.open(self.files[index]).convert("RGB")), index


RESIZED = v1.Compose([v1.Resize(8), v1.ToTensor()])
ROUTES: tuple[dict[str, Any], ...] = ({}, {"num_workers": 1}, {"num_workers": 1, "worker_method": "thread"})


@pytest.mark.parametrize(("transform", "words"), [(RESIZED, "write Resize((8, 8))"), (None, "ends with ToTensor()")])
@pytest.mark.parametrize("kind", [penstock.ImageFolder, ImageFolder, Photos])
@pytest.mark.parametrize("route", ROUTES, ids=["inline", "processes", "threads"])
def test_photos_that_make_no_batch(
    route: dict[str, Any], kind: Any, transform: Any, words: str, tmp_path: Path
) -> None:
    (tmp_path / "cat").mkdir()
    for number, size in enumerate([(20, 10), (30, 10)]):
        Image.new("RGB", size).save(tmp_path / "cat" / f"{number}.png")
    with pytest.raises((RuntimeError, TypeError)) as caught:
        list(penstock.DataLoader(kind(tmp_path, transform), 2, **route))
    assert words in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_answered(slip: str, tmp_path: Path) -> None:
    act, kind, words = SLIPS[slip]
    with pytest.raises(kind, match=words):
        act(tmp_path)


def test_what_looks_like_a_slip_and_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for cache in ("cache", "./8 gigs", tmp_path / "8", "8GB"):
        penstock.DataLoader(NUMBERS, cache=cache)
    batches = penstock.Buckets([1] * 8, batch_size=2, shuffle=False)
    assert [x.tolist() for x in penstock.DataLoader(torch.arange(8), None, sampler=batches)] == [
        [0, 1], [2, 3], [4, 5], [6, 7]
    ]  # fmt: skip
    batch: Any = penstock.DataLoader(NUMBERS, 2, collate_fn=tuple)
    assert list(batch) == [(0, 1), (2, 3), (4, 5), (6, 7)]
