"""Worker threads that outlive their crew, for they are in the middle of a sample: ended when the process ends."""

from __future__ import annotations

import atexit
import ctypes
import threading
import weakref
from collections.abc import Iterable

_exiting = threading.Event()
_outliving: weakref.WeakSet[threading.Thread] = weakref.WeakSet()  # threads whose crew is closed


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
