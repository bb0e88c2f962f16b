"""The carrier of a pass: it moves tasks to workers and results back, and never holds the pass."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections import deque
from typing import Any

from torch.utils.data._utils.pin_memory import pin_memory

from penstock.observe import Delivery
from penstock.passes.values import IN_FLIGHT, IN_FLIGHT_BYTES, PassInput, PassResources
from penstock.workers.batch import Batch


class Carrier:
    """Moves tasks to workers and results back, in one way.

    It never holds the pass, which can be collected: the carrier is closed then. All but `close` are called by the
    thread that is in the pass's next(). A queue holds the batches that were begun and are not handed out.
    """

    in_order = True
    """Batches are handed out in the sampler's order."""
    closes_at_exit = True
    """It is closed where Python ends amid a pass."""
    profile_name = "Pass"
    """The class of iterator that torch's profiler names."""
    interrupted = False
    """The pass sets it before `close` where a Ctrl-C came, which reaches other processes, too."""

    def __init__(self, resources: PassResources) -> None:
        self.resources = resources
        self.pid = os.getpid()
        """Of the process that has the threads: a forked child has none of them."""
        self.workers = resources.workers
        """Its threads, for programs that ask."""
        self.reads_ahead = bool(resources.workers) and resources.ahead
        """Batches are begun before the user calls next() for them."""
        self.shown: dict[str, Any] = {}
        """Attributes of torch's iterators, for programs that look: the pass has them from its start on."""

    # --- the life of a pass -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the threads. What it raises ends the pass."""

    def open(self, pass_input: PassInput) -> None:
        """Begin a pass: batches that were begun before are forgotten."""
        self._input = pass_input

    def rest(self) -> bool:
        """End the pass and keep the threads for another one; False: they cannot be kept."""
        return False

    @property
    def reusable(self) -> bool:
        """Whether another pass can be made."""
        return os.getpid() == self.pid

    @abstractmethod
    def close(self) -> None:
        """End the threads."""

    # --- batches ----------------------------------------------------------------------------------------------------

    def new_batch(self) -> Any:
        return Batch()

    def prepare(self, queue: deque[Any], *, first: bool) -> bool:
        """Do what comes before the sampler is asked for batches.

        first: no batch of the pass was handed out. Workers are told then how the dataset has changed since the pass
        began: Lightning calls iter() before the hook in which programs set the epoch of a dataset. True: what they were
        asked for is forgotten, and begins again.
        """
        if os.getpid() != self.pid:
            raise RuntimeError("the workers of this iterator belong to the parent process of this fork")
        return False

    def depth(self, queue: deque[Any]) -> int:
        """Continue with the batches that were begun, and return how many to keep in flight."""
        return 1

    def begin(self, batch: Any) -> None:
        """Begin to make a batch of what the sampler gave."""

    @abstractmethod
    def ready(self, queue: deque[Any]) -> Any:
        """Wait for a batch and return it, with its error where it failed; None: refill the queue, and call again.

        Raises WorkerStuck.
        """

    def at_hand(self, queue: deque[Any]) -> bool:
        """Return whether `ready` would wait for nobody: the batch is there, or its making is the calling thread's."""
        return True

    def delivery(self, batch: Any) -> Delivery:
        """Return a batch that is ready as its user gets it."""
        return Delivery(self.assemble(batch), batch.count, read_by_python=batch.read_by_python)

    def assemble(self, batch: Any) -> Any:
        """Return what `delivery` delivers of a batch of a native plan."""
        raise NotImplementedError

    def _in_flight_of(self, size: int) -> int:
        """Return how many batches of so many bytes are to be in flight."""
        if (given := self.resources.in_flight) is not None:
            return max(1, given)
        return IN_FLIGHT if size == 0 else max(3, min(IN_FLIGHT, IN_FLIGHT_BYTES // size))


def pinned(batch: Any) -> Any:
    """Return a batch of any structure with its tensors in page-locked memory, as torch's loader gives it."""
    return pin_memory(batch)  # type: ignore[no-untyped-call]
