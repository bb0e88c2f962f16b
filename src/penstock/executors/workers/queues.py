"""The queues of torch's worker processes, whose readers and writers may be dead."""

from __future__ import annotations

import contextlib
import math
import multiprocessing.queues
import multiprocessing.reduction
import os
import queue
import select
from collections.abc import Iterable
from time import monotonic
from typing import Any

from torch._utils import ExceptionWrapper
from torch.utils.data._utils import MP_STATUS_CHECK_INTERVAL
from torch.utils.data._utils import worker as torch_worker

_PIPE_BYTES = 1 << 16


class Results(multiprocessing.queues.Queue):  # type: ignore[type-arg]
    """The queue of batches, whose get() ends in time even if a worker died in the middle of a message.

    Processes: workers put; the parent gets. A message is as multiprocessing.connection sends it: its length as a
    big-endian int32, or -1 and a uint64, and then so many bytes.
    """

    _reader: Any
    _writer: Any
    _sem: Any

    def __init__(self, *, ctx: Any) -> None:
        super().__init__(ctx=ctx)
        self._poller = select.poll()
        self._watched: set[int] = set()
        self._keeps_errors = False
        self._error: Exception | None = None
        os.set_blocking(self._reader.fileno(), False)
        self._poller.register(self._reader.fileno(), select.POLLIN)
        self._read = bytearray()
        """Of messages that are not returned yet."""

    def watch(self, sentinels: Iterable[int]) -> None:
        """Have get() raise Empty at once when one of these becomes readable.

        Without any it is torch's pinning thread that gets: it would end at an error, which is kept instead.
        """
        self._watched = set(sentinels)
        self._keeps_errors = not self._watched
        for sentinel in self._watched:
            self._poller.register(sentinel, select.POLLIN)

    def unwatch(self, sentinel: int) -> None:
        if sentinel in self._watched:
            self._watched.remove(sentinel)
            self._poller.unregister(sentinel)

    def take_error(self) -> Exception | None:
        """Return the error that was kept, once."""
        error, self._error = self._error, None
        return error

    def hang_up(self) -> None:
        """Give up this process's end for writing: when all workers are gone, get() raises Empty at once."""
        self._writer.close()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        deadline = None if timeout is None else monotonic() + timeout
        while (message := self._message()) is None:
            if self._receive():
                continue
            left = 0.0 if not block else math.inf if deadline is None else deadline - monotonic()
            if left <= 0:
                raise queue.Empty
            ready = [fd for fd, _ in self._poller.poll(None if deadline is None else math.ceil(left * 1000))]
            if not self._watched.isdisjoint(ready) and self._reader.fileno() not in ready:
                raise queue.Empty
        self._sem.release()
        try:
            return multiprocessing.reduction.ForkingPickler.loads(message)
        except Exception as error:
            if not self._keeps_errors:
                raise
            self._error = error
            raise queue.Empty from error

    def _message(self) -> bytes | None:
        """Return the first message of the bytes that are read, if it is whole, and take it out."""
        begin, size = 4, int.from_bytes(self._read[:4], "big", signed=True)
        if size == -1:
            begin, size = 12, int.from_bytes(self._read[4:12], "big")
        if len(self._read) < max(4, begin + size):
            return None
        message = bytes(memoryview(self._read)[begin : begin + size])
        del self._read[: begin + size]
        return message

    def _receive(self) -> bool:
        """Read what the pipe holds; return whether it was anything. Raises Empty where nobody is left to write."""
        try:
            received = os.read(self._reader.fileno(), _PIPE_BYTES)
        except BlockingIOError:
            return False
        if not received:
            raise queue.Empty
        self._read += received
        return True

    def _on_queue_feeder_error(self, e: Exception, obj: Any) -> None:
        """Send the error in the place of a batch that cannot be pickled; torch's parent would wait for ever."""
        if not isinstance(obj, tuple):
            super()._on_queue_feeder_error(e, obj)  # type: ignore[misc]
            return
        number, data = obj
        info = torch_worker._worker_info
        where = f"in DataLoader worker process {'' if info is None else info.id}".rstrip()
        error = ExceptionWrapper(where=where)  # type: ignore[no-untyped-call]
        if isinstance(data, ExceptionWrapper):  # whose class cannot be pickled
            error.exc_type, error.exc_msg = RuntimeError, data.exc_msg
        with contextlib.suppress(ValueError):  # the queue has been closed
            self.put((number, error))


class QueueContext:
    """A multiprocessing context whose first queue, which torch takes for the batches, is a Results."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self.results: Results

    def Queue(self) -> Any:
        if "results" in self.__dict__:
            return self._context.Queue()
        self.results = Results(ctx=self._context.get_context())
        return self.results

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


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
