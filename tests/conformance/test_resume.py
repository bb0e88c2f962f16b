"""Every executor goes on where any other stopped: bitwise, with other workers, and with batches of another size."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import penstock
from tests.carriers_under_test import EXECUTORS, Executor, executors
from tests.data import Drawing, Made
from tests.same import assert_same
from tests.values import flat, loaded, stored, taken

SIZE = 101
ROWS = TensorDataset(torch.arange(SIZE), torch.arange(float(SIZE)).view(SIZE, 1).expand(SIZE, 3).contiguous())
#: Without draws from global generators, which threads share.
COMPUTED = Made(lambda index: (index, torch.full((2,), index**0.5)), SIZE)

EVERY = (
    "native, caller", "native, 2", "native, persistent", "native, fed",
    "caller", "caller, torch's", "caller, fed", "threads, caller", "threads, 2", "threads, persistent",
    "processes, 2", "processes, persistent", "processes, fed",
)  # fmt: skip
#: Passes of these end early, and at either end; of the others in the middle.
WHOLE = ("native, caller", "native, 2", "caller", "threads, 2", "processes, 2")
STOPS = [(name, stop) for name in EVERY for stop in ((0, 1, 9, 26) if name in WHOLE else (9,))]


def dataset_of(executor: Executor) -> Any:
    if executor.native:
        return ROWS
    return COMPUTED if executor.options.get("worker_method") == "thread" else Drawing(SIZE)


def loader_of(executor: Executor, **options: Any) -> Any:
    own = {"batch_size": 4, "shuffle": True, "seed": 7, **executor.options, **options}
    if not own["num_workers"]:
        own.pop("persistent_workers", None)
    return penstock.DataLoader(dataset_of(executor), **own)


@pytest.mark.parametrize(("name", "stop"), STOPS)
def test_the_rest_of_an_epoch_is_bitwise_the_same(name: str, stop: int) -> None:
    executor = EXECUTORS[name]
    first = loader_of(executor)
    whole, next_epoch = list(first), list(first)
    begun = loader_of(executor)
    batches = iter(begun)
    assert_same(taken(batches, stop), whole[:stop])
    state = stored(begun.state_dict())
    assert len(json.dumps(state)) < 1000
    del batches
    for workers in (0, 1, 2) if name in WHOLE else (1,):
        again = loaded(loader_of(executor, num_workers=workers), state)
        assert again.state_dict() == state
        assert_same(list(again), whole[stop:])
        assert_same(list(again), next_epoch)
    other = loaded(loader_of(executor, num_workers=0, batch_size=7), state)
    assert flat(whole[:stop]) + flat(other) == flat(whole)
    begun.load_state_dict(state)  # with the workers that it has
    assert_same(list(begun), whole[stop:])


@executors("native, caller", "native, 2", "caller", "caller, torch's", "threads, caller", "threads, 2", "processes, 2")
@pytest.mark.parametrize("shuffle", [True, False])
def test_without_a_seed_the_epoch_goes_on_all_the_same(executor: Executor, shuffle: bool) -> None:
    def numbers(batches: Any) -> Any:
        return [batch[0] for batch in batches]

    torch.manual_seed(11)
    whole = numbers(loader_of(executor, seed=None, shuffle=shuffle))
    torch.manual_seed(11)
    begun = loader_of(executor, seed=None, shuffle=shuffle)
    batches = iter(begun)
    assert_same(numbers(taken(batches, 6)), whole[:6])
    state = stored(begun.state_dict())
    torch.manual_seed(99)
    again = loaded(loader_of(executor, seed=None, shuffle=shuffle), state)
    assert_same(numbers(again), whole[6:])
    assert_same(numbers(batches), whole[6:])
