"""A pass that has handed out nothing follows a set_epoch that comes after iter(): its order is not drawn before."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import DistributedSampler, TensorDataset

import penstock
from penstock.state.ledger import Verdict, compare, read
from tests.values import flat, loaded, stopped, taken

SIZE = 22
PYTHON: Any = range(SIZE)
NATIVE = TensorDataset(torch.arange(SIZE))
THREAD = {"worker_method": "thread", "num_workers": 2}
WORKERS: dict[str, Any] = {
    "native": (NATIVE, {}),
    "native, workers": (NATIVE, {"num_workers": 2}),
    "native, persistent": (NATIVE, {"num_workers": 2, "persistent_workers": True}),
    "inline": (PYTHON, {}),
    "thread": (PYTHON, THREAD),
    "thread, persistent": (PYTHON, {**THREAD, "persistent_workers": True}),
    "process": (PYTHON, {"num_workers": 1}),
    "process, persistent": (PYTHON, {"num_workers": 1, "persistent_workers": True}),
}
ALL = pytest.mark.parametrize("workers", WORKERS)


def make(workers: str, **options: Any) -> Any:
    dataset, own = WORKERS[workers]
    return penstock.DataLoader(dataset, 4, shuffle=True, seed=7, **own, **options)


def epochs() -> list[list[int]]:
    loader = make("native")
    return [flat(loader) for _ in range(5)]


def begun(loader: Any, set_epoch: Any, epoch: int) -> list[int]:
    """Return a pass that is told its epoch after iter()."""
    batches = iter(loader)
    set_epoch(epoch)
    return flat(batches)


@ALL
def test_a_pass_follows_until_its_first_batch(workers: str) -> None:
    whole, loader = epochs(), make(workers)
    batches = iter(loader)
    loader.set_epoch(3)
    loader.sampler.set_epoch(2)  # as Lightning calls it
    assert loader.state_dict()["epoch"] == 2 and flat(batches) == whole[2]
    assert flat(loader) == whole[3], "the next pass is the next epoch"
    batches = iter(loader)
    first = flat(taken(batches, 1))
    loader.set_epoch(1)
    loader.set_epoch(0)
    assert first + flat(batches) == whole[4], "a pass that has handed out a batch goes on"
    assert flat(loader) == whole[0]


@ALL
def test_a_pass_that_nobody_goes_on_with_takes_no_epoch(workers: str) -> None:
    whole, loader = epochs(), make(workers)
    unused = iter(loader)
    loader.set_epoch(1)
    assert [flat(loader), flat(loader)] == whole[1:3]
    del unused
    gc.collect()


@ALL
def test_a_resumed_pass_follows_too(workers: str) -> None:
    whole = epochs()
    _, state, _ = stopped(make(workers), 2)
    for epoch, wanted in ((0, whole[0][8:]), (1, whole[1])):
        again = loaded(make(workers), state)
        assert begun(again, again.set_epoch, epoch) == wanted and flat(again) == whole[epoch + 1]


@ALL
def test_a_distributed_sampler_follows(workers: str) -> None:
    dataset, own = WORKERS[workers]
    sampler: Any = DistributedSampler(dataset, 1, 0)
    sampler.set_epoch(2)
    wanted = flat(TorchDataLoader(dataset, 4, sampler=sampler))
    sampler.set_epoch(0)
    loader: Any = penstock.DataLoader(dataset, 4, sampler=sampler, **own)
    assert begun(loader, loader.set_epoch, 2) == wanted
    # Without workers torch's loader calls the sampler with the first batch, and follows the sampler's own set_epoch.
    if not own:
        sampler.set_epoch(0)
        assert begun(loader, sampler.set_epoch, 2) == wanted


def test_the_ledger_says_which_epoch_came(tmp_path: Path) -> None:
    one, two = (str(tmp_path / name) for name in ("one", "two"))
    loader = make("native, workers", ledger=one)
    loader.set_epoch(2)
    flat(loader)
    loader = make("native, workers", ledger=two)
    begun(loader, loader.set_epoch, 2)
    assert compare(read(one), read(two)).verdict is Verdict.EQUAL


def test_without_a_seed_nothing_is_drawn_twice() -> None:
    torch.manual_seed(4)
    wanted, behind = flat(TorchDataLoader(NATIVE, 4, shuffle=True)), torch.get_rng_state()
    torch.manual_seed(4)
    loader: Any = penstock.DataLoader(NATIVE, 4, shuffle=True)
    assert begun(loader, loader.set_epoch, 3) == wanted and torch.equal(torch.get_rng_state(), behind)
