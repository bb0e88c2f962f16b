"""The part of benchmarks.gpu that needs no GPU: microseconds that the device's code path costs a batch on the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

import penstock
from benchmarks.harness import Contestant, Measure, Numbers, Role, Running, Setup, Table, Target

COST = Measure("us_per_batch", "us", higher_is_better=False)
OVER = Measure("us_over_none", "us", higher_is_better=False)

Batch = tuple[torch.Tensor, torch.Tensor]


def tables(setup: Setup) -> list[Table]:
    return [
        Table(
            "cpu prefetch",
            "prefetch(batches, 'cpu') around a list of batches of 64x3x8x8 float32 and labels",
            (
                Contestant("the list itself", Role.BARE, the_list),
                Contestant("prefetch", Role.PENSTOCK, plain),
                Contestant("prefetch, transform", Role.PENSTOCK, with_transform),
                Contestant("prefetch, dtype as it is", Role.PENSTOCK, with_dtype),
                Contestant("prefetch, bfloat16", Role.PENSTOCK, converting),
                Contestant("the conversion alone", Role.ASIDE, conversion),
            ),
            tuple(
                Target(name, 50, measure=COST)
                for name in ("prefetch", "prefetch, transform", "prefetch, dtype as it is")
            ),
            (COST,),
        ),
        Table(
            "cpu loader",
            "DataLoader(device='cpu') beside the same loader without device=; batches of 64 rows, in memory",
            (
                Contestant("device='cpu', 1 worker", Role.PENSTOCK, loader_with_a_worker),
                Contestant("device='cpu', 0 workers", Role.PENSTOCK, loader_without_workers),
            ),
            tuple(Target(f"device='cpu', {name}", 50, measure=OVER) for name in ("1 worker", "0 workers")),
            (OVER, COST),
        ),
    ]


def batches(setup: Setup) -> list[Batch]:
    number = 200 if setup.facts["quick"] else 2000
    return [(torch.rand(64, 3, 8, 8), torch.arange(64))] * number


def cost(loader: Iterable[Any], passes: int = 5) -> float:
    """The microseconds of a batch, in the quickest of some passes: what others do on the machine only adds."""
    best = float("inf")
    for _ in range(passes):
        count = 0
        began = time.perf_counter()
        for _batch in loader:
            count += 1
        best = min(best, (time.perf_counter() - began) / count * 1e6)
    return best


def over(loader: Iterable[Any]) -> Running:
    return Running(lambda: {COST.key: cost(loader)})


def the_list(setup: Setup) -> Running:
    """`for batch in batches`."""
    return over(batches(setup))


def plain(setup: Setup) -> Running:
    """penstock.prefetch(batches, "cpu")."""
    return over(penstock.prefetch(batches(setup), "cpu"))


def with_transform(setup: Setup) -> Running:
    """penstock.prefetch(batches, "cpu", transform=...) with a transform that returns the batch."""
    return over(penstock.prefetch(batches(setup), "cpu", transform=as_it_is))


def with_dtype(setup: Setup) -> Running:
    """penstock.prefetch(batches, "cpu", dtype=torch.float32), which these batches are."""
    return over(penstock.prefetch(batches(setup), "cpu", dtype=torch.float32))


def converting(setup: Setup) -> Running:
    """penstock.prefetch(batches, "cpu", dtype=torch.bfloat16, channels_last=True): the conversion is real work."""
    return over(penstock.prefetch(batches(setup), "cpu", dtype=torch.bfloat16, channels_last=True))


def conversion(setup: Setup) -> Running:
    """`x.to(torch.bfloat16, memory_format=torch.channels_last)` in the loop, without prefetch."""
    source = batches(setup)

    def epoch() -> Numbers:
        began = time.perf_counter()
        for x, _ in source:
            x.to(dtype=torch.bfloat16, memory_format=torch.channels_last)
        return {COST.key: (time.perf_counter() - began) / len(source) * 1e6}

    return Running(epoch)


def as_it_is(batch: Any) -> Any:
    return batch


def loader_with_a_worker(setup: Setup) -> Running:
    """penstock.DataLoader over a TensorDataset, num_workers=1, with and without device="cpu", in turn."""
    return beside(setup, 1)


def loader_without_workers(setup: Setup) -> Running:
    """penstock.DataLoader over a TensorDataset, num_workers=0, with and without device="cpu", in turn."""
    return beside(setup, 0)


def beside(setup: Setup, workers: int) -> Running:
    number = 200 if setup.facts["quick"] else 2000
    rows = torch.utils.data.TensorDataset(torch.rand(64 * number, 16), torch.arange(64 * number))
    make: Callable[..., Any] = penstock.DataLoader
    without = make(rows, batch_size=64, num_workers=workers)
    fed = make(rows, batch_size=64, num_workers=workers, device="cpu")

    def epoch() -> Numbers:
        pairs = [(cost(without, 1), cost(fed, 1)) for _ in range(5)]
        host, device = (min(pair[side] for pair in pairs) for side in (0, 1))
        return {OVER.key: device - host, COST.key: device}

    return Running(epoch)
