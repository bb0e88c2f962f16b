"""Samples of other shapes: dictionaries, named tuples, dataclasses, texts, None, and collate_fns of their own."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_sequence
from torch.utils.data import Dataset, default_collate

from tests.own_datasets.conformance import assert_conforms, kinds, listed
from tests.sample_datasets import Made

Pair = namedtuple("Pair", "x y")


class Colour(Enum):
    RED = 1
    BLUE = 2


class Numbered(Dataset):
    def __len__(self) -> int:
        return 13

    def __getitem__(self, index: int) -> Any:
        return STRUCTURES["nested"](index)


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


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures(name: str) -> None:
    assert_conforms(Made(STRUCTURES[name], 13), seed=None)


@dataclass
class Sample:
    x: torch.Tensor
    name: str
    extra: dict[str, Any]


class Triple(NamedTuple):
    x: torch.Tensor
    mask: torch.Tensor | None
    where: PurePosixPath


class Slots:
    __slots__ = ("label", "x")

    def __init__(self, x: torch.Tensor, label: int) -> None:
        self.x, self.label = x, label


class Batch:
    """A batch of the user's own, which pins its memory."""

    def __init__(self, samples: list[Any]) -> None:
        self.x = torch.stack([sample.x for sample in samples])
        self.names = [sample.name for sample in samples]

    def pin_memory(self) -> Batch:
        self.x = self.x.pin_memory()
        return self


class DataClasses(Numbered):
    collate: Any = staticmethod(listed)

    def __getitem__(self, index: int) -> Any:
        return Sample(torch.rand(2), f"n{index}", {"i": index, "none": None})


class OwnBatch(DataClasses):
    collate = staticmethod(Batch)


class Optional(Numbered):
    """None for samples that are left out by the collate_fn."""

    @staticmethod
    def collate(samples: list[Any]) -> Any:
        return default_collate([sample for sample in samples if sample is not None])

    def __getitem__(self, index: int) -> Any:
        return None if index % 5 == 3 else (torch.tensor([index]), f"n{index}")


class Plain(Numbered):
    collate = staticmethod(listed)

    def __getitem__(self, index: int) -> Any:
        values = (None, Decimal(index) / 7, Colour(1 + index % 2), frozenset({index}), bytearray(b"ab"), 1 + index * 1j)
        return *values, Triple(torch.ones(index % 3), None, PurePosixPath(f"a/{index}")), Slots(torch.zeros(2), index)


class Padded(Numbered):
    """Sequences of different lengths, padded, with their lengths and a mask."""

    @staticmethod
    def collate(samples: list[Any]) -> Any:
        lengths = torch.tensor([len(sample) for sample in samples])
        padded = pad_sequence(samples, batch_first=True, padding_value=-1)
        return {"x": padded.t(), "lengths": lengths, "mask": torch.arange(padded.shape[1]) < lengths[:, None]}

    def __getitem__(self, index: int) -> Any:
        return torch.arange(1 + index * 7 % 5)


class Packed(Padded):
    @staticmethod
    def collate(samples: list[Any]) -> PackedSequence:
        return pack_sequence(samples, enforce_sorted=False)


class Callable_(Numbered):
    """A collate_fn that is an object with a state, and draws."""

    class collate:
        calls = 0

        def __new__(cls, samples: list[Any]) -> Any:
            order = torch.randperm(len(samples))
            return default_collate([samples[i] for i in order]), order


class Joined(Numbered):
    """A batch that is one tensor and views of it."""

    @staticmethod
    def collate(samples: list[Any]) -> Any:
        joined = torch.cat(samples)
        return joined, joined[::2], joined.view(-1, 2).t(), samples[0]

    def __getitem__(self, index: int) -> Any:
        return torch.full((4,), float(index))


@kinds(DataClasses, OwnBatch, Padded, Callable_, unseeded=(Optional, Plain, Packed, Joined))
def test_own_collation(kind: Any, seed: int | None) -> None:
    assert_conforms(kind(), collate_fn=kind.collate, seed=seed)


REFUSED: dict[str, Callable[[int], Any]] = {
    "none": lambda i: {"x": i, "y": None if i > 5 else 1},
    "uneven": lambda i: (torch.zeros(4 if i == 5 else 3), [i] * (1 + (i == 9))),
    "keys": lambda i: {"a": i} if i != 6 else {"b": i},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_refuses(name: str) -> None:
    assert_conforms(Made(REFUSED[name], 13), shuffle=False, seed=None)
