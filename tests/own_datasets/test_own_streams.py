"""Iterable datasets, and wrappers that look like torchdata's pipes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ChainDataset, IterableDataset, get_worker_info
from torchvision import transforms as T

from tests.own_datasets.conformance import assert_conforms, listed


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


def repeated() -> Iterable[Any]:
    """Return everything in each worker."""
    return [{"i": i, "x": np.full(3, i / 2)} for i in range(6)]


def shuffling() -> Iterator[Any]:
    """Yield from a shuffle buffer, and draw in samples."""
    kept: list[Any] = []
    for x, name in sharded():
        kept.append((x + torch.randn(2), name))
        if len(kept) == 5:
            yield kept.pop(random.randrange(5))
    random.shuffle(kept)
    yield from kept


def uneven() -> Iterable[Any]:
    """Return much less in one worker than in the other."""
    info = get_worker_info()
    return range(3 if info is not None and info.id else 14)


def failing() -> Iterator[Any]:
    for x, name in sharded():
        if name == "n9":
            raise ValueError(f"the stream is broken at {name}")
        yield x


def lines() -> Iterator[Any]:
    """Yield lines of a file, cut by bytes as shards."""
    info = get_worker_info()
    with open(__file__) as file:
        for number, line in enumerate(file):
            if number < 20 and (info is None or number % info.num_workers == info.id):
                yield line.rstrip(), len(line)


@pytest.mark.parametrize("make", [sharded, shuffling])
def test_streams(make: Any) -> None:
    assert_conforms(Stream(make), samples=None)


STREAMS = [Sized(lambda: range(13)), *map(Stream, (repeated, uneven, failing, lines, itertools.count))]


@pytest.mark.parametrize("stream", STREAMS, ids=lambda stream: stream.make.__name__)
def test_streams_without_a_seed(stream: Any) -> None:
    samples = 16 if stream.make is itertools.count else None
    assert_conforms(stream, samples=samples, seed=None, num_workers=(0, 2))


class Pipe(IterableDataset):
    """A chain of steps, written as torchdata's pipes are."""

    def __init__(self, source: Iterable[Any], *steps: Callable[[Any], Any]) -> None:
        self.source, self.steps = source, steps

    def map(self, step: Callable[[Any], Any]) -> Pipe:
        return type(self)(self.source, *self.steps, step)

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        for number, value in enumerate(self.source):
            if info is None or number % info.num_workers == info.id:
                for step in self.steps:
                    value = step(value)
                yield value


def test_a_pipe(photos: list[Path]) -> None:
    transform = T.Compose([T.Resize((16, 16)), T.ToTensor()])
    assert_conforms(Pipe(photos).map(Image.open).map(lambda image: image.convert("RGB")).map(transform), seed=None)


def test_a_stream_of_batches() -> None:
    batches = [torch.arange(3) + i for i in range(7)]
    assert_conforms(Pipe(batches).map(lambda x: x * 2), batch_size=None, seed=None)


def test_chained_streams() -> None:
    assert_conforms(ChainDataset([Stream(sharded), Stream(repeated)]), collate_fn=listed, drop_last=True, seed=None)
    assert_conforms(Stream(sharded) + Stream(sharded), seed=None)
