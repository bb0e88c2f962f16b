"""Stopping and going on: what a state costs and weighs, and how soon a loader goes on from it.

torchdata's StatefulDataLoader stands beside, and torch's own loader, which has no state: its user reads and drops what
came before. Everything is in memory; samples are small, so that the loaders' own work is what is measured.
"""

# Each contestant imports its own libraries, which may be missing here.
# ruff: noqa: PLC0415
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import pickle
import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks import state_changes, state_resume
from benchmarks.harness import (
    Contestant,
    Measure,
    Numbers,
    Options,
    Question,
    Role,
    Running,
    Setup,
    Table,
    Target,
)
from benchmarks.state_loaders import (
    REPEATS,
    Make,
    Numbers64,
    ms,
    penstock_loaders,
    torch_loaders,
    torchdata_loaders,
    us,
)

STATES = 200
EVERY = {"none": 0, "every": 1, "100th": 100}
"""At which steps of a pass a state is asked for."""
STEP = {(workers, name): us(f"{workers}w_{name}") for workers in (0, 2) for name in EVERY}
SIZES = {"1e4": 10**4, "1e6": 10**6, "1e7": 10**7, "1e8": 10**8}
STATE = {name: us(f"{name}_state") for name in SIZES}
BYTES = Measure("bytes", "B", higher_is_better=False)
ORDER = {name: ms(f"{name}_order") for name in ("1e6", "1e7", "1e9")}


def prepare(options: Options) -> Setup:
    """Nothing is written: each contestant makes its data in memory."""
    facts: dict[str, int] = {
        "steps": 100 if options.quick else 500,
        "resumed": 20_000 if options.quick else 1_000_000,
        "most": 10**4 if options.quick else 10**7,
    }
    return Setup(str(options.cache), 64 * facts["steps"], facts={**facts, "made": "in memory, by each contestant"})


# --- the cost of a step -----------------------------------------------------------------------------------------------


def rows(samples: int) -> Any:
    """A user's own Dataset of rows of a tensor, 8 float32 each, and a number."""
    import torch

    class Dataset(torch.utils.data.Dataset[Any]):
        def __init__(self) -> None:
            self.x = torch.randn(samples, 8)

        def __len__(self) -> int:
            return samples

        def __getitem__(self, index: int) -> Any:
            return self.x[index], index

    return Dataset()


def steps(setup: Setup, make: Make, stateful: bool = True, dataset: Any = None) -> Running:
    """Passes with a state at no step, every step, every hundredth: microseconds a step, behind the first batch."""
    dataset = dataset or rows(int(setup.facts["steps"]) * setup.batch)
    made = {workers: make(dataset, workers) for workers in (0, setup.workers)}

    def one_pass(loader: Any, every: int) -> float:
        batches = iter(loader)
        next(batches)
        began = time.perf_counter()
        count = 0
        for count, _ in enumerate(batches, 1):
            if every and count % every == 0:
                loader.state_dict()
        return 1e6 * (time.perf_counter() - began) / count

    def epoch() -> Numbers:
        return {
            STEP[workers, name].key: one_pass(loader, every)
            for workers, loader in made.items()
            for name, every in EVERY.items()
            if stateful or not every
        }

    return Running(epoch)


def steps_torch(setup: Setup) -> Running:
    """torch.utils.data.DataLoader, which has no state."""
    return steps(setup, torch_loaders(setup), stateful=False)


def steps_penstock(setup: Setup) -> Running:
    """penstock.DataLoader without a seed, as the others; Python reads in the caller's thread, or in torch's worker
    processes."""
    return steps(setup, penstock_loaders(setup))


def steps_seeded(setup: Setup) -> Running:
    """penstock.DataLoader(seed=7): the global generators are set for each sample, which is most of what it takes."""
    return steps(setup, penstock_loaders(setup, 7))


def steps_native(setup: Setup) -> Running:
    """penstock.DataLoader(seed=7) over a TensorDataset of as many rows and numbers, which native threads read."""
    import torch

    samples = int(setup.facts["steps"]) * setup.batch
    dataset = torch.utils.data.TensorDataset(torch.randn(samples, 8), torch.arange(samples))
    return steps(setup, penstock_loaders(setup, 7), dataset=dataset)


def steps_torchdata(setup: Setup) -> Running:
    """torchdata's StatefulDataLoader as it is: the workers' states come with every batch."""
    return steps(setup, torchdata_loaders(setup, 1))


def steps_torchdata_100(setup: Setup) -> Running:
    """torchdata's StatefulDataLoader(snapshot_every_n_steps=100); a state between two snapshots counts the steps since,
    which are read again and dropped to go on."""
    return steps(setup, torchdata_loaders(setup, 100))


# --- one state --------------------------------------------------------------------------------------------------------


def one_state(setup: Setup, make: Make, most: int, weight: Callable[[Any], int]) -> Callable[[], Numbers]:
    """Microseconds of a state_dict() within a shuffled pass, by the size of the dataset; bytes of the last."""
    passes = {}
    for name, size in SIZES.items():
        if size <= most:
            loader = make(Numbers64(size))
            passes[name] = loader, iter(loader)

    def epoch() -> Numbers:
        found: Numbers = {}
        for name, (loader, batches) in passes.items():
            taken = []
            for _ in range(STATES):
                if next(batches, None) is None:
                    break
                began = time.perf_counter()
                state = loader.state_dict()
                taken.append(time.perf_counter() - began)
            if taken:
                found |= {STATE[name].key: 1e6 * statistics.median(taken), BYTES.key: float(weight(state))}
            passes[name] = loader, iter(loader)
        return found

    return epoch


def first_of_order(draw: Callable[[int, int], Any], sizes: tuple[str, ...]) -> Numbers:
    """Milliseconds until the first 64 samples of a new epoch's order are known."""

    def seconds(size: int, epoch: int) -> float:
        began = time.perf_counter()
        draw(size, epoch)
        return time.perf_counter() - began

    return {
        ORDER[name].key: 1e3 * statistics.median(seconds(int(float(name)), epoch) for epoch in range(REPEATS))
        for name in sizes
    }


def state_penstock(setup: Setup) -> Running:
    """penstock.DataLoader(seed=7, num_workers=0) over as many numbers; bytes as JSON. The order: 64 positions of the
    keyed permutation, made anew for each epoch."""
    import json

    from penstock.order.permutations import KeyedShuffle

    states = one_state(setup, penstock_loaders(setup, 7), 10**8, lambda state: len(json.dumps(state)))

    def epoch() -> Numbers:
        order = first_of_order(lambda size, epoch: KeyedShuffle(size, 7, epoch).take(0, 64), tuple(ORDER))
        return {**states(), **order}

    return Running(epoch)


def state_torchdata(setup: Setup) -> Running:
    """torchdata's StatefulDataLoader over as many numbers, up to 10^7: a list of all indices is made for each pass.
    Bytes as pickle: the generator's state is a tensor, which JSON cannot hold."""
    states = one_state(
        setup, torchdata_loaders(setup, 1), int(setup.facts["most"]), lambda state: len(pickle.dumps(state))
    )
    return Running(states)


def state_torch(setup: Setup) -> Running:
    """torch.randperm for the order, as torch's RandomSampler draws it, up to 10^7; no state."""
    import torch

    sizes = tuple(name for name in ORDER if int(float(name)) <= max(10**6, int(setup.facts["most"])))
    return Running(lambda: first_of_order(lambda size, epoch: torch.randperm(size)[:64].tolist(), sizes))


PENSTOCK = ("penstock", Role.PENSTOCK)
SEEDED = ("penstock, seed", Role.PENSTOCK)
TORCHDATA = ("torchdata", Role.PEER)
AS_PEER: dict[str, Any] = {"packages": ("torchdata",), "peers_venv": True}

QUESTION = Question(
    "state",
    "Stopping and going on",
    (
        Table(
            "step",
            "a step of a pass with a state at none, every and every 100th; rows in memory, batch 64, 0 and 2 workers",
            (
                Contestant("torch", Role.TORCH, steps_torch, ("torch",)),
                Contestant(*PENSTOCK, steps_penstock, ("penstock",)),
                Contestant(*SEEDED, steps_seeded),
                Contestant("penstock, TensorDataset", Role.ASIDE, steps_native),
                Contestant(*TORCHDATA, steps_torchdata, **AS_PEER),
                Contestant("torchdata, snapshots 100", Role.PEER, steps_torchdata_100, **AS_PEER),
            ),
            measures=tuple(STEP.values()),
        ),
        Table(
            "one",
            "one state_dict() in a shuffled pass, and the first 64 samples of an epoch's order, by the dataset's size",
            (
                Contestant("torch", Role.TORCH, state_torch, ("torch",)),
                Contestant(*SEEDED, state_penstock, ("penstock",)),
                Contestant(*TORCHDATA, state_torchdata, **AS_PEER),
            ),
            (
                Target("penstock, seed", 100, None, STATE["1e8"]),
                Target("penstock, seed", 1000, None, BYTES),
                Target("penstock, seed", 1, None, ORDER["1e9"]),
            ),
            (*STATE.values(), BYTES, *ORDER.values()),
        ),
        Table(
            "resume",
            "the first batch from the start, and behind half of 1,000,000 samples: map-style; iterable without a state "
            "of its own (stream) and with one (keeper)",
            (
                Contestant("torch", Role.TORCH, state_resume.going_on_torch, ("torch",)),
                Contestant(*PENSTOCK, state_resume.going_on_penstock, ("penstock",)),
                Contestant(*SEEDED, state_resume.going_on_seeded),
                Contestant(*TORCHDATA, state_resume.going_on_torchdata, **AS_PEER),
            ),
            (
                Target("penstock, seed", 10, None, state_resume.LOAD),
                Target("penstock, seed", 1.25, None, state_resume.RATIO),
            ),
            state_resume.MEASURES,
        ),
        Table(
            "changes",
            "what is wrong behind a stop where something is other than before: samples that came twice or not at all; "
            "all that were left, where the state is refused. 60 samples, 24 to 28 of them before the stop",
            (
                Contestant(*SEEDED, state_changes.penstock, ("penstock",)),
                Contestant(*TORCHDATA, state_changes.torchdata, **AS_PEER),
            ),
            tuple(Target("penstock, seed", 0, None, measure) for measure in state_changes.MEASURES),
            state_changes.MEASURES,
        ),
    ),
    prepare,
)
