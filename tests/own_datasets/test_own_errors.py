"""Datasets that raise: the same errors, in the same words, at the same batches; and what comes after them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from tests.own_datasets.conformance import assert_conforms, kinds
from tests.sample_datasets import Made


class Own(Exception):
    """An error with more than a text."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"sample {index}: {reason}")
        self.index, self.reason = index, reason


class Keyword(Exception):
    """An error that cannot be made of a text alone."""

    def __init__(self, *, code: int) -> None:
        super().__init__()
        self.code = code

    def __str__(self) -> str:
        return f"code {self.code}"


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
    "stopping": at_5(StopIteration),  # which ends torch's pass without a word
    "of the user's": at_5(lambda: Own(5, "no file")),
    "without text": at_5(lambda: Keyword(code=3)),
    "file": lambda index: Path("/nowhere/at/all").read_bytes() if index == 5 else index,
    "unicode": lambda index: b"\xff".decode() if index == 5 else "é",
    "chained": chained,
    "recursive": recursive,
    "memory": at_5(MemoryError),
    "asserting": asserting,
    "deep": deep,
    "last": lambda index: list(range(12))[index],  # too short for its length
}


@pytest.mark.parametrize("name", RAISING)
def test_errors(name: str) -> None:
    assert_conforms(Made(RAISING[name], 14), shuffle=False, seed=7 if name == "two lines" else None)


def bad_collate(samples: list[Any]) -> Any:
    if any(int(sample) == 5 for sample in samples):
        raise TypeError("no batch of 5")
    return torch.stack(samples)


def bad_start(worker: int) -> None:
    if worker == 1:
        raise OSError("worker 1 does not start")


def warning(index: int) -> Any:
    if index % 4 == 1:
        warnings.warn(f"sample {index} is odd", RuntimeWarning, stacklevel=1)
    return index


def test_errors_of_functions_of_the_loader_and_warnings() -> None:
    assert_conforms(Made(torch.tensor, 14), collate_fn=bad_collate, shuffle=False, seed=None)
    options: dict[str, Any] = {"worker_methods": (None, "process"), "num_workers": (2,), "seed": None}
    assert_conforms(Made(torch.tensor, 14), worker_init_fn=bad_start, **options)
    assert_conforms(Made(warning, 14), shuffle=False, num_workers=(0,))


class Empty(Dataset):
    def __len__(self) -> int:
        return 0

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index])


class WithoutLength(Empty):
    __len__ = None  # type: ignore[assignment]


class BadLength(Empty):
    def __len__(self) -> int:
        raise RuntimeError("the index is not loaded")


@kinds(Empty, WithoutLength, BadLength)
def test_lengths(kind: Any) -> None:
    assert_conforms(kind(), shuffle=False, samples=None, seed=None)
