"""Datasets in other datasets, and classes that Python's data model makes unlike others."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset, random_split
from torchvision import transforms as T

from tests.own_datasets.conformance import assert_conforms, kinds, listed
from tests.sample_datasets import Made

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


class NaiveForwarding(Forwarding):
    """A __getattr__ that never ends in an object without attributes, such as a copy that is being made."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Duck:
    """A sequence without a base class, whose IndexError ends it."""

    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> Any:
        return [index, str(index)][index % 1 :]


class Sequenced(Sequence[Any]):
    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: Any) -> Any:
        return {"x": torch.full((2,), index), "y": range(20)[index]}


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


class Properties(Rows):
    """Slots, properties and cached properties."""

    @property
    def rows(self) -> Any:
        return self.data[::-1]

    @functools.cached_property
    def names(self) -> list[str]:
        return [f"row {i}" for i in range(12)]

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(self.rows[index].copy()), self.names[index]


class CachedCalls(Whole):
    __getitems__ = None  # type: ignore[assignment]

    @functools.lru_cache(maxsize=4)  # noqa: B019  # as people write it
    def load(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self.data[index])

    def __getitem__(self, index: int) -> Any:
        return self.load(index), self.load(0)


class CallableItems(Rows):
    """__getitem__ is put on the object's class later, and __call__ does the work."""

    def __call__(self, index: int) -> Any:
        return self.data[index].sum(), np.bool_(index % 2)


CallableItems.__getitem__ = CallableItems.__call__  # type: ignore[method-assign,assignment]


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
    WholeAsTensor, Forwarding, Lambdas,
    unseeded=(Whole, NaiveForwarding, Duck, Sequenced, Properties, CachedCalls, CallableItems, Negative),
)  # fmt: skip
def test_classes(kind: Any, seed: int | None) -> None:
    assert_conforms(kind(), seed=seed)


def generating(index: int) -> Any:
    """Take each sample from a generator that the call makes."""

    def rows() -> Iterator[Any]:
        for value in np.arange(index, index + 3, dtype=np.float32):
            yield value * 2

    return list(rows()), tuple(x.item() for x in rows()), next(rows())


NAMED = {f"k{i}": torch.tensor([i]) for i in range(9)}
SEQUENCES: dict[str, tuple[Any, dict[str, Any]]] = {
    "generating": (Made(generating, 12), {}),
    "list": ([torch.arange(2) + i for i in range(9)], {}),
    "range": (range(9), {}),
    "dict": ({i: (i, f"v{i}") for i in range(9)}, {}),
    "keys that are no numbers": (NAMED, {"sampler": list(NAMED)}),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_plain_sequences(name: str) -> None:
    sequence, options = SEQUENCES[name]
    assert_conforms(sequence, seed=None, **options)
