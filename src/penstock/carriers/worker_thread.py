"""A Python worker thread: what it fetches with, what it is doing, how it begins and how it ends.

torch keeps the answer of get_worker_info() in one variable of the process. In a thread of a loader of ours the function
answers with what that thread has set here, while a lease on WORKER_INFO is open; everywhere else it answers as before.

Threads begin in the modes and context of the thread that begins the pass. Those in the middle of a sample may outlive
their crew, until the process ends.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import os
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any

import torch
import torch.utils.data.dataloader
from threadpoolctl import ThreadpoolController
from torch.utils.data._utils import collate as torch_collate, worker as torch_worker

from penstock.carriers.thread_batch import Activity
from penstock.recipe.patches import Patches, wrap
from penstock.system.process_events import at_exit
from penstock.system.randomness import Generators

#: How long a crew waits for threads that are in the middle of a sample, in seconds.
JOIN_SECONDS = 0.5
#: Calls a function with arguments in the context of another thread.
Context = Callable[..., Any]


class WorkerThread:
    """A thread of a crew, which starts it. info: what get_worker_info() returns in the thread."""

    def __init__(self, info: ThreadWorkerInfo, run: Callable[[WorkerThread], None]) -> None:
        self.info = info
        self.number = info.id
        self.activity = Activity()
        self.thread = threading.Thread(target=run, args=(self,), name=f"penstock-worker-{info.id}", daemon=True)

    def describe(self) -> str:
        """Return what the thread does, for how long, and its stack; empty where it waits for work."""
        frame = sys._current_frames().get(self.thread.ident or 0)
        if not self.activity.stage or frame is None:
            return ""
        seconds, stack = time.monotonic() - self.activity.since, "".join(traceback.format_stack(frame))
        return f"thread {self.number} is in {self.activity} since {seconds:.1f} s:\n{stack}"


class ThreadWorkerInfo:
    """What get_worker_info() returns in a worker thread: torch's WorkerInfo, with the thread's generators."""

    def __init__(self, id: int, num_workers: int, seed: int, dataset: Any, worker_method: str = "thread") -> None:
        self.worker_method = worker_method
        self.id = id
        self.num_workers = num_workers
        self.seed = seed
        self.dataset = dataset
        self.rng = Generators()

    def __repr__(self) -> str:
        return f"ThreadWorkerInfo(id={self.id}, num_workers={self.num_workers}, seed={self.seed})"


_of_thread = threading.local()


def set_for_this_thread(info: ThreadWorkerInfo) -> None:
    """Make get_worker_info() answer with this in the calling thread."""
    _of_thread.info = info


def generators_here() -> Generators | None:
    """Return the generators of the calling thread, where it is a worker by `set_for_this_thread`."""
    info = getattr(_of_thread, "info", None)
    return None if info is None else info.rng


def _is_worker() -> bool:
    return getattr(_of_thread, "info", None) is not None


def _info_here() -> Any:
    # default_collate asks whether it must build batches in shared memory, for another process: a thread must not.
    # It is behind this function and the one that chose it.
    if sys._getframe(2).f_globals.get("__name__") == torch_collate.__name__:
        return torch_worker.get_worker_info()
    return _of_thread.info


get_worker_info = wrap(torch_worker.get_worker_info, _info_here, _is_worker, (__name__, "get_worker_info"))


def _find(patches: Patches) -> None:
    patches.add_function(torch_worker.get_worker_info, get_worker_info, torch.utils.data, torch.utils.data.dataloader)


WORKER_INFO = Patches(_find)


def context_here() -> Callable[[], Context]:
    """Return what makes, for each thread, what calls functions there as a forked worker process would call them.

    They have there what the thread that calls this has: context variables, and what torch keeps for each thread, which
    are grad and autocast modes and the default device. Of inference mode they have that there are no gradients: what a
    thread makes may be taken when the mode is off.
    """
    at_exit(_end_outliving)  # before the first of our threads begins
    modes, context = _modes(), contextvars.copy_context()

    def in_modes(work: Callable[..., Any], *arguments: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for mode in modes:
                stack.enter_context(mode())
            return work(*arguments)

    return lambda: partial(context.copy().run, in_modes)  # type: ignore[call-arg]


def _modes() -> list[Callable[[], Any]]:
    """Return context managers that give another thread the modes that torch keeps for each: grad, autocast, device."""
    modes: list[Callable[[], Any]] = []
    if not torch.is_grad_enabled():
        modes.append(torch.no_grad)
    if torch.is_autocast_enabled("cpu"):
        modes.append(partial(torch.autocast, "cpu", dtype=torch.get_autocast_dtype("cpu")))
    # The module comes with the first default device. torch.get_default_device() of torch 2.6 sees no `with` block.
    if "torch.utils._device" in sys.modules and (device := torch.empty(0).device).type != "cpu":
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


def end_crew(threads: Sequence[threading.Thread], stop: Callable[[], object], owner: int) -> None:
    """Tell a crew's threads to stop, and wait for them.

    In a process forked off from their owner (a process ID) they do not exist, and nothing is done.
    """

    def work() -> None:
        stop()
        deadline = time.monotonic() + JOIN_SECONDS
        for thread in threads:
            if thread.ident is not None:  # the thread was started
                thread.join(max(0.0, deadline - time.monotonic()))
        leave_behind(threads)

    if os.getpid() != owner:
        return
    if threading.current_thread() in threads:
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
