"""Which batch of a loader `penstock view` shows: the samples that its sampler gives, as its own code makes them."""

from __future__ import annotations

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
from tests.data import Made, Numbers, Stream, Whole, rows, tensor_files, write_photos
from tests.insight.sheets import viewed
from tests.same import assert_same

OURS = penstock.DataLoader
KINDS: list[Any] = [torch.utils.data.DataLoader, OURS]
both = pytest.mark.parametrize("kind", KINDS)


def numbers(what: Any, batch: int = 0, *options: str) -> tuple[list[str], list[str]]:
    """Return the IDs of a batch's samples, and what is shown of them."""
    sheet = viewed(what, "--batch", str(batch), *options)
    return sheet.ids, [text for (text,) in sheet.texts]


@both
def test_only_the_samples_of_the_batch_are_read(kind: Any) -> None:
    def make(index: int) -> int:
        read.append(index)
        return index

    read: list[int] = []
    loader = kind(Made(make), batch_size=4, num_workers=0)
    assert numbers(loader, 3) == (["12", "13", "14", "15"],) * 2 and read == [12, 13, 14, 15]
    assert "batch 3 of a " in viewed(loader, "--batch", "3").title
    assert numbers(loader, 5) == (["20", "21", "22"],) * 2


@both
@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({"batch_size": 5, "shuffle": True}, None),
        ({"batch_size": 5, "sampler": [7, 3, 9, 1, 4, 0, 2]}, ["0", "2"]),
        ({"batch_sampler": [[5, 6], [9, 3, 1]]}, ["9", "3", "1"]),
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
    found, shown = numbers(kind(Made(), **options), 1)
    assert found == shown and ids in (None, found)


def test_a_seeded_loader_gives_the_very_batch_of_its_pass(tmp_path: Path) -> None:
    dataset = Made(lambda index: float(torch.rand(1)))
    cases: list[dict[str, Any]] = [{}, {"shard": (1, 2)}, {"ledger": tmp_path / "run.ledger"}, {"num_workers": 1}]
    for options in cases:
        loader = OURS(dataset, 4, shuffle=True, seed=5, **{"num_workers": 0, **options})
        ids, shown = numbers(loader, 2)
        assert shown == [f"{number:.6g}" for number in list(loader)[2].tolist()] and ids == loader.ids(0, 2)
    numbers(OURS(Made(), 4, ledger=tmp_path / "kept", num_workers=0), 1)
    assert not (tmp_path / "kept").exists()


@both
def test_unbatched_loaders(kind: Any) -> None:
    assert numbers(kind(Made(), batch_size=None, num_workers=0), 6) == (["6"], ["6"])
    sampler = BatchSampler(range(23), 4, drop_last=False)
    loader = kind(rows(23), batch_size=None, sampler=sampler, num_workers=0)
    assert viewed(loader, "--batch", "1").texts == [(f"0: {number}",) for number in range(4, 8)]


class OwnPass(torch.utils.data.DataLoader[Any]):
    def __iter__(self) -> Any:
        return (batch * 2 for batch in super().__iter__())


def test_what_can_only_be_gone_through() -> None:
    numbered = ["#0", "#1", "#2", "#3"]
    assert numbers(OwnPass(Made(), batch_size=4), 1) == (numbered, ["8", "10", "12", "14"])
    for kind in KINDS:
        assert numbers(kind(Stream(), batch_size=4, num_workers=0), 1) == (numbered, ["4", "5", "6", "7"])
    assert numbers(Stream(), 1, "--batch-size", "3") == (["#0", "#1", "#2"], ["3", "4", "5"])
    assert numbers((torch.full((2,), float(n)) for n in range(3)), 2) == (["#0", "#1"], ["2", "2"])


def test_datasets_get_a_loader(tmp_path: Path) -> None:
    folder = penstock.TensorFolder(tensor_files(tmp_path / "data", 9, (3, 8, 8)))
    found = viewed(folder, "--batch", "1", "--batch-size", "4")
    assert found.ids == ["04", "05", "06", "07"] and [cell.pictures[0].shape for cell in found.cells] == [(8, 8, 3)] * 4
    assert len(viewed(folder).cells) == len(viewed(folder, "--shuffle").cells) == 9
    shuffled = [viewed(folder, "--shuffle", "--seed", seed).ids for seed in ("1", "1", "2")]
    assert shuffled[0] == shuffled[1] != shuffled[2]


def test_images_without_a_transform_are_shown_one_by_one(tmp_path: Path) -> None:
    folder = penstock.ImageFolder(write_photos(tmp_path / "photos", count=2))
    sheet = viewed(folder)
    assert sheet.ids[:2] == ["cat/1.jpg", "cat/picture.png"]
    assert sheet.texts == [("0 cat",)] * 3 + [("1 dog",)] * 3
    assert_same([cell.pictures[0] for cell in sheet.cells], [np.asarray(folder[n][0]) for n in range(6)])


def test_the_normalisation_of_a_transform_is_undone(tmp_path: Path) -> None:
    transforms = pytest.importorskip("torchvision.transforms", reason="torchvision is not installed")
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)
    steps = [transforms.Resize((16, 16)), transforms.ToTensor(), transforms.Normalize(mean, std)]
    root = write_photos(tmp_path / "photos", count=2)
    plain, folder, twice = (
        penstock.ImageFolder(root, transforms.Compose(chain)) for chain in (steps[:2], steps, [*steps, steps[2]])
    )
    sheet = viewed(OURS(folder, 4, num_workers=1))
    assert "after a normalisation was undone (mean 0.4, 0.5, 0.6; std 0.2, 0.3, 0.25)" in sheet.notes[-1]
    for number, cell in enumerate(sheet.cells):
        expected = np.rint(plain[number][0].permute(1, 2, 0).numpy() * 255)
        assert np.array_equal(cell.pictures[0], expected)
    assert "from black to white" in viewed(folder, "--as-is").notes[-1]
    assert "after a normalisation was undone (mean 0.4" in viewed(Subset(folder, [0])).notes[-1]
    others: list[Any] = [ConcatDataset([folder, plain]), twice, plain]
    for other in others:
        assert "undone" not in viewed(other).notes[-1]


def test_names_of_classes(tmp_path: Path) -> None:
    folder = penstock.ImageFolder(write_photos(tmp_path / "photos", count=2))
    penstock.pack(folder, tmp_path / "packed")
    pets = [folder, ConcatDataset([folder, folder]), penstock.Shards(tmp_path / "packed"), Subset(folder, [1])]
    assert [viewed(one).texts[-1] for one in pets] == [("1 dog",), ("1 dog",), ("1 dog",), ("0 cat",)]
    of_hugging_face: Any = Made(lambda index: {"image": np.zeros((8, 8, 3), np.uint8), "label": index}, 2)
    of_hugging_face.features = {"image": object(), "label": SimpleNamespace(names=["a", "b"])}
    assert viewed(of_hugging_face).texts == [("label: 0 a",), ("label: 1 b",)]
    mixed: Any = ConcatDataset([folder, Made(lambda index: (np.zeros((8, 8, 3), np.uint8), index), 2)])
    assert viewed(mixed).texts[-1] == ("1",)
    folder.target_transform = str  # the labels are numbers of classes no more
    assert viewed(folder).texts[-1] == ("1",)


@both
@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_sample_is_named(kind: Any, workers: int) -> None:
    loader = kind(Numbers(bad=[6]), batch_size=4, num_workers=workers)
    with pytest.raises(InvalidOption, match=r"batch 1 of .* failed: ValueError: .* of sample 6") as raised:
        viewed(loader, "--batch", "1")
    assert raised.value.__cause__ is not None
    assert numbers(loader) == (["0", "1", "2", "3"],) * 2


def bad(index: int) -> int:
    raise OSError(5, "Input/output error")


class Broken(Made):
    def __len__(self) -> int:
        raise RuntimeError("no length")


SHAPES = Made(lambda index: torch.zeros(index + 1))
REFUSED: list[tuple[Any, str, str]] = [
    (Made(bad), "", r"batch 0 of a Made failed: OSError: .* of sample 0"),
    (Whole(bad), "", r"batch 0 of a Whole failed: OSError: .*samples \[0, 1, 2"),
    (Stream(make=bad), "", r"batch 0 of a Stream failed: OSError"),
    (OURS(Numbers([22]), 4, seed=1, num_workers=0), "--batch 5", "batch 5 .* failed: ValueError: number 22 is bad"),
    (OURS(SHAPES, 4, num_workers=0), "", r"batch 0 of .*stack expects each tensor.*samples \[0, 1"),
    (OURS(Made(), 4, seed=1), "--batch 9", r"no batch 9: a penstock\.DataLoader has 6 batches"),
    (iter(range(3)), "--batch 3", "has 3 batches"),
    (Made(size=0), "", "a Made, is empty"),
    (Stream(size=0), "", "no batch to show"),
    (Broken(), "", "RuntimeError: no length"),
    (Stream(), "--shuffle", "expected unspecified shuffle option"),
    *((kind(Made(), 4), "--batch 6", r"no batch 6: a .*DataLoader has 6 batches") for kind in KINDS),
    *((kind(Made(size=0), 4), "", "no batch to show") for kind in KINDS),
    *((kind(Made(size=3), 4, drop_last=True), "", "no batch to show") for kind in KINDS),
    *((kind(Made()), "--shuffle", "options of a dataset") for kind in KINDS),
]


@pytest.mark.parametrize(("what", "options", "words"), REFUSED)
def test_refused(what: Any, options: str, words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        viewed(what, *options.split())


def test_samples_that_are_torn_or_unlike(tmp_path: Path) -> None:
    root = tensor_files(tmp_path / "data", 3)
    (root / "01.pt").write_bytes(b"torn")
    with pytest.raises(CorruptSample, match="'01'"):
        viewed(penstock.TensorFolder(root))
    assert len(viewed(SHAPES).cells) == 23  # one by one
