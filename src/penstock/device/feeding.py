"""Batches on their way to a device, a few ahead of the one in use.

Their copies begin on a separate stream. The thread that asks for batches begins them, where the source gives
page-locked memory or reads in that thread; else another thread takes batches from the source and page-locks them first.
The user's stream waits for the copy of the batch that it gets, and for nothing else.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Generic, NoReturn, TypeVar

import torch.utils.data

from penstock.carriers.worker_thread import JOIN_SECONDS, context_here, leave_behind
from penstock.device.arithmetic import Arithmetic
from penstock.device.copy_stream import CopyStream, IdleMeter, copy_stream_to
from penstock.device.feed import Device, Feed
from penstock.device.moving import Mover
from penstock.observe import Delivery, Observers, observed
from penstock.order.batches import length
from penstock.passes.iterator import Pass
from penstock.sample_notes import add_note
from penstock.stats import Counters
from penstock.system.modes import outside_inference
from penstock.system.tracebacks import shortens

T = TypeVar("T")

_END = object()


def _send_next(source: Iterator[Any], mover: Mover) -> Any:
    """Take a batch from its source and begin to move it; return a Moved, the source's error in its place, or _END."""
    try:
        batch = next(source)
    except StopIteration:
        return _END
    except Exception as error:
        return error
    return mover.send(batch)


class ThreadSender:
    """A thread that takes batches from their source and sends them ahead. It never holds the Feeding.

    It starts with the first next(): until then the source may be begun anew.

    Args:
        source: gives the batches; used in the thread only.
        depth: batches that are sent ahead of the one that is asked for.
    """

    def __init__(self, source: Iterator[Any], stream: CopyStream, mover: Mover, depth: int) -> None:
        self._source = source
        self._stream = stream
        self._mover = mover
        self._room = threading.Semaphore(depth)
        self._sent: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._closed = False
        self._pid = os.getpid()
        self._thread = threading.Thread(target=context_here()(), args=(self._run,), name="penstock-feed", daemon=True)
        self._starting = threading.Lock()

    def next(self) -> Any:
        """Return what was sent next: a Moved, the source's error in its place, or _END."""
        if os.getpid() != self._pid:
            raise RuntimeError("the thread of this iterator is in the parent process of this fork")
        with self._starting:
            if self._thread.ident is None:
                self._thread.start()
        sent = self._sent.get()
        if sent is _END or self._closed:
            self._sent.put(_END)  # for the next call, or another thread's
            return _END
        self._room.release()
        return sent

    def ahead(self) -> int:
        return self._sent.qsize()

    def close(self, end_source: Callable[[], object] | None) -> None:
        """End the thread, and the source with it, if it can be ended. Batches on their way are dropped."""
        self._closed = True
        if os.getpid() != self._pid:
            return
        self._room.release()
        self._sent.put(_END)
        if threading.current_thread() is self._thread:  # the garbage collector runs in any thread
            return
        if isinstance(self._source, Pass) and end_source is not None:
            end_source()  # which wakes a thread that waits for a batch
        if self._thread.ident is not None:
            self._thread.join(JOIN_SECONDS)
            leave_behind([self._thread])
        if end_source is not None:
            with contextlib.suppress(Exception):  # of a generator that the thread is still in
                end_source()

    def release(self) -> None:
        """Leave the source to another pass: end the thread, and wait until it takes nothing more."""
        self.close(None)
        if os.getpid() == self._pid and self._thread.ident and threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        try:
            with self._stream.current():
                while self._room.acquire() and not self._closed:
                    sent = _send_next(self._source, self._mover)
                    if sent is _END:
                        break
                    self._sent.put(sent)
                    del sent  # nothing is held while room is waited for
        except BaseException as error:  # of the device, not of a batch: nobody may wait for ever
            self._sent.put(error)
        self._sent.put(_END)


class InlineSender:
    """Sends batches in the thread that asks for them, as NVIDIA Apex's data_prefetcher does.

    As a batch is handed out, the copies of the batch `depth` further on begin, where the source has it at hand.

    Args:
        stream: None: batches are not sent ahead.
        depth: batches that are sent ahead of the one that is asked for.
        at_hand: returns whether the source waits for no other thread or process to give its next batch.
    """

    def __init__(
        self, source: Iterator[Any], stream: CopyStream | None, mover: Mover, depth: int, at_hand: Callable[[], bool]
    ) -> None:
        self._source, self._stream, self._mover = source, stream, mover
        self._depth, self._at_hand = depth, at_hand
        self._sent: deque[Any] = deque()
        self._sending = threading.RLock()  # several threads may call next()
        self._pid = os.getpid()

    def next(self) -> Any:
        """Return what was sent next: a Moved, the source's error in its place, or _END."""
        if os.getpid() != self._pid and self._stream is not None:
            raise RuntimeError("this iterator's batches are on the device of the parent process of this fork")
        with self._sending:
            sent = self._sent
            while not sent or (len(sent) <= self._depth and sent[-1] is not _END and self._at_hand()):
                sent.append(self._send_one())
            return sent[0] if sent[0] is _END else sent.popleft()

    def ahead(self) -> int:
        return len(self._sent)

    def close(self, end_source: Callable[[], object] | None) -> None:
        self._sent = deque([_END])
        if end_source is not None:
            end_source()

    def release(self) -> None:
        """Leave the source to another pass."""
        self.close(None)

    def _send_one(self) -> Any:
        if self._stream is None:
            return _send_next(self._source, self._mover)
        with self._stream.current(), outside_inference():  # it is made ahead, and may be taken in another mode
            return _send_next(self._source, self._mover)


Sender = ThreadSender | InlineSender


def reads_here() -> bool:
    """Return that a source waits for nobody: it reads in the thread that asks it."""
    return True


def at_hand_of(batches: Any, workers: int, *, pinned: bool) -> Callable[[], bool] | None:
    """Return what says whether a loader's pass waits for nobody; None: another thread than the caller's asks it.

    A loader without workers reads, and draws random numbers, in the thread that asks it.
    """
    if not workers:
        return reads_here
    return batches.at_hand if pinned and isinstance(batches, Pass) else None


class Feeding(Generic[T]):
    """One pass over the data whose batches arrive on a device. Several threads may call next().

    An error, of the source, of a copy or of the transform, is raised at its batch; the next call goes on with the next
    one. The pass ends when it is exhausted, closed or dropped.

    Args:
        device: where that is, resolved.
        stream: copies to the device; None: plain copies in the caller's thread.
        arithmetic: what is left to the device of what the loader's recipe does; None: nothing.
        at_hand: returns whether the source waits for no other thread or process to give its next batch: the caller's
            thread asks it then. None: another thread asks the source, and page-locks what it gives.
        end_source: called when the pass ends before the source has.
        counters: of the loader. They get the host's time of copies, and some batches later the device's idle seconds.
    """

    observers: Observers = ()

    def __init__(
        self,
        source: Iterator[T],
        feed: Feed,
        device: torch.device,
        stream: CopyStream | None,
        *,
        arithmetic: Arithmetic | None = None,
        at_hand: Callable[[], bool] | None = None,
        end_source: Callable[[], object] | None = None,
        counters: Counters | None = None,
    ) -> None:
        self.device = device
        self._idle: IdleMeter | None = None
        if stream is not None and counters is not None:
            self._idle = IdleMeter(stream.timed_event, counters.loop.add_idle)
        self._mover = Mover(feed, device, stream, arithmetic, None if counters is None else counters.meter)
        self._number = 0
        self._open = True
        self._length = length(source)
        self.sender: Sender
        if stream is None:
            self.sender = InlineSender(source, stream, self._mover, 0, reads_here)
        elif at_hand is None:
            self.sender = ThreadSender(source, stream, self._mover, feed.depth)
        else:
            self.sender = InlineSender(source, stream, self._mover, 1 if at_hand is reads_here else feed.depth, at_hand)
        self._end: Callable[[], object] = partial(self.sender.close, end_source)
        if isinstance(self.sender, ThreadSender):  # an error that was sent ahead inline holds this object
            self._end = weakref.finalize(self, self._end)

    def __iter__(self) -> Feeding[T]:
        return self

    @shortens
    def __next__(self) -> T:
        return observed(self.observers, self._next_batch)  # type: ignore[no-any-return]

    def _next_batch(self) -> Delivery:
        if not self._open:
            raise StopIteration
        began = time.perf_counter()
        if self._idle is not None:
            self._idle.begin(self._number)
        sent = self.sender.next()
        if sent is _END:
            self.close()
            raise StopIteration
        number, self._number = self._number, self._number + 1
        if isinstance(sent, BaseException):
            try:
                raise sent
            finally:
                del sent  # the error's traceback holds this frame
        try:
            batch = self._mover.receive(sent)
        except Exception as error:
            add_note(error, f"while batch {number} of this pass went to its device")
            raise
        if self._idle is not None:
            self._idle.end()
        waited = time.perf_counter() - began  # the source has counted the samples
        return Delivery(batch, 0, waited, in_flight=self.sender.ahead())

    def close(self) -> None:
        """End the pass. Batches on their way are dropped."""
        self._open = False
        self._end()

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("the source of these batches has no length")
        return self._length

    def __repr__(self) -> str:
        return f"<Feeding: {'open' if self._open else 'closed'}, to {self.device}, {self._number} batches so far>"

    def __getstate__(self) -> NoReturn:
        raise NotImplementedError("a pass over the data cannot be pickled; pickle the loader")


class Prefetch(Generic[T]):
    """An iterable of batches that arrive on a device: what `prefetch` returns. All else is asked of the iterable."""

    def __init__(self, batches: Iterable[T], feed: Feed) -> None:
        self.batches = batches
        self.feed = feed
        self._sender: Sender | None = None  # of the pass that uses the iterator which the loader keeps

    def __iter__(self) -> Feeding[T]:
        device = self.feed.resolve()
        loader = self.batches if isinstance(self.batches, torch.utils.data.DataLoader) else None
        kept = loader is not None and loader.persistent_workers
        if self._sender is not None:
            self._sender.release()
        source = iter(self.batches)
        end = getattr(source, "_shutdown_workers", None) or getattr(source, "close", None)
        feeding = Feeding(
            source,
            self.feed,
            device,
            copy_stream_to(device),
            at_hand=None if loader is None else at_hand_of(source, loader.num_workers, pinned=loader.pin_memory),
            end_source=None if kept or source is self.batches else end,
        )
        self._sender = feeding.sender if kept else None
        return feeding

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "batches":
            raise AttributeError(name)
        return getattr(self.batches, name)

    def __repr__(self) -> str:
        return f"prefetch({self.batches!r}, {self.feed!r})"


def prefetch(
    batches: Iterable[T],
    device: Device | Feed = "cuda",
    *,
    transform: Callable[[Any], Any] | None = None,
    dtype: torch.dtype | None = None,
    channels_last: bool = False,
    depth: int | None = None,
) -> Prefetch[T]:
    """Return the batches of any iterable, on a device, each copied while the ones before it are in use.

    The iterable may be a torch.utils.data.DataLoader or any other iterable of batches. A thread iterates over it, but
    loaders with num_workers=0 read in the thread that calls next(). NVIDIA Apex's data_prefetcher did this for pairs of
    tensors.

    Args:
        batches: gives tensors, or tuples, dicts, dataclasses and objects with .to() that hold them, to any depth.
        device: as in `Feed`, or a Feed.
        transform, dtype, channels_last, depth: as in `Feed`; a value given here replaces that of the Feed.

    Raises:
        InvalidOption: from the call, and from iter() where the device does not exist.
        TypeError: batches is not iterable.
    """
    iter_of = getattr(batches, "__iter__", None) or getattr(batches, "__getitem__", None)
    if iter_of is None:
        raise TypeError(f"prefetch takes an iterable of batches, not {type(batches).__name__}")
    options = {"transform": transform, "dtype": dtype, "channels_last": channels_last or None, "depth": depth}
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    return Prefetch(batches, replace(device if isinstance(device, Feed) else Feed(device), **given))
