"""Classes whose `__getitem__` only indexes what they hold, as people write them, and the program around one of them.

Each round is a fresh process of each loader, in turn: some epochs, of which the better half's worst counts. The limit
is Penstock's own reading of the same rows in a TensorDataset, or a bare gather of them by numpy.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.data
from torch.utils.data import Dataset, TensorDataset

from benchmarks.contestants import Make, over, penstock_persistent, shuffled, torch_loader
from benchmarks.question import (
    SPEED,
    Contestant,
    Host,
    Options,
    Question,
    Role,
    Running,
    Setup,
    Table,
    Target,
    lower,
    made,
)

SECONDS = lower("seconds", "s an epoch")
FIRST = lower("first_batch_ms", "ms to the first batch")
BLOCK = 256

# --- the classes ------------------------------------------------------------------------------------------------------


class Pairs(Dataset[Any]):
    def __init__(self, x, y):
        self.x = x
        self.y = y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Converted(Dataset[Any]):
    def __init__(self, x, labels):
        self.x = x
        self.labels = labels

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return torch.tensor(self.x[i], dtype=torch.float32), self.labels[i]


class Dictionaries(Dataset[Any]):
    def __init__(self, images, labels):
        self.images = images
        self.labels = labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, idx):
        return {"image": torch.from_numpy(self.images[idx]), "label": self.labels[idx]}


class Windows(Dataset[Any]):
    def __init__(self, data, block_size):
        self.data = data
        self.block_size = block_size

    def __len__(self):
        return (len(self.data) - 1) // self.block_size

    def __getitem__(self, idx):
        start = idx * self.block_size
        chunk = torch.from_numpy(self.data[start : start + self.block_size + 1].astype(np.int64))
        x = chunk[:-1]
        y = chunk[1:]
        return x, y


class Frames(Dataset[Any]):
    def __init__(self, df):
        self.df = df

    def __len__(self):
        return len(self.df)

    def __getitem__(self, idx):
        return torch.tensor(self.df.iloc[idx].values, dtype=torch.float32)


# --- their data -------------------------------------------------------------------------------------------------------


def uniform(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


def labels(size: int) -> torch.Tensor:
    return torch.randint(10, (size,), generator=torch.Generator().manual_seed(1))


def pairs(setup: Setup) -> Dataset[Any]:
    return Pairs(uniform(setup.samples, 20), labels(setup.samples))


def pair_rows(setup: Setup) -> Dataset[Any]:
    return TensorDataset(uniform(setup.samples, 20), labels(setup.samples))


def converted(setup: Setup) -> Dataset[Any]:
    return Converted(uniform(setup.samples, 20).double().numpy(), labels(setup.samples).tolist())


def dictionaries(setup: Setup) -> Dataset[Any]:
    return Dictionaries(uniform(setup.samples, 3, 32, 32).numpy(), labels(setup.samples).tolist())


def image_rows(setup: Setup) -> Dataset[Any]:
    return TensorDataset(uniform(setup.samples, 3, 32, 32), labels(setup.samples))


def tokens(setup: Setup) -> np.memmap:
    return np.memmap(setup.path("tokens.bin"), dtype=np.uint16, mode="r")


def windows(setup: Setup) -> Dataset[Any]:
    return Windows(tokens(setup)[: setup.samples * BLOCK + 1], BLOCK)


def frames(setup: Setup) -> Dataset[Any]:
    import pandas

    return Frames(pandas.DataFrame(uniform(setup.samples, 10).double().numpy(), columns=[*"abcdefghij"]))


def frame_rows(setup: Setup) -> Dataset[Any]:
    return TensorDataset(uniform(setup.samples, 10))


def events(setup: Setup) -> Dataset[Any]:
    x = uniform(setup.samples, 28)
    return Pairs(x, (x.sum(1) > 14).float())


def event_rows(setup: Setup) -> Dataset[Any]:
    return TensorDataset(*vars(events(setup)).values())


# --- contestants ------------------------------------------------------------------------------------------------------


def epochs(setup: Setup, epoch: Callable[[], Any], explain: Callable[[], Any] | None = None) -> Running:
    """Several epochs of a process, each of which reads the dataset so many times."""
    count, times = setup.facts["epochs"], setup.facts["times"]

    def measured() -> dict[str, float]:
        seconds = []
        for _ in range(count):
            began = time.perf_counter()
            for _ in range(times):
                epoch()
            seconds.append(time.perf_counter() - began)
        chosen = sorted(seconds)[(count - 1) // 2]
        return {SPEED.key: setup.samples * times / chosen, SECONDS.key: chosen / times}

    return Running(measured, explain)


def sized(build: Callable[[Setup], Running]) -> Callable[[Setup], Running]:
    """A contestant that is given the size and the options of its table."""

    def sized_build(setup: Setup) -> Running:
        case = CASES[setup.variant]
        size = max(64, round(case.size * setup.facts["share"]))
        facts = {**setup.facts, "times": max(1, round(case.times * setup.facts["share"])), "epochs": case.epochs}
        return build(dataclasses.replace(setup, samples=size, batch=case.batch, workers=case.workers, facts=facts))

    return sized_build


def reading(make: Make, dataset: Callable[[Setup], Dataset[Any]], setup: Setup) -> Running:
    """A loader's epochs, the first batch of which is measured too."""
    data = dataset(setup)
    list(make(setup, range(4), num_workers=0, persistent_workers=False))  # what a program's first pass imports
    began = time.perf_counter()
    loader = make(setup, data)
    iterator = iter(loader)
    next(iterator)
    first = 1000 * (time.perf_counter() - began)
    del iterator
    running = epochs(setup, over(loader).epoch, getattr(loader, "explain", None))
    return Running(lambda: {**running.epoch(), FIRST.key: first}, running.explain)  # type: ignore[dict-item]


def bare_windows(setup: Setup) -> Running:
    """numpy's own gather of the rows of an overlapping view, and one conversion for the batch."""
    rows = np.lib.stride_tricks.sliding_window_view(tokens(setup), BLOCK + 1)[::BLOCK]

    def batches() -> Iterator[Any]:
        order = shuffled(setup)
        for _ in range(setup.batches):
            whole = torch.from_numpy(rows[next(order)].astype(np.int64))
            yield whole[:, :-1].contiguous(), whole[:, 1:].contiguous()

    return epochs(setup, over(batches).epoch)


def get_batch(setup: Setup) -> Running:
    """nanoGPT's get_batch: windows at random places, of a memory map that is made anew for each batch."""

    def batches() -> Iterator[Any]:
        for _ in range(setup.batches):
            data = tokens(setup)
            ix = torch.randint(len(data) - BLOCK, (setup.batch,))
            x = torch.stack([torch.from_numpy((data[i : i + BLOCK]).astype(np.int64)) for i in ix])
            y = torch.stack([torch.from_numpy((data[i + 1 : i + 1 + BLOCK]).astype(np.int64)) for i in ix])
            yield x, y

    return epochs(setup, over(batches).epoch)


def training(make: Make, dataset: Callable[[Setup], Dataset[Any]], setup: Setup) -> Running:
    """A program that trains a network on the CPU: 28 columns, two hidden layers, one number."""
    torch.manual_seed(0)
    sizes = (28, 128, 128)
    layers = [part for a, b in itertools.pairwise(sizes) for part in (torch.nn.Linear(a, b), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(sizes[-1], 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_of = torch.nn.BCEWithLogitsLoss()
    loader = make(setup, dataset(setup))

    def epoch() -> None:
        for x, y in loader:
            loss = loss_of(model(x).squeeze(1), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return epochs(setup, epoch, getattr(loader, "explain", None))


# --- the tables -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Case:
    """What is read, how, and how much faster than torch's loader it is to be."""

    title: str
    dataset: Callable[[Setup], Dataset[Any]]
    rows: Callable[[Setup], Dataset[Any]] | None
    """The same samples as rows of a TensorDataset, whose reading is the limit."""
    size: int
    least: float
    batch: int = 64
    workers: int = 0
    times: int = 1
    """Epochs that are measured as one."""
    epochs: int = 4
    run: Callable[[Make, Callable[[Setup], Dataset[Any]], Setup], Running] = reading


PAIR = "self.x[i], self.y[i]: 20 float32 and a label"
IMAGES = "A dictionary of torch.from_numpy of 3x32x32 float32 and a label"
TOKENS = "Windows of 257 of a uint16 memory map, to int64, and the shifted pair"
CASES = {
    "pair": Case(PAIR, pairs, pair_rows, 200_000, 12),
    "pair_two": Case(PAIR, pairs, pair_rows, 200_000, 18, workers=2),
    "single": Case(PAIR, pairs, pair_rows, 50_000, 1.5, batch=1),
    "converted": Case("torch.tensor of a float64 array's row, a list's label", converted, pair_rows, 100_000, 30),
    "dictionary": Case(IMAGES, dictionaries, image_rows, 20_000, 1.5),
    "dictionary_two": Case(IMAGES, dictionaries, image_rows, 20_000, 14, workers=2),
    "windows": Case(TOKENS, windows, None, 40_000, 5),
    "windows_two": Case(TOKENS, windows, None, 40_000, 18, workers=2),
    "frame": Case("torch.tensor of df.iloc[i].values, 10 columns of numbers", frames, frame_rows, 20_000, 50),
    "few": Case(f"{PAIR}, 64 samples an epoch", pairs, pair_rows, 64, 1, batch=16, times=600),
    "program": Case(
        "A network of 28, 128 and 128 trained on 1,000,000 rows by the CPU", events, event_rows, 1_000_000, 1.5, 256,
        epochs=2, run=training,
    ),
}  # fmt: skip
GET_BATCH = {"windows": 4.0}
"""Cases with nanoGPT's get_batch as a contestant, and the least speed over it."""


def table(name: str) -> Table:
    case = CASES[name]
    contestants = [
        Contestant("torch", Role.TORCH, sized(partial(case.run, torch_loader, case.dataset)), "torch's own loader."),
        Contestant(
            "penstock",
            Role.PENSTOCK,
            sized(partial(case.run, penstock_persistent, case.dataset)),
            "the import changed.",
        ),
    ]
    if case.rows is None:
        contestants.append(Contestant("limit", Role.BARE, sized(bare_windows), bare_windows.__doc__ or ""))
    else:
        build = sized(partial(case.run, penstock_persistent, case.rows))
        limit = Contestant("limit", Role.BARE, build, "penstock over a TensorDataset.", ("penstock-loader",))
        contestants.append(limit)
    targets = [Target("penstock", case.least, "torch")]
    if name in GET_BATCH:
        contestants.append(Contestant("get_batch", Role.PEER, sized(get_batch), get_batch.__doc__ or "", ("torch",)))
        targets.append(Target("penstock", GET_BATCH[name], "get_batch"))
    said = f"{case.title}, batch {case.batch}, shuffled, {case.workers or 'no'} workers"
    measures = (SPEED, SECONDS) if case.run is training else (SPEED, SECONDS, FIRST)
    return Table(name, said, tuple(contestants), tuple(targets), measures, Host.FRESH)


def write_tokens(folder: Path) -> None:
    values = np.random.default_rng(0).integers(0, 50_257, 40_000 * BLOCK + 1, dtype=np.uint16)
    values.tofile(folder / "tokens.bin")


def prepare(options: Options) -> Setup:
    """A file of tokens; all other data is made by each contestant."""
    folder = made(options.cache / "index-tokens", write_tokens)
    return Setup(str(folder), 0, facts={"share": 0.02 if options.quick else 1.0})


TABLES = tuple(table(name) for name in CASES)
QUESTION = Question("index", "Classes that only index", TABLES, prepare)
