"""Batches on their way to a device, of loaders and loops of all kinds: each is compared with its indices."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader, Dataset, TensorDataset

import penstock

SAMPLES = 3_000
Streams = Callable[[int], Any]
"""Returns what makes one of three streams the current one."""


def row(index: torch.Tensor, width: int) -> torch.Tensor:
    """Return the rows of some indices: no two numbers of a dataset are the same."""
    return index.view(-1, 1) * width + torch.arange(width, device=index.device)


class Own(Dataset[Any]):
    """A class of Python code, whose samples are those of a TensorDataset."""

    def __init__(self, samples: int, width: int) -> None:
        self.samples, self.width = samples, width

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        return row(torch.tensor([index]), self.width)[0], index


def loader_of(chance: random.Random, device: Any) -> tuple[Any, str]:
    """Return a loader of some kind to a device, and its description."""
    width, size, depth = chance.choice((1, 16, 500, 4_000)), chance.choice((1, 3, 64, 200)), chance.choice((1, 2, 5))
    samples = min(SAMPLES, size * 60)
    kind = chance.choice(("native", "native", "thread", "process", "prefetch", "prefetch ours"))
    workers = chance.choice((0, 1, 2, 3)) if kind == "native" else 2
    pinned = chance.random() < 0.5
    rows = TensorDataset(row(torch.arange(samples), width), torch.arange(samples))
    options: dict[str, Any] = {
        "batch_size": size, "shuffle": True, "num_workers": workers, "drop_last": chance.random() < 0.3,
    }  # fmt: skip
    if kind.startswith("prefetch"):
        around: Any = TorchDataLoader if kind == "prefetch" else penstock.DataLoader
        with_pins = {"pin_memory": pinned} if torch.cuda.is_available() else {}
        loader: Any = penstock.prefetch(around(rows, **options, **with_pins), device, depth=depth)
    else:
        method = {} if kind == "native" else {"worker_method": kind}
        persistent = bool(workers) and chance.random() < 0.5
        ours: Any = penstock.DataLoader
        loader = ours(
            rows if kind == "native" else Own(samples, width),
            device=penstock.Feed(device, depth=depth),
            persistent_workers=persistent,
            **options,
            **method,
        )
    said = f"{kind}, {workers} workers, {size} rows of {width} a batch, depth {depth}, pinned {pinned}"
    return loader, said


def wrong_batches(seed: int, number: int, device: Any, streams: Streams) -> Iterator[str]:
    """Go through some batches; yield a description of each loop that got a wrong one.

    Args:
        number: of batches, at least.
        streams: on which batches are taken, checked and let go of.
    """
    chance, seen = random.Random(seed), 0
    while seen < number:
        torch.manual_seed(chance.randrange(1 << 30))
        loader, said = loader_of(chance, device)
        for epoch in range(chance.choice((1, 2, 3))):
            ends = chance.choice((1, 5, 10**6, 10**6))
            holds, held, checks, indices = chance.choice((0, 1, 4)), list[Any](), list[torch.Tensor](), list[Any]()
            batches = iter(loader)
            for step, batch in enumerate(batches):
                with streams(chance.randrange(3)):
                    x, index = batch
                    checks.append((x != row(index, x.shape[1])).any())
                    indices.append(index)
                    held.append(batch)
                    del x, index, batch
                    while len(held) > holds:
                        del held[chance.randrange(len(held))]
                seen += 1
                if step + 1 >= ends:
                    break
            if chance.random() < 0.5:
                del batches
            if torch.cuda.is_available():
                torch.cuda.synchronize()  # batches were taken on other streams
            for x, index in held:  # a batch that is kept stays what it is
                checks.append((x != row(index, x.shape[1])).any())
            found = torch.cat([index.cpu() for index in indices]).tolist()
            if any(bool(check) for check in checks) or len(set(found)) != len(found):
                yield f"seed {seed}, epoch {epoch} of {said}: {sum(map(bool, checks))} of {len(checks)} wrong"


def one_stream(number: int) -> Any:
    return contextlib.nullcontext()
