"""The running jobs of this user, as their live recordings say, and what is worth showing of them.

A file is read as one that anybody may have written: each value is checked.
"""

from __future__ import annotations

import json
import math
import time
import types
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from penstock.errors import PenstockError
from penstock.insight.live_files import FORMAT, MOST_BYTES, ProcessName, live_folder, read_all

#: Seconds without a batch, at the least, after which a loop stands still; and how many of its steps.
_STILL_SECONDS, _STILL_STEPS = 5.0, 3.0


class Reading(NamedTuple):
    """What stats() said at one moment: sums since the loader was made."""

    time: float
    """By time.time()."""
    batches: int
    samples: int
    waited: float
    first_waited: float
    """Of the seconds waited, those for the first batches of passes."""
    worked: float
    depth: int = 0
    """Readers at work ahead of the workers at that moment."""

    @property
    def steady(self) -> float:
        """Seconds waited, but for first batches."""
        return self.waited - self.first_waited


@dataclass(frozen=True)
class LiveLoader:
    """A loader of a job."""

    number: int
    dataset: str
    batch_size: int | None
    workers: int
    read_by: str
    passes: int
    open: bool
    """A pass of it is not at its end."""
    got: float | None
    """When its loop got its latest batch, by time.time()."""
    failed: int
    now: Reading
    """Its time, and that of the others, is by time.time()."""
    history: tuple[Reading, ...]
    """Of the last ten minutes, the latest one last."""
    stages: dict[str, tuple[float, int]]
    deepest: int
    """The most readers that were at work."""
    calls: dict[str, tuple[int, int]]
    """Of functions of the dataset's own code: answered natively, and left to the original function."""
    cache: dict[str, tuple[int, int, int, int]]
    """Of each tier: hits, samples, bytes and limit."""

    def since(self, seconds: float) -> Reading:
        """Return the latest reading that is at least so old, or the oldest one."""
        old = [reading for reading in self.history if reading.time <= self.now.time - seconds]
        return old[-1] if old else (self.history[0] if self.history else self.now)

    def rates(self, seconds: float = 15.0) -> tuple[float, float]:
        """Return batches and samples a second of the time in loops, over about the last `seconds` of them."""
        before, now = self.since(seconds), self.now
        if now.batches <= before.batches:
            before = Reading(now.time, 0, 0, 0, 0, 0)
        spent = max(now.waited + now.worked - before.waited - before.worked, 1e-9)
        return (now.batches - before.batches) / spent, (now.samples - before.samples) / spent

    def wait_share(self, seconds: float = 15.0) -> float:
        """Return the share of the loop's time that it waited, over about the last `seconds`: 0 to 1."""
        found = _share(self.since(seconds), self.now)
        return _share(Reading(0, 0, 0, 0, 0, 0), self.now) or 0.0 if found is None else found

    def wait_shares(self) -> list[float | None]:
        """Return the shares between the readings of the history; None: the loop did not run."""
        return [_share(a, b) for a, b in pairwise(self.history)]

    def still(self, now: float, every: float) -> float | None:
        """Return for how many seconds there was no batch, where that is long. every: seconds between two writings."""
        if self.got is None or not self.open:
            return None
        step = (self.now.waited + self.now.worked) / max(self.now.batches, 1)
        seconds = now - self.got
        return seconds if seconds > max(_STILL_SECONDS, _STILL_STEPS * step, 3 * every) else None


@dataclass(frozen=True)
class Job:
    """A process that goes through penstock loaders."""

    name: ProcessName
    host: str
    program: str
    rank: str
    """Of torchrun; empty where it did not start the process."""
    began: float
    written: float
    every: float
    """Seconds between two writings of its recording."""
    loaders: tuple[LiveLoader, ...]

    @property
    def ended(self) -> bool:
        """Whether the process is gone; of another machine's it is not known, and one that is silent for long counts."""
        alive = self.name.alive()
        return time.time() - self.written > max(600.0, 10 * self.every) if alive is None else not alive


def jobs(folder: Path | None = None) -> list[Job]:
    """Return the jobs that are running, oldest first. folder: of the recordings; None: this user's.

    Files that cannot be read are left out. Raises UnsafeCache, OSError: the folder cannot be used.
    """
    folder = live_folder() if folder is None else folder
    if folder is None:
        return []
    found = []
    for name, data in read_all(folder):
        try:
            job = job_of(name, data)
        except PenstockError:
            continue
        if not job.ended:
            found.append(job)
    return sorted(found, key=lambda job: (job.began, job.name))


def job_of(name: ProcessName, data: bytes) -> Job:
    """Return a job by its file. Raises PenstockError: the file is not a live recording."""
    try:
        said = json.loads(data[: MOST_BYTES + 1])
        if len(data) > MOST_BYTES or said["format"] != FORMAT:
            raise ValueError("it is too large, or has another format")
        return Job(name, **{one: _as(kind, said[one]) for one, kind in get_type_hints(Job).items() if one != "name"})
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise PenstockError(f"{name.file} is not a live recording: {error}") from error


def _as(kind: Any, said: Any) -> Any:
    """Return a value of JSON as one of a type. Raises TypeError, ValueError, KeyError."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is types.UnionType:  # with None
        return None if said is None else _as(inner[0], said)
    if kind is LiveLoader:
        return LiveLoader(**{name: _as(inside, said[name]) for name, inside in get_type_hints(kind).items()})
    if origin is dict and isinstance(said, dict):
        return {name: _as(inner[1], value) for name, value in said.items()}
    if kind is Reading and isinstance(said, list):
        return Reading(*(_as(one, value) for one, value in zip(get_type_hints(Reading).values(), said, strict=True)))
    if origin is tuple and isinstance(said, list):
        return tuple(_as(one, value) for one, value in zip(_kinds(inner, len(said)), said, strict=True))
    known = type(said) in (int, float) and math.isfinite(said) if kind is float else type(said) is kind
    if not known or (kind is int and not 0 <= said < 1 << 63):
        raise TypeError(f"{kind} was expected")
    return float(said) if kind is float else said


def _kinds(inner: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    return (inner[0],) * count if inner[-1] is ... else inner


def _share(before: Reading, after: Reading) -> float | None:
    waited, worked = after.steady - before.steady, after.worked - before.worked
    total = waited + worked
    return min(1.0, max(0.0, waited / total)) if total > 1e-9 else None
