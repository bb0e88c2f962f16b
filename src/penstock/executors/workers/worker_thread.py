"""A Python worker thread: what it fetches with, what it is doing, and what get_worker_info() answers in it.

torch keeps the answer in one variable of the process. In a thread of a loader of ours the function answers with what
that thread has set here, while a lease on WORKER_INFO is open; everywhere else it answers as before.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.utils.data.dataloader
from torch.utils.data._utils import collate as torch_collate
from torch.utils.data._utils import worker as torch_worker

from penstock.executors.workers.loading import Activity
from penstock.executors.workers.thread_lifetime import Context
from penstock.recipe.patches import Patches, standing_in
from penstock.system.randomness import Generators


class WorkerThread:
    """A thread of a crew, which starts it.

    Attributes:
        context: that of the pass which the thread works for.
        info: what get_worker_info() returns in the thread.
    """

    def __init__(
        self,
        info: ThreadWorkerInfo,
        context: Context,
        run: Callable[[WorkerThread], None],
    ) -> None:
        self.info = info
        self.number = info.id
        self.context = context
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
    """What get_worker_info() returns in a worker thread: torch's WorkerInfo, with generators of the thread's own."""

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


def set_for_this_thread(info: ThreadWorkerInfo | None) -> None:
    """Make get_worker_info() answer with this in the calling thread; None: as torch does."""
    _of_thread.info = info


@contextmanager
def as_worker(info: ThreadWorkerInfo) -> Iterator[None]:
    """Make get_worker_info() answer with this in the calling thread, which is none of the workers, for a while."""
    set_for_this_thread(info)
    try:
        yield
    finally:
        set_for_this_thread(None)


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


get_worker_info = standing_in(torch_worker.get_worker_info, _info_here, _is_worker, (__name__, "get_worker_info"))


def _find(patches: Patches) -> None:
    patches.add_function(torch_worker.get_worker_info, get_worker_info, torch.utils.data, torch.utils.data.dataloader)


WORKER_INFO = Patches(_find)
