"""Objects for forked children, in which the client of object stores does not work: its threads are not forked.

A process that is about to fork while it has shards in an object store begins to listen on a local socket, and reads
for its children what they ask of it there: worker processes of torch's are such children. The socket lies in a folder
that only this user can enter, and the key that multiprocessing gives to children opens it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from multiprocessing import current_process
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, Protocol

from penstock.errors import StorageError


class Lender(Protocol):
    """What reads for children: storage.remote_shards.RemoteShards."""

    def read_for_child(self, shard: int, begin: int, end: int) -> bytes:
        """Return bytes of a shard."""

    def fetch_for_child(self, shard: int) -> bool:
        """Bring a shard into the cache folder; return whether there was space."""


class Counter:
    """One process's counter, at which its forked children ask for parts of shards and whole ones.

    Args:
        lender: is held weakly, because it holds the counter.
    """

    def __init__(self, lender: Lender) -> None:
        self._lender = weakref.ref(lender)
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._listener: Listener | None = None
        self._key = bytes(current_process().authkey)
        self._asking: Connection[Any, Any] | None = None
        self._asking_process = 0
        _COUNTERS.add(self)

    def open(self) -> None:
        """Begin to listen, in the process that made the counter."""
        if os.getpid() != self._process or self._listener is not None or self._lender() is None:
            return
        self._listener = Listener(family="AF_UNIX", authkey=self._key, backlog=64)
        threading.Thread(
            target=_listen, args=(self._listener, self._lender), name="penstock-counter", daemon=True
        ).start()
        weakref.finalize(self, _close, self._listener, self._process, self._key)

    def read_part(self, shard: int, begin: int, end: int) -> bytes:
        """Return bytes of a shard, read by the process that made the counter. Raises StorageError."""
        found: bytes = self._ask("read_for_child", shard, begin, end)
        return found

    def fetch(self, shard: int) -> bool:
        """Let the process that made the counter bring a shard into the cache folder. Raises StorageError."""
        return bool(self._ask("fetch_for_child", shard))

    def _ask(self, *question: Any) -> Any:
        if self._asking_process != os.getpid():  # the connection of a parent, and its lock, are not this process's
            self._lock, self._asking, self._asking_process = threading.Lock(), None, os.getpid()
        with self._lock:
            try:
                if self._asking is None:
                    if self._listener is None:
                        raise OSError("its parent process did not listen when it was forked")
                    self._asking = Client(self._listener.address, authkey=self._key)
                self._asking.send(question)
                answer = self._asking.recv()
            except (OSError, EOFError) as error:
                self._asking = None
                raise StorageError(
                    f"a forked process reads objects by its parent process, which does not answer: {error}"
                ) from error
        if isinstance(answer, BaseException):
            raise answer
        return answer


_COUNTERS: weakref.WeakSet[Counter] = weakref.WeakSet()


def _before_fork() -> None:
    for counter in list(_COUNTERS):
        with contextlib.suppress(OSError):
            counter.open()


os.register_at_fork(before=_before_fork)


def _listen(listener: Listener, lender: weakref.ref[Lender]) -> None:
    while True:
        try:
            connection = listener.accept()
        except OSError:
            if lender() is None:
                return
            continue
        except Exception:  # whoever asked has not the key
            continue
        if lender() is None:
            connection.close()
            listener.close()
            return
        threading.Thread(target=_serve, args=(connection, lender), name="penstock-counter", daemon=True).start()


def _serve(connection: Connection[Any, Any], lender: weakref.ref[Lender]) -> None:
    with contextlib.suppress(OSError, EOFError), connection:
        while True:
            name, *arguments = connection.recv()
            reader = lender()
            if reader is None or name not in ("read_for_child", "fetch_for_child"):
                return
            answer: Any
            try:
                answer = getattr(reader, name)(*arguments)
            except Exception as error:
                answer = error
            del reader
            try:
                connection.send(answer)
            except (TypeError, AttributeError):  # an error that cannot be pickled
                connection.send(StorageError(str(answer)))


def _close(listener: Listener, process: int, key: bytes) -> None:
    """Let the thread that listens see that nobody is left to ask."""
    if os.getpid() == process:
        with contextlib.suppress(OSError, EOFError, Exception):
            Client(listener.address, authkey=key).close()
