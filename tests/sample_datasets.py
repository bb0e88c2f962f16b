"""Datasets that Python reads, iterable datasets, samplers and files of tensors: shared by many tests."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, TensorDataset, get_worker_info


class Made(Dataset[Any]):
    """Samples that a function makes of their index."""

    def __init__(self, make: Callable[[int], Any] = int, size: int = 23) -> None:
        self.make = make
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        if not -self.size <= index < self.size:
            raise IndexError(index)
        return self.make(index)


class Whole(Made):
    """Samples that are fetched a batch at a time."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Numbers(Made):
    """Sample i is the number i; bad ones raise an error."""

    def __init__(
        self, bad: Collection[int] = (), size: int = 23, error: Callable[[str], Exception] = ValueError
    ) -> None:
        super().__init__(self.number, size)
        self.bad = bad
        self.error = error

    def number(self, index: int) -> int:
        if index in self.bad:
            raise self.error(f"number {index} is bad")
        return index


class Drawing(Made):
    """Each sample holds its number, and a draw from each of the global generators."""

    def __init__(self, size: int = 23) -> None:
        super().__init__(self.draw, size)

    def draw(self, index: int) -> Any:
        return index, random.random(), float(np.random.rand()), torch.rand(2)


class Opening(Dataset[Any]):
    """Numbers in a file that is opened at the first sample; two workers must not share the file's position."""

    def __init__(self, path: Path, size: int, between: Callable[[], object]) -> None:
        path.write_bytes(np.arange(size, dtype="<i8").tobytes())
        self.path, self.size, self.between = path, size, between
        self.file: Any = None

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        if self.file is None:
            self.file = self.path.open("rb", buffering=0)
        self.file.seek(8 * index)
        self.between()
        return int.from_bytes(self.file.read(8), "little")

    def __del__(self) -> None:
        if self.file is not None:
            self.file.close()


class Stream(IterableDataset[Any]):
    """Samples 0 to size - 1 in order, each in one of the workers, or (not shared) in every worker."""

    def __init__(self, size: int = 23, make: Callable[[int], Any] = int, *, shared: bool = True) -> None:
        self.size = size
        self.make = make
        self.shared = shared

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info() if self.shared else None
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return map(self.make, range(first, self.size, step))


class Placed(IterableDataset[Any]):
    """Samples 0 to size - 1 in order, that says itself where it is; `read` has those that it has given."""

    def __init__(self, size: int, make: Callable[[int], Any] = int) -> None:
        self.size, self.make, self.at = size, make, 0
        self.read: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        while self.at < self.size:
            self.at += 1
            self.read.append(self.at - 1)
            yield self.make(self.at - 1)
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"place": {"at": self.at, "shard": None}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["place"]["at"]


class Order(Sampler[Any]):
    """A sampler of the user's that gives these, and counts in `asked` how many it has given."""

    def __init__(self, given: Collection[Any]) -> None:
        self.given = given
        self.asked = 0

    def __len__(self) -> int:
        return len(self.given)

    def __iter__(self) -> Iterator[Any]:
        for one in self.given:
            self.asked += 1
            yield one


class Doubling(TensorDataset):
    """Reads otherwise than its base."""

    def __getitem__(self, index: Any) -> Any:
        return tuple(2 * value for value in super().__getitem__(index))


def rows(size: int = 53) -> Any:
    """Return numbers in memory, which are read natively."""
    return TensorDataset(torch.arange(size))


def tensor_files(root: Path, count: int, shape: tuple[int, ...] = (3,), name: str = "{:02}") -> Path:
    """Write tensors that are full of their number, one a file, and return their folder."""
    root.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        torch.save(torch.full(shape, float(number)), root / f"{name.format(number)}.pt")
    return root
