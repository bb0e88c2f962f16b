"""The part of benchmarks.gpu that needs no GPU: microseconds that the device's code path costs a batch on the CPU."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch.utils.data

import penstock
from benchmarks.contestants import penstock_loader
from benchmarks.question import Contestant, Numbers, Role, Running, Setup, Table, Target, lower

COST = lower("us_per_batch", "us")
OVER = lower("us_over_none", "us")
BATCH = 64


def number_of(setup: Setup) -> int:
    """The batches of a pass."""
    return 200 if setup.facts["quick"] else 2000


def batches(setup: Setup) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.rand(BATCH, 3, 8, 8), torch.arange(BATCH))] * number_of(setup)


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


def the_list(setup: Setup) -> Running:
    """`for batch in batches`."""
    source = batches(setup)
    return Running(lambda: {COST.key: cost(source)})


def prefetched(setup: Setup, **options: Any) -> Running:
    """penstock.prefetch(batches, "cpu")."""
    source = penstock.prefetch(batches(setup), "cpu", **options)
    return Running(lambda: {COST.key: cost(source)})


def conversion(setup: Setup) -> Running:
    """`x.to(torch.bfloat16, memory_format=torch.channels_last)` in the loop, without prefetch."""
    source = batches(setup)

    def converted() -> Iterable[Any]:
        for x, _ in source:
            yield x.to(dtype=torch.bfloat16, memory_format=torch.channels_last)

    return Running(lambda: {COST.key: cost(converted(), 1)})


def beside(setup: Setup, workers: int) -> Running:
    """A pass with and one without device="cpu", in turn."""
    samples = BATCH * number_of(setup)
    rows = torch.utils.data.TensorDataset(torch.rand(samples, 16), torch.arange(samples))
    make = partial(penstock_loader, setup, rows, batch_size=BATCH, shuffle=False, num_workers=workers)
    without, fed = make(), make(device="cpu")

    def epoch() -> Numbers:
        pairs = [(cost(without, 1), cost(fed, 1)) for _ in range(5)]
        host, device = (min(costs) for costs in zip(*pairs, strict=True))
        return {OVER.key: device - host, COST.key: device}

    return Running(epoch)


TRANSFORM = 'penstock.prefetch(batches, "cpu", transform=...) with a transform that returns the batch.'
DTYPE = 'penstock.prefetch(batches, "cpu", dtype=torch.float32), which these batches are.'
BFLOAT16 = 'penstock.prefetch(batches, "cpu", dtype=torch.bfloat16, channels_last=True): the conversion is real work.'
BESIDE = 'penstock.DataLoader over a TensorDataset, num_workers={}, with and without device="cpu", in turn.'
to_bfloat16 = partial(prefetched, dtype=torch.bfloat16, channels_last=True)
PREFETCH = (
    Contestant("the list itself", Role.BARE, the_list),
    Contestant("prefetch", Role.PENSTOCK, prefetched),
    Contestant("prefetch, transform", Role.PENSTOCK, partial(prefetched, transform=lambda batch: batch), TRANSFORM),
    Contestant("prefetch, dtype as it is", Role.PENSTOCK, partial(prefetched, dtype=torch.float32), DTYPE),
    Contestant("prefetch, bfloat16", Role.PENSTOCK, to_bfloat16, BFLOAT16),
    Contestant("the conversion alone", Role.ASIDE, conversion),
)
LOADER = (
    Contestant("device='cpu', 1 worker", Role.PENSTOCK, partial(beside, workers=1), BESIDE.format(1)),
    Contestant("device='cpu', 0 workers", Role.PENSTOCK, partial(beside, workers=0), BESIDE.format(0)),
)


def tables(setup: Setup) -> list[Table]:
    return [
        Table(
            "cpu prefetch",
            "prefetch(batches, 'cpu') around a list of batches of 64x3x8x8 float32 and labels",
            PREFETCH,
            tuple(Target(one.name, 50, measure=COST) for one in PREFETCH[1:4]),
            (COST,),
        ),
        Table(
            "cpu loader",
            "DataLoader(device='cpu') beside the same loader without device=; batches of 64 rows, in memory",
            LOADER,
            tuple(Target(one.name, 50, measure=OVER) for one in LOADER),
            (OVER, COST),
        ),
    ]
