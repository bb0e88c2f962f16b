"""Samplers and options of the loaders: orders, weights, batches of the user's own, and what runs in workers first."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data

from tests.own_datasets.conformance import assert_conforms
from tests.sample_datasets import Made

LENGTHS = [3, 9, 1, 7, 7, 2, 8, 4, 4, 5, 6, 1, 9]


class Lengths(data.Dataset):
    """Samples of different lengths."""

    def __len__(self) -> int:
        return len(LENGTHS)

    def __getitem__(self, index: int) -> Any:
        return torch.full((3,), float(index)) + torch.rand(3), index


class ByLength(data.Sampler[list[int]]):
    """Batches of samples of like length, in a random order that torch draws."""

    def __init__(self, size: int) -> None:
        order = sorted(range(len(LENGTHS)), key=LENGTHS.__getitem__)
        self.batches = [order[i : i + size] for i in range(0, len(order), size)]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        for i in torch.randperm(len(self.batches)).tolist():
            yield self.batches[i]


class Balanced(data.Sampler[int]):
    """Draws from random and numpy while it goes."""

    def __len__(self) -> int:
        return 14

    def __iter__(self) -> Iterator[int]:
        for _ in range(14):
            yield random.randrange(13) if np.random.rand() < 0.5 else 0


class Epochs(data.Sampler[int]):
    """A seed of its own, and set_epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(13, generator=torch.Generator().manual_seed(self.epoch)).tolist())


def with_generator() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    return {"sampler": data.RandomSampler(range(13), generator=generator), "generator": generator, "seed": None}


TWO: dict[str, Any] = {"num_workers": (2,), "worker_methods": (None, "thread"), "seed": None}
#: By name: what makes the options of the loader.
OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "weighted": lambda: {"sampler": data.WeightedRandomSampler([float(length) for length in LENGTHS], 11)},
    "subset": lambda: {"sampler": data.SubsetRandomSampler([4, 2, 7, 9]), "seed": None},
    "replaced": lambda: {"sampler": data.RandomSampler(range(13), replacement=True, num_samples=9), "seed": None},
    "distributed": lambda: {"sampler": data.DistributedSampler(Lengths(), num_replicas=2, rank=1), "seed": None},
    "with a generator": with_generator,
    "epochs": lambda: {"sampler": Epochs()},
    "balanced": lambda: {"sampler": Balanced(), "seed": None},
    "by length": lambda: {"batch_sampler": ByLength(4), "invariant": False},
    "batches of epochs": lambda: {"batch_sampler": data.BatchSampler(Epochs(), 5, drop_last=True), "seed": None},
    "batches": lambda: {"batch_sampler": [[1, 2], [3], (4, 5), np.array([6, 7]).tolist()], "seed": None},
    "persistent": lambda: {"persistent_workers": True, "prefetch_factor": 3, **TWO},
    "last dropped": lambda: {"drop_last": True, "batch_size": 5, "timeout": 60, **TWO},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_samplers_and_options(name: str) -> None:
    assert_conforms(Lengths(), **OPTIONS[name]())


class Prepared(Lengths):
    """What worker_init_fn has done is seen by each sample."""

    start = 0.0

    def __getitem__(self, index: int) -> Any:
        return index + self.start, random.random(), float(np.random.rand())


def prepare(worker: int) -> None:
    """Do what people do in a worker_init_fn: seed numpy by torch's seed, and change the worker's dataset."""
    info: Any = data.get_worker_info()
    np.random.seed(torch.initial_seed() % 2**32)
    info.dataset.start = 0.5 + (info.num_workers == 2)


def test_worker_init_fn() -> None:
    assert_conforms(Prepared(), worker_init_fn=prepare, invariant=False)


def of_worker(index: int) -> Any:
    info = data.get_worker_info()
    return index, -1 if info is None else info.num_workers, type(info is None).__name__


def test_worker_info() -> None:
    assert_conforms(Made(of_worker, 13), invariant=False)
