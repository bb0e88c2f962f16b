"""Advisory locks (flock) on open files, waited for up to a deadline."""

from __future__ import annotations

import errno
import fcntl
import time
from contextlib import suppress

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
    """Unlock an open file. Closing alone would not do: a child forked meanwhile has the descriptor, and so the lock."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
