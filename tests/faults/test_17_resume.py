"""Row 17: a run that stops anywhere and resumes with any ranks, workers, threads or processes, batch size and tail.

The same number of ranks gets the batches of a run that did not stop, bit for bit, with any workers; other numbers of
ranks and batch sizes get each remaining sample once, bit for bit; another dataset refuses the state, with what differs.

Plans are native (tensors in memory, tensors in files, images that are cropped at random) and Python's (in the caller's
thread; by worker threads; by worker processes). Each stop draws one of four epochs and a place in it, and has the next
pair of ranks and workers; the state is taken by way of JSON, and is the same on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

import penstock
from penstock.testing import assert_each_sample_once, assert_resume_exact, assert_worker_invariant
from penstock.testing.ranks import Make
from tests.data import Drawing, Made
from tests.faults.conftest import Count
from tests.values import loaded, stopped

WORKERS = (0, 1, 2, 8)
RANKS = (1, 2, 3, 4, 8)
EPOCHS = 4
SIZES = range(1, 8)
"""Of the batches that other ranks go on with: each pair of workers and ranks has all of them in turn."""
TAILS = ((67, 2), (41, 3), (16, 1), (103, 5), (9, 4))
"""Samples and batch size: their last steps lack from none to all but one of the samples of all ranks."""

pytestmark = pytest.mark.timeout(1800)


def computed(index: int) -> Any:
    """Return a sample without draws: worker threads share the global generators."""
    return index, torch.full((2,), index**0.5), index**0.25


def numbers(batch: Any) -> list[int]:
    """Return the numbers of a batch's samples: its first field, or the last where the first is larger."""
    found: list[int] = (batch[0] if batch[0].ndim == 1 else batch[-1]).tolist()
    return found


# --- the plans --------------------------------------------------------------------------------------------------------


def tensors(folder: Path, size: int) -> Any:
    return TensorDataset(torch.arange(size), torch.arange(3.0 * size).view(size, 3))


def files(folder: Path, size: int) -> Any:
    names = [f"id-{number}" for number in range(size)]
    for number, name in enumerate(names):
        torch.save(torch.arange(4.0) * number, folder / f"{name}.pt")
    return penstock.TensorFolder(folder, names, {name: number for number, name in enumerate(names)})


def images(folder: Path, size: int) -> Any:
    v2 = pytest.importorskip("torchvision.transforms.v2", reason="torchvision is not installed")
    draw = np.random.default_rng(1)
    for number in range(size):
        (folder / f"{number:03}").mkdir()
        pixels = draw.integers(0, 256, (12, 10, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03}" / "image.jpg")
    crop = v2.RandomResizedCrop(6, antialias=True)
    recipe = v2.Compose([v2.ToImage(), crop, v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])
    return penstock.ImageFolder(folder, recipe)


def python(folder: Path, size: int) -> Any:
    return Drawing(size)


def threads(folder: Path, size: int) -> Any:
    return Made(computed, size)


PLANS = {make.__name__: make for make in (tensors, files, images, python, threads)}


@pytest.fixture(scope="module")
def makes(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return what makes the loaders of a plan, over a dataset and with a batch size of TAILS."""

    def make(plan: str, tail: tuple[int, int] = TAILS[0]) -> Make:
        size, batch_size = tail
        dataset = PLANS[plan](tmp_path_factory.mktemp(plan), size)
        method = {"worker_method": "thread"} if plan == "threads" else {}
        own: Any = {"batch_size": batch_size, "shuffle": True, "seed": 7, **method}
        return lambda **options: penstock.DataLoader(dataset, **{**own, **options})

    return cache(make)


@pytest.fixture(autouse=True)
def _no_look_for_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """`computed` draws nothing; to look for that in a forked process, once a loader, would take most of the time."""
    monkeypatch.setattr("penstock.carriers.auto.draws_in_threads", lambda _: ())


# --- stop anywhere, resume anywhere -----------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", PLANS)
def test_the_plan_is_what_it_is_named(plan: str, makes: Any) -> None:
    made = makes(plan)(num_workers=2)
    next(iter(made))
    said = {"python": "2 worker processes", "threads": "in 2 threads of this process"}.get(plan, "2 native threads")
    assert said in made.explain()


def of_rank(make: Make, rank: int, ranks: int) -> Make:
    """Return what makes the loaders of one rank."""
    return lambda num_workers, shard: make(num_workers=num_workers, shard=(rank, ranks))


@pytest.mark.parametrize("plan", PLANS)
def test_a_pass_is_the_same_for_any_workers(plan: str, makes: Any, full: bool) -> None:
    make: Make = makes(plan)
    for ranks in RANKS if full else (3,):
        assert_each_sample_once(make, ranks=(ranks,), workers=(0,), epochs=EPOCHS, key=numbers)
        for rank in range(ranks if plan != "python" else 0):
            assert_worker_invariant(of_rank(make, rank, ranks), WORKERS if full else (0, 2), epochs=EPOCHS)


@pytest.mark.parametrize("plan", PLANS)
def test_resumed_anywhere(plan: str, makes: Any, tries: Count, full: bool) -> None:
    workers = (0,) if plan == "python" else WORKERS if full else (0, 2)
    tails = TAILS if full else TAILS[:1]
    stops = tries(4, 400 if plan != "python" else 100) // len(tails)
    for number, tail in enumerate(tails):
        resumed: Any = {"ranks": RANKS if full else (1, 3), "workers": workers, "batch_sizes": SIZES, "epochs": EPOCHS}
        assert_resume_exact(makes(plan, tail), stops=stops, seed=number, **resumed)


@pytest.mark.parametrize("workers", [count for count in WORKERS if count])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_resumed_by_processes(workers: int, makes: Any, tries: Count, full: bool, only_full: Any) -> None:
    only_full(workers != 2)
    make: Make = makes("python", TAILS[2])
    pairs = [(ranks, other) for ranks in RANKS for other in RANKS if ranks != other] if full else [(2, 1)]
    for number in range(tries(1, len(pairs))):
        resumed: Any = {"workers": (workers,), "batch_sizes": SIZES[number % 7 :], "epochs": 2 if full else 1}
        assert_resume_exact(make, stops=1, ranks=pairs[number % len(pairs)], seed=number, **resumed)
    if full:
        assert_worker_invariant(of_rank(make, 1, 3), (0, workers))


# --- another dataset --------------------------------------------------------------------------------------------------


def loader(dataset: Any) -> Any:
    return penstock.DataLoader(dataset, batch_size=4, shuffle=True, seed=7)


def changed(words: str) -> Any:
    return pytest.raises(penstock.DatasetChanged, match=words)


@pytest.mark.parametrize("plan", PLANS)
def test_another_size_is_refused_anywhere(plan: str, tmp_path: Path, tries: Count) -> None:
    (tmp_path / "before").mkdir()
    (tmp_path / "now").mkdir()
    dataset, other = PLANS[plan](tmp_path / "before", 33), PLANS[plan](tmp_path / "now", 34)
    for number in range(tries(1, 9)):
        stop = (number + 5) % 9
        begun = loader(dataset)
        _, state, rest = stopped(begun, stop)
        with changed(r"had 33 samples and has 34 \(\+1\)"):
            loader(other).load_state_dict(state)
        assert len(list(loaded(loader(dataset), state))) == len(list(rest)) == 9 - stop


def folder_of(root: Path, names: Sequence[str], labels: dict[str, Any] | None = None) -> Any:
    for name in names:
        torch.save(torch.zeros(2), root / f"{name}.pt")
    return penstock.TensorFolder(root, ids=names, labels=labels)


def test_the_difference_is_said(tmp_path: Path) -> None:
    names = [f"id-{number}" for number in range(8)]
    labels = dict.fromkeys(names, 1)
    state = loader(folder_of(tmp_path, names, labels)).state_dict()
    loader(folder_of(tmp_path, names, labels)).load_state_dict(state)
    others = "its IDs, or their order, have changed;"
    cases: list[tuple[list[str], dict[str, Any], str]] = [
        ([*names, "id-8"], {"id-8": 0}, rf"had 8 samples and has 9 \(\+1\); {others}"),
        (names[:-1], {}, rf"has 7 \(-1\); {others}"),
        ([*names[:-1], "other"], {"other": 1}, f"taken: {others}"),
        (names[::-1], {}, f"taken: {others}"),
        (names, {"id-3": 0}, "taken: its labels are others;"),
        (names, {"id-3": "x"}, "taken: its labels are others;"),
    ]
    for now, more, said in cases:
        with changed(said):
            loader(folder_of(tmp_path, now, {**labels, **more})).load_state_dict(state)


def test_files_of_other_sizes(tmp_path: Path) -> None:
    names = [f"id-{number}" for number in range(3000)]
    folder_of(tmp_path, names[:10])
    for name in names[10:]:
        (tmp_path / f"{name}.pt").write_bytes(b"x")

    def made() -> Any:
        return loader(penstock.TensorFolder(tmp_path, ids=names))

    state = made().state_dict()
    for index in range(0, 3000, 2):
        (tmp_path / f"id-{index}.pt").write_bytes(b"another")
    with changed("taken: its sizes are others;"):
        made().load_state_dict(state)
    made().load_state_dict(state, on_change="continue")
    for index in range(0, 3000, 3):
        (tmp_path / f"id-{index}.pt").unlink()
    with changed("sizes"):
        made().load_state_dict(state)


def test_rows_of_another_shape() -> None:
    state = loader(TensorDataset(torch.zeros(20, 3))).state_dict()
    loader(TensorDataset(torch.ones(20, 3))).load_state_dict(state)
    for other in (torch.zeros(20, 4), torch.zeros(20, 3, 1), torch.zeros(20, 3, dtype=torch.float64)):
        with changed("sizes are others"):
            loader(TensorDataset(other)).load_state_dict(state)
