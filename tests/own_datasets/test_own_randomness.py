"""Datasets that draw, keep what they have drawn or read, and count."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from tests.own_datasets.conformance import assert_conforms, kinds


class FromTorch(Dataset):
    def __len__(self) -> int:
        return 14

    def __getitem__(self, index: int) -> Any:
        return index, torch.rand(2), torch.randint(9, (1,)), torch.empty(2).normal_(), torch.randperm(4)


class FromNumpy(FromTorch):
    def __getitem__(self, index: int) -> Any:
        return np.random.rand(2), np.random.choice(5), np.random.randn(1).astype(np.float32)


class FromRandom(FromTorch):
    def __getitem__(self, index: int) -> Any:
        return random.random(), random.choice("abc"), random.sample(range(9), 2), random.gauss(0, 1)


class OfOtherSamples(FromTorch):
    """A bad index is replaced by a random other one, and MixUp draws a partner."""

    def __getitem__(self, index: int) -> Any:
        if index % 5 == 4:
            return self[random.randint(0, 3)]
        other, share = int(torch.randint(14, ())), float(np.random.beta(0.2, 0.2))
        return share * index + (1 - share) * other, index


class SeededByIndex(FromTorch):
    """Seeds the global generators itself, as validation sets do."""

    def __getitem__(self, index: int) -> Any:
        random.seed(index)
        np.random.seed(index)
        torch.manual_seed(index)
        return random.random(), np.random.rand(), torch.rand(1)


class InitialSeed(FromTorch):
    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        return index, torch.initial_seed() % 2**31 if info is not None else 0


@kinds(FromTorch, FromNumpy, FromRandom, OfOtherSamples)
def test_draws(kind: Any) -> None:
    assert_conforms(kind())


def test_seeds_of_its_own() -> None:
    """The class seeds what threads share: only one of them may run, or it locks."""
    assert_conforms(SeededByIndex(), worker_methods=(None, "process"))
    assert_conforms(InitialSeed(), worker_methods=(None, "process"), invariant=False)


class OwnGenerators(FromTorch):
    """Generators that the dataset keeps: each worker has a copy."""

    def __init__(self) -> None:
        self.numpy, self.random = np.random.default_rng(3), random.Random(4)
        self.torch = torch.Generator().manual_seed(5)

    def __getitem__(self, index: int) -> Any:
        return self.numpy.random(), self.random.random(), torch.rand(1, generator=self.torch)


class Counting(FromTorch):
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __getitem__(self, index: int) -> Any:
        self.calls += 1
        return index, self.calls


class Remembering(FromTorch):
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


class Caching(FromTorch):
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


class InPlace(FromTorch):
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
