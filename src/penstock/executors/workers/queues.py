"""The queues of torch's worker processes, whose readers and writers may be dead."""

from __future__ import annotations

import contextlib
import os
from time import monotonic
from typing import Any

from torch.utils.data._utils import MP_STATUS_CHECK_INTERVAL


def is_ending(indices: Any) -> bool:
    """Return whether a queue's feeder thread ends, as it does after a garbage collection."""
    return indices._close is not None and not indices._close.still_active()


def close_unread(indices: Any) -> None:
    """Close a queue whose reader is gone, and end its feeder thread, which may be writing to a full pipe."""
    indices.cancel_join_thread()
    if indices._thread is None or is_ending(indices):
        indices.close()
        return
    pipe = os.dup(indices._reader.fileno())  # the thread closes its own
    try:
        indices.close()
        os.set_blocking(pipe, False)
        deadline = monotonic() + MP_STATUS_CHECK_INTERVAL
        while indices._thread.is_alive() and monotonic() < deadline:
            with contextlib.suppress(BlockingIOError):
                os.read(pipe, 1 << 16)
            indices._thread.join(0.001)
    finally:
        os.close(pipe)


class FailingQueue:
    """A queue that fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def get(self, timeout: float) -> Any:
        """Raise the error."""
        raise self._error
