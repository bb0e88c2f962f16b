"""Datasets that draw, keep what they have drawn or read, and count."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, get_worker_info

from tests.own_datasets.conformance import assert_conforms, kinds
from tests.sample_datasets import Made


def of_other_samples(i: int) -> Any:
    """Replace a bad index by a random other one, and draw a partner, as MixUp does."""
    if i % 5 == 4:
        return of_other_samples(random.randint(0, 3))
    other, share = int(torch.randint(14, ())), float(np.random.beta(0.2, 0.2))
    return share * i + (1 - share) * other, i


def seeded_by_index(i: int) -> Any:
    """Seed the global generators, as validation sets do."""
    random.seed(i)
    np.random.seed(i)
    torch.manual_seed(i)
    return random.random(), np.random.rand(), torch.rand(1)


DRAWS: dict[str, Callable[[int], Any]] = {
    "torch": lambda i: (i, torch.rand(2), torch.randint(9, (1,)), torch.empty(2).normal_(), torch.randperm(4)),
    "numpy": lambda i: (np.random.rand(2), np.random.choice(5), np.random.randn(1).astype(np.float32)),
    "random": lambda i: (random.random(), random.choice("abc"), random.sample(range(9), 2), random.gauss(0, 1)),
    "other samples": of_other_samples,
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws(name: str) -> None:
    assert_conforms(Made(DRAWS[name], 14))


def test_seeds_of_its_own() -> None:
    """The class seeds what threads share: only one of them may run, or it locks."""
    assert_conforms(Made(seeded_by_index, 14), worker_methods=(None, "process"))
    own = Made(lambda i: (i, torch.initial_seed() % 2**31 if get_worker_info() is not None else 0), 14)
    assert_conforms(own, worker_methods=(None, "process"), invariant=False)


class Fourteen(Dataset):
    def __len__(self) -> int:
        return 14


class OwnGenerators(Fourteen):
    """Generators that the dataset keeps: each worker has a copy."""

    def __init__(self) -> None:
        self.numpy, self.random = np.random.default_rng(3), random.Random(4)
        self.torch = torch.Generator().manual_seed(5)

    def __getitem__(self, index: int) -> Any:
        return self.numpy.random(), self.random.random(), torch.rand(1, generator=self.torch)


class Counting(Fourteen):
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __getitem__(self, index: int) -> Any:
        self.calls += 1
        return index, self.calls


class Remembering(Fourteen):
    """A sample depends on the one before."""

    def __init__(self) -> None:
        self.last: list[int] = [-1]

    def __getitem__(self, index: int) -> Any:
        self.last.append(index)
        return index, self.last[-2], torch.tensor(self.last[-2:])


@kinds(OwnGenerators, Counting, Remembering)
def test_states(kind: Any) -> None:
    """What a sample is depends on which worker made those before: in threads, on timing too."""
    assert_conforms(kind(), invariant=False)


class Caching(Fourteen):
    """Makes each sample once, and gives it out again; a second pass changes nothing."""

    def __init__(self) -> None:
        self.kept: dict[int, torch.Tensor] = {}
        self.lock: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.lock is None:
            self.lock = threading.Lock()
        with self.lock:
            if index not in self.kept:
                self.kept[index] = torch.arange(3) * index
        return self.kept[index]


class InPlace(Fourteen):
    """Hands out one buffer, which the next sample is written into: torch's batches hold the last one in every row."""

    def __init__(self) -> None:
        self.buffer, self.array = torch.zeros(3), np.zeros(2)

    def __getitem__(self, index: int) -> Any:
        self.array[:] = index
        return self.buffer.fill_(index), self.array


def test_what_is_kept() -> None:
    assert_conforms(Caching())


def test_a_buffer_that_is_written_again() -> None:
    """In threads, and in the caller's with a seed, each sample is in its row before the next one is made."""
    assert_conforms(InPlace(), worker_methods=(None, "process"), seed=None)
