"""How soon a loader goes on in the middle of an epoch: the first batch there, beside the first batch of a pass."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

from torch.utils.data import IterableDataset

from benchmarks.contestants import Make, penstock_persistent, torch_loader, torchdata_loader
from benchmarks.question import Contestant, Numbers, Role, Running, Setup, Table, Target, lower

REPEATS = 5
"""How often what takes less than a second is done in a round; its median is the round's figure."""


class Stream(IterableDataset[int]):
    """Numbers, without a state of its own."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[int]:
        yield from range(self.samples)


class Keeper(Stream):
    """Numbers, with a state of its own."""

    at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < self.samples:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


DATASETS = {"map": range, "stream": Stream, "keeper": Keeper}
START = {kind: lower(f"{kind}_start", "ms") for kind in DATASETS}
RESUMED = {kind: lower(f"{kind}_resumed", "ms") for kind in DATASETS}
LOAD = lower("map_load", "ms")
RATIO = lower("map_first_over_start", "x")
"""The first batch behind half of an epoch, without load_state_dict(), over the first of a pass from the start."""


def going_on(setup: Setup, make: Make, stateful: bool = True, **options: Any) -> Running:
    """Milliseconds to the first batch of a pass from the start, and of one behind half of an epoch, load_state_dict()
    included; new loaders of new datasets each time, made before the clock starts."""
    warnings.filterwarnings("ignore", message=".*will be read and dropped")
    samples = setup.facts["resumed"]
    half = samples // setup.batch // 2

    def new(kind: str) -> Any:
        shuffle = True if kind == "map" else None
        return make(setup, DATASETS[kind](samples), num_workers=0, shuffle=shuffle, **options)

    def half_way(kind: str) -> Any:
        """The state behind half of an epoch; without states, the number of batches to drop."""
        loader = new(kind)
        batches = iter(loader)
        for _ in islice(batches, half):
            pass
        return loader.state_dict() if stateful else half

    def first(kind: str, state: Any) -> tuple[float, float]:
        """Seconds of load_state_dict(), and of all."""
        loader = new(kind)
        began = time.perf_counter()
        if state is not None and stateful:
            loader.load_state_dict(state)
        loaded = time.perf_counter()
        next(islice(iter(loader), 0 if state is None or stateful else state, None))
        return loaded - began, time.perf_counter() - began

    states = {kind: half_way(kind) for kind in DATASETS}

    def epoch() -> Numbers:
        found: Numbers = {}
        for kind, state in states.items():
            repeats = 1 if kind == "stream" else REPEATS
            start = statistics.median(first(kind, None)[1] for _ in range(REPEATS))
            loads, alls = zip(*(first(kind, state) for _ in range(repeats)), strict=True)
            resumed = statistics.median(alls)
            found |= {START[kind].key: 1e3 * start, RESUMED[kind].key: 1e3 * resumed}
            if kind == "map":
                loaded = statistics.median(loads)
                found |= {RATIO.key: (resumed - loaded) / start}
                found |= {LOAD.key: 1e3 * loaded} if stateful else {}
        return found

    return Running(epoch)


ITERABLE = [measures[kind] for kind in ("stream", "keeper") for measures in (START, RESUMED)]
TORCH = "torch.utils.data.DataLoader, which has no state: what came before is read again and dropped."
PENSTOCK = """penstock.DataLoader(num_workers=0) without a seed: the order is torch's, drawn as far as it is asked for,
    and so up to the middle to go on there."""
SEEDED = """penstock.DataLoader(seed=7, num_workers=0): the order is a keyed permutation; the global generators are set
    for each sample."""
TORCHDATA = "torchdata's StatefulDataLoader(num_workers=0): it steps its sampler to where it was."
TABLE = Table(
    "resume",
    "the first batch from the start, and behind half of 1,000,000 samples: map-style; iterable without a state "
    "of its own (stream) and with one (keeper)",
    (
        Contestant("torch", Role.TORCH, partial(going_on, make=torch_loader, stateful=False), TORCH),
        Contestant("penstock", Role.PENSTOCK, partial(going_on, make=penstock_persistent), PENSTOCK),
        Contestant("penstock, seed", Role.PENSTOCK, partial(going_on, make=penstock_persistent, seed=7), SEEDED),
        Contestant("torchdata", Role.PEER, partial(going_on, make=torchdata_loader), TORCHDATA, peers=("torchdata",)),
    ),
    (Target("penstock, seed", 10, None, LOAD), Target("penstock, seed", 1.25, None, RATIO)),
    (START["map"], LOAD, RESUMED["map"], RATIO, *ITERABLE),
)
