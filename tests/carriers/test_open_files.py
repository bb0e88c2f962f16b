"""Batches of worker processes that the limit of open files does not let in."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import penstock
from tests.data import Made


def sample(index: int) -> Any:
    return torch.full((30_000,), index), torch.zeros(20_000), torch.zeros(20_000)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return map(sample, range(100))


@pytest.fixture
def limit() -> Iterator[Any]:
    """Allow so many more open files than there are, whatever numbers are free."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []

    def lower(more: int) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        highest = max(map(int, os.listdir("/proc/self/fd")))
        while not held or held[-1] < highest:
            held.append(os.open(os.devnull, os.O_RDONLY))
        resource.setrlimit(resource.RLIMIT_NOFILE, (held[-1] + 1 + more, before[1]))

    yield lower
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    for file in held:
        os.close(file)


def ended(batches: Any) -> tuple[type[BaseException], str]:
    with pytest.raises(Exception, match=r"open files|items of ancdata") as caught:
        list(batches)  # each batch holds its files
    return caught.type, str(caught.value)


@pytest.mark.parametrize("dataset", [Made(sample, 100), Stream()], ids=["map-style", "iterable"])
@pytest.mark.parametrize("more", [4, 20])  # in the parent's thread, and in the middle of a message
def test_the_error_is_torchs(limit: Any, dataset: Any, more: int) -> None:
    found = []
    shared = set(os.listdir("/dev/shm"))
    for kind in (DataLoader, penstock.DataLoader):
        batches = iter(kind(dataset, batch_size=2, num_workers=1))
        next(batches)
        limit(more)
        found.append(ended(batches))
        del batches
        limit(200)
    (theirs, text), (ours, of_ours) = found
    assert ours is theirs and "open files" in of_ours
    assert text == of_ours or "items of ancdata" in text  # torch's words where ten files can be opened by then
    assert not [name for name in set(os.listdir("/dev/shm")) - shared if name.startswith("torch")]
