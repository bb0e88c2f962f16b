"""A stand-in for Ray's module, with what Penstock asks of it: actors are forked processes, each with a socket."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import time
from collections import deque
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from types import SimpleNamespace
from typing import Any


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class ObjectStoreFullError(RayError):
    pass


class OutOfDiskError(RayError):
    pass


class Reference:
    """An answer of an actor: (True, what it returned) or (False, an error), once it has come."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.answer: tuple[bool, Any] | None = None


def serve(link: Connection, actor: Any) -> None:
    """Answer what the parent asks, until its end of the link is closed."""
    while True:
        try:
            name, arguments = link.recv()
        except (EOFError, OSError):
            return
        try:
            answer = True, getattr(actor, name)(*arguments)
        except Exception as error:
            answer = False, RayTaskError(error)
        link.send(answer)


class Actor:
    def __init__(self, kind: type, *arguments: Any) -> None:
        self.link, theirs = Pipe()
        self._asked: deque[Reference] = deque()
        self._pid = os.fork()
        if not self._pid:
            try:
                self.link.close()
                serve(theirs, kind(*arguments))
            finally:
                os._exit(0)
        theirs.close()

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any) -> Reference:
            with suppress(OSError):  # which `look` finds
                self.link.send((name, arguments))
            self._asked.append(Reference(self))
            return self._asked[-1]

        return SimpleNamespace(remote=remote)

    def look(self) -> None:
        """Take the answers that have come; where the link is cut, all others are RayError."""
        try:
            while self._asked and self.link.poll():
                self._asked[0].answer = self.link.recv()
                self._asked.popleft()
        except (EOFError, OSError):
            while self._asked:
                self._asked.popleft().answer = False, RayError(f"the actor of process {self._pid} died")

    def cut(self) -> None:
        """Cut the link, maybe in the middle of a message."""
        with socket.socket(fileno=os.dup(self.link.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        if not self.link.closed:
            self.link.close()
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        return NotImplemented


class RayOfProcesses:
    """The module."""

    cloudpickle = SimpleNamespace(dumps=pickle.dumps, CloudPickler=_Pickler)
    exceptions = SimpleNamespace(
        RayError=RayError,
        RayTaskError=RayTaskError,
        ObjectStoreFullError=ObjectStoreFullError,
        OutOfDiskError=OutOfDiskError,
    )
    util = SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")

    def is_initialized(self) -> bool:
        return True

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: f"process-{os.getpid()}")

    def available_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def put(self, value: Any) -> Any:
        return value

    def remote(self, kind: type) -> Any:
        made = SimpleNamespace(remote=lambda *arguments: Actor(kind, *arguments))
        return SimpleNamespace(options=lambda **_: made)

    def wait(self, references: list[Reference], num_returns: int, timeout: float) -> tuple[list[Reference], list[Any]]:
        deadline = time.monotonic() + timeout
        while True:
            for actor in {one.actor for one in references}:
                actor.look()
            ready = [one for one in references if one.answer is not None]
            left = deadline - time.monotonic()
            if ready or left <= 0:
                return ready[:num_returns], []
            wait({one.actor.link for one in references}, left)

    def get(self, reference: Reference, timeout: float | None = None) -> Any:
        if reference.answer is None:
            raise RayError(f"no answer in {timeout} s")
        fine, answer = reference.answer
        if not fine:
            raise answer
        return answer

    def kill(self, actor: Actor) -> None:
        actor.kill()
