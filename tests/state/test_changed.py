"""Datasets that have changed since a state was taken: refused with the difference, or gone on with by ID."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

import penstock
from penstock.sources.catalogue import KIND, kept
from penstock.sources.naming import catalogue, id_of
from penstock.system import cache_folder
from tests import values
from tests.sample_datasets import Made
from tests.values import loaded, taken

torchvision = pytest.importorskip("torchvision", reason="torchvision is not installed")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = cache_folder.folder_of(KIND)
    assert folder is not None
    return folder


class Tutorial(Dataset[Any]):
    """The dataset of the well-known tutorial."""

    def __init__(self, list_IDs: list[str], labels: dict[str, Any]) -> None:
        self.list_IDs = list_IDs
        self.labels = labels

    def __len__(self) -> int:
        return len(self.list_IDs)

    def __getitem__(self, index: int) -> Any:
        return self.list_IDs[index], self.labels[self.list_IDs[index]]


def loader(dataset: Any, **options: Any) -> Any:
    return penstock.DataLoader(dataset, **{"batch_size": 4, "shuffle": True, "seed": 7, **options})


def given(made: Any, stop: int | None = None) -> list[Any]:
    """Take some batches, or all, and return the IDs that come first in their samples, without padding."""
    found: list[Any] = []
    for number, batch in enumerate(iter(made), 1):
        ids = batch[0].tolist() if isinstance(batch[0], torch.Tensor) else list(batch[0])
        found += ids[: len(ids) - made.padded]
        if number == stop:
            break
    return found


def numbered(*numbers: int) -> Tutorial:
    return Tutorial([f"id-{number}" for number in numbers], {f"id-{number}": number % 3 for number in numbers})


def stored(made: Any) -> Any:
    state = values.stored(made.state_dict())
    assert len(json.dumps(state)) < 1000
    return state


def gone_on(dataset: Any, begun: Any, **options: Any) -> Any:
    """Return a loader of a dataset that has changed, which goes on by ID where another is."""
    return loaded(loader(dataset, **options), stored(begun), on_change="continue")


def stopped(dataset: Any, steps: int, **options: Any) -> tuple[Any, list[Any]]:
    """Return a loader that has given some batches, and the IDs in them."""
    begun = loader(dataset, **options)
    return begun, given(begun, steps)


BEFORE = list(range(50))
CHANGES: dict[str, list[int]] = {
    "grown": list(range(60)),
    "grown in front": [*range(100, 110), *range(50)],
    "shrunk": list(range(5, 45)),
    "others": [*range(10, 50), *range(200, 230)],
    "reordered": list(range(49, -1, -1)),
    "all new": list(range(300, 320)),
    "repeated": [*range(50), *range(50)],
}


# --- continued --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"seed": None}, {"batch_size": None}], ids=str)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("stop", [0, 1, 7, 12])
def test_each_remaining_id_comes_once(change: str, stop: int, options: Any) -> None:
    begun = loader(numbered(*BEFORE), num_workers=0, **options)
    one = begun.batch_size is None
    take = (lambda made, stop=None: [sample[0] for sample in islice(made, stop)]) if one else given
    before = take(begun, stop) if stop else []
    state = stored(begun)
    now = numbered(*CHANGES[change])
    for how in ({"num_workers": 0}, {"num_workers": 2, "worker_method": "process" if stop == 7 else "thread"}):
        again = loader(now, **{**options, **how})
        with pytest.raises(penstock.DatasetChanged):
            again.load_state_dict(state)
        again.load_state_dict(state, on_change="continue")
        after = take(again)
        assert Counter(after) == Counter(now.list_IDs) - Counter(before)
        assert Counter(take(again)) == Counter(now.list_IDs), "the next epoch is of the dataset as it is"


def test_the_rest_is_shuffled_by_the_seed_and_sequential_without_shuffle() -> None:
    begun, _ = stopped(numbered(*BEFORE), 5)
    rests = [given(gone_on(numbered(*CHANGES["grown"]), begun)) for _ in range(2)]
    assert rests[0] == rests[1] != sorted(rests[0], key=lambda name: int(name[3:]))
    begun, _ = stopped(numbered(*BEFORE), 5, shuffle=False)
    rest = given(gone_on(numbered(*CHANGES["grown in front"]), begun, shuffle=False))
    assert rest == [f"id-{number}" for number in [*range(100, 110), *range(20, 50)]]


@pytest.mark.parametrize("seed", [7, None])
def test_a_dataset_that_changes_again_and_again(seed: int | None) -> None:
    found: list[Any] = []
    begun = loader(numbered(*BEFORE), seed=seed)
    found += given(begun, 4)
    for change in (range(60), [*range(20, 60), *range(70, 80)], [*range(70, 90), *range(30)]):
        state = stored(begun)
        begun = loaded(loader(numbered(*change), seed=seed), state, on_change="continue")
        assert begun.state_dict()["past"] == json.loads(json.dumps(begun.state_dict()))["past"]
        found += given(begun, 3)
        middle = stored(begun)
        begun = loader(numbered(*change), seed=seed, batch_size=3, shard=None)
        begun.load_state_dict(middle)  # stopped and gone on with, without another change
        found += given(begun, 2)
    state = stored(begun)
    again = loaded(loader(numbered(*change), seed=seed), state)
    rest = given(again)
    assert rest == given(loaded(loader(numbered(*change), seed=seed, num_workers=1), state))
    assert not set(rest) & set(found)
    assert set(rest) == set(numbered(*change).list_IDs) - set(found)
    assert len(found) == len(set(found))


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_other_ranks_go_on_with_it(world: int, drop_last: bool) -> None:
    before: list[Any] = []
    for rank in range(2):
        begun = loader(numbered(*BEFORE), shard=(rank, 2), drop_last=drop_last)
        before += given(begun, 3)
    state = stored(begun)
    now = numbered(*CHANGES["others"])
    after: list[Any] = []
    lengths = set()
    for rank in range(world):
        again = loader(now, shard=(rank, world), drop_last=drop_last, batch_size=3, num_workers=rank)
        again.load_state_dict(state, on_change="continue")
        steps = [(list(batch[0]), again.padded) for batch in again]
        lengths.add(len(steps))
        after += [name for names, padded in steps for name in names[: len(names) - padded]]
    due = set(now.list_IDs) - set(before)
    assert len(lengths) == 1, "all ranks give as many batches"
    assert len(after) == len(set(after))
    assert set(after) <= due
    assert len(after) == (len(due) // (3 * world) * 3 * world if drop_last else len(due))


def test_a_native_plan_goes_on(tmp_path: Path) -> None:
    def folder(numbers: Sequence[int]) -> Any:
        for number in numbers:
            torch.save(torch.tensor(number), tmp_path / f"{number}.pt")
        return penstock.TensorFolder(tmp_path, ids=list(map(str, numbers)), labels={str(n): n for n in numbers})

    begun, before = stopped(folder(BEFORE), 6, num_workers=2)
    assert "native" in begun.explain()
    again = gone_on(folder(CHANGES["others"]), begun, num_workers=2)
    assert "of the 52 samples that this epoch had not handed out when its dataset changed" in again.explain()
    begins = stored(again)
    after = given(again)
    assert sorted(after) == sorted(set(CHANGES["others"]) - set(before))
    assert "dataset changed" not in again.explain()
    assert again.batch_at(0, 3, state=begins)[0].tolist() == after[12:16]
    assert again.ids(0, 12, state=begins) == list(map(str, after[48:]))


def images(root: Path, names: dict[str, int]) -> None:
    for name, side in names.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (side, side), (side, 0, 0)).save(root / name)


@pytest.mark.parametrize("kind", [penstock.ImageFolder, torchvision.datasets.ImageFolder])
def test_image_folders_go_on_wherever_they_lie(kind: Any, tmp_path: Path) -> None:
    to_size: Callable[[Any], Any] = lambda image: image.size[0]  # noqa: E731
    images(tmp_path / "a", {f"{name}/{side}.png": side for side in range(1, 21) for name in ("cat", "dog")})
    dataset = kind(tmp_path / "a", transform=to_size)
    assert id_of(dataset, 0) == "cat/1.png"
    begun = loader(dataset, batch_size=3)
    before = Counter((int(a), int(b)) for batch in taken(iter(begun), 5) for a, b in zip(*batch, strict=True))
    state = stored(begun)
    shutil.move(tmp_path / "a", tmp_path / "b")
    moved = loader(kind(tmp_path / "b", transform=to_size), batch_size=3)
    moved.load_state_dict(state)  # nothing has changed but where it lies
    (tmp_path / "b" / "cat" / "3.png").unlink()
    images(tmp_path / "b", {"cat/30.png": 30})
    changed = kind(tmp_path / "b", transform=to_size)
    again = loader(changed, batch_size=3)
    with pytest.raises(penstock.DatasetChanged, match="1 ID is new, 1 is gone"):
        again.load_state_dict(state)
    again.load_state_dict(state, on_change="continue")
    after = Counter((int(side), int(label)) for batch in again for side, label in zip(*batch, strict=True))
    everything = Counter((changed[index][0], changed[index][1]) for index in range(len(changed)))
    assert after == everything - before


NUMBERS = torch.arange(200)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (TensorDataset(NUMBERS[:50]), TensorDataset(NUMBERS[:64])),
        (TensorDataset(NUMBERS[:50]), TensorDataset(NUMBERS[:31])),
        (Subset(TensorDataset(NUMBERS), range(50)), Subset(TensorDataset(NUMBERS), range(20, 120))),
        (Subset(TensorDataset(NUMBERS), range(10, 50)), TensorDataset(NUMBERS)),
        (Subset(Subset(TensorDataset(NUMBERS), range(10, 90)), range(0, 80, 2)), TensorDataset(NUMBERS)),
        (Subset(TensorDataset(NUMBERS), [-1, -2, *range(40)]), TensorDataset(NUMBERS)),
    ],
)
def test_samples_without_ids_go_on_by_their_index(before: Any, now: Any) -> None:
    begun, handed = stopped(before, 7)
    whole = [int(now[index][0]) for index in range(len(now))]
    assert sorted(given(gone_on(now, begun))) == sorted(set(whole) - set(handed))


def test_parts_of_a_concatenation_grow() -> None:
    def joined(first: int, second: int) -> Any:
        named: Any = Made(lambda index: (torch.tensor(500 + index),), second)
        named.ids = [f"n{number}" for number in range(second)]
        return ConcatDataset([TensorDataset(NUMBERS[:first]), named, Subset(TensorDataset(NUMBERS + 900), [3, 1])])

    begun, handed = stopped(joined(20, 30), 6)
    now = joined(25, 33)
    with pytest.raises(penstock.DatasetChanged, match=r"52 samples and has 60 \(\+8\); 8 IDs are new, 0 are gone"):
        loader(now).load_state_dict(stored(begun))
    rest = given(gone_on(now, begun))
    assert sorted(rest) == sorted({int(now[index][0]) for index in range(len(now))} - set(handed))
    assert catalogue(now).texts() == [id_of(now, index).encode() for index in range(len(now))]
    assert id_of(now, 25) == "1/n0"
    assert [id_of(now, 58), id_of(now, 59)] == ["2/3", "2/1"]
    part: Any = Subset(now, [59, 0, 30])
    assert catalogue(part).texts() == [b"2/1", b"0/0", b"1/n5"]


def test_other_labels_alone_do_not_change_the_order() -> None:
    whole = given(loader(numbered(*BEFORE)))
    begun, _ = stopped(numbered(*BEFORE), 5)
    now = numbered(*BEFORE)
    now.labels["id-3"] = "another"
    with pytest.raises(penstock.DatasetChanged, match="1 of its 50 labels are others"):
        loader(now).load_state_dict(stored(begun))
    again = gone_on(now, begun)
    assert again.state_dict()["past"] == []
    assert given(again) == whole[20:]


def test_draws_with_replacement_go_on_with_new_weights() -> None:
    def weighted(size: int, first: float, **options: Any) -> Any:
        weights = torch.ones(size)
        weights[0] = first
        sampler = penstock.Weighted(weights, num_samples=24, **options)
        return loader(TensorDataset(NUMBERS[:size]), sampler=sampler, shuffle=None)

    begun = weighted(10, 1.0)
    given(begun, 2)
    state = stored(begun)
    weighted(10, 1.0).load_state_dict(state)
    for again, said in (
        (weighted(10, 2.0), "Weighted is not what it was"),
        (weighted(12, 1.0), r"had 10 samples and has 12 \(\+2\)"),
    ):
        with pytest.raises(penstock.DatasetChanged, match=said):
            again.load_state_dict(state)
        again.load_state_dict(state, on_change="continue")
        rest = given(again)
        again.set_epoch(0)
        assert rest == given(again)[8:]
    with pytest.raises(penstock.InvalidOption, match=r"what Weighted had still to draw.*set_epoch\(1\)"):
        weighted(30, 2.0, replacement=False).load_state_dict(state, on_change="continue")


def test_a_mix_cannot_go_on_by_id() -> None:
    def mixed(size: int, share: float) -> Any:
        parts: Any = {"a": (TensorDataset(NUMBERS[:size]), share), "b": (TensorDataset(NUMBERS), 1)}
        return loader(penstock.Mix(parts, length=40))

    begun = mixed(20, 1)
    given(begun, 2)
    state = stored(begun)
    loaded(mixed(20, 1), state)
    for again in (mixed(20, 2), mixed(30, 1)):
        with pytest.raises(penstock.DatasetChanged):
            again.load_state_dict(state)
        with pytest.raises(penstock.InvalidOption, match=r"what Mix.* had still to draw"):
            again.load_state_dict(state, on_change="continue")


# --- refused ----------------------------------------------------------------------------------------------------------


def changed_folder(tmp_path: Path) -> Callable[..., Any]:
    def folder(names: Sequence[str], labels: dict[str, Any] | None = None) -> Any:
        for name in names:
            torch.save(torch.zeros(2), tmp_path / f"{name}.pt")
        return penstock.TensorFolder(tmp_path, ids=names, labels=labels)

    return folder


def test_the_difference_is_said_in_numbers(tmp_path: Path, cache: Path) -> None:
    folder = changed_folder(tmp_path)
    names = [f"id-{number}" for number in range(8)]
    labels = dict.fromkeys(names, 1)
    state = loader(folder(names, labels)).state_dict()
    loader(folder(names, labels)).load_state_dict(state)
    cases = [
        (folder([*names, "id-8"], {**labels, "id-8": 0}), r"had 8 samples and has 9 \(\+1\); 1 ID is new, 0 are gone;"),
        (folder(names[:-1], labels), r"has 7 \(-1\); 0 IDs are new, 1 is gone;"),
        (folder([*names[:-1], "other"], {**labels, "other": 1}), "taken: 1 ID is new, 1 is gone;"),
        (folder(names[::-1], labels), "taken: its IDs are the same, in another order;"),
        (folder(names, {**labels, "id-3": 0, "id-4": 5}), "taken: 2 of its 8 labels are others;"),
        (folder(names[1:], {**labels, "id-3": 0}), r"\(-1\); 0 IDs are new, 1 is gone;"),
        (folder(names, {**labels, "id-3": "x"}), "1 of its 8 labels are others"),
    ]
    for change, said in cases:
        with pytest.raises(penstock.DatasetChanged, match=said):
            loader(change).load_state_dict(state)
    shutil.rmtree(cache)
    less = [r"\(\+1\); its IDs", r"\(-1\); its IDs", "its IDs, or their order, are others", "their order, are others"]
    less += ["taken: its labels are others", r"\(-1\); its IDs", "taken: its labels are others"]
    for (change, _), said in zip(cases, less, strict=True):
        with pytest.raises(penstock.DatasetChanged, match=said):
            loader(change).load_state_dict(state)


def test_files_of_other_sizes(tmp_path: Path) -> None:
    names = [f"id-{number}" for number in range(3000)]
    changed_folder(tmp_path)(names[:10])
    for name in names[10:]:
        (tmp_path / f"{name}.pt").write_bytes(b"x")

    def made() -> Any:
        return loader(penstock.TensorFolder(tmp_path, ids=names))

    state = made().state_dict()
    for index in range(0, 3000, 2):
        (tmp_path / f"id-{index}.pt").write_bytes(b"another")
    with pytest.raises(penstock.DatasetChanged, match=r"taken: 500 of its 1,000 sizes are others;"):
        made().load_state_dict(state)
    made().load_state_dict(state, on_change="continue")
    for index in range(0, 3000, 3):
        (tmp_path / f"id-{index}.pt").unlink()
    with pytest.raises(penstock.DatasetChanged, match="sizes"):
        made().load_state_dict(state)


def test_rows_of_another_shape() -> None:
    state = loader(TensorDataset(torch.zeros(20, 3))).state_dict()
    loader(TensorDataset(torch.ones(20, 3))).load_state_dict(state)
    for other in (torch.zeros(20, 4), torch.zeros(20, 3, 1), torch.zeros(20, 3, dtype=torch.float64)):
        with pytest.raises(penstock.DatasetChanged, match="sizes are others"):
            loader(TensorDataset(other)).load_state_dict(state)


def test_what_was_is_not_kept_here(cache: Path) -> None:
    begun, _ = stopped(numbered(*BEFORE), 3)
    state = stored(begun)
    (entry,) = cache.iterdir()
    held = entry.read_bytes()
    for damage in (b"", held[:-200], held[:100] + b"x" * 50 + held[150:]):
        entry.write_bytes(damage)
        with pytest.raises(penstock.DatasetChanged, match=f"not kept here: {entry} is not there.*copy it"):
            loader(numbered(*CHANGES["grown"])).load_state_dict(state, on_change="continue")
    entry.write_bytes(held)
    gone_on(numbered(*CHANGES["grown"]), begun)


def test_no_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    begun, _ = stopped(numbered(*BEFORE), 3)
    loader(numbered(*BEFORE)).load_state_dict(stored(begun))
    with pytest.raises(penstock.DatasetChanged, match="not kept here"):
        gone_on(numbered(*CHANGES["grown"]), begun)


@pytest.mark.parametrize("samples", [17, None, {0: ("a", 1)}, torch.tensor(3), []])
def test_what_is_named_samples_need_not_be_a_list_of_files(samples: Any) -> None:
    counted: Any = Made(size=1)
    counted.samples = samples
    assert loader(counted).state_dict()["data"]["size"] == 1


def test_what_cannot_go_on_by_id() -> None:
    with pytest.raises(penstock.InvalidOption, match="on_change='ignore'"):
        loader(numbered(*BEFORE)).load_state_dict(loader(numbered(*BEFORE)).state_dict(), on_change="ignore")
    begun, _ = stopped(numbered(*BEFORE), 3, shuffle=None, sampler=list(range(50)))
    grown = numbered(*CHANGES["grown"])
    with pytest.raises(penstock.InvalidOption, match="needs the loader's own order"):
        gone_on(grown, begun, shuffle=None, sampler=list(range(60)))
    begun, _ = stopped(numbered(*BEFORE), 3)
    with pytest.raises(penstock.InvalidOption, match="position 51 of an epoch of 50 samples"):
        loader(grown).load_state_dict({**stored(begun), "position": 51}, on_change="continue")
    with pytest.raises(penstock.InvalidOption, match="before its dataset changed at 12"):
        loader(grown).load_state_dict({**stored(gone_on(grown, begun)), "position": 4})


# --- the catalogue ----------------------------------------------------------------------------------------------------


def test_a_catalogue_is_read_as_it_was_kept(tmp_path: Path) -> None:
    images(tmp_path / "photos", {f"{name}/{side}.png": side for side in range(1, 4) for name in ("cat", "dog")})
    folder = penstock.ImageFolder(tmp_path / "photos")
    sets: list[Any] = [
        numbered(*BEFORE),
        folder,
        Subset(folder, [4, 0]),
        ConcatDataset([folder, TensorDataset(NUMBERS), numbered(1, 2)]),
        Subset(TensorDataset(NUMBERS), [5, 3]),
        TensorDataset(NUMBERS),
        ConcatDataset([TensorDataset(NUMBERS)]),
        Tutorial(["a\0b", "\udcff", "é"], {"a\0b": torch.ones(2), "\udcff": None, "é": np.zeros(2)}),
    ]
    prints = []
    for dataset in sets:
        found = catalogue(dataset)
        found.keep()
        again = kept(json.loads(json.dumps(found.fingerprint)))
        assert again is not None
        assert again.texts() == found.texts()
        assert len(again.texts()) == found.size == len(dataset)
        assert (again.labels is None) == (found.labels is None)
        assert again.labels is None or (again.labels == found.labels).all()
        prints.append(json.dumps(found.fingerprint))
    assert len(set(prints)) == len(sets)


def labelled(targets: Any) -> Any:
    dataset: Any = TensorDataset(torch.zeros(len(targets)))
    dataset.targets = targets
    return catalogue(dataset).fingerprint["labels"]


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
