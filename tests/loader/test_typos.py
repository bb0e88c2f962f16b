"""Slips of a first hour: each is an error, when the object is made, that says what to write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision import transforms as v1

import penstock as typed_penstock
from penstock.packing.foreign import index

penstock: Any = typed_penstock  # what these calls give it is of the wrong type
NUMBERS: Any = list(range(8))


class Table(dict[str, list[str]]):
    """A table whose items are its columns, as a DataFrame's are."""


SLIPS: dict[str, tuple[Callable[[Path], Any], type[Exception], str]] = {
    "size": (lambda _: penstock.DataLoader(NUMBERS, cache="8 gigs"), penstock.InvalidOption, "'8GiB'"),
    "size with a folder": (lambda _: penstock.DataLoader(NUMBERS, cache=["1GiB", "8gb?"]), ValueError, "'8GiB'"),
    "table": (lambda _: penstock.Images(Table(file=["a.jpg"])), TypeError, r"columns of a Table: Images\(t\['file'\]"),
    "transform": (lambda root: penstock.ImageFolder(root, 224), TypeError, r"transform=224 .*Resize\(224\)"),
    "target_transform": (lambda _: penstock.Images([], target_transform=3), TypeError, "target_transform=3"),
    "padded": (lambda _: penstock.DataLoader(NUMBERS, collate_fn=penstock.Padded), ValueError, r"Padded\(\)"),
    "sampler": (
        lambda _: penstock.DataLoader(NUMBERS, sampler=penstock.Buckets([1] * 8, batch_size=2)),
        penstock.InvalidOption,
        "batch_sampler=Buckets",
    ),
    "views": (lambda _: penstock.Views(v1.ToTensor()), TypeError, r"Views\(\[ToTensor"),
    "path": (lambda _: penstock.DataLoader("data/train"), penstock.InvalidOption, r"ImageFolder\('data/train'\)"),
    "path object": (lambda root: penstock.DataLoader(root), penstock.InvalidOption, "ImageFolder"),
    "class": (lambda _: penstock.DataLoader(Table), penstock.InvalidOption, r"class Table: give .* Table\(\.\.\.\)"),
    "state": (
        lambda _: penstock.DataLoader(NUMBERS).load_state_dict(torch.nn.Linear(2, 1).state_dict()),
        penstock.InvalidOption,
        "state_dict.*of a loader.*'weight', 'bias'",
    ),
    "manifest": (lambda _: penstock.Replace(manifest=3), penstock.InvalidOption, "manifest=3"),
    "index": (lambda root: index(root / "nothere"), penstock.InvalidOption, "nothere does not exist.*tar"),
    "indices": (lambda root: index([root / "a.tar"]), penstock.InvalidOption, "a.tar does not exist"),
}  # fmt: skip


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
