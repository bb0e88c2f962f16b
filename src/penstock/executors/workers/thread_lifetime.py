"""How worker threads begin, in the modes and context of the thread that starts them, and how they end.

Those in the middle of a sample may outlive their crew, until the process ends.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import ctypes
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any

import torch
from threadpoolctl import ThreadpoolController

#: How long a crew waits for threads that are in the middle of a sample, in seconds.
JOIN_SECONDS = 2.0
#: Calls a function with arguments in the context of another thread.
Context = Callable[..., Any]


def context_here() -> Context:
    """Return what calls a function with arguments in another thread, as a forked worker process would call it.

    It has there what the thread that calls this has: context variables, and what torch keeps for each thread, which
    are grad and autocast modes and the default device. Of inference mode it has that there are no gradients: what a
    thread makes may be taken when the mode is off.
    """
    modes, context = _modes(), contextvars.copy_context()

    def in_modes(work: Callable[..., Any], *arguments: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for mode in modes:
                stack.enter_context(mode())
            return work(*arguments)

    def call(work: Callable[..., Any], *arguments: Any) -> Any:
        return context.copy().run(in_modes, work, *arguments)  # each thread in a context of its own

    return call


def _modes() -> list[Callable[[], Any]]:
    """Return context managers that give another thread the modes that torch keeps for each: grad, autocast, device."""
    modes: list[Callable[[], Any]] = []
    if not torch.is_grad_enabled():
        modes.append(torch.no_grad)
    if torch.is_autocast_enabled("cpu"):
        modes.append(partial(torch.autocast, "cpu", dtype=torch.get_autocast_dtype("cpu")))
    # The module comes with the first set_default_device; asking torch imports it, which takes long.
    if "torch.utils._device" in sys.modules and (device := torch.get_default_device()).type != "cpu":
        modes.append(lambda: torch.device(device))  # a device is a context manager
    return modes


def one_core_each() -> None:
    """Let torch's operations use no further threads, where the calling thread calls them; worker processes do so too.

    torch.set_num_threads would change the whole process; OpenMP's own setting is each thread's.
    """
    torch.get_num_threads()  # torch sets the number once in each thread, at its first operation: now
    _openmp().limit(limits=1)


@cache
def _openmp() -> ThreadpoolController:
    """Return the OpenMP libraries of this process; looking for them takes milliseconds."""
    return ThreadpoolController().select(user_api="openmp")


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
