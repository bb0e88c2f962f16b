"""torch.utils.data.get_worker_info() in worker threads.

torch keeps the information in one variable of the process. In a thread of a loader of ours the function answers
with what that thread has set here; everywhere else it answers as before.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data._utils import collate as torch_collate
from torch.utils.data._utils import worker as torch_worker

from penstock.system.randomness import Generators


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
    _teach_torch()
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


def _answer(torchs: Any) -> Any:
    """Return what get_worker_info() returns, where torch itself would return `torchs`."""
    info = getattr(_of_thread, "info", None)
    # default_collate asks whether it must build batches in shared memory, for another process: a thread must not.
    if info is None or sys._getframe(2).f_globals.get("__name__") == torch_collate.__name__:
        return torchs
    return info


def _teach_torch() -> None:
    """Make torch's function look here first.

    Its code is exchanged, not the function: programs hold it by ``from torch.utils.data import get_worker_info``.
    """
    if not hasattr(torch_worker, "_answer"):
        torch_worker._answer = _answer  # type: ignore[attr-defined]
        torch_worker.get_worker_info.__code__ = _get_worker_info.__code__


def _get_worker_info() -> Any:
    # Runs with the names of torch's module around it.
    return _answer(_worker_info)  # type: ignore[name-defined]  # noqa: F821
