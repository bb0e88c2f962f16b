"""Orders that follow a set_epoch after iter(), that stay within windows of shards, and that ranks share."""

from __future__ import annotations

import functools
import gc
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader as TorchDataLoader, DistributedSampler, Subset, TensorDataset

import penstock
from tests.carriers_under_test import EXECUTORS, Executor, executors
from tests.commands import assert_equal_ledgers
from tests.values import flat, loaded, resumed, stopped, taken

SIZE = 22
PYTHON: Any = range(SIZE)
NATIVE = TensorDataset(torch.arange(SIZE))
ALL = executors(
    "native, default", "native, 2", "native, persistent", "caller, default", "threads, 2", "threads, persistent",
    "processes, 1", "processes, persistent",
)  # fmt: skip


def make(executor: Executor = EXECUTORS["native, default"], **options: Any) -> Any:
    dataset = NATIVE if executor.native else PYTHON
    return penstock.DataLoader(dataset, 4, shuffle=True, seed=7, **executor.options, **options)


def epochs() -> list[list[int]]:
    loader = make()
    return [flat(loader) for _ in range(5)]


def begun(loader: Any, set_epoch: Any, epoch: int) -> list[int]:
    """Return a pass that is told its epoch after iter()."""
    batches = iter(loader)
    set_epoch(epoch)
    return flat(batches)


@ALL
def test_a_pass_follows_until_its_first_batch(executor: Executor) -> None:
    whole, loader = epochs(), make(executor)
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
def test_a_pass_that_nobody_goes_on_with_takes_no_epoch(executor: Executor) -> None:
    whole, loader = epochs(), make(executor)
    unused = iter(loader)
    loader.set_epoch(1)
    assert [flat(loader), flat(loader)] == whole[1:3]
    del unused
    gc.collect()


@ALL
def test_a_resumed_pass_follows_too(executor: Executor) -> None:
    whole = epochs()
    _, state, _ = stopped(make(executor), 2)
    for epoch, wanted in ((0, whole[0][8:]), (1, whole[1])):
        again = loaded(make(executor), state)
        assert begun(again, again.set_epoch, epoch) == wanted and flat(again) == whole[epoch + 1]


@ALL
def test_a_distributed_sampler_follows(executor: Executor) -> None:
    dataset = NATIVE if executor.native else PYTHON
    sampler: Any = DistributedSampler(dataset, 1, 0)
    sampler.set_epoch(2)
    wanted = flat(TorchDataLoader(dataset, 4, sampler=sampler))
    sampler.set_epoch(0)
    loader: Any = penstock.DataLoader(dataset, 4, sampler=sampler, **executor.options)
    assert begun(loader, loader.set_epoch, 2) == wanted
    # Without workers torch's loader calls the sampler with the first batch, and follows the sampler's own set_epoch.
    if "num_workers" not in executor.options:
        sampler.set_epoch(0)
        assert begun(loader, sampler.set_epoch, 2) == wanted


def test_the_ledger_says_which_epoch_came(tmp_path: Path) -> None:
    one, two = (str(tmp_path / name) for name in ("one", "two"))
    loader = make(EXECUTORS["native, 2"], ledger=one)
    loader.set_epoch(2)
    flat(loader)
    loader = make(EXECUTORS["native, 2"], ledger=two)
    begun(loader, loader.set_epoch, 2)
    assert_equal_ledgers(one, two)


def test_without_a_seed_nothing_is_drawn_twice() -> None:
    torch.manual_seed(4)
    wanted, behind = flat(TorchDataLoader(NATIVE, 4, shuffle=True)), torch.get_rng_state()
    torch.manual_seed(4)
    loader: Any = penstock.DataLoader(NATIVE, 4, shuffle=True)
    assert begun(loader, loader.set_epoch, 3) == wanted and torch.equal(torch.get_rng_state(), behind)


SHARDS, EACH = 12, 20


@functools.cache
def packed() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix="penstock-orders-")
    penstock.pack(TensorDataset(torch.arange(SHARDS * EACH)), folder.name, shard_size=1024 * EACH)
    return folder


def shards(window: int = 3) -> penstock.Shards:
    """Return numbers in shards."""
    return penstock.Shards(packed().name, window=window)


def loader(dataset: Any = None, **options: Any) -> Any:
    options = {"batch_size": 8, "shuffle": True, "num_workers": 0, "seed": 5, **options}
    return penstock.DataLoader(shards() if dataset is None else dataset, **options)


def test_every_sample_comes_within_the_window() -> None:
    epoch = flat(loader())
    assert sorted(epoch) == list(range(SHARDS * EACH))
    shards = [number // EACH for number in epoch]
    assert len(set(shards[:40])) == 3, "the first slot holds samples of one window"
    assert epoch == flat(loader(worker_method="thread", num_workers=2)) and epoch != flat(loader(seed=6))


def test_ranks_cut_one_order() -> None:
    ranks = [list(loader(shard=(rank, 2))) for rank in range(2)]
    together = flat(batch for pair in zip(*ranks, strict=True) for batch in pair)
    assert together == flat(loader(batch_size=16))


def test_a_state_goes_on_at_any_position_and_refuses_another_window() -> None:
    first = loader()
    begun, second = resumed(first, loader(batch_size=5), 7)
    assert flat(begun) + flat(second) == flat(loader())
    state = first.state_dict()
    with pytest.raises(penstock.InvalidOption, match=r"windows of 3 .* cannot continue shuffled in windows of 4"):
        loader(shards(4)).load_state_dict(state)
    with pytest.raises(penstock.InvalidOption, match="cannot continue shuffled"):
        loader(shards(SHARDS)).load_state_dict(state)


def test_without_a_seed_torchs_generator_gives_the_key() -> None:
    orders = []
    for _ in range(2):
        torch.manual_seed(3)
        unseeded = loader(seed=None)
        orders.append([flat(unseeded), flat(unseeded)])
    assert orders[0] == orders[1] and orders[0][0] != orders[0][1]
    assert sorted(orders[0][0]) == list(range(SHARDS * EACH))


def test_subsets_and_concatenations_keep_the_blocks() -> None:
    dataset = shards()
    chosen = list(range(60, 180))
    epoch = flat(loader(Subset(dataset, chosen)))
    assert sorted(epoch) == chosen and len({number // EACH for number in epoch[:40]}) == 3
    parts: list[Any] = [dataset, TensorDataset(torch.arange(1000, 1050)), Subset(dataset, chosen)]
    both: Any = ConcatDataset(parts)
    epoch = flat(loader(both))
    assert sorted(epoch) == sorted([*range(SHARDS * EACH), *range(1000, 1050), *chosen])
    assert len({number // EACH for number in epoch[:40]}) <= 3 and "within a window of 3" in loader(both).explain()
    assert "window" not in loader(ConcatDataset(parts[1:2])).explain()


def test_samplers_of_ones_own_are_followed() -> None:
    given = list(range(SHARDS * EACH))[::-1]
    assert flat(loader(shuffle=None, sampler=given, seed=None)) == given


DATASET = TensorDataset(torch.arange(10))


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    launchers = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_RANK", "MASTER_", "SLURM_", "OMPI_", "PMI", "MV2_")
    for name in [name for name in os.environ if name.startswith(launchers)]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize("options", [{}, {"seed": 3}, {"seed": 3, "shuffle": True}], ids=str)
@pytest.mark.parametrize("dataset", [DATASET, range(10)], ids=["native", "python"])
def test_each_rank_gets_its_part(dataset: Any, options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loader: Any = penstock.DataLoader(dataset, 2, shard="auto", **options)
    assert len(loader) == 5, "nothing says that there are others"
    parts = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        parts += flat(loader)
        loader.set_epoch(0)
    assert sorted(parts) == list(range(10))


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "1"}, "RANK=1 is set, and WORLD_SIZE is not"),
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE=4 is set, and RANK is not"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK=4 and WORLD_SIZE=4 are not a rank"),
        ({"RANK": "x", "WORLD_SIZE": "4"}, "RANK=x and WORLD_SIZE=4 are not a rank"),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, "contradict LOCAL_RANK=1"),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "2"}, "contradict LOCAL_WORLD_SIZE=2"),
        ({"LOCAL_RANK": "1"}, "LOCAL_RANK=1 says that this may be one of several"),
        ({"MASTER_ADDR": "host"}, "MASTER_ADDR=host says that this may be one of several"),
        ({"SLURM_STEP_NUM_TASKS": "8"}, "SLURM_STEP_NUM_TASKS=8 says"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_SIZE=2 says"),
    ],
)
def test_what_is_half_said_is_an_error(variables: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    loader: Any = penstock.DataLoader(DATASET, 2, shard="auto")  # the process group may run when a pass begins
    for ask in (iter, len):
        with pytest.raises(penstock.InvalidOption, match=message):
            ask(loader)
    assert len(list(penstock.DataLoader(DATASET, 2))) == 5, "without shard= nobody asks"


def test_one_task_of_srun_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    assert len(penstock.DataLoader(DATASET, 2, shard="auto")) == 5


def test_a_pass_before_the_others_were_known_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    loader: Any = penstock.DataLoader(DATASET, 2, shard="auto")
    list(loader)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.warns(UserWarning, match="an earlier pass of this loader read the whole dataset"):
        list(loader)


def train(rank: object, world: object) -> Any:
    """Return what ray.train is to those who ask for the rank of a worker."""
    context = SimpleNamespace(get_world_rank=lambda: rank, get_world_size=lambda: world)
    fails = mock.Mock(side_effect=RuntimeError("this is no worker of Ray Train"))
    return SimpleNamespace(get_context=fails if rank is None else lambda: context)


def test_a_worker_of_ray_train_knows_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader: Any = penstock.DataLoader(DATASET, 2, shard="auto")
    monkeypatch.setitem(sys.modules, "ray.train", train(4, 5))
    assert [batch[0].tolist() for batch in loader] == [[8, 9]]
    for outside in (train(None, None), train("4", "5")):
        monkeypatch.setitem(sys.modules, "ray.train", outside)
        assert len(loader) == 3


@pytest.mark.parametrize("dataset", [PYTHON, NATIVE], ids=["Python", "native"])
def test_a_batch_sampler_that_draws_as_it_begins_draws_before_the_base_seed(dataset: Any) -> None:
    class Eager:
        def __iter__(self) -> Any:
            return iter(torch.randperm(SIZE).view(2, -1).tolist())

    def found(kind: Any) -> tuple[list[list[int]], float]:
        torch.manual_seed(5)
        loader = kind(dataset, batch_sampler=Eager(), num_workers=0)
        return [flat(loader) for _ in range(2)], torch.rand(1).item()

    assert found(penstock.DataLoader) == found(TorchDataLoader)
