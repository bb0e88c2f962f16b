"""Locks of threads and of files, which a forked child does not hold: it finds them free, and their files closed."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
import weakref
from contextlib import suppress

from penstock.system.process_events import at_fork

#: What flock says on file systems without locks.
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


def lock_file(descriptor: int, path: str, operation: int, seconds: float, *, required: bool) -> None:
    """Lock an open file; path: for messages, operation: fcntl.LOCK_SH or LOCK_EX.

    Raises TimeoutError where another process holds the lock for longer than so many seconds, and OSError where the file
    system has no locks and one is required.
    """
    deadline, pause = time.monotonic() + seconds, 0.001
    while True:
        try:
            fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                held = f"another process has held its lock for {seconds:g} s"
                raise TimeoutError(errno.ETIMEDOUT, held, path) from None
        except OSError as error:
            if required or error.errno not in NO_LOCKS:
                raise
            return
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def unlock_file(descriptor: int) -> None:
    """Unlock an open file. Closing would not suffice: a child forked meanwhile has the descriptor, and so the lock."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)


class HeldFile:
    """An open file with a lock on it, which ends when it is closed. It is closed in a forked child."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._process = os.getpid()
        _HELD.add(self)
        at_fork(after_in_child=_forked)

    def close(self) -> None:
        """Let the file go. A second call does nothing."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            if os.getpid() == self._process:
                unlock_file(descriptor)
            os.close(descriptor)

    def __del__(self) -> None:
        try:  # noqa: SIM105  at the end of the interpreter contextlib is gone
            self.close()
        except Exception:
            pass


class ProcessLock:
    """A lock of this process: in a child that is forked off while another thread holds it, it is free."""

    def __init__(self) -> None:
        self._locks: dict[int, threading.Lock] = {}  # by process

    def acquire(self, *, wait: bool = True) -> bool:
        """Take the lock and return True; False: it is taken, and is not to be waited for."""
        lock = self._locks.get(process := os.getpid()) or self._locks.setdefault(process, threading.Lock())
        if not lock.acquire(wait):
            return False
        self._taken = lock  # given back even where the thread that holds it forks
        return True

    def release(self) -> None:
        self._taken.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


_HELD: weakref.WeakSet[HeldFile] = weakref.WeakSet()


def _forked() -> None:
    """Free a child's locks, and close its copies of open files: its parent's locks would last until the child ends."""
    for held in list(_HELD):
        descriptor, held.descriptor = held.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
