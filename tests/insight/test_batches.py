"""One batch of a loader: the samples that its sampler gives, as its own code makes them, and their IDs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from torch.utils.data import BatchSampler, ConcatDataset, Subset

import penstock
from penstock.errors import CorruptSample, InvalidOption
from penstock.insight.view import batch_of, sheet_of
from tests.data import Made, Numbers, Stream, Whole, rows, tensor_files, write_photos
from tests.same import assert_same
from tests.values import listed

OURS = penstock.DataLoader
KINDS: list[Any] = [torch.utils.data.DataLoader, OURS]
both = pytest.mark.parametrize("kind", KINDS)


@both
def test_only_the_samples_of_the_batch_are_read(kind: Any) -> None:
    def make(index: int) -> int:
        read.append(index)
        return index

    read: list[int] = []
    loader = kind(Made(make), batch_size=4, num_workers=0)
    found = batch_of(loader, 3)
    assert listed(found.value) == read == [12, 13, 14, 15] and found.ids == ("12", "13", "14", "15")
    assert not found.listed and "batch 3 of a " in found.about
    assert listed(batch_of(loader, 5).value) == [20, 21, 22]


@both
@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({"batch_size": 5, "shuffle": True}, None),
        ({"batch_size": 5, "sampler": [7, 3, 9, 1, 4, 0, 2]}, ("0", "2")),
        ({"batch_sampler": [[5, 6], [9, 3, 1]]}, ("9", "3", "1")),
        ({"batch_size": 5, "shuffle": True, "drop_last": True, "num_workers": 2, "persistent_workers": True}, None),
        (
            {"batch_size": 5, "num_workers": 1, "multiprocessing_context": "fork", "timeout": 60, "prefetch_factor": 3},
            None,
        ),
    ],
    ids=["shuffle", "sampler", "batch_sampler", "workers", "more"],
)
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_ids_are_those_of_the_samples(kind: Any, options: dict[str, Any], ids: Any) -> None:
    found = batch_of(kind(Made(), **options), 1)
    assert found.ids == tuple(map(str, listed(found.value))) and ids in (None, found.ids)


def test_a_seeded_loader_gives_the_very_batch_of_its_pass(tmp_path: Path) -> None:
    dataset = Made(lambda index: (index, torch.rand(3)))
    cases: list[dict[str, Any]] = [{}, {"shard": (1, 2)}, {"ledger": tmp_path / "run.ledger"}, {"num_workers": 1}]
    for options in cases:
        loader = penstock.DataLoader(dataset, 4, shuffle=True, seed=5, **{"num_workers": 0, **options})
        found = batch_of(loader, 2)
        assert_same(found.value, list(loader)[2])
        assert found.ids == tuple(map(str, listed(found.value[0]))) == tuple(loader.ids(0, 2))
    batch_of(penstock.DataLoader(Made(), 4, ledger=tmp_path / "kept", num_workers=0), 1)
    assert not (tmp_path / "kept").exists()


@both
def test_unbatched_loaders(kind: Any) -> None:
    one = batch_of(kind(Made(), batch_size=None, num_workers=0), 6)
    assert one.value == [6] and one.ids == ("6",) and one.listed
    sampler = BatchSampler(range(23), 4, drop_last=False)
    several = batch_of(kind(rows(23), batch_size=None, sampler=sampler, num_workers=0), 1)
    assert listed(several.value[0]) == [4, 5, 6, 7] and several.ids == ("4", "5", "6", "7")


class OwnPass(torch.utils.data.DataLoader[Any]):
    def __iter__(self) -> Any:
        return (batch * 2 for batch in super().__iter__())


def test_what_can_only_be_gone_through() -> None:
    assert listed(batch_of(OwnPass(Made(), batch_size=4), 1).value) == [8, 10, 12, 14]
    for kind in KINDS:
        found = batch_of(kind(Stream(), batch_size=4, num_workers=0), 1)
        assert listed(found.value) == [4, 5, 6, 7] and found.ids is None
    assert listed(batch_of(Stream(), 1, batch_size=3).value) == [3, 4, 5]
    assert batch_of((torch.full((2,), float(n)) for n in range(3)), 2).value.tolist() == [2.0, 2.0]
    sheet = sheet_of(penstock.DataLoader(Stream(), 4, num_workers=0))
    assert [cell.id for cell in sheet.cells] == ["#0", "#1", "#2", "#3"]


def test_datasets_get_a_loader(tmp_path: Path) -> None:
    folder = penstock.TensorFolder(tensor_files(tmp_path / "data", 9, (3, 8, 8)))
    found = batch_of(folder, 1, batch_size=4)
    assert found.ids == ("04", "05", "06", "07") and [one.shape for one in found.value] == [(3, 8, 8)] * 4
    assert len(batch_of(folder).value) == 9
    shuffled = [batch_of(folder, 0, shuffle=True, seed=seed).ids for seed in (1, 1, 2)]
    assert shuffled[0] == shuffled[1] != shuffled[2]
    assert len(batch_of(folder, 0, shuffle=True).ids or ()) == 9


def test_images_without_a_transform_are_shown_one_by_one(tmp_path: Path) -> None:
    folder = penstock.ImageFolder(write_photos(tmp_path / "photos", count=2))
    cells = sheet_of(folder).cells
    assert [cell.id for cell in cells][:2] == ["cat/1.jpg", "cat/picture.png"]
    assert [cell.texts[0] for cell in cells] == ["0 cat"] * 3 + ["1 dog"] * 3
    assert_same([cell.pictures[0].pixels for cell in cells], [np.asarray(folder[n][0]) for n in range(6)])


def test_a_known_normalisation_is_undone(tmp_path: Path) -> None:
    transforms = pytest.importorskip("torchvision.transforms", reason="torchvision is not installed")
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)
    steps = [transforms.Resize((16, 16)), transforms.ToTensor(), transforms.Normalize(mean, std)]
    root = write_photos(tmp_path / "photos", count=2)
    plain, folder, twice = (
        penstock.ImageFolder(root, transforms.Compose(chain)) for chain in (steps[:2], steps, [*steps, steps[2]])
    )
    sheet = sheet_of(penstock.DataLoader(folder, 4, num_workers=1))
    assert "after a normalisation was undone (mean 0.4, 0.5, 0.6; std 0.2, 0.3, 0.25)" in sheet.notes[-1]
    for number, cell in enumerate(sheet.cells):
        expected = np.rint(plain[number][0].permute(1, 2, 0).numpy() * 255)
        assert np.array_equal(cell.pictures[0].pixels, expected)
    assert "from black to white" in sheet_of(folder, as_is=True).notes[-1]
    assert "after a normalisation was undone (mean 0.4" in sheet_of(Subset(folder, [0])).notes[-1]
    others: list[Any] = [ConcatDataset([folder, plain]), twice, plain]
    for other in others:
        assert "undone" not in sheet_of(other).notes[-1]


def test_names_of_classes(tmp_path: Path) -> None:
    folder = penstock.ImageFolder(write_photos(tmp_path / "photos", count=2))
    penstock.pack(folder, tmp_path / "packed")
    pets = [folder, Subset(folder, [1]), ConcatDataset([folder, folder]), penstock.Shards(tmp_path / "packed")]
    assert [sheet_of(dataset, 0).cells[-1].texts for dataset in pets] == [
        ("1 dog",),
        ("0 cat",),
        ("1 dog",),
        ("1 dog",),
    ]
    of_hugging_face: Any = Made(lambda index: {"image": np.zeros((8, 8, 3), np.uint8), "label": index}, 2)
    of_hugging_face.features = {"image": object(), "label": SimpleNamespace(names=["a", "b"])}
    assert [cell.texts for cell in sheet_of(of_hugging_face).cells] == [("label: 0 a",), ("label: 1 b",)]
    mixed: Any = ConcatDataset([folder, Made(lambda index: (np.zeros((8, 8, 3), np.uint8), index), 2)])
    assert sheet_of(mixed).cells[-1].texts == ("1",)
    folder.target_transform = str  # the labels are numbers of classes no more
    assert sheet_of(folder).cells[-1].texts == ("1",)


@both
@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_sample_is_named(kind: Any, workers: int) -> None:
    loader = kind(Numbers(bad=[6]), batch_size=4, num_workers=workers)
    with pytest.raises(InvalidOption, match=r"batch 1 of .* failed: ValueError: .* of sample 6") as raised:
        batch_of(loader, 1)
    assert raised.value.__cause__ is not None
    assert listed(batch_of(loader).value) == [0, 1, 2, 3]


def bad(index: int) -> int:
    raise OSError(5, "Input/output error")


class Broken(Made):
    def __len__(self) -> int:
        raise RuntimeError("no length")


SHAPES = Made(lambda index: torch.zeros(index + 1))
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: batch_of(Made(bad)), r"batch 0 of a Made failed: OSError: .* of sample 0"),
    (lambda: batch_of(Whole(bad)), r"batch 0 of a Whole failed: OSError: .*samples \[0, 1, 2"),
    (lambda: batch_of(Stream(make=bad)), r"batch 0 of a Stream failed: OSError"),
    (
        lambda: batch_of(OURS(Numbers([22]), 4, seed=1, num_workers=0), 5),
        "batch 5 .* failed: ValueError: number 22 is bad",
    ),
    (lambda: batch_of(OURS(SHAPES, 4, num_workers=0)), r"batch 0 of .*stack expects each tensor.*samples \[0, 1"),
    (lambda: batch_of(OURS(Made(), 4, seed=1), 9), r"no batch 9: a penstock\.DataLoader has 6 batches"),
    (lambda: batch_of(iter(range(3)), 3), "has 3 batches"),
    (lambda: batch_of(Made(size=0)), "a Made, is empty"),
    (lambda: batch_of(Stream(size=0)), "no batch to show"),
    (lambda: batch_of(Made(), -1), "counted from 0"),
    (lambda: batch_of(Broken()), "RuntimeError: no length"),
    (lambda: batch_of(Stream(), 0, shuffle=True), "expected unspecified shuffle option"),
]


def refused_by(kind: Any) -> list[tuple[Callable[[], Any], str]]:
    return [
        (lambda: batch_of(kind(Made(), 4), 6), r"no batch 6: a .*DataLoader has 6 batches"),
        (lambda: batch_of(kind(Made(size=0), 4)), "no batch to show"),
        (lambda: batch_of(kind(Made(size=3), 4, drop_last=True)), "no batch to show"),
        (lambda: batch_of(kind(Made()), 0, shuffle=True), "options of a dataset"),
    ]


@pytest.mark.parametrize(("call", "words"), [*REFUSED, *refused_by(KINDS[0]), *refused_by(KINDS[1])])
def test_refused(call: Any, words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        call()


def test_samples_that_are_torn_or_unlike(tmp_path: Path) -> None:
    root = tensor_files(tmp_path / "data", 3)
    (root / "01.pt").write_bytes(b"torn")
    with pytest.raises(CorruptSample, match="'01'"):
        batch_of(penstock.TensorFolder(root))
    assert len(batch_of(SHAPES).value) == 23  # one by one
