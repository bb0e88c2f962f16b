"""Iterable datasets, and wrappers that look like torchdata's pipes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import ChainDataset, IterableDataset, get_worker_info
from torchvision import transforms as T

from tests.own_datasets.conformance import assert_conforms, kinds, listed


class Sharded(IterableDataset):
    """Each worker reads its part, by get_worker_info()."""

    size = 21

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for i in range(first, self.size, step):
            yield torch.tensor([i, i * i]), f"n{i}"


class Repeated(Sharded):
    """Not sharded: each worker gives everything."""

    def __iter__(self) -> Iterator[Any]:
        return iter([{"i": i, "x": np.full(3, i / 2)} for i in range(6)])


class Sized(Sharded):
    """With a length that is too short, of which torch warns."""

    def __len__(self) -> int:
        return 9

    def __iter__(self) -> Iterator[Any]:
        yield from range(13)


class Shuffling(Sharded):
    """A shuffle buffer, and draws in samples."""

    def __iter__(self) -> Iterator[Any]:
        kept: list[Any] = []
        for x, name in super().__iter__():
            kept.append((x + torch.randn(2), name))
            if len(kept) == 5:
                yield kept.pop(random.randrange(5))
        random.shuffle(kept)
        yield from kept


class Uneven(Sharded):
    """One worker has much less than the other."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        yield from range(3 if info is not None and info.id else 14)


class Failing(Sharded):
    def __iter__(self) -> Iterator[Any]:
        for x, name in super().__iter__():
            if name == "n9":
                raise ValueError(f"the stream is broken at {name}")
            yield x


class Lines(Sharded):
    """Lines of a file, cut by bytes as shards."""

    def __init__(self) -> None:
        self.path = __file__

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        with open(self.path) as file:
            for number, line in enumerate(file):
                if number < 20 and (info is None or number % info.num_workers == info.id):
                    yield line.rstrip(), len(line)


class Endless(Sharded):
    def __iter__(self) -> Iterator[Any]:
        i = 0
        while True:
            yield i
            i += 1


@kinds(Sharded, Shuffling)
def test_streams(kind: Any) -> None:
    assert_conforms(kind(), samples=None)


@kinds(Repeated, Sized, Uneven, Failing, Lines, Endless)
def test_streams_without_a_seed(kind: Any) -> None:
    assert_conforms(kind(), samples=16 if kind is Endless else None, seed=None, num_workers=(0, 2))


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
    assert_conforms(ChainDataset([Sharded(), Repeated()]), collate_fn=listed, drop_last=True, seed=None)
    assert_conforms(Sharded() + Sharded(), seed=None)
