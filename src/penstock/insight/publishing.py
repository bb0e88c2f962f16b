"""The live recording of this process, for `penstock watch` in another terminal: always on, at next to no cost.

A process that goes through penstock loaders for more than a second writes a small file into the user's private folder
(live_files.py), and writes it anew twice a second at most, less often where that takes more than a thousandth of the
time. The thread that calls next() writes it: a thread of Penstock's own would make os.fork() warn in programs that had
one thread (Python 3.12 and later), and DataLoader's worker processes are forked. Between two writes each batch costs a
reading of the clock.

It is always on because the question why a run is slow comes up while it runs. Where the file cannot be written the
process goes on without it. Worker processes and threads write none, and a forked child begins one of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic, perf_counter
from time import time as wall_clock
from typing import Any

from torch.utils.data import get_worker_info

from penstock.insight.live_files import ProcessName, live_folder, remove, remove_stale, this_process, write
from penstock.insight.loader_facts import title_of
from penstock.loader import DataLoader
from penstock.observe import Observer, watch
from penstock.stats import Stats

#: Of the format of the file.
FORMAT = 1
#: Seconds from a process's first pass to its first file, and between two writes at the least.
FIRST_AFTER, EVERY = 1.0, 0.5
#: A write is so many times as far from the next one as it took.
_SHARE = 1000
#: Seconds between two points of a loader's history, and points that are kept: the last ten minutes.
HISTORY_EVERY, HISTORY = 10.0, 60
#: Loaders in a file: those whose passes began last.
MOST_LOADERS = 16

_log = logging.getLogger("penstock")


@dataclass(eq=False)
class _Loader:
    """A loader of this process."""

    number: int
    loader: weakref.ref[DataLoader[Any]]
    read_stats: weakref.WeakMethod[Callable[[], Stats]]
    """Alive while the loader or one of its passes is."""
    facts: dict[str, Any]
    """What the file says of the loader itself."""
    passes: int = 0
    open: int = 0
    """Passes that began and were not gone through to their end."""
    got: float | None = None
    """When the loop got its latest batch, by time.monotonic()."""
    failed: int = 0
    history: deque[tuple[float, int, int, float, float, float]] = field(default_factory=lambda: deque(maxlen=HISTORY))
    """Time, batches, samples, seconds waited, of them for first batches, and worked."""


class _Live(Observer):
    """Takes note that a loop is alive, and writes the file when it is time to."""

    harmless = True
    by_batch = False

    def __init__(self, publisher: Publisher, loader: _Loader, read_stats: Callable[[], Stats]) -> None:
        self._publisher, self._loader = publisher, loader
        self._read_stats = read_stats  # kept alive
        self._open = True
        loader.passes += 1
        loader.open += 1

    def __del__(self) -> None:
        if self._open:  # the loop was left before the end of the pass
            self._loader.open -= 1

    def looked(self) -> None:
        """Take note of a batch."""
        self._loader.got = now = monotonic()
        if now >= self._publisher.due:
            self._publisher.publish(now)

    def failed(self, error: Exception) -> None:
        """Take note of an error."""
        self._loader.failed += 1

    def ended(self) -> None:
        """Take note of the end of the pass."""
        if self._open:
            self._open = False
            self._loader.open -= 1
        if (now := monotonic()) >= self._publisher.due:
            self._publisher.publish(now)


class Publisher:
    """Writes the live recording of one process.

    Attributes:
        due: when it is written next, by time.monotonic(); never, once it could not be.
    """

    def __init__(self) -> None:
        self.due = float("inf")
        self.pid = os.getpid()
        self._loaders: list[_Loader] = []
        self._count = 0
        self._began: float | None = None  # by time.time()
        self._every = EVERY
        self._name: ProcessName | None = None
        self._lock = threading.Lock()

    def observe(self, loader: DataLoader[Any]) -> _Live | None:
        """Return what follows a pass; None in the workers of a loader."""
        if get_worker_info() is not None:
            return None
        with self._lock:
            if self._began is None:
                self._began = wall_clock()
                self.due = monotonic() + FIRST_AFTER
            read_stats = loader.stats_reader()
            if self._loaders and self._loaders[-1].loader() is loader:  # epoch after epoch
                known = self._loaders[-1]
            else:
                known = self._latest(loader, read_stats)
            return _Live(self, known, read_stats)

    def _latest(self, loader: DataLoader[Any], read_stats: Callable[[], Stats]) -> _Loader:
        """Return what is known of a loader, as the one whose pass began last."""
        loaders = [one for one in self._loaders if one.read_stats() is not None]
        known = next((one for one in loaders if one.loader() is loader), None)
        if known is None:
            self._count += 1
            known = _Loader(self._count, weakref.ref(loader), weakref.WeakMethod(read_stats), _facts(loader))
        else:
            loaders.remove(known)
        self._loaders = [*loaders[-MOST_LOADERS + 1 :], known]
        return known

    def publish(self, now: float) -> None:
        """Write the file, where no other thread does so just now; where that fails, no more."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self.due = float("inf")
            began = perf_counter()
            folder = live_folder()
            if folder is None:
                return
            if self._name is None:
                name = this_process()
                remove_stale(folder)
                self._name = name
            write(folder, self._name, self._snapshot(now))
            self._every = max(EVERY, _SHARE * (perf_counter() - began))
            self.due = now + self._every
        except Exception as error:
            _log.debug("the live recording of this process could not be written: %s", error)
        finally:
            self._lock.release()

    def _snapshot(self, now: float) -> bytes:
        wall = wall_clock()
        loaders = [found for one in self._loaders if (found := _state(one, wall, wall - now)) is not None]
        assert self._name is not None
        said = {
            "format": FORMAT,
            "pid": self._name.pid,
            "host": os.uname().nodename,
            "program": program_name(),
            "rank": os.environ.get("RANK", ""),  # of torchrun
            "began": self._began,
            "written": wall,
            "every": self._every,
            "loaders": loaders,
        }
        return json.dumps(said, allow_nan=False).encode()

    def remove(self) -> None:
        """Remove the file, and write none any more."""
        self.due = float("inf")
        if self._name is not None and self.pid == os.getpid() and (folder := live_folder()) is not None:
            remove(folder, self._name)


def program_name() -> str:
    """Return the name of the script, without its arguments, which may hold what is nobody's business."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is not None and isinstance(main.name, str):
        return f"-m {main.name.removesuffix('.__main__')}"
    return os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"


def _facts(loader: DataLoader[Any]) -> dict[str, Any]:
    size = None if loader.batch_size is None else int(loader.batch_size)  # which may be one of numpy's integers
    facts = {"dataset": title_of(loader), "batch_size": size}
    return {**facts, "workers": int(loader.num_workers), "read_by": loader.read_by}


def _state(known: _Loader, now: float, offset: float) -> dict[str, Any] | None:
    """Return what the file says of a loader; None: it is gone. offset: from time.monotonic() to time.time()."""
    if (read_stats := known.read_stats()) is None:
        return None
    if (loader := known.loader()) is not None:
        known.facts = _facts(loader)
    stats = read_stats()
    loop = stats.loop
    point = (round(now, 2), stats.batches, stats.samples, loop.waited, loop.first_waited, loop.worked)
    if not known.history or now - known.history[-1][0] >= HISTORY_EVERY:
        known.history.append(point)
    return {
        "number": known.number,
        **known.facts,
        "passes": known.passes,
        "open": known.open,
        "got": None if known.got is None else known.got + offset,
        "failed": known.failed,
        "now": point,
        "history": list(known.history),
        **_work(stats),
    }


def _work(stats: Stats) -> dict[str, Any]:
    """Return what a loader's workers did."""
    return {
        "stages": {name: [time.seconds, time.samples] for name, time in stats.stages.items()},
        "depth": stats.reading.depth,
        "deepest": stats.reading.deepest,
        "calls": {
            name: [counts.answered, sum(one.calls for one in counts.refused.values())]
            for name, counts in stats.calls.items()
        },
        "cache": {name: [tier.hits, tier.samples, tier.bytes, tier.limit] for name, tier in stats.cache.items()},
    }


_publisher: Publisher | None = None
_end: Any = None


def publish(enabled: bool = True) -> None:
    """Write the live recording of this process, or (False) write none and remove what was written.

    `import penstock` calls publish(). In a child that is forked off the choice holds too.
    """
    global _publisher, _end
    if _end is not None:
        _end()
        _end = None
    if _publisher is not None:
        _publisher.remove()
        _publisher = None
    if enabled:
        _publisher = Publisher()
        _end = watch(_publisher.observe)


def _remove_at_exit() -> None:
    if _publisher is not None:
        with contextlib.suppress(Exception):
            _publisher.remove()


def _begin_anew() -> None:
    """Let a forked child have a recording of its own, where its parent has one."""
    global _publisher, _end
    if _publisher is not None and _end is not None:
        _publisher.due = float("inf")  # passes of the parent's that go on here
        _end()
        _publisher = Publisher()
        _end = watch(_publisher.observe)


atexit.register(_remove_at_exit)
os.register_at_fork(after_in_child=_begin_anew)
