"""The live file of this process, for `penstock watch` in another terminal: always on, at next to no cost.

A process that goes through penstock loaders for more than a second writes a small file into the user's private folder
(live_files.py), and writes it anew twice a second at most, less often where that takes more than a thousandth of the
time. The thread that calls next() writes it: another thread would make os.fork() warn in programs that had
one thread (Python 3.12 and later), and DataLoader's worker processes are forked. Between two writes each batch costs a
reading of the clock.

It is always on because the question why a run is slow comes up while it runs. Where the file cannot be written the
process continues without it. Worker processes and threads write none, and a forked child begins its own.
"""

from __future__ import annotations

import contextlib
import json
import logging
import operator
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, time as wall_clock
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
from penstock.loop_times import LoopLabel, LoopMeter
from penstock.system.process_events import at_exit
from penstock.system.words import compact, counted
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


class _Followed:
    """A loader that a live file tells of, by its number."""

    def __init__(self, number: int, loops: LoopMeter, label: LoopLabel) -> None:
        self.loops, self._number, self._label = loops, number, label
        self._history: list[tuple[float, int, int, float, float]] = []  # the time, and sums since the loader was made

    @property
    def gone(self) -> bool:
        """Whether neither the loader nor one of its passes is there."""
        return self._label.owner() is None

    def lines(self, wall: float, every: float) -> tuple[list[str], list[str], float] | None:
        """Return the loader's lines, its summary and its patience, as Job has them; None: it is gone.

        wall: the time, by time.time(). every: seconds between writes.
        """
        label, loops = self._label, self.loops
        if (owner := label.owner()) is None:
            return None
        stats = label.read(owner)
        now = (wall, stats.batches, stats.samples, stats.loop.steady_waited, stats.loop.worked)
        self._history = [*(one for one in self._history if one[0] > wall - RECENT), now]
        before = self._history[0] if stats.batches > self._history[0][1] else (0.0,) * 5  # of all its passes
        _, batches, samples, waited, worked = map(operator.sub, now, before)
        spent = max(waited + worked, 1e-9)
        waiting = min(1.0, max(0.0, waited / spent))
        step = (stats.loop.waited + stats.loop.worked) / max(stats.batches, 1)
        batches_of = f"batches of {label.batches:,}" if isinstance(label.batches, int) else label.batches
        workers = counted(label.workers, "worker") if label.workers else "no workers"
        lines = [
            f"loader {self._number}: {label.dataset}, {batches_of or 'batches by batch_sampler'}, {workers}, "
            f"read by {label.reader}",
            f"  rate      {compact(batches / spent)} batches/s, {compact(samples / spent)} samples/s; "
            f"{counted(stats.batches, 'batch', 'batches')} in {counted(loops.passes, 'pass', 'passes')}",
            f"{'! ' if waiting > WAITING else '  '}waiting   {waiting:.0%} of the time",
            *([f"! errors    {loops.failed:,} came instead of a batch"] if loops.failed else []),
            *_stage_lines(stats),
        ]
        patience = max(_STILL_SECONDS, _STILL_STEPS * step, 3 * every) if loops.open else 0.0
        return lines, [f"{waiting:.0%}", compact(samples / spent), label.dataset], patience


def _stage_lines(stats: Any) -> Iterator[str]:
    total = sum(one.seconds for one in stats.stages.values())
    most = sorted(stats.stages.items(), key=lambda item: -item[1].seconds)[:_MOST_STAGES]
    for place, (name, one) in enumerate(most):
        share = one.seconds / total if total else 0.0
        each = f"{compact(one.seconds / one.samples * 1e3)} ms a sample" if one.samples else ""
        head = "" if place else "stages"
        yield f"  {head:<9} {name[:12]:<12} {share:4.0%}  {'█' * round(_BAR * share):<{_BAR}} {each}".rstrip()


class Publisher:
    """Writes the live file of one process."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loaders: list[_Followed] = []
        self._count = 0
        self._due = float("inf")
        self._began: float | None = None  # by time.time()
        self._every = EVERY
        self._name: ProcessName | None = None
        self._folder: Path | None = None  # where the file lies
        self._lock = threading.Lock()
        self._writing = threading.Lock()

    def is_of_this_process(self) -> bool:
        return self._pid == os.getpid()

    def looked(self, loops: LoopMeter, now: float) -> None:
        """Follow the loops over a loader, but not in the workers of another one; write the file where that is due."""
        if get_worker_info() is not None:
            return
        if loops.followed_by is not self and loops.label is not None:
            with self._lock:
                self._count += 1
                self._loaders = [one for one in self._loaders if not one.gone]
                self._loaders.append(_Followed(self._count, loops, loops.label))
                if self._began is None:
                    at_exit(_remove_at_exit)
                    self._began = wall_clock()
                    self._due = now + FIRST_AFTER
            loops.followed_by = self
        if now >= self._due:
            self._publish(now)

    def _publish(self, now: float) -> None:
        """Write the file, where no other thread does so just now; where that fails, no more."""
        if not (self.is_of_this_process() and self._writing.acquire(blocking=False)):
            return
        try:
            self._due = float("inf")
            began, folder = perf_counter(), live_folder()
            if self._folder not in (None, folder):  # the program has called penstock.cache_folder
                self._remove_file()
            if folder is None:
                return
            if self._folder is None:
                name = this_process()
                remove_stale(folder)
                self._name, self._folder = name, folder
            assert self._name is not None
            write(folder, self._name, self._snapshot())
            self._every = max(EVERY, _SHARE * (perf_counter() - began))
            self._due = now + self._every
        except Exception as error:
            _log.debug("the live recording of this process could not be written: %s", error)
        finally:
            self._writing.release()

    def _snapshot(self) -> bytes:
        wall = wall_clock()
        latest = sorted(self._loaders, key=lambda one: one.loops.looked)
        found = [lines for one in latest if (lines := one.lines(wall, self._every)) is not None][-MOST_LOADERS:]
        said = {
            "format": FORMAT,
            "host": os.uname().nodename,
            "program": program_name(),
            "rank": os.environ.get("RANK", ""),  # of torchrun
            "began": self._began,
            "written": wall,
            "every": self._every,
            "patience": max((patience for _, _, patience in found), default=0.0),
            "summary": found[-1][1] if found else ["-"] * 3,
            "lines": [line for lines, _, _ in found for line in ("", *lines)],
        }
        return json.dumps(said, allow_nan=False).encode()

    def remove(self) -> None:
        """Remove the file, and write no more."""
        self._due = float("inf")
        if self.is_of_this_process():
            self._remove_file()

    def _remove_file(self) -> None:
        if self._folder is not None and self._name is not None:
            remove(self._folder, self._name)
        self._folder = None


_publisher: Publisher | None = None


def looked(loops: LoopMeter, now: float) -> None:
    """Take note that the CPU times of the loops over a loader were read."""
    if _publisher is not None and not _publisher.is_of_this_process():
        publish()  # a forked child has another file
    if _publisher is not None:
        _publisher.looked(loops, now)


def publish(enabled: bool = True) -> None:
    """Turn the live file of this process on, or (False) off; turning it off removes the file.

    A process writes the file without this call. A forked child keeps the setting.
    """
    global _publisher
    if _publisher is not None:
        _publisher.remove()
    _publisher = Publisher() if enabled else None


def _remove_at_exit() -> None:
    if _publisher is not None:
        with contextlib.suppress(Exception):
            _publisher.remove()


publish()
