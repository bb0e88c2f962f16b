"""The deaths of worker processes, noticed without a signal handler."""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import Any

from penstock.executors.workers.autopsy import Death, Identify, reap, why_died, why_stuck
from penstock.executors.workers.progress import Board
from penstock.executors.workers.results import Results
from penstock.system.cgroup import memory


class WorkerWatch:
    """Watches the worker processes of an iterator; the iterator's thread uses it.

    Args:
        board: where workers say what they do.
        identify: returns (ID, path) of a sample's index; for messages only.

    Attributes:
        deaths: of workers that ended before their time, by their number.
    """

    def __init__(self, board: Board, identify: Identify) -> None:
        self.deaths: dict[int, Death] = {}
        self._board, self._identify = board, identify
        self._processes: Sequence[Any] = ()
        self._results: Results | None = None
        self._sentinels = select.poll()
        self._worker_of: dict[int, int] = {}  # by sentinel, of those that are to stay
        self._kills_before = memory().oom_kills

    def begin(self, processes: Sequence[Any], results: Results, *, pinned: bool) -> None:
        """Watch these processes, and let a wait for their results end with them, unless torch's thread pins those."""
        self._processes, self._results = processes, results
        self._worker_of = {process.sentinel: worker for worker, process in enumerate(processes)}
        for sentinel in self._worker_of:
            self._sentinels.register(sentinel, select.POLLIN)
        results.watch([] if pinned else self._worker_of)

    @property
    def pids(self) -> list[int]:
        """The process IDs, by worker."""
        return [process.pid or 0 for process in self._processes]

    @property
    def watched(self) -> set[int]:
        """The workers that are to stay."""
        return set(self._worker_of.values())

    def release(self, worker: int) -> None:
        """Watch a worker no more, which is to end."""
        self._unwatch(self._processes[worker].sentinel)

    def notice(self, seconds: float = 0.0, *, by_pid: bool = False) -> dict[int, Death]:
        """Return the deaths, after waiting for one up to so many seconds.

        by_pid: look at the processes too. A dead worker's children may hold its sentinel open.
        """
        ended = [sentinel for sentinel, _ in self._sentinels.poll(seconds * 1000)]
        if by_pid and not ended:
            ended = [fd for fd, worker in self._worker_of.items() if not self._processes[worker].is_alive()]
        for sentinel in ended:
            worker = self._worker_of[sentinel]
            self._unwatch(sentinel)
            death = reap(self._processes[worker])
            if death is not None:
                self.deaths[worker] = death
        return self.deaths

    def _unwatch(self, sentinel: int) -> None:
        if self._worker_of.pop(sentinel, None) is not None and self._results is not None:
            self._sentinels.unregister(sentinel)
            self._results.unwatch(sentinel)

    def why_died(self, start_method: str | None) -> str:
        """Return the message for the deaths."""
        return why_died(self.deaths, self._board, self._identify, self._kills_before, start_method)

    def why_stuck(self, timeout: float, workers: set[int]) -> str:
        """Return the message for a batch that did not come in time from one of these workers."""
        pids = self.pids
        return why_stuck(timeout, {worker: pids[worker] for worker in sorted(workers)}, self._board, self._identify)
