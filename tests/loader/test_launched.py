"""shard="auto" before a process group runs: RANK and WORLD_SIZE, or an error that says what is missing."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch.utils.data import TensorDataset

import penstock
from penstock.system.launched import _COUNTS_ELSEWHERE, _OF_TORCH
from tests.values import flat

DATASET = TensorDataset(torch.arange(10))


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", *_OF_TORCH, *_COUNTS_ELSEWHERE):
        monkeypatch.delenv(name, raising=False)


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
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK=4 and WORLD_SIZE=4 are no rank"),
        ({"RANK": "x", "WORLD_SIZE": "4"}, "RANK=x and WORLD_SIZE=4 are no rank"),
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
