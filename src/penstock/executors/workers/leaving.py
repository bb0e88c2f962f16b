"""How a crew of worker threads ends; those in the middle of a sample may outlive it, until the process ends."""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence

#: How long a crew waits for threads that are in the middle of a sample, in seconds.
JOIN_SECONDS = 2.0

_exiting = threading.Event()
_outliving: weakref.WeakSet[threading.Thread] = weakref.WeakSet()  # threads whose crew is closed


def end_crew(
    threads: Sequence[threading.Thread], stop: Callable[[], object], ended: threading.Event, owner: int
) -> None:
    """Tell a crew's threads to stop, wait for them, and set `ended`.

    In a process forked off from their owner (a process ID) they do not exist, and stop is not called.
    """

    def work() -> None:
        stop()
        deadline = time.monotonic() + JOIN_SECONDS
        for thread in threads:
            if thread.ident is not None:  # the thread was started
                thread.join(max(0.0, deadline - time.monotonic()))
        leave_behind(threads)
        ended.set()

    if os.getpid() != owner:
        ended.set()
    elif threading.current_thread() in threads:
        # The garbage collector runs in whatever thread allocates: in this one, which may hold the crew's lock.
        threading.Thread(target=work, name="penstock-closing", daemon=True).start()
    else:
        work()


def leave_behind(threads: Iterable[threading.Thread]) -> None:
    """Remember those of a crew's threads that are alive after it was closed."""
    _outliving.update(thread for thread in threads if thread.is_alive())
    if _exiting.is_set():
        _end_outliving()


def _end_outliving() -> None:
    """End threads that are still in a sample: an exit of the process would abort in those that call torch then."""
    _exiting.set()
    for thread in (alive := [thread for thread in _outliving if thread.is_alive()]):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
    for thread in alive:
        thread.join(1.0)


atexit.register(_end_outliving)
