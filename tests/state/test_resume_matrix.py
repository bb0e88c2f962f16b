"""The remainder of an epoch is bitwise the same for any workers and any ranks, wherever it was stopped.

Whole: every pair of (0, 1, 2, 8 workers) and (1, 2, 3, 4, 8 ranks), each with 20 random stopping points in four epochs,
for native plans (tensors in memory, tensors in files, images that are cropped at random) and for Python plans (in the
caller's thread; by worker threads). At each point

- what came before it is bitwise what a pass of the same ranks, in the caller's thread and without a stop, gave there;
- the state, by way of JSON, is the same on every rank;
- the rest by as many ranks, and each of the numbers of workers in turn, is bitwise the rest of that pass;
- the rest by each other number of ranks in turn, with another batch size, is each remaining sample once, bitwise.

Sampled: worker processes, for every pair one stopping point of the 20 and one rank of the pair, drawn at random. Whole,
with every rank of every pair at all 20 points, they take several minutes::

    python -m pytest -m whole_matrix tests/test_resume_matrix.py
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

import penstock
from penstock.testing import Ranks
from penstock.testing.bitwise import difference
from tests.sample_datasets import Drawing, Made
from tests.values import loaded

WORKERS = (0, 1, 2, 8)
RANKS = (1, 2, 3, 4, 8)
STOPS = 20
SIZE, BATCH, EPOCHS = 67, 2, 4
"""Eight ranks take 5 steps in an epoch, which leaves 24 places to stop at."""


def computed(index: int) -> Any:
    """Return a sample without draws: worker threads share the global generators."""
    return index, torch.full((2,), index**0.5), index**0.25


class Point(NamedTuple):
    """Where a pass is stopped."""

    number: int
    epoch: int
    steps: int


class Pass(NamedTuple):
    """What a pass gave that did not stop."""

    batches: list[list[Any]]
    """[step][rank]"""
    samples: dict[int, bytes]
    """The contents of each sample, by its number."""


class Case:
    """One plan.

    Args:
        dataset: to read; the first field of a batch, or the last where that is larger, is the numbers of its samples.
        options: of the loader.
    """

    def __init__(self, dataset: Any, **options: Any) -> None:
        self._dataset = dataset
        self._options: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "seed": 7, **options}
        self.undisturbed = cache(self._undisturbed)

    def make(self, **options: Any) -> Any:
        return penstock.DataLoader(self._dataset, **{**self._options, **options})

    def _undisturbed(self, ranks: int, epoch: int) -> Pass:
        team = Ranks(self.make, ranks, epoch=epoch)
        batches: list[list[Any]] = []
        samples: dict[int, bytes] = {}
        for step in team:
            batches.append(step)
            samples.update(_samples(step, team.padded()))
        assert len(samples) == SIZE
        return Pass(batches, samples)

    def points(self, workers: int, ranks: int) -> list[Point]:
        """Return the random stopping points of a pair."""
        places = [
            (epoch, steps)
            for epoch in range(EPOCHS)
            for steps in range(len(self.undisturbed(ranks, epoch).batches) + 1)
        ]
        drawn = random.Random(100 * workers + ranks).sample(places, STOPS)
        return [Point(number, *place) for number, place in enumerate(drawn)]

    def gone_on_with_by_others(self, state: dict[str, Any], point: Point, ranks: int, workers: int) -> None:
        """Check what another number of ranks gives behind a stop, with batches of another size."""
        whole = self.undisturbed(ranks, point.epoch)
        left = dict(whole.samples)
        for step in whole.batches[: point.steps]:
            for number, _ in _samples(step, [0] * ranks):
                left.pop(number, None)  # padding, which only the last step has, repeats what came in it
        others = [count for count in RANKS if count != ranks]
        other = others[point.number % len(others)]
        team = Ranks(self.make, other, workers=workers, state=state, batch_size=1 + point.number % 5)
        came = [pair for step in team for pair in _samples(step, team.padded())]
        told = f"{point}, gone on with {other} ranks of {workers} workers"
        assert sorted(number for number, _ in came) == sorted(left), told
        assert dict(came) == left, told


def _samples(step: list[Any], padding: list[int]) -> Iterator[tuple[int, bytes]]:
    """Yield number and contents of each sample of a step, without padding."""
    for batch, repeated in zip(step, padding, strict=True):
        numbers, *rest = batch if batch[0].ndim == 1 else reversed(batch)
        for row in range(len(numbers) - repeated):
            yield int(numbers[row]), b"".join(field[row].numpy().tobytes() for field in rest)


# --- the plans --------------------------------------------------------------------------------------------------------


def tensors(folder: Path) -> Case:
    return Case(TensorDataset(torch.arange(SIZE), torch.arange(3.0 * SIZE).view(SIZE, 3)))


def files(folder: Path) -> Case:
    names = [f"id-{number}" for number in range(SIZE)]
    for number, name in enumerate(names):
        torch.save(torch.arange(4.0) * number, folder / f"{name}.pt")
    return Case(penstock.TensorFolder(folder, names, {name: number for number, name in enumerate(names)}))


def images(folder: Path) -> Case:
    v2 = pytest.importorskip("torchvision.transforms.v2", reason="torchvision is not installed")
    draw = np.random.default_rng(1)
    for number in range(SIZE):
        (folder / f"{number:03}").mkdir()
        pixels = draw.integers(0, 256, (12, 10, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03}" / "image.jpg")
    crop = v2.RandomResizedCrop(6, antialias=True)
    recipe = v2.Compose([v2.ToImage(), crop, v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])
    return Case(penstock.ImageFolder(folder, recipe))


def python(folder: Path) -> Case:
    return Case(Drawing(SIZE))


def threads(folder: Path) -> Case:
    return Case(Made(computed, SIZE), worker_method="thread")


PLANS = {make.__name__: make for make in (tensors, files, images, python, threads)}
NATIVE = ("tensors", "files", "images")
#: Plan and workers of the cases that are whole; with workers the plan `python` is one of processes.
WHOLE = [(plan, workers) for plan in PLANS for workers in WORKERS if plan != "python" or not workers]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return cache(lambda plan: PLANS[plan](tmp_path_factory.mktemp(plan)))


@pytest.fixture(autouse=True)
def _no_look_for_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """`computed` draws nothing; to look for that in a forked process, once a loader, would take most of the time."""
    monkeypatch.setattr("penstock.executors.method.draws_in_threads", lambda _: ())


# --- the matrix -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", list(PLANS))
def test_the_plan_is_what_it_is_named(plan: str, cases: Any) -> None:
    made = cases(plan).make(num_workers=2)
    next(iter(made))
    said = {"python": "2 worker processes", "threads": "in 2 threads of this process"}.get(plan, "2 native threads")
    assert said in made.explain()


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(("plan", "workers"), WHOLE)
def test_whole(plan: str, workers: int, ranks: int, cases: Any) -> None:
    case: Case = cases(plan)
    for point in case.points(workers, ranks):
        whole = case.undisturbed(ranks, point.epoch).batches
        team = Ranks(case.make, ranks, workers=workers, epoch=point.epoch)
        assert difference(list(islice(team, point.steps)), whole[: point.steps]) is None, point
        state = team.state_dict()
        after = (0,) if plan == "python" else WORKERS
        count = after[point.number % len(after)]
        again = Ranks(case.make, ranks, workers=count, state=state)
        assert difference(list(again), whole[point.steps :]) is None, f"{point}, gone on with {count} workers"
        case.gone_on_with_by_others(state, point, ranks, after[point.number // 4 % len(after)])


def stopped_processes(case: Case, workers: int, ranks: int, rank: int, point: Point) -> dict[str, Any]:
    """Check one rank with worker processes around a stop, and return the state that it had there."""
    mine = [step[rank] for step in case.undisturbed(ranks, point.epoch).batches]
    make = partial(case.make, shard=(rank, ranks), num_workers=workers)
    begun = make()
    begun.set_epoch(point.epoch)
    batches = iter(begun)
    assert difference(list(islice(batches, point.steps)), mine[: point.steps]) is None, (rank, point)
    state: dict[str, Any] = json.loads(json.dumps(begun.state_dict()))
    del batches
    again = loaded(make(), state)
    assert difference(list(again), mine[point.steps :]) is None, (rank, point)
    return state


PROCESSES = [(workers, ranks) for workers in WORKERS if workers for ranks in RANKS]


@pytest.mark.parametrize(("workers", "ranks"), PROCESSES)
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_processes_sampled(workers: int, ranks: int, cases: Any) -> None:
    case: Case = cases("python")
    draw = random.Random(workers * 100 + ranks)
    point, rank = draw.choice(case.points(workers, ranks)), draw.randrange(ranks)
    state = stopped_processes(case, workers, ranks, rank, point)
    case.gone_on_with_by_others(state, point, ranks, 0)


@pytest.mark.slow
@pytest.mark.whole_matrix
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("workers", "ranks"), PROCESSES)
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_processes_whole(workers: int, ranks: int, cases: Any) -> None:
    case: Case = cases("python")
    for point in case.points(workers, ranks):
        states = [stopped_processes(case, workers, ranks, rank, point) for rank in range(ranks)]
        assert all(state == states[0] for state in states), point
        case.gone_on_with_by_others(states[0], point, ranks, 0)
