"""How soon a loader goes on in the middle of an epoch: the first batch there, beside the first batch of a pass."""

# Each contestant imports its own libraries, which may be missing here.
# ruff: noqa: PLC0415
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from benchmarks.harness import Measure, Numbers, Running, Setup
from benchmarks.state_loaders import (
    REPEATS,
    Make,
    Numbers64,
    ms,
    penstock_loaders,
    torch_loaders,
    torchdata_loaders,
)

START = {kind: ms(f"{kind}_start") for kind in ("map", "stream", "keeper")}
RESUMED = {kind: ms(f"{kind}_resumed") for kind in START}
LOAD = ms("map_load")
RATIO = Measure("map_first_over_start", "x", higher_is_better=False)
"""The first batch behind half of an epoch, without load_state_dict(), over the first of a pass from the start."""
MEASURES = (
    START["map"],
    LOAD,
    RESUMED["map"],
    RATIO,
    START["stream"],
    RESUMED["stream"],
    START["keeper"],
    RESUMED["keeper"],
)


def datasets(samples: int) -> dict[str, Callable[[], Any]]:
    """A map-style dataset; an iterable one without a state of its own; one with."""
    from torch.utils.data import IterableDataset

    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            yield from range(samples)

    class Keeper(IterableDataset[int]):
        def __init__(self) -> None:
            self.at = 0

        def __iter__(self) -> Iterator[int]:
            while self.at < samples:
                self.at += 1
                yield self.at - 1
            self.at = 0

        def state_dict(self) -> dict[str, int]:
            return {"at": self.at}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.at = state["at"]

    return {"map": lambda: Numbers64(samples), "stream": Stream, "keeper": Keeper}


def going_on(setup: Setup, make: Make, stateful: bool = True) -> Running:
    """Milliseconds to the first batch of a pass from the start, and of one behind half of an epoch, load_state_dict()
    included; new loaders of new datasets each time, made before the clock starts."""
    warnings.filterwarnings("ignore", message=".*will be read and dropped")
    kinds = datasets(int(setup.facts["resumed"]))
    half = int(setup.facts["resumed"]) // setup.batch // 2

    def new(kind: str) -> Any:
        return make(kinds[kind](), shuffle=True if kind == "map" else None)

    states: dict[str, Any] = {}
    for kind in kinds:
        loader = new(kind)
        batches = iter(loader)
        for _ in islice(batches, half):
            pass
        states[kind] = loader.state_dict() if stateful else half

    def first(kind: str, state: Any) -> tuple[float, float]:
        """Seconds of load_state_dict(), and of all."""
        loader = new(kind)
        began = time.perf_counter()
        if state is not None and stateful:
            loader.load_state_dict(state)
        loaded = time.perf_counter()
        next(islice(iter(loader), 0 if state is None or stateful else state, None))
        return loaded - began, time.perf_counter() - began

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


def going_on_torch(setup: Setup) -> Running:
    """torch.utils.data.DataLoader, which has no state: what came before is read again and dropped."""
    return going_on(setup, torch_loaders(setup), stateful=False)


def going_on_penstock(setup: Setup) -> Running:
    """penstock.DataLoader(num_workers=0) without a seed: the order is torch's, drawn as far as it is asked for, and so
    up to the middle to go on there."""
    return going_on(setup, penstock_loaders(setup))


def going_on_seeded(setup: Setup) -> Running:
    """penstock.DataLoader(seed=7, num_workers=0): the order is a keyed permutation; the global generators are set for
    each sample."""
    return going_on(setup, penstock_loaders(setup, 7))


def going_on_torchdata(setup: Setup) -> Running:
    """torchdata's StatefulDataLoader(num_workers=0): it steps its sampler to where it was."""
    import logging

    logging.disable(logging.WARNING)
    return going_on(setup, torchdata_loaders(setup, 1))
