"""Datasets of samples of other shapes, with collate_fns of their own; that draw, keep and count; and that raise."""

from __future__ import annotations

import random
import warnings
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence, pad_sequence
from torch.utils.data import Dataset, default_collate, get_worker_info

from tests.data import Made
from tests.own_datasets.conformance import assert_conforms, kinds, listed

Pair = namedtuple("Pair", "x y")


STRUCTURES: dict[str, Callable[[int], Any]] = {
    "nested": lambda i: {"x": {"y": [torch.arange(3.0) + i, i / 3], "z": (f"s{i}", i % 2 == 0)}, "i": i},
    "ordered": lambda i: OrderedDict(b=np.arange(2) + i, a=OrderedDict(name=f"n{i}"), c=defaultdict(int, {"k": i})),
    "named": lambda i: Pair(torch.full((2, 2), i, dtype=torch.uint8), Pair(i, str(i))),
    "strings": lambda i: (f"text {i}", [b"%d" % i, "é" * (i % 3)]),
    # Dtypes that differ between samples, which torch's collation promotes.
    "mixed": lambda i: ((i if i % 2 else float(i)), torch.tensor(i, dtype=torch.int64), np.float16(i)),
    # A list whose batch is the list of its columns.
    "lists": lambda i: [torch.tensor([i]), [i, [i + 1, torch.zeros(2)]], {"only": [f"{i}"]}],
}


@dataclass
class Sample:
    x: torch.Tensor
    name: str
    extra: dict[str, Any]


class Batch:
    """A batch of the user's own, which pins its memory."""

    def __init__(self, samples: list[Any]) -> None:
        self.x = torch.stack([sample.x for sample in samples])
        self.names = [sample.name for sample in samples]

    def pin_memory(self) -> Batch:
        self.x = self.x.pin_memory()
        return self


def padded(samples: list[Any]) -> Any:
    """Pad sequences of different lengths; with their lengths and a mask."""
    lengths = torch.tensor([len(sample) for sample in samples])
    rows = pad_sequence(samples, batch_first=True, padding_value=-1)
    return {"x": rows.t(), "lengths": lengths, "mask": torch.arange(rows.shape[1]) < lengths[:, None]}


class Shuffled:
    """A collate_fn that is a class, and draws."""

    def __new__(cls, samples: list[Any]) -> Any:
        order = torch.randperm(len(samples))
        return default_collate([samples[i] for i in order]), order


def sample(i: int) -> Sample:
    return Sample(torch.rand(2), f"n{i}", {"i": i, "none": None})


def sequence(i: int) -> torch.Tensor:
    return torch.arange(1 + i * 7 % 5)


#: By name: the samples, the collate_fn, and the seed.
COLLATED: dict[str, tuple[Callable[[int], Any], Any, int | None]] = {
    "dataclasses": (sample, listed, 7),
    "a batch of its own": (sample, Batch, 7),
    "padded": (sequence, padded, 7),
    "shuffled": (STRUCTURES["nested"], Shuffled, 7),
    "packed": (sequence, partial(pack_sequence, enforce_sorted=False), None),
}


@pytest.mark.parametrize("name", COLLATED)
def test_own_collation(name: str) -> None:
    get, collate_fn, seed = COLLATED[name]
    assert_conforms(Made(get, 13), collate_fn=collate_fn, seed=seed)


def of_other_samples(i: int) -> Any:
    """Replace a bad index by a random other one, and draw a partner, as MixUp does."""
    if i % 5 == 4:
        return of_other_samples(random.randint(0, 3))
    other, share = int(torch.randint(14, ())), float(np.random.beta(0.2, 0.2))
    return share * i + (1 - share) * other, i


DRAWS: dict[str, Callable[[int], Any]] = {
    "torch": lambda i: (i, torch.rand(2), torch.randint(9, (1,)), torch.empty(2).normal_(), torch.randperm(4)),
    "numpy": lambda i: (np.random.rand(2), np.random.choice(5), np.random.randn(1).astype(np.float32)),
    "random": lambda i: (random.random(), random.choice("abc"), random.sample(range(9), 2), random.gauss(0, 1)),
    "other samples": of_other_samples,
}


def test_the_seed_of_a_worker() -> None:
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


@kinds(OwnGenerators, Counting)
def test_states(kind: Any) -> None:
    """What a sample is depends on which worker made those before: in threads, on timing too."""
    assert_conforms(kind(), invariant=False)


class InPlace(Fourteen):
    """Hands out one buffer, which the next sample is written into: torch's batches hold the last one in every row."""

    def __init__(self) -> None:
        self.buffer, self.array = torch.zeros(3), np.zeros(2)

    def __getitem__(self, index: int) -> Any:
        self.array[:] = index
        return self.buffer.fill_(index), self.array


def test_a_buffer_that_is_written_again() -> None:
    """In threads, and in the caller's with a seed, each sample is in its row before the next one is made."""
    assert_conforms(InPlace(), worker_methods=(None, "process"), seed=None)


def at_5(make: Callable[[], Exception]) -> Callable[[int], Any]:
    """Return a function that raises an error at index 5."""

    def get(index: int) -> Any:
        if index == 5:
            raise make()
        return torch.tensor([index])

    return get


def chained(index: int) -> Any:
    try:
        return {0: 1}[index % 3] / (index - 6)
    except KeyError as error:
        raise RuntimeError(f"no label for {index}") from error


def recursive(index: int) -> Any:
    return recursive(index) if index == 5 else index


def asserting(index: int) -> Any:
    assert index != 5, f"{index} is not allowed"
    return index


def deep(index: int) -> Any:
    """Raise an AttributeError of None, and an error of tensors."""
    nothing: Any = None if index == 9 else index
    return torch.zeros(2) + torch.zeros(3 if index == 5 else 2), nothing.real


RAISING: dict[str, Callable[[int], Any]] = {
    "two lines": at_5(lambda: ValueError("bad sample\n  on two lines")),
    "index": at_5(lambda: IndexError("list index out of range")),
    "key": at_5(lambda: KeyError("a key")),
    "file": lambda index: Path("/nowhere/at/all").read_bytes() if index == 5 else index,
    "unicode": lambda index: b"\xff".decode() if index == 5 else "é",
    "chained": chained,
    "recursive": recursive,
    "memory": at_5(MemoryError),
    "asserting": asserting,
    "deep": deep,
    "last": lambda index: list(range(12))[index],  # too short for its length
    # What torch's collation refuses.
    "none": lambda i: {"x": i, "y": None if i > 5 else 1},
    "uneven": lambda i: (torch.zeros(4 if i == 5 else 3), [i] * (1 + (i == 9))),
    "keys": lambda i: {"a": i} if i != 6 else {"b": i},
}
MADE: dict[str, tuple[Callable[[int], Any], dict[str, Any]]] = {
    **{name: (make, {"seed": None}) for name, make in STRUCTURES.items()},
    **{f"draws of {name}": (make, {}) for name, make in DRAWS.items()},
    **{f"error: {name}": (make, {"shuffle": False, "seed": None}) for name, make in RAISING.items()},
    "error: two lines": (RAISING["two lines"], {"shuffle": False}),
}


@pytest.mark.parametrize("name", MADE)
def test_samples(name: str) -> None:
    make, options = MADE[name]
    assert_conforms(Made(make, 14), **options)


def warning(index: int) -> Any:
    if index % 4 == 1:
        warnings.warn(f"sample {index} is odd", RuntimeWarning, stacklevel=1)
    return index


def test_warnings() -> None:
    assert_conforms(Made(warning, 14), shuffle=False, num_workers=(0,))
