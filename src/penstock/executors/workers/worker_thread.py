"""A Python worker thread: what it fetches with, and what it is doing."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable

from penstock.executors.fetch import Fetch
from penstock.executors.workers.loading import Activity
from penstock.executors.workers.own_fetch import OwnFetches, can_be_copied
from penstock.executors.workers.surroundings import Surroundings
from penstock.executors.workers.worker_info import ThreadWorkerInfo

#: A thread's fetch is copied once more, to see whether it is unbound, where the first copy took less time, in seconds.
COPY_SECONDS = 2e-3


class WorkerThread:
    """A thread of a crew, which starts it.

    Attributes:
        surroundings: those of the pass that the thread works for.
        fetch: what the thread fetches with; None: it has not begun.
        info: what get_worker_info() returns in the thread, and in the caller that works in its place.
    """

    def __init__(
        self,
        info: ThreadWorkerInfo,
        surroundings: Surroundings,
        own: OwnFetches,
        run: Callable[[WorkerThread], None],
    ) -> None:
        self.info = info
        self.number = info.id
        self.surroundings = surroundings
        self.fetch: Fetch | None = None
        self._own = own
        self._bound: Fetch | None = None  # one that holds a connection or a file, which only this thread may use
        self.activity = Activity()
        self.thread = threading.Thread(target=run, args=(self,), name=f"penstock-worker-{info.id}", daemon=True)

    def take_fetch(self, shared: Fetch) -> Fetch:
        """Return what the thread fetches with: the shared one where all threads use one dataset. Raises NotCopied."""
        if not self._own.shared and self.fetch is None:
            self.fetch, _ = self._own.take()
        fetch = self.fetch if self.fetch is not None and not self._own.shared else shared
        self.info.dataset = fetch.dataset
        return fetch

    def unbound(self) -> bool:
        """Return whether another thread may use what this one fetches with: it holds no connection or file of its own.

        The connections of some databases may be used only in the thread that has opened them.
        """
        if self._own.shared:
            return True
        if self.fetch is None or self.fetch is self._bound or self._own.seconds > COPY_SECONDS:
            return False
        if can_be_copied(self.fetch):
            return True
        self._bound = self.fetch
        return False

    def describe(self) -> str:
        """Return what the thread does, for how long, and its stack; empty where it waits for work."""
        frame = sys._current_frames().get(self.thread.ident or 0)
        if not self.activity.stage or frame is None:
            return ""
        seconds, stack = time.monotonic() - self.activity.since, "".join(traceback.format_stack(frame))
        return f"thread {self.number} is in {self.activity} since {seconds:.1f} s:\n{stack}"
