"""A lock that a forked child never finds taken."""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType

_locks: weakref.WeakSet[ProcessLock] = weakref.WeakSet()


class ProcessLock:
    """A lock of this process: in a child that is forked off while another thread holds it, it is free."""

    def __init__(self) -> None:
        self._lock = self._taken = threading.Lock()
        _locks.add(self)

    def acquire(self, *, wait: bool = True) -> bool:
        """Take the lock and return True; False: it is taken, and is not to be waited for."""
        lock = self._lock
        if not lock.acquire(wait):
            return False
        self._taken = lock  # given back even where the thread that holds it forks
        return True

    def release(self) -> None:
        """Give the lock back."""
        self._taken.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


def _free_all() -> None:
    for lock in list(_locks):
        lock._lock = threading.Lock()


os.register_at_fork(after_in_child=_free_all)
