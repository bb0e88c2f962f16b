"""A Python worker thread: what it fetches with, and what it is doing."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable

from penstock.executors.fetch import Fetch
from penstock.executors.workers.loading import Activity
from penstock.executors.workers.surroundings import Surroundings


class WorkerThread:
    """A thread of a crew, which starts it.

    Attributes:
        surroundings: those of the pass that the thread works for.
        fetch: what the thread fetches with; None: it has not begun.
        bound: the same, where it holds a connection or a file that only this thread may use.
    """

    def __init__(self, number: int, surroundings: Surroundings, run: Callable[[WorkerThread], None]) -> None:
        self.number = number
        self.surroundings = surroundings
        self.fetch: Fetch | None = None
        self.bound: Fetch | None = None
        self.activity = Activity()
        self.thread = threading.Thread(target=run, args=(self,), name=f"penstock-worker-{number}", daemon=True)

    def describe(self) -> str:
        """Return what the thread does, for how long, and its stack; empty where it waits for work."""
        frame = sys._current_frames().get(self.thread.ident or 0)
        if not self.activity.stage or frame is None:
            return ""
        seconds, stack = time.monotonic() - self.activity.since, "".join(traceback.format_stack(frame))
        return f"thread {self.number} is in {self.activity} since {seconds:.1f} s:\n{stack}"
