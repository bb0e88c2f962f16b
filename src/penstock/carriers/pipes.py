"""Pipes between a parent and its worker processes, each of which may be dead. One process writes to a pipe, one reads.

A message is a header (the bytes of its value, its kind, its number) and its value, pickled before `send` returns. No
lock is shared between processes, and what is wrong with a message is the fault of one worker.
"""

from __future__ import annotations

import io
import multiprocessing.reduction
import multiprocessing.util
import operator
import os
import pickle
import select
import struct
import threading
from collections import deque
from dataclasses import dataclass
from math import ceil
from time import monotonic
from typing import Any, NamedTuple

import torch

_PIPE_BYTES = 1 << 16
_HEADER = struct.Struct("=QBq")
_ROOM = bytes(_HEADER.size)
_LARGEST = 1 << 48  # bytes of a message: more than that is not a header


class MessagePickler(pickle.Pickler):
    """multiprocessing's ForkingPickler, which makes a table for each message instead of one for all."""

    dispatch_table = multiprocessing.reduction.ForkingPickler(io.BytesIO()).dispatch_table

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and (value.is_conj() or value.is_neg()):
            # torch would send the elements and forget how to read them; pos() returns the tensor that comes.
            return operator.pos, (value.resolve_conj().resolve_neg(),)
        return NotImplemented


class Message(NamedTuple):
    """A message as it came."""

    kind: int
    number: int
    pickled: bytes

    @property
    def value(self) -> Any:
        if self.pickled[:1] != pickle.PROTO or self.pickled[-1:] != pickle.STOP:
            raise pickle.UnpicklingError("it does not begin and end as a pickle does")
        return pickle.loads(self.pickled)


#: What a Receiver gives for bytes that are not a message, once.
NO_MESSAGE = Message(-1, -1, b"")
#: The kind of an Answer that tells that the process of its worker has ended.
ENDED = -2


@dataclass(slots=True)
class Answer:
    """A message of a worker, or word of its end."""

    worker: int
    kind: int
    number: int = -1
    value: Any = None
    error: Exception | None = None
    """What unpickling the value raised."""


class Sender:
    """The end of a pipe that this process writes to.

    What the pipe has room for is written by the thread that calls send(): that costs a third of what waking another
    thread does. The rest, and what comes behind it, is left to the sender's thread, and send() never waits.

    Args:
        writer: a multiprocessing.connection.Connection.
        reader: the other end, where this process keeps it: what is written then always has a reader.
    """

    def __init__(self, writer: Any, reader: Any = None) -> None:
        self._writer, self._reader = writer, reader
        os.set_blocking(writer.fileno(), False)
        self._changed = threading.Condition()
        self._unsent: deque[memoryview] = deque()
        """Messages that the thread has to send."""
        self._closed = False
        self._thread: threading.Thread | None = None
        self.broken = False
        """Nobody reads any more."""

    def send(self, kind: int, number: int, value: object, *, at_once: bool = True) -> None:
        """Send a message. at_once: False leaves it to the thread. Raises what pickling the value raises."""
        written = io.BytesIO()
        written.write(_ROOM)
        MessagePickler(written).dump(value)
        message = written.getbuffer()
        _HEADER.pack_into(message, 0, len(message) - _HEADER.size, kind, number)
        with self._changed:
            if at_once and not self._unsent:
                message = message[self._write(message) :]
            if message:
                self._unsent.append(message)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._send_rest, daemon=True)
                    self._thread.start()
                self._changed.notify()

    def _write(self, message: memoryview) -> int:
        """Write what the pipe has room for, and return how many bytes are done with."""
        try:
            return os.write(self._writer.fileno(), message)
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            self.broken = True
            return len(message)

    def _send_rest(self) -> None:
        room = select.poll()
        room.register(self._writer.fileno(), select.POLLOUT)
        while True:
            with self._changed:
                while not (self._unsent or self._closed):
                    self._changed.wait()
                if not self._unsent:
                    break
                message = self._unsent[0]
            while message and self._unsent:
                room.poll()
                with self._changed:
                    message = message[self._write(message) if self._unsent else 0 :]
            with self._changed:
                if self._unsent:
                    self._unsent.popleft()
        self._writer.close()

    def close(self, *, unsent: bool = False) -> None:
        """Close the pipe. unsent: wait until all is sent, or nobody reads; else what is unsent is dropped."""
        with self._changed:
            self._closed = True
            if not unsent:
                self._unsent.clear()
            self._changed.notify()
        if self._reader is not None:
            self._reader.close()  # which ends the thread's wait for room
        if self._thread is None:
            self._writer.close()
        elif unsent:
            self._thread.join()


class Receiver:
    """The end of a pipe that this process reads from: a multiprocessing.connection.Connection."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._read = bytearray()
        """Of messages that are not returned yet."""
        self._messages: deque[Message] = deque()
        self._broken = False

    def get(self) -> Message:
        """Wait for the next message. Raises EOFError where nobody is left to send one."""
        while not self._messages:
            self._messages.extend(self.receive())
        return self._messages.popleft()

    def receive(self) -> list[Message]:
        """Read once, and return the messages that are whole by then. Raises EOFError."""
        received = os.read(self._reader.fileno(), _PIPE_BYTES)
        if not received:
            raise EOFError
        read, begin, found = self._read, 0, list[Message]()
        read += received
        while len(read) - begin >= _HEADER.size and not self._broken:
            size, kind, number = _HEADER.unpack_from(read, begin)
            end = begin + _HEADER.size + size
            if size > _LARGEST:
                self._broken = True
                found.append(NO_MESSAGE)
            if end > len(read):
                break
            found.append(Message(kind, number, bytes(memoryview(read)[begin + _HEADER.size : end])))
            begin = end
        if begin:
            del read[:begin]
        return found

    def close(self) -> None:
        self._reader.close()


class Receivers:
    """What a parent gets from its worker processes: messages, and the ends of processes. One thread at a time waits."""

    def __init__(self) -> None:
        self._events = select.poll()
        self._workers: list[Receiver] = []
        self._pipes: dict[int, int] = {}  # the worker of each file descriptor
        self._sentinels: dict[int, int] = {}
        self._came: deque[tuple[int, Message | None]] = deque()
        """Workers with what they have sent, in bytes; None: the process has ended."""
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._events.register(self._wake, select.POLLIN)

    def add(self, reader: Any, sentinel: int) -> None:
        """Add the next worker. sentinel: is readable when its process has ended."""
        worker = len(self._workers)
        self._workers.append(Receiver(reader))
        self._pipes[reader.fileno()] = self._sentinels[sentinel] = worker
        self._events.register(reader.fileno(), select.POLLIN)
        self._events.register(sentinel, select.POLLIN)

    def forget(self, sentinel: int) -> None:
        """Tell no more of the end of this process."""
        if self._sentinels.pop(sentinel, None) is not None:
            self._events.unregister(sentinel)

    def get(self, seconds: float) -> Answer | None:
        """Return the next answer: that a process has ended is told once, and first.

        None: nothing came within so many seconds, or stop() was called.
        """
        came, deadline = self._came, -1.0
        while not came:
            events = self._look(seconds)
            if not came:
                if self._wake in events:
                    return None
                deadline = deadline if deadline >= 0 else monotonic() + seconds * bool(events)
                seconds = deadline - monotonic()
                if seconds <= 0:
                    return None
        worker, message = came.popleft()
        answer = _answer(worker, message)
        if message is None:
            return answer
        try:  # not before it is asked for: tensors follow the modes of the thread
            answer.value = message.value
        except Exception as error:
            answer.error = error
        return answer

    def waiting(self) -> list[Answer]:
        """Return the answers that have come, without their values, which `get` returns one by one."""
        self._look(0)
        return [_answer(worker, message) for worker, message in self._came]

    def _look(self, seconds: float) -> list[int]:
        """Take what comes within so many seconds, and return the file descriptors at which something did."""
        events = [descriptor for descriptor, _ in self._events.poll(ceil(seconds * 1000))]
        for descriptor in events:
            if (worker := self._pipes.get(descriptor)) is not None:
                self._receive(worker, descriptor)
            elif (ended := self._sentinels.get(descriptor)) is not None:
                self.forget(descriptor)
                self._came.appendleft((ended, None))
        return events

    def _receive(self, worker: int, descriptor: int) -> None:
        try:
            messages = self._workers[worker].receive()
        except EOFError:
            del self._pipes[descriptor]
            self._events.unregister(descriptor)
            return
        self._came.extend((worker, message) for message in messages)

    def stop(self) -> None:
        """Have get() return None at once, in whatever thread waits there, from now on."""
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Close the pipes. A second call does nothing."""
        for one in self._workers:
            one.close()
        if self._wake >= 0:
            os.close(self._wake)
            self._wake = -1


def _answer(worker: int, message: Message | None) -> Answer:
    return Answer(worker, ENDED) if message is None else Answer(worker, message.kind, message.number)


def close_in_workers(end: Any) -> None:
    """Have worker processes that are forked from here on close this end of a pipe, which is not theirs."""
    multiprocessing.util.register_after_fork(end, type(end).close)
