"""The remainder of an epoch is bitwise the same for any workers and any ranks, wherever it was stopped.

Whole: every pair of (0, 1, 2, 8 workers) and (1, 2, 3, 4, 8 ranks), each with 20 random stopping points in four epochs,
for native plans (tensors in memory, tensors in files, images that are cropped at random) and for Python plans (in the
caller's thread; by worker threads). At each point the state, by way of JSON, is the same on every rank; the rest by as
many ranks, and other workers, is bitwise that of a pass that did not stop; the rest by another number of ranks, with
batches of another size, is each remaining sample once, bitwise. Each rank is given bitwise the same batches by any
workers.

Sampled: worker processes, for every pair one stopping point, and processes for one rank of the pair, drawn at random.
Whole, with every rank of every pair at 20 points, they take several minutes::

    python -m pytest -m whole_matrix tests/state/test_resume_matrix.py
"""

from __future__ import annotations

import random
from functools import cache, partial
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
from tests.sample_datasets import Drawing, Made

WORKERS = (0, 1, 2, 8)
RANKS = (1, 2, 3, 4, 8)
STOPS = 20
SIZE, BATCH, EPOCHS = 67, 2, 4
"""Eight ranks take 5 steps in an epoch, which leaves 24 places to stop at."""
SIZES = range(1, 8)
"""Of the batches that other ranks go on with: each pair of workers and ranks has all of them in turn."""


def computed(index: int) -> Any:
    """Return a sample without draws: worker threads share the global generators."""
    return index, torch.full((2,), index**0.5), index**0.25


def numbers(batch: Any) -> list[int]:
    """Return the numbers of a batch's samples: its first field, or the last where the first is larger."""
    found: list[int] = (batch[0] if batch[0].ndim == 1 else batch[-1]).tolist()
    return found


# --- the plans --------------------------------------------------------------------------------------------------------


def tensors(folder: Path) -> Any:
    return TensorDataset(torch.arange(SIZE), torch.arange(3.0 * SIZE).view(SIZE, 3))


def files(folder: Path) -> Any:
    names = [f"id-{number}" for number in range(SIZE)]
    for number, name in enumerate(names):
        torch.save(torch.arange(4.0) * number, folder / f"{name}.pt")
    return penstock.TensorFolder(folder, names, {name: number for number, name in enumerate(names)})


def images(folder: Path) -> Any:
    v2 = pytest.importorskip("torchvision.transforms.v2", reason="torchvision is not installed")
    draw = np.random.default_rng(1)
    for number in range(SIZE):
        (folder / f"{number:03}").mkdir()
        pixels = draw.integers(0, 256, (12, 10, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03}" / "image.jpg")
    crop = v2.RandomResizedCrop(6, antialias=True)
    recipe = v2.Compose([v2.ToImage(), crop, v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])
    return penstock.ImageFolder(folder, recipe)


def python(folder: Path) -> Any:
    return Drawing(SIZE)


def threads(folder: Path) -> Any:
    return Made(computed, SIZE)


PLANS = {make.__name__: make for make in (tensors, files, images, python, threads)}


@pytest.fixture(scope="module")
def makes(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return what makes the loaders of a plan."""

    def make(plan: str) -> Make:
        dataset = PLANS[plan](tmp_path_factory.mktemp(plan))
        method = {"worker_method": "thread"} if plan == "threads" else {}
        own: Any = {"batch_size": BATCH, "shuffle": True, "seed": 7, **method}
        return lambda kind=penstock.DataLoader, **options: kind(dataset, **{**own, **options})

    return cache(make)


@pytest.fixture(autouse=True)
def _no_look_for_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """`computed` draws nothing; to look for that in a forked process, once a loader, would take most of the time."""
    monkeypatch.setattr("penstock.executors.method.draws_in_threads", lambda _: ())


# --- the matrix -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", list(PLANS))
def test_the_plan_is_what_it_is_named(plan: str, makes: Any) -> None:
    made = makes(plan)(num_workers=2)
    next(iter(made))
    said = {"python": "2 worker processes", "threads": "in 2 threads of this process"}.get(plan, "2 native threads")
    assert said in made.explain()


def of_rank(make: Make, rank: int, ranks: int) -> Make:
    """Return what makes the loaders of one rank."""
    return lambda num_workers, shard: make(num_workers=num_workers, shard=(rank, ranks))


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("plan", list(PLANS))
def test_a_pass_is_the_same_for_any_workers(plan: str, ranks: int, makes: Any) -> None:
    make: Make = makes(plan)
    assert_each_sample_once(make, ranks=(ranks,), workers=(0,), epochs=EPOCHS, key=numbers)
    for rank in range(ranks if plan != "python" else 0):
        assert_worker_invariant(of_rank(make, rank, ranks), WORKERS, epochs=EPOCHS)


@pytest.mark.parametrize("part", range(5))
@pytest.mark.parametrize("plan", list(PLANS))
def test_whole(plan: str, part: int, makes: Any) -> None:
    workers = WORKERS if plan != "python" else (0,)  # whose workers are processes
    stops = STOPS * len(RANKS) * len(workers) // 5
    assert_resume_exact(
        makes(plan), stops=stops, workers=workers, ranks=RANKS, batch_sizes=SIZES, epochs=EPOCHS, seed=part
    )


class WithoutBase(penstock.DataLoader[Any]):
    """Its state leaves out the base seed of worker processes, which ranks without any do not have."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "drawn": {}}


PROCESSES = [(workers, ranks) for workers in WORKERS if workers for ranks in RANKS]


@pytest.mark.parametrize(("workers", "ranks"), PROCESSES)
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_processes_sampled(workers: int, ranks: int, makes: Any) -> None:
    make, draw = makes("python"), random.Random(workers * 100 + ranks)
    rank, other = draw.randrange(ranks), draw.choice([count for count in RANKS if count != ranks])

    def one_with_workers(num_workers: int, shard: tuple[int, int] | None, **options: Any) -> Any:
        mine = (shard or (0, 1))[0] == rank
        return make(kind=WithoutBase, num_workers=num_workers if mine else 0, shard=shard, **options)

    assert_worker_invariant(of_rank(make, rank, ranks), (0, workers))
    size = draw.choice(SIZES)
    assert_resume_exact(
        one_with_workers,
        stops=1,
        workers=(workers,),
        ranks=(ranks, other),
        batch_sizes=(size,),
        epochs=EPOCHS,
        seed=ranks,
    )


@pytest.mark.slow
@pytest.mark.whole_matrix
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("workers", "ranks"), PROCESSES)
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_processes_whole(workers: int, ranks: int, makes: Any) -> None:
    others = [count for count in RANKS if count != ranks]
    resume = partial(assert_resume_exact, makes("python"), workers=(workers,), batch_sizes=SIZES, epochs=EPOCHS)
    for number in range(STOPS):
        resume(stops=1, ranks=(ranks, others[number % len(others)]), seed=number)
