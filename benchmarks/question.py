"""What a benchmark is made of: a question holds tables, a table holds contestants and the targets that it checks.

All contestants of a table deliver the same samples. Question modules import the standard library, torch, NumPy and this
package at the top; every other library is optional and imported by the function that needs it, so that a contestant
whose library is missing is listed with the reason.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Facts = dict[str, Any]
Numbers = dict[str, float]


class Role(enum.StrEnum):
    """What a contestant is compared as."""

    TORCH = "torch"
    PENSTOCK = "penstock"
    BARE = "bare"
    PEER = "peer"
    ASIDE = "aside"  # shown with its ratios, never taken as the best peer; its description says why


class Host(enum.Enum):
    """Where the contestants of a table run."""

    PROCESS = enum.auto()  # each in a process of its own, which is stopped while another contestant measures
    FRESH = enum.auto()  # each in a new process for each round: nothing is warm but the page cache
    HERE = enum.auto()  # all in the process of the harness, because they share one GPU


@dataclasses.dataclass(frozen=True)
class Measure:
    """One number that a contestant gives per round."""

    key: str
    unit: str
    higher_is_better: bool = True


def lower(key: str, unit: str) -> Measure:
    """A measure of which less is better."""
    return Measure(key, unit, higher_is_better=False)


SPEED = Measure("samples_per_s", "samples/s")


@dataclasses.dataclass(frozen=True)
class Options:
    """What the command line asks for."""

    rounds: int
    quick: bool
    cache: Path = Path()
    photos: Path | None = None
    ids: int | None = None
    peers_python: str = sys.executable
    only: tuple[str, ...] = ()
    before: str | None = None
    """The interpreter of an environment with another build of Penstock, which is measured beside this one."""
    cases: tuple[str, ...] = ()
    """Words in the names of the tables that are measured; empty: all are."""


@dataclasses.dataclass(frozen=True)
class Setup:
    """What every contestant of a table is given: the same data, batch size and number of workers or threads."""

    data: str
    samples: int
    batch: int = 64
    workers: int = 2
    variant: str = ""
    """The name of the table."""
    facts: Facts = dataclasses.field(default_factory=dict)

    @property
    def batches(self) -> int:
        """The batches of an epoch, the last of which may be smaller."""
        return -(-self.samples // self.batch)

    def path(self, *parts: str) -> Path:
        """A path inside the prepared data."""
        return Path(self.data, *parts)

    def as_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True)
class Running:
    """A contestant that is ready: `epoch()` gives the samples it delivered, or its own numbers by measure."""

    epoch: Callable[[], int | Numbers]
    explain: Callable[[], Any] | None = None


Build = Callable[[Setup], Running]
OWN_PACKAGES = {Role.TORCH: ("torch",), Role.PENSTOCK: ("penstock-loader",)}


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A way to deliver the samples. `build` runs in the contestant's process.

    `text` says how the contestant is set up, where the docstring of `build` does not. `packages` are the distributions
    whose versions are recorded; those named in `peers` lie in the environment of the peers, and so the contestant runs
    with its interpreter.
    """

    name: str
    role: Role
    build: Build
    text: str = ""
    packages: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()

    @property
    def how(self) -> str:
        return " ".join((self.text or self.build.__doc__ or "").split())

    @property
    def recorded(self) -> tuple[str, ...]:
        """The distributions whose versions are recorded."""
        return self.packages or self.peers or OWN_PACKAGES.get(self.role, ())


class Over(enum.StrEnum):
    """Which number stands for the rounds of a contestant."""

    MEDIAN = "median"
    MEAN = "mean"
    WORST = "worst"


@dataclasses.dataclass(frozen=True)
class Target:
    """A number of `contestant` against `bound`: over that of `to` ("best peer": the best), or by itself if None."""

    contestant: str
    bound: float
    to: str | None = None
    measure: Measure = SPEED
    over: Over = Over.MEDIAN


@dataclasses.dataclass(frozen=True)
class Table:
    """Contestants over one setup, and what is measured of each; ratios are those of the first measure."""

    name: str
    title: str
    contestants: tuple[Contestant, ...]
    targets: tuple[Target, ...] = ()
    measures: tuple[Measure, ...] = (SPEED,)
    host: Host = Host.PROCESS


@dataclasses.dataclass(frozen=True)
class Question:
    """One benchmark: `prepare` makes the data once (in the cache) and says what every contestant is given."""

    name: str
    title: str
    tables: tuple[Table, ...]
    prepare: Callable[[Options], Setup]
    machine: Callable[[], Facts] = dict
    """What the question records of the machine beside what all questions do."""


def made(folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`, filled by `make` when it is not there yet: an interrupted `make` leaves nothing that counts."""
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}.unfinished-{os.getpid()}")
        unfinished.mkdir(parents=True)
        try:
            make(unfinished)
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return folder
