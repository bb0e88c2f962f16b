"""Datasets that have changed since a state was taken: refused with the difference, or gone on with."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Subset, TensorDataset

import penstock
from tests.data import Made
from tests.values import listed, loaded, stopped

torchvision = pytest.importorskip("torchvision", reason="torchvision is not installed")


class Tutorial(Made):
    """The dataset of the well-known tutorial."""

    def __init__(self, list_IDs: list[str], labels: dict[str, Any]) -> None:
        super().__init__(lambda index: (list_IDs[index], labels[list_IDs[index]]), len(list_IDs))
        self.list_IDs, self.labels = list_IDs, labels


def loader(dataset: Any, **options: Any) -> Any:
    return penstock.DataLoader(dataset, **{"batch_size": 4, "shuffle": True, "seed": 7, **options})


def ids(dataset: Any) -> list[str]:
    """Return the IDs of all samples."""
    return loader(dataset, batch_size=len(dataset), shuffle=False).ids(0, 0)


def fingerprint(dataset: Any) -> dict[str, Any]:
    """Return what states say of a dataset."""
    found: dict[str, Any] = loader(dataset).state_dict()["data"]
    return found


def firsts(batches: Any) -> list[Any]:
    """Return what comes first in each sample."""
    return [first for batch in listed(batches) for first in batch[0]]


def numbered(*numbers: int) -> Tutorial:
    return Tutorial([f"id-{number}" for number in numbers], {f"id-{number}": number % 3 for number in numbers})


def changed(words: str) -> Any:
    return pytest.raises(penstock.DatasetChanged, match=words)


def refused(words: str) -> Any:
    return pytest.raises(penstock.InvalidOption, match=words)


def state_of(made: Any, steps: int) -> Any:
    """Return the stored state of a loader behind so many batches."""
    _, state, _ = stopped(made, steps)
    assert len(json.dumps(state)) < 1000
    return state


BEFORE = list(range(50))
CHANGES: dict[str, list[int]] = {
    "grown": list(range(60)), "grown in front": [*range(100, 110), *range(50)], "shrunk": list(range(5, 45)),
    "others": [*range(10, 50), *range(200, 230)], "reordered": list(range(49, -1, -1)),
    "all new": list(range(300, 320)), "repeated": [*range(50), *range(50)],
}  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"seed": None}, {"batch_size": None}], ids=str)
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_dataset_goes_on_with_an_epoch_only(change: str, options: Any) -> None:
    now = numbered(*CHANGES[change])
    for stop in (0, 7):
        state = state_of(loader(numbered(*BEFORE), num_workers=0, **options), stop)
        again = loader(now, num_workers=0, **options)
        with changed("it had 50 samples|its IDs, or their order"):
            again.load_state_dict(state)
        with refused(r"samples are left .*set_epoch\(1\)") if stop else contextlib.nullcontext():
            again.load_state_dict(state, on_change="continue")
        if stop:
            again.set_epoch(1)
        names = [name for batch in again for name in ([batch[0]] if again.batch_size is None else batch[0])]
        assert Counter(names) == Counter(now.list_IDs)


def images(root: Path, names: dict[str, int]) -> None:
    for name, side in names.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (side, side), (side, 0, 0)).save(root / name)


@pytest.mark.parametrize("kind", [penstock.ImageFolder, torchvision.datasets.ImageFolder])
def test_image_folders_go_on_wherever_they_lie(kind: Any, tmp_path: Path) -> None:
    def made(name: str) -> Any:
        return loader(kind(tmp_path / name, transform=lambda image: image.size[0]), batch_size=3)

    images(tmp_path / "a", {f"{name}/{side}.png": side for side in range(1, 21) for name in ("cat", "dog")})
    begun = made("a")
    assert ids(begun.dataset)[0] == "cat/1.png"
    _, state, batches = stopped(begun, 5)
    rest = listed(batches)
    shutil.move(tmp_path / "a", tmp_path / "b")
    assert listed(loaded(made("b"), state)) == rest, "nothing has changed but where it lies"
    (tmp_path / "b" / "cat" / "3.png").unlink()
    images(tmp_path / "b", {"cat/30.png": 30})
    with changed("its IDs, or their order, have changed"):
        made("b").load_state_dict(state)


NUMBERS = torch.arange(200)


def test_parts_of_a_concatenation_grow() -> None:
    def joined(first: int, second: int) -> Any:
        named: Any = Made(lambda index: (torch.tensor(500 + index),), second)
        named.ids = [f"n{number}" for number in range(second)]
        return ConcatDataset([TensorDataset(NUMBERS[:first]), named, Subset(TensorDataset(NUMBERS + 900), [3, 1])])

    state, now = state_of(loader(joined(20, 30)), 6), joined(25, 33)
    with changed(r"52 samples and has 60 \(\+8\); its IDs, or their order, have changed"):
        loader(now).load_state_dict(state)
    assert [ids(now)[index] for index in (25, 58, 59)] == ["1/n0", "2/3", "2/1"]
    assert ids(Subset(now, [59, 0, 30])) == ["2/1", "0/0", "1/n5"]


def test_other_labels_alone_do_not_change_the_order() -> None:
    whole, state = firsts(loader(numbered(*BEFORE))), state_of(loader(numbered(*BEFORE)), 5)
    now = numbered(*BEFORE)
    now.labels["id-3"] = "another"
    with changed("its labels are others"):
        loader(now).load_state_dict(state)
    assert firsts(loaded(loader(now), state, on_change="continue")) == whole[20:]
    users = {"shuffle": None, "sampler": list(range(50))}
    state = state_of(loader(numbered(*BEFORE), **users), 3)
    with refused("samples are left of this epoch is not known"):
        loaded(loader(now, **users), state, on_change="continue")
    with refused("on_change='ignore'"):
        loaded(loader(numbered(*BEFORE), **users), state, on_change="ignore")


def test_draws_with_replacement_go_on_with_new_weights() -> None:
    def weighted(size: int, first: float, **options: Any) -> Any:
        sampler = penstock.Weighted([first, *[1.0] * (size - 1)], num_samples=24, **options)
        return loader(TensorDataset(NUMBERS[:size]), sampler=sampler, shuffle=None)

    state = state_of(weighted(10, 1.0), 2)
    weighted(10, 1.0).load_state_dict(state)
    for again, said in (
        (weighted(10, 2.0), "Weighted is not what it was"),
        (weighted(12, 1.0), r"had 10 samples and has 12 \(\+2\)"),
    ):
        with changed(said):
            again.load_state_dict(state)
        again.load_state_dict(state, on_change="continue")
        rest = firsts(again)
        again.set_epoch(0)
        assert rest == firsts(again)[8:]
    with refused(r"samples are left .*set_epoch\(1\)"):
        weighted(30, 2.0, replacement=False).load_state_dict(state, on_change="continue")


def test_a_mix_cannot_go_on_by_id() -> None:
    def mixed(size: int, share: float) -> Any:
        parts: Any = {"a": (TensorDataset(NUMBERS[:size]), share), "b": (TensorDataset(NUMBERS), 1)}
        return loader(penstock.Mix(parts, length=40))

    state = state_of(mixed(20, 1), 2)
    loaded(mixed(20, 1), state)
    for again in (mixed(20, 2), mixed(30, 1)):
        with pytest.raises(penstock.DatasetChanged):
            again.load_state_dict(state)
        with refused("samples are left"):
            again.load_state_dict(state, on_change="continue")


@pytest.mark.parametrize("samples", [17, None, {0: ("a", 1)}, torch.tensor(3), []])
def test_what_is_named_samples_need_not_be_a_list_of_files(samples: Any) -> None:
    counted: Any = Made(size=1)
    counted.samples = samples
    assert loader(counted).state_dict()["data"]["size"] == 1


def test_datasets_have_catalogues_of_their_own(tmp_path: Path) -> None:
    images(tmp_path / "photos", {f"{name}/{side}.png": side for side in range(1, 4) for name in ("cat", "dog")})
    folder, numbers = penstock.ImageFolder(tmp_path / "photos"), TensorDataset(NUMBERS)
    sets: list[Any] = [
        numbered(*BEFORE),
        folder,
        Subset(folder, [4, 0]),
        ConcatDataset([folder, numbers, numbered(1, 2)]),
        Subset(numbers, [5, 3]),
        numbers,
        ConcatDataset([numbers]),
        Tutorial(["a\0b", "\udcff", "é"], {"a\0b": torch.ones(2), "\udcff": None, "é": np.zeros(2)}),
    ]
    assert [fingerprint(one)["size"] for one in sets] == [len(ids(one)) for one in sets] == [len(one) for one in sets]
    assert len({json.dumps(fingerprint(one)) for one in sets}) == len(sets)


def labelled(targets: Any) -> Any:
    dataset: Any = TensorDataset(torch.zeros(len(targets)))
    dataset.targets = targets
    return fingerprint(dataset)["labels"]


@pytest.mark.parametrize(
    ("labels", "other"),
    [
        ([1, 2, 3], [1, 2, 4]),
        (torch.tensor([1, 2, 3]), torch.tensor([1, 0, 3])),
        (np.array([0.5, 1, 2]), np.array([0.5, 1, 3])),
        (["a", "b", "c"], ["a", "b", "d"]),
        (torch.zeros(3, 2), torch.ones(3, 2)),
        ([1 << 70, 2, 3], [1 << 71, 2, 3]),
        ([None, (1, 2), {"x": 1}], [None, (1, 2), {"x": 2}]),
    ],
)
def test_labels_of_any_kind_are_told_apart(labels: Any, other: Any) -> None:
    assert labelled(labels) == labelled(labels) != labelled(other)


def test_labels_without_a_text_of_their_own_are_all_the_same() -> None:
    assert labelled([object(), object()]) == labelled([object(), object()]), "an address is another in each process"
