"""The part of benchmarks.gpu that needs no GPU: microseconds that the device's code path costs a batch on the CPU.

A stand-in takes the place of a GPU in its last table: it makes no copies, and counts what a GPU would be asked for.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import torch.utils.data

import penstock
from benchmarks.contestants import Samples, penstock_loader
from benchmarks.question import Contestant, Numbers, Role, Running, Setup, Table, Target, lower
from penstock.device.copy_stream import CopyStream

COST = lower("us_per_batch", "us")
OVER = lower("us_over_none", "us")
CALLS = lower("calls_per_batch", "calls")
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


# --- a stand-in for a GPU ---------------------------------------------------------------------------------------------


class Event:
    """An event that the device has come to."""

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Any) -> float:
        return 0.0


class StandIn(CopyStream):
    """Takes no time for what a GPU would do. `calls` counts copies, events, waits and records of streams."""

    device, calls = torch.device("cuda", 0), 0

    def __init__(self) -> None:
        pass

    def current(self) -> Any:
        return contextlib.nullcontext()

    def working(self) -> Any:
        return contextlib.nullcontext()

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        StandIn.calls += 1
        return torch.empty_like(tensor)

    def pin(self, value: Any) -> Any:
        return value

    def mark(self) -> Any:
        StandIn.calls += 1

    def timed_event(self) -> Event:
        StandIn.calls += 1
        return Event()

    def receive(self, mark: Any, tensors: Iterable[torch.Tensor]) -> None:
        StandIn.calls += 1 + sum(1 for _ in tensors)


@contextlib.contextmanager
def stand_in() -> Iterator[None]:
    """Make cuda:0 a StandIn."""
    with contextlib.ExitStack() as stack:
        for name, value in {
            "device.feed.Feed.resolve": lambda feed: StandIn.device,
            "device.target.copy_stream_to": lambda device: StandIn(),
            "carriers.choice.can_pin": lambda settings, *, sends: False,
        }.items():
            stack.enter_context(mock.patch(f"penstock.{name}", value))
        yield


def rows_of(setup: Setup) -> Any:
    samples = BATCH * number_of(setup)
    return torch.utils.data.TensorDataset(torch.rand(samples, 16), torch.arange(samples))


def own_of(setup: Setup) -> Any:
    """A class of Python code, a tenth as many samples."""
    rows = torch.rand(BATCH * number_of(setup) // 10, 16)
    return Samples(len(rows), lambda index: (rows[index].mul(2), index))


def sent(setup: Setup, make: Callable[[Setup], Any], workers: int, **options: Any) -> Running:
    """A pass with and one without device="cuda", in turn, where a stand-in takes the GPU's place."""
    build = partial(penstock_loader, setup, make(setup), batch_size=BATCH, shuffle=False, num_workers=workers)
    without, fed = build(**options), build(device="cuda", **options)

    def epoch() -> Numbers:
        with stand_in():
            pairs, StandIn.calls = [(cost(without, 1), cost(fed, 1)) for _ in range(5)], 0
            cost(fed, 1)
        host, device = (min(costs) for costs in zip(*pairs, strict=True))
        return {OVER.key: device - host, COST.key: device, CALLS.key: StandIn.calls / len(fed)}

    return Running(epoch)


SENT = (
    'penstock.DataLoader over {}, with and without device="cuda", in turn; cuda:0 is a stand-in that makes no copies.'
)
OWN = SENT.format("a class of Python code")
THREADS, PROCESSES = (partial(sent, make=own_of, workers=2, worker_method=method) for method in ("thread", "process"))
STAND_IN = (
    Contestant(
        "rows, 0 workers", Role.PENSTOCK, partial(sent, make=rows_of, workers=0), SENT.format("a TensorDataset")
    ),
    Contestant(
        "rows, 2 workers", Role.PENSTOCK, partial(sent, make=rows_of, workers=2), SENT.format("a TensorDataset")
    ),
    Contestant("own class, 2 threads", Role.PENSTOCK, THREADS, OWN),
    Contestant("own class, 2 processes", Role.PENSTOCK, PROCESSES, OWN),
)

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
        Table(
            "cpu stand-in",
            f"DataLoader(device='cuda') beside one without device=; batches of {BATCH}; cuda:0 is a stand-in",
            STAND_IN,
            tuple(Target(one.name, 40, measure=OVER) for one in STAND_IN),
            (OVER, COST, CALLS),
        ),
    ]
