"""Datasets in other datasets, classes unlike others by Python's data model, iterable datasets, samplers and options."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils import data
from torch.utils.data import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    get_worker_info,
    random_split,
)
from torchvision import transforms as T

from tests.data import Made
from tests.own_datasets.conformance import assert_conforms, kinds, listed

TRANSFORM = T.Compose([T.RandomCrop(20), T.ToTensor()])


def plain(paths: list[Path]) -> Made:
    return Made(lambda index: (Image.open(paths[index]).convert("RGB"), index), len(paths))


class Transformed(Dataset):
    """A transform of its own on another dataset, such as a Subset: the recipe of every forum."""

    def __init__(self, dataset: Any, transform: Any) -> None:
        self.dataset, self.transform = dataset, transform

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        image, label = self.dataset[index]
        return self.transform(image), label


def test_splits_subsets_and_stacks(photos: list[Path]) -> None:
    train, _ = random_split(plain(photos), [9, 3], generator=torch.Generator().manual_seed(0))
    assert_conforms(Transformed(train, TRANSFORM))
    whole, small = Transformed(plain(photos), T.ToTensor()), Transformed(plain(photos[:4]), TRANSFORM)
    assert_conforms(ConcatDataset([Subset(whole, [3, 3, 0]), small, small + Subset(whole, [1])]), collate_fn=listed)
    first, second = Transformed(plain(photos), TRANSFORM), Transformed(plain(photos[::-1]), TRANSFORM)
    assert_conforms(StackDataset(image=first, other=second))
    assert_conforms(StackDataset(first, Whole()), seed=None)


class Rows(Dataset):
    """Rows in memory."""

    def __init__(self) -> None:
        self.data = np.arange(36, dtype=np.float32).reshape(12, 3)

    def __len__(self) -> int:
        return 12


class Whole(Rows):
    """__getitems__ reads a batch at once, and __getitem__ is there for others."""

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("torch's loader calls __getitems__")

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [(row, index) for row, index in zip(self.data[indices], indices, strict=True)]


class WholeAsTensor(Whole):
    """__getitems__ gives a tensor of all rows, which default_collate goes through."""

    def __getitems__(self, indices: list[int]) -> Any:
        return torch.from_numpy(self.data[indices]) + torch.rand(())


class Forwarding:
    """Everything but the transform is the inner dataset's, by __getattr__; and this is no torch Dataset."""

    def __init__(self) -> None:
        self.inner = Whole()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return self.data[index] * 2


class Lambdas(Rows):
    """Attributes that cannot be pickled: lambdas, a closure, a class made on the spot, a partial."""

    def __init__(self) -> None:
        super().__init__()
        scale = np.float32(3)
        self.transform = lambda x: x * scale
        self.target = functools.partial(lambda kind, x: kind(x).value, type("Made", (), {"__init__": self.keep}))

    @staticmethod
    def keep(made: Any, value: Any) -> None:
        made.value = value

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.data[index]), self.target(index)


class Negative(Rows):
    """Takes slices and negative indices too; and is true only while it has samples."""

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        raise AssertionError("nobody compares datasets")

    __hash__ = None  # type: ignore[assignment]

    def __getitem__(self, index: int) -> Any:
        return self.data[-index - 1], self.data[index : index + 1].shape


@kinds(
    WholeAsTensor, Forwarding, Lambdas, unseeded=(Whole, Negative),
)  # fmt: skip
def test_classes(kind: Any, seed: int | None) -> None:
    assert_conforms(kind(), seed=seed)


NAMED = {f"k{i}": torch.tensor([i]) for i in range(9)}
SEQUENCES: dict[str, tuple[Any, dict[str, Any]]] = {
    "list": ([torch.arange(2) + i for i in range(9)], {}),
    "range": (range(9), {}),
    "dict": ({i: (i, f"v{i}") for i in range(9)}, {}),
    "keys that are no numbers": (NAMED, {"sampler": list(NAMED)}),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_plain_sequences(name: str) -> None:
    sequence, options = SEQUENCES[name]
    assert_conforms(sequence, seed=None, **options)


class Stream(IterableDataset):
    """Samples that a function yields."""

    def __init__(self, make: Callable[[], Iterable[Any]]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        return iter(self.make())


class Sized(Stream):
    """With a length that is too short, of which torch warns."""

    def __len__(self) -> int:
        return 9


def sharded() -> Iterator[Any]:
    """Yield the part of this worker, by get_worker_info()."""
    info = get_worker_info()
    first, step = (0, 1) if info is None else (info.id, info.num_workers)
    for i in range(first, 21, step):
        yield torch.tensor([i, i * i]), f"n{i}"


def shuffling() -> Iterator[Any]:
    """Yield from a shuffle buffer, and draw in samples."""
    kept: list[Any] = []
    for x, name in sharded():
        kept.append((x + torch.randn(2), name))
        if len(kept) == 5:
            yield kept.pop(random.randrange(5))
    random.shuffle(kept)
    yield from kept


def failing() -> Iterator[Any]:
    for x, name in sharded():
        if name == "n9":
            raise ValueError(f"the stream is broken at {name}")
        yield x


@pytest.mark.parametrize("make", [sharded, shuffling])
def test_streams(make: Any) -> None:
    assert_conforms(Stream(make), samples=None)


STREAMS = [Sized(lambda: range(13)), *map(Stream, (failing, itertools.count))]


@pytest.mark.parametrize("stream", STREAMS, ids=lambda stream: stream.make.__name__)
def test_streams_without_a_seed(stream: Any) -> None:
    samples = 16 if stream.make is itertools.count else None
    assert_conforms(stream, samples=samples, seed=None, num_workers=(0, 2))


def test_chained_streams() -> None:
    assert_conforms(ChainDataset([Stream(sharded), Stream(sharded)]), collate_fn=listed, drop_last=True, seed=None)


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


class Epochs(data.Sampler[int]):
    """A seed of its own, and set_epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(13, generator=torch.Generator().manual_seed(self.epoch)).tolist())


TWO: dict[str, Any] = {"num_workers": (2,), "worker_methods": (None, "thread"), "seed": None}
#: By name: what makes the options of the loader.
OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "weighted": lambda: {"sampler": data.WeightedRandomSampler([float(length) for length in LENGTHS], 11)},
    "epochs": lambda: {"sampler": Epochs()},
    "by length": lambda: {"batch_sampler": ByLength(4), "invariant": False},
    "persistent": lambda: {"persistent_workers": True, "prefetch_factor": 3, **TWO},
    "last dropped": lambda: {"drop_last": True, "batch_size": 5, "timeout": 60, **TWO},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_samplers_and_options(name: str) -> None:
    assert_conforms(Lengths(), **OPTIONS[name]())
