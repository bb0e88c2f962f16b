"""Samplers and options of the loaders: orders, weights, batches of the user's own, and what runs in workers first."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

from tests.own_datasets.conformance import assert_conforms

LENGTHS = [3, 9, 1, 7, 7, 2, 8, 4, 4, 5, 6, 1, 9]


class Lengths(Dataset):
    """Samples of different lengths."""

    def __len__(self) -> int:
        return len(LENGTHS)

    def __getitem__(self, index: int) -> Any:
        return torch.full((3,), float(index)) + torch.rand(3), index


class ByLength(Sampler[list[int]]):
    """Batches of samples of like length, in a random order that torch draws."""

    def __init__(self, size: int) -> None:
        order = sorted(range(len(LENGTHS)), key=LENGTHS.__getitem__)
        self.batches = [order[i : i + size] for i in range(0, len(order), size)]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        for i in torch.randperm(len(self.batches)).tolist():
            yield self.batches[i]


class Balanced(Sampler[int]):
    """Draws from random and numpy while it goes."""

    def __len__(self) -> int:
        return 14

    def __iter__(self) -> Iterator[int]:
        for _ in range(14):
            yield random.randrange(13) if np.random.rand() < 0.5 else 0


class Epochs(Sampler[int]):
    """A seed of its own, and set_epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(13, generator=torch.Generator().manual_seed(self.epoch)).tolist())


def test_samplers_of_torch() -> None:
    weighted = WeightedRandomSampler([float(length) for length in LENGTHS], 11)
    assert_conforms(Lengths(), sampler=weighted)
    assert_conforms(Lengths(), sampler=SubsetRandomSampler([4, 2, 7, 9]), seed=None)
    assert_conforms(Lengths(), sampler=RandomSampler(range(13), replacement=True, num_samples=9), seed=None)
    assert_conforms(Lengths(), sampler=DistributedSampler(Lengths(), num_replicas=2, rank=1), seed=None)


def test_a_sampler_with_a_generator() -> None:
    generator = torch.Generator().manual_seed(3)
    assert_conforms(Lengths(), sampler=RandomSampler(range(13), generator=generator), generator=generator, seed=None)


def test_samplers_of_ones_own() -> None:
    assert_conforms(Lengths(), sampler=Epochs())
    assert_conforms(Lengths(), sampler=Balanced(), seed=None)


def test_batch_samplers() -> None:
    assert_conforms(Lengths(), batch_sampler=ByLength(4), invariant=False)
    assert_conforms(Lengths(), batch_sampler=BatchSampler(Epochs(), 5, drop_last=True), seed=None)
    assert_conforms(Lengths(), batch_sampler=[[1, 2], [3], (4, 5), np.array([6, 7]).tolist()], seed=None)


class Prepared(Lengths):
    """What worker_init_fn has done is seen by each sample."""

    def __init__(self) -> None:
        self.start = 0.0

    def __getitem__(self, index: int) -> Any:
        return index + self.start, random.random(), float(np.random.rand())


def prepare(worker: int) -> None:
    """Do what people do in a worker_init_fn: seed numpy by torch's seed, and change the worker's dataset."""
    info: Any = get_worker_info()
    np.random.seed(torch.initial_seed() % 2**32)
    info.dataset.start = 0.5 + (info.num_workers == 2)


def test_worker_init_fn() -> None:
    assert_conforms(Prepared(), worker_init_fn=prepare, invariant=False)


class OfWorkers(Lengths):
    """What get_worker_info() says."""

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        return index, -1 if info is None else info.num_workers, type(info is None).__name__


def test_worker_info() -> None:
    assert_conforms(OfWorkers(), invariant=False)


def test_options() -> None:
    two: dict[str, Any] = {"num_workers": (2,), "worker_methods": (None, "thread"), "seed": None}
    assert_conforms(Lengths(), persistent_workers=True, prefetch_factor=3, **two)
    assert_conforms(Lengths(), drop_last=True, batch_size=5, timeout=60, **two)
