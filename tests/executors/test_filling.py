"""What fills batches in the thread that fetches them: readers where reads block, threads that share it, and forks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate
from torchvision import transforms as v1

import penstock
from penstock.executors.filling import Filling
from penstock.plan import Kept
from penstock.state.delivery import Task
from tests.forking import assert_in_child
from tests.same import assert_same
from tests.waiting import run_in_threads

pytestmark = pytest.mark.native

EVAL = v1.Compose([v1.Resize(30), v1.CenterCrop(28), v1.ToTensor()])


@pytest.fixture
def dataset(photos):
    return penstock.ImageFolder(photos, EVAL)


def task(*indices: int) -> Task:
    return Task(list(indices), 3, 0, range(len(indices)))


def filled(filling: Filling, given: Task) -> Any:
    found = filling.fill(given, None, given.seed, None)
    assert found is not None
    return found


def test_readers_bring_files_where_reads_block(slow, photos):
    dataset = penstock.ImageFolder(photos, EVAL)
    filling = Filling(dataset, Kept())
    for begin in (0, 60, 0, 60):
        batch = filled(filling, task(*range(begin, begin + 60))).batch()
        assert_same(batch, default_collate([dataset[i] for i in range(begin, begin + 60)]))
    counts = filling._idle[0]._crew.pool.reading()
    assert counts["deepest"] > 1 and counts["ahead"] + counts["awaited"] > 0


def test_threads_that_share_one(dataset):
    filling, found = Filling(dataset, Kept()), {}

    def work(number: int) -> None:
        for turn in range(4):
            indices = range((7 * number + 30 * turn) % 100, (7 * number + 30 * turn) % 100 + 20)
            found[number, turn] = indices, filled(filling, task(*indices)).batch()

    run_in_threads(4, work)
    for indices, batch in found.values():
        assert_same(batch, default_collate([dataset[i] for i in indices]))
    assert len(filling._idle) <= 4


def test_a_forked_child_goes_on(dataset):
    filling = Filling(dataset, Kept())
    expected = filled(filling, task(1, 2)).batch()

    def check() -> None:
        assert_same(filled(filling, task(1, 2)).batch(), expected)

    assert_in_child(check)
    check()


@pytest.mark.parametrize("given", [[], [0, 500], [0, True], [0, "1"], [1 << 70], range(3), [[0], [1]]])
def test_what_only_the_dataset_makes_sense_of(dataset, given):
    filling = Filling(dataset, Kept())
    assert filling.fill(Task(given, 0, 0, range(3)), None, 0, None) is None
    indices: Any = [np.int64(3), torch.tensor(4), -1]
    assert_same(filled(filling, task(*indices)).batch(), default_collate([dataset[3], dataset[4], dataset[-1]]))


def test_a_dataset_that_changes_for_a_batch(dataset):
    filling = Filling(dataset, Kept())
    for transform in (EVAL, v1.Compose([v1.Resize((9, 9)), v1.ToTensor()])):
        dataset.transform = transform
        assert_same(filled(filling, task(0, 1)).batch(), default_collate([dataset[0], dataset[1]]))
    dataset.transform = np.asarray
    assert filling.fill(task(0, 1), None, 0, None) is None
    dataset.transform = EVAL
    assert filling.fill(task(0, 1), None, 0, None) is None, "Python reads the rest of the pass"
    following = Task([0, 1], 3, 1, range(2))
    assert_same(filled(filling, following).batch(), default_collate([dataset[0], dataset[1]]))


def test_samples_that_are_seen(dataset):
    seen = filled(Filling(dataset, Kept(), unseen=False), task(3, 4)).samples(unseen=False)
    assert_same(seen, [dataset[3], dataset[4]])
    assert [image.untyped_storage().nbytes() for image, _ in seen] == [image.nbytes for image, _ in seen]
    dataset.transform = v1.Compose([v1.Resize((9, 9)), v1.PILToTensor()])
    assert Filling(dataset, Kept(), unseen=False).fill(task(3), None, 0, None) is None
