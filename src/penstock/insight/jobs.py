"""The running jobs of this user, as their live files say.

A file is read as one that anybody may have written: each value is checked.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.insight.live_files import FORMAT, MOST_BYTES, ProcessName, live_folder, read_all

#: Seconds without a batch, at the least, after which a loop stands still; and how many of its steps.
_STILL_SECONDS, _STILL_STEPS = 5.0, 3.0
#: The types of JSON that a field of such an annotation takes.
_JSON: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "bool": (bool,), "float": (float, int)}


@dataclass(frozen=True)
class LiveLoader:
    """A loader of a job."""

    number: int
    dataset: str
    open: bool
    """A pass of it is not at its end."""
    got: float
    """When its loop got its latest batch, by time.time(); 0: never."""
    step: float
    """Seconds of a step of the loop, on average."""
    waiting: float
    """The share of the last seconds that the loop waited: 0 to 1."""
    rate: float
    """Samples a second of them."""
    lines: tuple[str, ...]
    """What the process says of it; "! " before one that is a warning."""

    def still(self, now: float, every: float) -> float | None:
        """Return for how many seconds there was no batch, where that is long. every: seconds between two writings."""
        if not self.got or not self.open:
            return None
        seconds = now - self.got
        return seconds if seconds > max(_STILL_SECONDS, _STILL_STEPS * self.step, 3 * every) else None


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
        loaders = []
        for one in said["loaders"]:
            if not all(isinstance(line, str) for line in one["lines"]):
                raise TypeError("lines are texts")
            loaders.append(LiveLoader(**_checked(LiveLoader, one), lines=tuple(one["lines"])))
        return Job(name, **_checked(Job, said), loaders=tuple(loaders))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise PenstockError(f"{name.file} is not a live recording: {error}") from error


def _checked(kind: Any, said: Any) -> dict[str, Any]:
    """Return the plain fields of a dataclass as JSON has them. Raises TypeError, ValueError, KeyError."""
    found = {}
    for field in fields(kind):
        if (types := _JSON.get(str(field.type))) is not None:
            value = said[field.name]
            if type(value) not in types or (float in types and not math.isfinite(value)):
                raise TypeError(f"{field.name} is not a {field.type}")
            found[field.name] = value
    return found
