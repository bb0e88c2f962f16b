"""What a worker thread has around it: the modes and context of the thread that starts it, and one core."""

from __future__ import annotations

import contextlib
import contextvars
import os
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from threadpoolctl import ThreadpoolController

#: Calls a function with arguments in the surroundings of another thread.
Surroundings = Callable[..., Any]


def surroundings() -> Surroundings:
    """Return what calls a function with arguments in another thread, as a forked worker process would call it.

    It does so in the surroundings of the thread that calls this: its context variables, and what torch keeps for each
    thread, which are grad and autocast modes and the default device. Of inference mode that there are no gradients:
    what a thread makes may be taken when the mode is off.
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


def with_surroundings(work: Callable[..., None]) -> Callable[..., None]:
    """Return a function that works in another thread in the surroundings of the caller of this."""
    return partial(surroundings(), work)


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


_forked = False


def _note_fork() -> None:
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_note_fork)


def ready_for_threads() -> None:
    """Call before threads are started: in a forked child torch makes its thread pool anew at its first use.

    Each thread's first operation uses it, and two at once may find none ("Invalid thread pool!").
    """
    global _forked
    if _forked:
        _forked = False
        torch.set_num_threads(torch.get_num_threads())


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
