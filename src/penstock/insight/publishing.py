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
from collections.abc import Callable
from functools import partial
from time import perf_counter
from time import time as wall_clock
from typing import Any

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
from penstock.insight.recording import LoaderRecord
from penstock.loader import DataLoader
from penstock.loop_times import LoopMeter
from penstock.observe import follow, follow_none

#: Seconds from a process's first pass to its first file, and between two writes at the least.
FIRST_AFTER, EVERY = 1.0, 0.5
#: A write is so many times as far from the next one as it took.
_SHARE = 1000
#: Seconds between two readings of a loader's history, and readings that are kept: the last ten minutes.
HISTORY_EVERY, HISTORY = 10.0, 60
#: Loaders in a file: those whose passes began last.
MOST_LOADERS = 16

_log = logging.getLogger("penstock")


class Publisher:
    """Writes the live file of one process."""

    def __init__(self) -> None:
        follow(self._follow)
        self._pid = os.getpid()
        self._loaders: list[tuple[LoaderRecord, LoopMeter]] = []
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
            followed = LoaderRecord.of(loader, self._count), loader.loop_meter
            if self._began is None:
                self._began = wall_clock()
                self._due = perf_counter() + FIRST_AFTER
        self._keep(followed)
        return partial(self._looked, followed)

    def _looked(self, followed: tuple[LoaderRecord, LoopMeter], now: float) -> None:
        if self._loaders[-1] is not followed:
            self._keep(followed)
        if now >= self._due:
            self._publish(now)

    def _keep(self, followed: tuple[LoaderRecord, LoopMeter]) -> None:
        """Make a loader the last one, whose loops went on last."""
        with self._lock:
            others = [one for one in self._loaders if one is not followed and one[0].read_stats() is not None]
            self._loaders = [*others[-MOST_LOADERS + 1 :], followed]

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
        said = {
            "format": FORMAT,
            "host": os.uname().nodename,
            "program": program_name(),
            "rank": os.environ.get("RANK", ""),  # of torchrun
            "began": self._began,
            "written": wall,
            "every": self._every,
            "loaders": [found for one in self._loaders if (found := _state(*one, now, wall - now)) is not None],
        }
        return json.dumps(said, allow_nan=False).encode()

    def remove(self) -> None:
        """Remove the file, and write no more."""
        follow(follow_none)
        self._due = float("inf")
        if self._name is not None and self._pid == os.getpid() and (folder := live_folder()) is not None:
            remove(folder, self._name)


def _state(known: LoaderRecord, loops: LoopMeter, now: float, offset: float) -> dict[str, Any] | None:
    """Return what the file says of a loader, the fields of LiveLoader; None: it is gone.

    offset: from time.perf_counter() to time.time().
    """
    stats = known.read(now, HISTORY_EVERY)
    if stats is None:
        return None
    del known.readings[:-HISTORY]
    readings = [one._replace(time=round(one.time + offset, 2)) for one in known.readings]
    calls = {name: (one.answered, sum(why.calls for why in one.refused.values())) for name, one in stats.calls.items()}
    return {
        "number": known.number,
        "dataset": known.title,
        "batch_size": known.batch_size,
        "workers": known.workers,
        "read_by": known.read_by,
        "passes": loops.passes,
        "open": loops.open,
        "got": loops.looked + offset if loops.looked else None,
        "failed": loops.failed,
        "now": readings[-1],
        "history": readings,
        "stages": {name: (time.seconds, time.samples) for name, time in stats.stages.items()},
        "deepest": stats.reading.deepest,
        "calls": calls,
        "cache": {name: (tier.hits, tier.samples, tier.bytes, tier.limit) for name, tier in stats.cache.items()},
    }


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
