"""The live file of this process, for `penstock watch` in another terminal: always on, at next to no cost.

A process that goes through penstock loaders for more than a second writes a small file into the user's private folder
(live_files.py), and writes it anew twice a second at most, less often where that takes more than a thousandth of the
time. The thread that calls next() writes it: a thread of Penstock's own would make os.fork() warn in programs that had
one thread (Python 3.12 and later), and DataLoader's worker processes are forked. Between two writes each batch costs a
reading of the clock.

It is always on because the question why a run is slow comes up while it runs. Where the file cannot be written the
process continues without it. Worker processes and threads write none, and a forked child begins its own.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from time import perf_counter
from time import time as wall_clock
from typing import Any, NamedTuple

from torch.utils.data import get_worker_info

from penstock.insight.live_files import (
    FORMAT,
    ProcessName,
    live_folder,
    program_name,
    remove,
    remove_stale,
    this_process,
    write,
)
from penstock.loader import DataLoader
from penstock.observe import follow, follow_none
from penstock.stats import Stats
from penstock.system.words import compact, counted, size_of
from penstock.verdict import WAITING

#: Seconds from a process's first pass to its first file, and between two writes at the least.
FIRST_AFTER, EVERY = 1.0, 0.5
#: A write is so many times as far from the next one as it took.
_SHARE = 1000
#: The last seconds, about, that rates and the share of waiting are of.
RECENT = 15.0
#: Loaders in a file: those that gave a batch last.
MOST_LOADERS = 16
#: Seconds without a batch, at the least, after which a loop stands still; and how many of its steps.
_STILL_SECONDS, _STILL_STEPS = 5.0, 3.0
#: Stages that have a bar, those that took most, and its longest.
_MOST_STAGES, _BAR = 8, 32

_log = logging.getLogger("penstock")


class _Reading(NamedTuple):
    """What stats() said at one moment: sums since the loader was made."""

    time: float
    batches: int = 0
    samples: int = 0
    waited: float = 0.0
    """But for first batches."""
    worked: float = 0.0


class _Followed:
    """A loader that a live file tells of."""

    def __init__(self, loader: DataLoader[Any], number: int) -> None:
        self.number, self.loops = number, loader.loop_meter
        # Alive while the loader or one of its passes is.
        self.read_stats: Callable[[], Callable[[], Stats] | None] = weakref.WeakMethod(loader.stats_reader())
        self._history: list[_Reading] = []
        self._dataset, size = type(loader.dataset).__name__, loader.batch_size
        batches = "batches by batch_sampler" if size is None else f"batches of {size:,}"
        workers = counted(loader.num_workers, "worker") if loader.num_workers else "no workers"
        self._about = f"{self._dataset}, {batches}, {workers}, read by {loader.read_by}"

    def state(self, wall: float, offset: float, every: float) -> dict[str, Any] | None:
        """Return what the file says of the loader, the fields of LiveLoader; None: it is gone.

        wall: the time, by time.time(). offset: from time.perf_counter() to time.time(). every: seconds between writes.
        """
        if (read_stats := self.read_stats()) is None:
            return None
        stats, loops = read_stats(), self.loops
        now = _Reading(wall, stats.batches, stats.samples, stats.loop.steady_waited, stats.loop.worked)
        self._history = [one for one in self._history if one.time > wall - RECENT] + [now]
        before = self._history[0]
        if now.batches <= before.batches:  # none since: of all its passes
            before = _Reading(wall)
        spent = max(now.waited + now.worked - before.waited - before.worked, 1e-9)
        waiting = min(1.0, max(0.0, (now.waited - before.waited) / spent))
        step = (stats.loop.waited + now.worked) / max(now.batches, 1)
        return {
            "dataset": self._dataset,
            "got": loops.looked + offset if loops.open and loops.looked else 0.0,
            "patience": max(_STILL_SECONDS, _STILL_STEPS * step, 3 * every),
            "waiting": waiting,
            "rate": (now.samples - before.samples) / spent,
            "lines": [
                f"loader {self.number}: {self._about}",
                f"  rate      {compact((now.batches - before.batches) / spent)} batches/s, "
                f"{compact((now.samples - before.samples) / spent)} samples/s; "
                f"{counted(now.batches, 'batch', 'batches')} in {counted(loops.passes, 'pass', 'passes')}",
                f"{'! ' if waiting > WAITING else '  '}waiting   {waiting:.0%} of the time",
                *([f"! errors    {loops.failed:,} came in the place of a batch"] if loops.failed else []),
                *_stage_lines(stats),
            ],
        }


def _stage_lines(stats: Stats) -> Iterator[str]:
    total = sum(one.seconds for one in stats.stages.values())
    most = sorted(stats.stages.items(), key=lambda item: -item[1].seconds)[:_MOST_STAGES]
    for place, (name, one) in enumerate(most):
        share = one.seconds / total if total else 0.0
        each = f"{compact(one.seconds / one.samples * 1e3)} ms a sample" if one.samples else ""
        head = "" if place else "stages"
        yield f"  {head:<9} {name[:12]:<12} {share:4.0%}  {'█' * round(_BAR * share):<{_BAR}} {each}".rstrip()
    if stats.reading.deepest:
        yield f"  reading   {stats.reading.depth} readers at work, {stats.reading.deepest} at the most"
    for name, tier in stats.cache.items():
        kept = f"{tier.samples:,} samples kept, {size_of(tier.bytes)} of {size_of(tier.limit)}"
        yield f"  cache     {name}: {tier.hits:,} samples came from it; {kept}"
    for name, calls in stats.calls.items():
        left = sum(why.calls for why in calls.refused.values())
        yield f"  calls     {name}: {calls.answered:,} natively, {left:,} by the original"


class Publisher:
    """Writes the live file of one process."""

    def __init__(self) -> None:
        follow(self._follow)
        self._pid = os.getpid()
        self._loaders: list[_Followed] = []
        self._count = 0
        self._due = float("inf")
        self._began: float | None = None  # by time.time()
        self._every = EVERY
        self._name: ProcessName | None = None
        self._lock = threading.Lock()
        self._writing = threading.Lock()

    def _follow(self, loader: DataLoader[Any]) -> Callable[[float], None] | None:
        """Return what a loader's loops call; None in the workers of a loader."""
        if get_worker_info() is not None or self._pid != os.getpid():
            return None
        with self._lock:
            self._count += 1
            self._loaders = [one for one in self._loaders if one.read_stats() is not None]
            self._loaders.append(_Followed(loader, self._count))
            if self._began is None:
                self._began = wall_clock()
                self._due = perf_counter() + FIRST_AFTER
        return self._looked

    def _looked(self, now: float) -> None:
        if now >= self._due:
            self._publish(now)

    def _publish(self, now: float) -> None:
        """Write the file, where no other thread does so just now; where that fails, no more."""
        if self._pid != os.getpid() or not self._writing.acquire(blocking=False):
            return
        try:
            self._due = float("inf")
            began, folder = perf_counter(), live_folder()
            if folder is None:
                return
            if self._name is None:
                name = this_process()
                remove_stale(folder)
                self._name = name
            write(folder, self._name, self._snapshot(now))
            self._every = max(EVERY, _SHARE * (perf_counter() - began))
            self._due = now + self._every
        except Exception as error:
            _log.debug("the live recording of this process could not be written: %s", error)
        finally:
            self._writing.release()

    def _snapshot(self, now: float) -> bytes:
        wall = wall_clock()
        latest = sorted(self._loaders, key=lambda one: one.loops.looked)
        found = (one.state(wall, wall - now, self._every) for one in latest)
        said = {
            "format": FORMAT,
            "host": os.uname().nodename,
            "program": program_name(),
            "rank": os.environ.get("RANK", ""),  # of torchrun
            "began": self._began,
            "written": wall,
            "every": self._every,
            "loaders": [one for one in found if one is not None][-MOST_LOADERS:],
        }
        return json.dumps(said, allow_nan=False).encode()

    def remove(self) -> None:
        """Remove the file, and write no more."""
        follow(follow_none)
        self._due = float("inf")
        if self._name is not None and self._pid == os.getpid() and (folder := live_folder()) is not None:
            remove(folder, self._name)


_publisher: Publisher | None = None


def publish(enabled: bool = True) -> None:
    """Write the live file of this process, or (False) write none and remove what was written.

    A process publishes by itself from its first pass on. In a child that is forked off the choice holds too.
    """
    global _publisher
    if _publisher is not None:
        _publisher.remove()
    _publisher = Publisher() if enabled else None


def _remove_at_exit() -> None:
    if _publisher is not None:
        with contextlib.suppress(Exception):
            _publisher.remove()


def _begin_anew() -> None:
    """Let a forked child have a file of its own, where its parent has one."""
    if _publisher is not None:
        publish()


publish()
atexit.register(_remove_at_exit)
os.register_at_fork(after_in_child=_begin_anew)
