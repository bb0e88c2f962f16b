"""A filler that is at work for this process, and the batches that fillers make."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from penstock.cluster.connection import Facts
from penstock.cluster.wire import Allocate, Message, hang_up, pieces_of, receive, send
from penstock.executors.filler import Batch
from penstock.executors.workers.filler_actor import Filled, Request


@dataclass(slots=True, eq=False)
class FillerBatch(Batch):
    """A batch that a filler makes."""

    number: int = -1
    """Of its request; -1: it was not asked for."""
    filled: Filled | None = None
    losses: int = 0
    """How many fillers were lost while they worked on it."""

    @property
    def done(self) -> bool:
        """Whether the batch is here, or its error."""
        return self.filled is not None or self.error is not None

    def let_go(self) -> None:
        self.filled = None


_names = itertools.count()  # no two fillers of this process have the same


class Link:
    """A filler that is at work."""

    def __init__(self, slot: int, serving: Any, facts: Facts, connection: socket.socket) -> None:
        self.slot, self.serving, self.facts, self.connection = slot, serving, facts, connection
        self.name = next(_names)
        self.stages: list[tuple[Any, ...]] = []
        self.calls: list[Any] = []
        self._sending = threading.Lock()

    def receive(self, allocate: Allocate) -> Message:
        """Wait for a message; allocate: gives memory for each tensor. Raises what wire.receive raises."""
        return receive(self.connection, allocate)

    def request(self, number: int, request: Request) -> None:
        """Send a request."""
        with suppress(OSError), self._sending:  # a filler that is lost is noticed by who receives
            send(self.connection, pieces_of(number, request))


def hang_up_on_lost(ray: Any, links: Sequence[Link]) -> None:
    """End the connections to fillers that Ray has given up; who receives from them notices that."""
    serving = {link.serving: link for link in links}
    if not serving or not ray.is_initialized():
        return
    with suppress(Exception):  # Ray is gone, and its fillers with it
        ended, _ = ray.wait(list(serving), num_returns=len(serving), timeout=0, fetch_local=False)
        for one in ended:
            hang_up(serving[one].connection)


class FillerTraceback(Exception):
    """Where in a filler an error was raised: the cause of the error that the trainer raises."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"
