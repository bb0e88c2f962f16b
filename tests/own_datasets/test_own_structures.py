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
from torch.utils.data import default_collate

from tests.own_datasets.conformance import assert_conforms, listed
from tests.sample_datasets import Made

Pair = namedtuple("Pair", "x y")


class Colour(Enum):
    RED = 1
    BLUE = 2


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


def present(samples: list[Any]) -> Any:
    """Leave out the samples that are None."""
    return default_collate([sample for sample in samples if sample is not None])


def plain(i: int) -> Any:
    values = (None, Decimal(i) / 7, Colour(1 + i % 2), frozenset({i}), bytearray(b"ab"), 1 + i * 1j)
    return *values, Triple(torch.ones(i % 3), None, PurePosixPath(f"a/{i}")), Slots(torch.zeros(2), i)


def padded(samples: list[Any]) -> Any:
    """Pad sequences of different lengths; with their lengths and a mask."""
    lengths = torch.tensor([len(sample) for sample in samples])
    rows = pad_sequence(samples, batch_first=True, padding_value=-1)
    return {"x": rows.t(), "lengths": lengths, "mask": torch.arange(rows.shape[1]) < lengths[:, None]}


def packed(samples: list[Any]) -> PackedSequence:
    return pack_sequence(samples, enforce_sorted=False)


class Shuffled:
    """A collate_fn that is a class, and draws."""

    def __new__(cls, samples: list[Any]) -> Any:
        order = torch.randperm(len(samples))
        return default_collate([samples[i] for i in order]), order


def joined(samples: list[Any]) -> Any:
    """Return one tensor and views of it."""
    whole = torch.cat(samples)
    return whole, whole[::2], whole.view(-1, 2).t(), samples[0]


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
    "left out": (lambda i: None if i % 5 == 3 else (torch.tensor([i]), f"n{i}"), present, None),
    "plain": (plain, listed, None),
    "packed": (sequence, packed, None),
    "joined": (lambda i: torch.full((4,), float(i)), joined, None),
}


@pytest.mark.parametrize("name", COLLATED)
def test_own_collation(name: str) -> None:
    get, collate_fn, seed = COLLATED[name]
    assert_conforms(Made(get, 13), collate_fn=collate_fn, seed=seed)


REFUSED: dict[str, Callable[[int], Any]] = {
    "none": lambda i: {"x": i, "y": None if i > 5 else 1},
    "uneven": lambda i: (torch.zeros(4 if i == 5 else 3), [i] * (1 + (i == 9))),
    "keys": lambda i: {"a": i} if i != 6 else {"b": i},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_refuses(name: str) -> None:
    assert_conforms(Made(REFUSED[name], 13), shuffle=False, seed=None)
