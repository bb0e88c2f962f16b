"""One batch of a loader: the samples that its sampler gives, as its own code makes them, and their IDs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from torch.utils.data import BatchSampler, ConcatDataset, Subset, TensorDataset

import penstock
from penstock.errors import CorruptSample, InvalidOption
from penstock.insight.pictures import Normalisation
from penstock.insight.view import _classes, _normalisation, _of_all_parts, batch_of, sheet_of
from tests.packing.packed import write_photos
from tests.sample_datasets import Made, Numbers, Stream, Whole, tensor_files

LOADERS = [torch.utils.data.DataLoader, penstock.DataLoader]


def numbers_of(batch: Any) -> list[int]:
    return [int(number) for number in batch]


def classes_of(dataset: Any) -> Any:
    return _of_all_parts(dataset, _classes)


def normalisation_of(dataset: Any) -> Any:
    return _of_all_parts(dataset, _normalisation)


class Counted(Made):
    """Counts the samples that are read."""

    read = 0

    def __getitem__(self, index: int) -> Any:
        self.read += 1
        return super().__getitem__(index)


# --- loaders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LOADERS)
def test_only_the_samples_of_the_batch_are_read(kind: Any) -> None:
    dataset = Counted()
    found = batch_of(kind(dataset, batch_size=4, num_workers=0), 3)
    assert numbers_of(found.value) == [12, 13, 14, 15] and found.ids == ("12", "13", "14", "15")
    assert dataset.read == 4 and not found.listed and "batch 3 of a " in found.about
    last = batch_of(kind(dataset, batch_size=4, num_workers=0), 5)
    assert numbers_of(last.value) == [20, 21, 22]


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 5, "shuffle": True},
        {"batch_size": 5, "sampler": [7, 3, 9, 1, 4, 0, 2]},
        {"batch_sampler": [[5, 6], [9, 3, 1]]},
        {"batch_size": 5, "shuffle": True, "drop_last": True, "num_workers": 2, "persistent_workers": True},
        {"batch_size": 5, "num_workers": 1, "multiprocessing_context": "fork", "timeout": 60, "prefetch_factor": 3},
    ],
    ids=["shuffle", "sampler", "batch_sampler", "workers", "more"],
)
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_ids_are_those_of_the_samples(kind: Any, options: dict[str, Any]) -> None:
    found = batch_of(kind(Made(), **options), 1)
    assert found.ids is not None and [str(number) for number in numbers_of(found.value)] == list(found.ids)
    assert "sampler" not in options or list(found.ids) == ["0", "2"]
    assert "batch_sampler" not in options or list(found.ids) == ["9", "3", "1"]


def test_a_seeded_loader_gives_the_very_batch_of_its_pass(tmp_path: Path) -> None:
    random = lambda index: (index, torch.rand(3))  # noqa: E731  a dataset's own draws
    cases: list[dict[str, Any]] = [{}, {"shard": (1, 2)}, {"ledger": tmp_path / "run.ledger"}, {"num_workers": 1}]
    for options in cases:
        options.setdefault("num_workers", 0)
        loader = penstock.DataLoader(Made(random), 4, shuffle=True, seed=5, **options)
        found = batch_of(loader, 2)
        expected = list(loader)[2]
        assert found.ids == tuple(map(str, numbers_of(expected[0]))) == tuple(loader.ids(0, 2))
        assert torch.equal(found.value[1], expected[1])
    looked = penstock.DataLoader(Made(), 4, ledger=tmp_path / "kept", num_workers=0)
    batch_of(looked, 1)
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize("kind", LOADERS)
def test_unbatched_loaders(kind: Any) -> None:
    one = batch_of(kind(Made(), batch_size=None, num_workers=0), 6)
    assert one.value == [6] and one.ids == ("6",) and one.listed
    sampler = BatchSampler(range(23), 4, drop_last=False)
    several = batch_of(kind(TensorDataset(torch.arange(23)), batch_size=None, sampler=sampler, num_workers=0), 1)
    assert numbers_of(several.value[0]) == [4, 5, 6, 7] and several.ids == ("4", "5", "6", "7")


class OwnPass(torch.utils.data.DataLoader[Any]):
    def __iter__(self) -> Any:
        for batch in super().__iter__():
            yield batch * 2


def test_what_can_only_be_gone_through() -> None:
    assert numbers_of(batch_of(OwnPass(Made(), batch_size=4), 1).value) == [8, 10, 12, 14]
    for kind in LOADERS:
        found = batch_of(kind(Stream(), batch_size=4, num_workers=0), 1)
        assert numbers_of(found.value) == [4, 5, 6, 7] and found.ids is None
    assert numbers_of(batch_of(Stream(), 1, batch_size=3).value) == [3, 4, 5]
    assert batch_of((torch.full((2,), float(n)) for n in range(3)), 2).value.tolist() == [2.0, 2.0]
    sheet = sheet_of(penstock.DataLoader(Stream(), 4, num_workers=0))
    assert [cell.id for cell in sheet.cells] == ["#0", "#1", "#2", "#3"]


# --- datasets --------------------------------------------------------------------------------------------------------


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
    sheet = sheet_of(folder)
    assert [cell.id for cell in sheet.cells][:2] == ["cat/1.jpg", "cat/picture.png"]
    assert [cell.texts[0] for cell in sheet.cells] == ["0 cat"] * 3 + ["1 dog"] * 3
    for number, cell in enumerate(sheet.cells):
        assert np.array_equal(cell.pictures[0].pixels, np.asarray(folder[number][0]))


def test_a_known_normalisation_is_undone(tmp_path: Path) -> None:
    transforms = pytest.importorskip("torchvision.transforms", reason="torchvision is not installed")
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)
    steps = [transforms.Resize((16, 16)), transforms.ToTensor(), transforms.Normalize(mean, std)]
    root = write_photos(tmp_path / "photos", count=2)
    plain = penstock.ImageFolder(root, transforms.Compose(steps[:2]))
    folder = penstock.ImageFolder(root, transforms.Compose(steps))
    sheet = sheet_of(penstock.DataLoader(folder, 4, num_workers=1))
    assert "after a normalisation was undone (mean 0.4, 0.5, 0.6; std 0.2, 0.3, 0.25)" in sheet.notes[-1]
    for number, cell in enumerate(sheet.cells):
        expected = np.rint(plain[number][0].permute(1, 2, 0).numpy() * 255)
        assert np.array_equal(cell.pictures[0].pixels, expected)
    assert "from black to white" in sheet_of(folder, as_is=True).notes[-1]
    assert normalisation_of(Subset(folder, [0])) == Normalisation(mean, std)
    assert normalisation_of(ConcatDataset([folder, plain])) is None
    folder.transform = transforms.Compose([*steps, transforms.Normalize(mean, std)])
    assert normalisation_of(folder) is None
    assert normalisation_of(plain) is None and normalisation_of([1]) is None


def test_names_of_classes(tmp_path: Path) -> None:
    folder = penstock.ImageFolder(write_photos(tmp_path / "photos", count=2))
    assert classes_of(folder) == classes_of(Subset(folder, [1])) == ("cat", "dog")
    assert classes_of(ConcatDataset([folder, folder])) == ("cat", "dog")
    assert classes_of(ConcatDataset([folder, TensorDataset(torch.zeros(2))])) is None
    penstock.pack(folder, tmp_path / "packed")
    assert classes_of(penstock.Shards(tmp_path / "packed")) == ("cat", "dog")
    features = {"image": object(), "label": SimpleNamespace(names=["a", "b"])}
    of_hugging_face = Made()
    of_hugging_face.features = features  # type: ignore[attr-defined]
    assert classes_of(of_hugging_face) == ("a", "b") and classes_of(Made()) is None
    folder.target_transform = str  # the labels are numbers of classes no more
    assert classes_of(folder) is None


# --- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_sample_is_named(kind: Any, workers: int) -> None:
    with pytest.raises(InvalidOption, match=r"batch 1 of .* failed: ValueError: .* of sample 6") as raised:
        batch_of(kind(Numbers(bad=[6]), batch_size=4, num_workers=workers), 1)
    assert raised.value.__cause__ is not None
    assert numbers_of(batch_of(kind(Numbers(bad=[6]), batch_size=4, num_workers=workers)).value) == [0, 1, 2, 3]


def test_bad_samples_of_other_datasets(tmp_path: Path) -> None:
    def bad(index: int) -> int:
        raise OSError(5, "Input/output error")

    with pytest.raises(InvalidOption, match=r"batch 0 of a Made failed: OSError: .* of sample 0"):
        batch_of(Made(bad))
    with pytest.raises(InvalidOption, match=r"batch 0 of a Whole failed: OSError: .*samples \[0, 1, 2"):
        batch_of(Whole(bad))
    with pytest.raises(InvalidOption, match=r"batch 0 of a Stream failed: OSError"):
        batch_of(Stream(make=bad))
    with pytest.raises(InvalidOption, match=r"batch 5 .* failed: ValueError: number 22 is bad"):
        batch_of(penstock.DataLoader(Numbers(bad=[22]), 4, shuffle=False, seed=1, num_workers=0), 5)
    root = tensor_files(tmp_path / "data", 3)
    (root / "01.pt").write_bytes(b"torn")
    with pytest.raises(CorruptSample, match="'01'"):
        batch_of(penstock.TensorFolder(root))
    shapes = Made(lambda index: torch.zeros(index + 1))
    assert len(batch_of(shapes).value) == 23  # one by one
    with pytest.raises(InvalidOption, match=r"batch 0 of .*stack expects each tensor.*samples \[0, 1"):
        batch_of(penstock.DataLoader(shapes, 4, num_workers=0))


class Broken(Made):
    def __len__(self) -> int:
        raise RuntimeError("no length")


def test_wrong_questions() -> None:
    for kind in LOADERS:
        with pytest.raises(InvalidOption, match=r"no batch 6: a .*DataLoader has 6 batches"):
            batch_of(kind(Made(), batch_size=4), 6)
        with pytest.raises(InvalidOption, match="no batch to show"):
            batch_of(kind(Made(size=0), batch_size=4))
        with pytest.raises(InvalidOption, match="no batch to show"):
            batch_of(kind(Made(size=3), batch_size=4, drop_last=True))
        with pytest.raises(InvalidOption, match="options of a dataset"):
            batch_of(kind(Made()), 0, shuffle=True)
    with pytest.raises(InvalidOption, match=r"no batch 9: a penstock\.DataLoader has 6 batches"):
        batch_of(penstock.DataLoader(Made(), 4, seed=1), 9)
    with pytest.raises(InvalidOption, match="has 3 batches"):
        batch_of(iter(range(3)), 3)
    with pytest.raises(InvalidOption, match="a Made, is empty"):
        batch_of(Made(size=0))
    with pytest.raises(InvalidOption, match="no batch to show"):
        batch_of(Stream(size=0))
    with pytest.raises(InvalidOption, match="counted from 0"):
        batch_of(Made(), -1)
    with pytest.raises(InvalidOption, match="RuntimeError: no length"):
        batch_of(Broken())
    with pytest.raises(InvalidOption, match="expected unspecified shuffle option"):
        batch_of(Stream(), 0, shuffle=True)
