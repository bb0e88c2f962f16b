"""The queues of torch's worker processes, whose readers and writers may be dead."""

from __future__ import annotations

import io
import math
import multiprocessing.queues
import multiprocessing.reduction
import operator
import os
import pickle
import queue
import select
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic, thread_time
from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import worker as torch_worker

_PIPE_BYTES = 1 << 16
_LENGTH = struct.Struct("!i")
_BRIEF = 1e-3  # seconds
_LOCKED = 0.01  # seconds that a writer waits for another process in the middle of a message


class MessagePickler(pickle.Pickler):
    """multiprocessing's ForkingPickler, which makes a table for each message in the place of one for all."""

    dispatch_table = multiprocessing.reduction.ForkingPickler(io.BytesIO()).dispatch_table

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and (value.is_conj() or value.is_neg()):
            # torch would send the elements and forget how to read them; pos() returns the tensor that comes.
            return operator.pos, (value.resolve_conj().resolve_neg(),)
        return NotImplemented


class WorkerQueue(multiprocessing.queues.Queue):  # type: ignore[type-arg]
    """A queue between a parent and its worker processes, of which one end has one reader.

    A message that the pipe has room for is written by the thread that puts it: that costs a third of what waking
    multiprocessing's feeder thread does. Others, and those behind them, are left to that thread. Either way the object
    is pickled before put() returns. get() ends in time even if a writer died in the middle of a message. Each process
    but the parent closes the parent's end: get() and put() of a worker raise SystemExit when the parent has died.

    A message is as multiprocessing.connection sends it: its length as a big-endian int32, or -1 and a uint64, and then
    so many bytes. The semaphore that bounds a queue is not used.
    """

    _reader: Any
    _writer: Any
    _wlock: Any
    _opid: int
    _closed: bool
    _parents_end = "_writer"

    def __init__(self, *, ctx: Any) -> None:
        super().__init__(ctx=ctx)
        os.set_blocking(self._reader.fileno(), False)

    def _reset(self, after_fork: bool = False) -> None:
        super()._reset(after_fork)  # type: ignore[misc]
        if self._opid != os.getpid():
            getattr(self, self._parents_end).close()
        self._watched: set[int] = set()
        self._error: Exception | None = None
        self._ignore_epipe = True  # of the feeder thread, whose reader may be gone
        self._read = bytearray()
        """Of messages that are not returned yet."""
        self._ends: tuple[select.poll, select.poll] | None = None
        self._putting = threading.Lock()
        self._unsent: deque[Any] = deque()
        """Messages that the feeder thread has to send."""
        self._send_bytes = partial(_send_first, self._unsent, self._writer.send_bytes)

    @property
    def _pollers(self) -> tuple[select.poll, select.poll]:
        """What says that there is something to read, and room for a message."""
        if self._ends is None:
            self._ends = select.poll(), select.poll()
            if not self._reader.closed:
                self._ends[0].register(self._reader.fileno(), select.POLLIN)
            if not self._writer.closed:
                self._ends[1].register(self._writer.fileno(), select.POLLOUT)
        return self._ends

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        if self._closed:
            raise ValueError(f"Queue {self!r} is closed")
        written = io.BytesIO()
        MessagePickler(written).dump(obj)
        message = written.getbuffer()
        with self._putting:
            if self._sends_at_once() and not self._unsent and self._written(message):
                return
            self._unsent.append(message)
        super().put(None)

    def _sends_at_once(self) -> bool:
        """Return whether the thread that puts a message may write it, rather than the feeder thread."""
        return True

    def _written(self, message: Any) -> bool:
        """Write a message where that waits for nobody; return whether it is written."""
        if len(message) + _LENGTH.size > select.PIPE_BUF or not self._wlock.acquire(True, _LOCKED):
            return False
        try:
            _, writable = self._pollers
            if not writable.poll(0):  # else it has room for PIPE_BUF bytes
                return False
            os.write(self._writer.fileno(), b"".join((_LENGTH.pack(len(message)), message)))
            return True
        except BrokenPipeError:
            raise SystemExit from None  # of a worker whose parent is gone
        finally:
            self._wlock.release()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        deadline = None if timeout is None else monotonic() + timeout
        while (message := self._message()) is None:
            if self._receive():
                continue
            left = 0.0 if not block else math.inf if deadline is None else deadline - monotonic()
            if left <= 0:
                raise queue.Empty
            ready = [fd for fd, _ in self._pollers[0].poll(None if deadline is None else math.ceil(left * 1000))]
            if not self._watched.isdisjoint(ready) and self._reader.fileno() not in ready:
                raise queue.Empty
        try:
            return multiprocessing.reduction.ForkingPickler.loads(message)
        except Exception as error:  # an error would end torch's pinning thread
            self._error = error
            raise queue.Empty from error

    def _message(self) -> bytes | None:
        """Return the first message of the bytes that are read, if it is whole, and take it out."""
        if not self._read:
            return None
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
            raise queue.Empty if self._opid == os.getpid() else SystemExit
        self._read += received
        return True


def _send_first(unsent: deque[Any], send: Callable[[Any], object], _: object) -> None:
    """Send the first message, and take it out; called by the feeder thread in the place of sending a None."""
    send(unsent[0])
    unsent.popleft()


class Results(WorkerQueue):
    """The queue of batches: workers put, the parent gets, or torch's thread that pins."""

    _parents_end = "_reader"
    _ran = 0.0
    """CPU seconds of the worker's thread until its latest message."""

    def _sends_at_once(self) -> bool:
        """Return whether the batch took far less than a millisecond: then the feeder thread would cost a part of that.

        Beside other programs a worker that writes by itself gets its bare share of the CPUs, a third of what one gets
        whose second thread is woken. (Short sleeps in the place of that thread change nothing.)
        """
        ran, self._ran = self._ran, thread_time()
        return self._ran - ran < _BRIEF

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        try:
            super().put(obj)
        except Exception:  # it cannot be pickled: torch's parent would wait for ever
            if self._closed or not isinstance(obj, tuple):
                raise
            number, data = obj
            info = torch_worker._worker_info
            where = f"in DataLoader worker process {'' if info is None else info.id}".rstrip()
            error = ExceptionWrapper(where=where)  # type: ignore[no-untyped-call]
            if isinstance(data, ExceptionWrapper):  # whose class cannot be pickled
                error.exc_type, error.exc_msg = RuntimeError, data.exc_msg
            super().put((number, error))

    def watch(self, sentinels: Iterable[int]) -> None:
        """Have get() raise Empty at once when one of these becomes readable."""
        self._watched = set(sentinels)
        for sentinel in self._watched:
            self._pollers[0].register(sentinel, select.POLLIN)

    def unwatch(self, sentinel: int) -> None:
        if sentinel in self._watched:
            self._watched.remove(sentinel)
            self._pollers[0].unregister(sentinel)

    def take_error(self) -> Exception | None:
        """Return the error that a message could not be read for, once: get() has raised Empty in its place."""
        error, self._error = self._error, None
        return error

    def hang_up(self) -> None:
        """Give up this process's end for writing: when all workers are gone, get() raises Empty at once."""
        self._writer.close()


class QueueContext:
    """A multiprocessing context whose first queue, which torch takes for the batches, is a Results."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self.results: Results

    def Queue(self) -> Any:
        context = self._context.get_context()
        if "results" in self.__dict__:
            return WorkerQueue(ctx=context)
        self.results = Results(ctx=context)
        return self.results

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def is_ending(indices: Any) -> bool:
    """Return whether a queue's feeder thread ends, as it does after a garbage collection."""
    return indices._close is not None and not indices._close.still_active()


def close_unread(indices: Any) -> None:
    """Close a queue whose readers are gone, and end its feeder thread, which may be writing to a full pipe."""
    indices.cancel_join_thread()
    indices._reader.close()
    indices.close()
