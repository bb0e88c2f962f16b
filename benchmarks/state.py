"""Stopping and going on: what a state costs and weighs, and how soon a loader goes on from it.

torchdata's StatefulDataLoader stands beside, and torch's own loader, which has no state: its user reads and drops what
came before. Everything is in memory; samples are small, so that the loaders' own work is what is measured.
"""

from __future__ import annotations

import json
import pickle
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch.utils.data

from benchmarks import state_changes, state_resume
from benchmarks.contestants import Make, penstock_persistent, private, torch_loader, torchdata_loader
from benchmarks.question import Contestant, Numbers, Options, Question, Role, Running, Setup, Table, Target, lower

STATES = 200
EVERY = {"none": 0, "every": 1, "100th": 100}
"""At which steps of a pass a state is asked for."""
STEP = {(workers, name): lower(f"{workers}w_{name}", "us") for workers in (0, 2) for name in EVERY}
SIZES = {"1e4": 10**4, "1e6": 10**6, "1e7": 10**7, "1e8": 10**8}
STATE = {name: lower(f"{name}_state", "us") for name in SIZES}
BYTES = lower("bytes", "B")
ORDER = {name: lower(f"{name}_order", "ms") for name in ("1e6", "1e7", "1e9")}


def prepare(options: Options) -> Setup:
    """Nothing is written: each contestant makes its data in memory."""
    facts: dict[str, int] = {
        "steps": 100 if options.quick else 500,
        "resumed": 20_000 if options.quick else 1_000_000,
        "most": 10**4 if options.quick else 10**7,
    }
    return Setup(str(options.cache), 64 * facts["steps"], facts={**facts, "made": "in memory, by each contestant"})


# --- the cost of a step -----------------------------------------------------------------------------------------------


class Rows(torch.utils.data.Dataset[Any]):
    """A user's own Dataset of rows of a tensor, 8 float32 each, and a number."""

    def __init__(self, samples: int) -> None:
        self.x = torch.randn(samples, 8)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return self.x[index], index


def tensor_rows(samples: int) -> Any:
    return torch.utils.data.TensorDataset(torch.randn(samples, 8), torch.arange(samples))


def steps(
    setup: Setup, make: Make, stateful: bool = True, rows: Callable[[int], Any] = Rows, **options: Any
) -> Running:
    """Passes with a state at no step, every step, every hundredth: microseconds a step, behind the first batch."""
    dataset = rows(setup.samples)
    loaders = {workers: make(setup, dataset, num_workers=workers, **options) for workers in (0, setup.workers)}

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
            for workers, loader in loaders.items()
            for name, every in EVERY.items()
            if stateful or not every
        }

    return Running(epoch)


# --- one state --------------------------------------------------------------------------------------------------------


def one_state(setup: Setup, make: Make, most: int, to_bytes: Callable[[Any], Any], **options: Any) -> Running:
    """Microseconds of a state_dict() within a shuffled pass, by the size of the dataset; bytes of the last."""
    loaders = {name: make(setup, range(size), num_workers=0, **options) for name, size in SIZES.items() if size <= most}
    passes = {name: iter(loader) for name, loader in loaders.items()}

    def epoch() -> Numbers:
        found: Numbers = {}
        for name, loader in loaders.items():
            taken = []
            for _ in range(STATES):
                if next(passes[name], None) is None:
                    break
                began = time.perf_counter()
                state = loader.state_dict()
                taken.append(time.perf_counter() - began)
            if taken:
                found |= {STATE[name].key: 1e6 * statistics.median(taken), BYTES.key: float(len(to_bytes(state)))}
            passes[name] = iter(loader)
        return found

    return Running(epoch)


def first_of_order(draw: Callable[[int, int], Any], most: int) -> Numbers:
    """Milliseconds until the first 64 samples of a new epoch's order are known."""

    def seconds(size: int, epoch: int) -> float:
        began = time.perf_counter()
        draw(size, epoch)
        return time.perf_counter() - began

    return {
        measure.key: 1e3 * statistics.median(seconds(int(float(name)), epoch) for epoch in range(state_resume.REPEATS))
        for name, measure in ORDER.items()
        if int(float(name)) <= most
    }


def state_penstock(setup: Setup) -> Running:
    """penstock.DataLoader(seed=7, num_workers=0) over as many numbers; bytes as JSON. The order: 64 positions of the
    keyed permutation, made anew for each epoch."""
    shuffle = private("KeyedShuffle", "penstock.order.permutations", "penstock.order")
    states: Any = one_state(setup, penstock_persistent, 10**8, json.dumps, seed=7).epoch
    return Running(
        lambda: {**states(), **first_of_order(lambda size, epoch: shuffle(size, 7, epoch).take(0, 64), 10**9)}
    )


def state_torchdata(setup: Setup) -> Running:
    """torchdata's StatefulDataLoader over as many numbers, up to 10^7: a list of all indices is made for each pass.
    Bytes as pickle: the generator's state is a tensor, which JSON cannot hold."""
    return one_state(setup, torchdata_loader, setup.facts["most"], pickle.dumps)


def state_torch(setup: Setup) -> Running:
    """torch.randperm for the order, as torch's RandomSampler draws it, up to 10^7; no state."""
    most = max(10**6, setup.facts["most"])
    return Running(lambda: first_of_order(lambda size, epoch: torch.randperm(size)[:64].tolist(), most))


PEER = ("torchdata",)
SEEDED = "penstock, seed"
TORCH = "torch.utils.data.DataLoader, which has no state."
PENSTOCK = """penstock.DataLoader without a seed, as the others; Python reads in the caller's thread, or in torch's
    worker processes."""
EACH_SAMPLE = (
    "penstock.DataLoader(seed=7): the global generators are set for each sample, which is most of what it takes."
)
TENSORS = "penstock.DataLoader(seed=7) over a TensorDataset of as many rows and numbers, which native threads read."
EVERY_BATCH = "torchdata's StatefulDataLoader as it is: the workers' states come with every batch."
SNAPSHOTS = """torchdata's StatefulDataLoader(snapshot_every_n_steps=100); a state between two snapshots counts the
    steps since, which are read again and dropped to go on."""
snapshots = partial(torchdata_loader, snapshot_every_n_steps=100)
native = partial(steps, rows=tensor_rows, make=penstock_persistent, seed=7)
STEPS = (
    Contestant("torch", Role.TORCH, partial(steps, make=torch_loader, stateful=False), TORCH),
    Contestant("penstock", Role.PENSTOCK, partial(steps, make=penstock_persistent), PENSTOCK),
    Contestant(SEEDED, Role.PENSTOCK, partial(steps, make=penstock_persistent, seed=7), EACH_SAMPLE),
    Contestant("penstock, TensorDataset", Role.ASIDE, native, TENSORS),
    Contestant("torchdata", Role.PEER, partial(steps, make=torchdata_loader), EVERY_BATCH, peers=PEER),
    Contestant("torchdata, snapshots 100", Role.PEER, partial(steps, make=snapshots), SNAPSHOTS, peers=PEER),
)
TABLES = (
    Table(
        "step",
        "a step of a pass with a state at none, every and every 100th; rows in memory, batch 64, 0 and 2 workers",
        STEPS,
        measures=tuple(STEP.values()),
    ),
    Table(
        "one",
        "one state_dict() in a shuffled pass, and the first 64 samples of an epoch's order, by the dataset's size",
        (
            Contestant("torch", Role.TORCH, state_torch),
            Contestant(SEEDED, Role.PENSTOCK, state_penstock),
            Contestant("torchdata", Role.PEER, state_torchdata, peers=PEER),
        ),
        (
            Target(SEEDED, 100, None, STATE["1e8"]),
            Target(SEEDED, 1000, None, BYTES),
            Target(SEEDED, 1, None, ORDER["1e9"]),
        ),
        (*STATE.values(), BYTES, *ORDER.values()),
    ),
    state_resume.TABLE,
    state_changes.TABLE,
)
QUESTION = Question("state", "Stopping and going on", TABLES, prepare)
