"""Datasets that raise: the same errors, in the same words, at the same batches; and what comes after them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from tests.own_datasets.conformance import assert_conforms, kinds


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


class Raising(Dataset):
    """An error at index 5."""

    def __len__(self) -> int:
        return 14

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise self.make()
        return torch.tensor([index])

    def make(self) -> Exception:
        return ValueError("bad sample\n  on two lines")


class OfIndex(Raising):
    def make(self) -> Exception:
        return IndexError("list index out of range")


class OfKey(Raising):
    def make(self) -> Exception:
        return KeyError("a key")


class Stopping(Raising):
    """StopIteration ends torch's pass without a word."""

    def make(self) -> Exception:
        return StopIteration()


class OfTheUsers(Raising):
    def make(self) -> Exception:
        return Own(5, "no file")


class WithoutText(Raising):
    def make(self) -> Exception:
        return Keyword(code=3)


class OfFile(Raising):
    def __getitem__(self, index: int) -> Any:
        if index == 5:
            Path("/nowhere/at/all").read_bytes()
        return index


class Unicode(Raising):
    def __getitem__(self, index: int) -> Any:
        return b"\xff".decode() if index == 5 else "é"


class Chained(Raising):
    def __getitem__(self, index: int) -> Any:
        try:
            return {0: 1}[index % 3] / (index - 6)
        except KeyError as error:
            raise RuntimeError(f"no label for {index}") from error


class Recursive(Raising):
    def __getitem__(self, index: int) -> Any:
        return self[index] if index == 5 else index


class Memory(Raising):
    def make(self) -> Exception:
        return MemoryError()


class Asserting(Raising):
    def __getitem__(self, index: int) -> Any:
        assert index != 5, f"{index} is not allowed"
        return index


class Deep(Raising):
    """An error in a transform, an AttributeError of None, and one of tensors."""

    def __getitem__(self, index: int) -> Any:
        nothing: Any = None if index == 9 else index
        return torch.zeros(2) + torch.zeros(3 if index == 5 else 2), nothing.real


class Last(Raising):
    """Too short for its length."""

    def __getitem__(self, index: int) -> Any:
        return list(range(12))[index]


@kinds(
    Raising, OfIndex, OfKey, Stopping, OfTheUsers, WithoutText, OfFile, Unicode, Chained, Recursive, Memory, Asserting,
    Deep, Last,
)  # fmt: skip
def test_errors(kind: Any) -> None:
    assert_conforms(kind(), shuffle=False, seed=7 if kind is Raising else None)


def bad_collate(samples: list[Any]) -> Any:
    if any(int(sample) == 5 for sample in samples):
        raise TypeError("no batch of 5")
    return torch.stack(samples)


class Numbers(Raising):
    def __getitem__(self, index: int) -> Any:
        return torch.tensor(index)


def test_errors_of_a_collate_fn() -> None:
    assert_conforms(Numbers(), collate_fn=bad_collate, shuffle=False, seed=None)


def bad_start(worker: int) -> None:
    if worker == 1:
        raise OSError("worker 1 does not start")


def test_errors_of_a_worker_init_fn() -> None:
    assert_conforms(Numbers(), worker_init_fn=bad_start, worker_methods=(None, "process"), num_workers=(2,), seed=None)


class Warning_(Raising):
    """Warnings in samples."""

    def __getitem__(self, index: int) -> Any:
        if index % 4 == 1:
            warnings.warn(f"sample {index} is odd", RuntimeWarning, stacklevel=1)
        return index


def test_warnings() -> None:
    assert_conforms(Warning_(), shuffle=False, num_workers=(0,))


class Empty(Raising):
    def __len__(self) -> int:
        return 0


class WithoutLength(Raising):
    __len__ = None  # type: ignore[assignment]


class BadLength(Raising):
    def __len__(self) -> int:
        raise RuntimeError("the index is not loaded")


@kinds(Empty, WithoutLength, BadLength)
def test_lengths(kind: Any) -> None:
    assert_conforms(kind(), shuffle=False, samples=None, seed=None)
