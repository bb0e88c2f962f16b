"""Each worker thread's own Fetch: its dataset and functions are copies, as those of a worker process are."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from torch.utils.data import IterableDataset

from penstock.executors.copies import Copier, NotCopied
from penstock.executors.fetch import Fetch

Init = Callable[[int], object]


class OwnFetches:
    """What each thread of a crew fetches with.

    When this is made, in the thread that begins the pass, one copy is made and kept: what the loop does to its dataset
    later reaches no thread. Each thread then copies that copy, for itself; one at a time. Raises NotCopied.

    Args:
        fetch: the pass's.
        init: the loader's worker_init_fn: where it reaches the dataset, it gets the thread's own.
        shared: nothing is copied.

    Attributes:
        prepares: each thread calls a worker_init_fn first.
        seconds: that the copy took.
    """

    def __init__(self, fetch: Fetch, init: Init | None, *, shared: bool = False) -> None:
        self._lock = threading.Lock()
        self.shared = shared
        self.prepares = init is not None
        started = time.perf_counter()
        self._kept = (fetch, init) if shared else _copied(fetch, init)
        self.seconds = time.perf_counter() - started

    def take(self) -> tuple[Fetch, Init | None]:
        """Return what is the calling thread's own. Raises NotCopied."""
        if self.shared:
            return self._kept
        with self._lock:
            return _copied(*self._kept)


def _copied(fetch: Fetch, init: Init | None) -> tuple[Fetch, Init | None]:
    copier = Copier(iterable=isinstance(fetch.dataset, IterableDataset))
    return fetch.with_own(copier.copy), copier.copy(init, "worker_init_fn")


def can_be_copied(fetch: Fetch) -> bool:
    """Return whether a thread's own fetch could be copied again: it then holds nothing that is bound to its thread."""
    try:
        _copied(fetch, None)
    except NotCopied:
        return False
    return True


def describe_copies(fetch: Fetch, init: Init | None, *, shared: bool) -> str:
    """Return whose dataset each thread uses, for explain()."""
    if shared:
        return "shared   all threads use the one dataset, as share_dataset=True says"
    try:
        _copied(fetch, init)
    except NotCopied as error:
        return f"refused  {error}"
    return (
        "copies   each thread has the dataset's Python objects and transforms for itself; tensors and arrays are shared"
    )
