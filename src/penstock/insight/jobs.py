"""The running jobs of this user, as their live recordings say, and what is worth showing of them.

A file is read as one that anybody may have written: each value is checked.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from penstock.errors import PenstockError
from penstock.insight.live_files import MOST_BYTES, ProcessName, live_folder, read_all
from penstock.insight.publishing import FORMAT

#: Seconds without a batch, at the least, after which a loop stands still; and how many of its steps.
_STILL_SECONDS, _STILL_STEPS = 5.0, 3.0


class _Unreadable(PenstockError):
    """A file is no live recording."""


@dataclass(frozen=True)
class Point:
    """What a loader had done at one moment, since it was made."""

    time: float
    batches: int
    samples: int
    waited: float
    first_waited: float
    worked: float

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
    now: Point
    history: tuple[Point, ...]
    stages: dict[str, tuple[float, int]]
    depth: int
    deepest: int
    calls: dict[str, tuple[int, int]]
    """Of functions of the dataset's own code: answered natively, and left to the original function."""
    cache: dict[str, tuple[int, int, int, int]]
    """Of each tier: hits, samples, bytes and limit."""

    def since(self, seconds: float) -> Point:
        """Return the latest point that is at least so old, or the oldest one."""
        old = [point for point in self.history if point.time <= self.now.time - seconds]
        return old[-1] if old else (self.history[0] if self.history else self.now)

    def rates(self, seconds: float = 15.0) -> tuple[float, float]:
        """Return batches and samples a second of the time in loops, over about the last `seconds` of them."""
        before, now = self.since(seconds), self.now
        if now.batches <= before.batches:
            before = Point(now.time, 0, 0, 0, 0, 0)
        spent = max(now.waited + now.worked - before.waited - before.worked, 1e-9)
        return (now.batches - before.batches) / spent, (now.samples - before.samples) / spent

    def wait_share(self, seconds: float = 15.0) -> float:
        """Return the share of the loop's time that it waited, over about the last `seconds`: 0 to 1."""
        found = _share(self.since(seconds), self.now)
        return _share(Point(0, 0, 0, 0, 0, 0), self.now) or 0.0 if found is None else found

    def wait_shares(self) -> list[float | None]:
        """Return the shares between the points of the history; None: the loop did not run."""
        points = [*self.history, self.now] if self.history and self.history[-1] != self.now else list(self.history)
        return [_share(a, b) for a, b in pairwise(points)]

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
        except _Unreadable:
            continue
        if not job.ended:
            found.append(job)
    return sorted(found, key=lambda job: (job.began, job.name))


def job_of(name: ProcessName, data: bytes) -> Job:
    """Return a job by its file. Raises PenstockError: the file is no live recording."""
    try:
        if len(data) > MOST_BYTES:
            raise _Unreadable("it is too large")
        said = json.loads(data, parse_constant=_no_number)
        if not isinstance(said, dict) or said.get("format") != FORMAT:
            raise _Unreadable("it has another format")
        loaders = tuple(_loader(one) for one in _list(said["loaders"]))
        times = (_number(said["began"]), _number(said["written"]), _number(said["every"]))
        return Job(name, _text(said["host"]), _text(said["program"]), _text(said["rank"]), *times, loaders)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _Unreadable(f"it is damaged: {error}") from error


def _loader(said: Mapping[str, Any]) -> LiveLoader:
    return LiveLoader(
        number=_count(said["number"]),
        dataset=_text(said["dataset"]),
        batch_size=None if said["batch_size"] is None else _count(said["batch_size"]),
        workers=_count(said["workers"]),
        read_by=_text(said["read_by"]),
        passes=_count(said["passes"]),
        open=_count(said["open"]) > 0,
        got=None if said["got"] is None else _number(said["got"]),
        failed=_count(said["failed"]),
        now=_point(said["now"]),
        history=tuple(map(_point, _list(said["history"]))),
        stages={_text(name): (_number(a), _count(b)) for name, (a, b) in said["stages"].items()},
        depth=_count(said["depth"]),
        deepest=_count(said["deepest"]),
        calls={_text(name): (_count(a), _count(b)) for name, (a, b) in said["calls"].items()},
        cache={_text(name): _four(counts) for name, counts in said["cache"].items()},
    )


def _point(said: Any) -> Point:
    at, batches, samples, waited, first, worked = _list(said)
    return Point(_number(at), _count(batches), _count(samples), _number(waited), _number(first), _number(worked))


def _four(said: Any) -> tuple[int, int, int, int]:
    a, b, c, d = map(_count, _list(said))
    return a, b, c, d


def _list(said: Any) -> list[Any]:
    if not isinstance(said, list):
        raise TypeError("a list was expected")
    return said


def _text(said: Any) -> str:
    if not isinstance(said, str):
        raise TypeError("a text was expected")
    return said


def _count(said: Any) -> int:
    if isinstance(said, bool) or not isinstance(said, int) or not 0 <= said < 1 << 63:
        raise TypeError("a count was expected")
    return said


def _number(said: Any) -> float:
    if isinstance(said, bool) or not isinstance(said, int | float) or not math.isfinite(said):
        raise TypeError("a number was expected")
    return float(said)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _share(before: Point, after: Point) -> float | None:
    waited, worked = after.steady - before.steady, after.worked - before.worked
    total = waited + worked
    return min(1.0, max(0.0, waited / total)) if total > 1e-9 else None
