"""A batch that is being made: what the sampler gave for it, its error, and the shards that it waits for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from penstock.order.permutations import Indices, Positions
from penstock.sources.tree import LeafNumbers, Unresolved
from penstock.storage.stage import Ticket

#: What a sampler gave for a batch, and the positions of its samples in the order of the epoch.
BatchRequest = tuple[Any, Positions]

_NONE: Indices = np.empty(0, dtype=np.int64)


def no_indices() -> Indices:
    return _NONE


class BatchShards:
    """The shards of one batch, which are not deleted before they are released."""

    def __init__(self, tickets: list[Ticket]) -> None:
        self._tickets = tickets

    def ready(self) -> bool:
        """Return whether all of them are here. Raises StorageError."""
        return all(ticket.ready() for ticket in self._tickets)

    def wait(self, seconds: float | None) -> bool:
        """Wait until all of them are here; False: one was not within so many seconds. Raises StorageError."""
        return all(ticket.wait(seconds) for ticket in self._tickets)

    def release(self) -> None:
        for ticket in self._tickets:
            ticket.release()


@dataclass(slots=True, eq=False)
class Batch:
    """What a sampler gave for a batch, or the error that came in its place."""

    given: BatchRequest | None = None
    """What the sampler gave and its positions, as the pass keeps them."""
    place: int = -1
    """Of the batch in what the sampler gives, from the beginning of the pass."""
    error: BaseException | None = None
    """It is raised when the batch's turn has come."""
    begun: float = 0.0
    """When its making began, by time.perf_counter()."""
    shards: BatchShards | None = None
    """The shards of an object store that it is made of; None: it needs none."""
    stream: int = 0
    """Of the dataset, where each worker carries one or several."""
    state: Any = None
    """Of the dataset behind the batch, where it has a state_dict()."""

    @property
    def waits_for_shards(self) -> bool:
        """Whether the batch is to be submitted once its shards are here."""
        return False

    def let_shards_go(self) -> None:
        if self.shards is not None:
            self.shards.release()
            self.shards = None

    def let_go(self) -> None:
        """Drop the memory that an error's traceback would keep."""

    def raise_error(self) -> NoReturn:
        """Raise the error. What its traceback holds of the batch holds neither the error nor the memory."""
        error, self.error = self.error, None
        self.let_go()
        assert error is not None
        try:
            raise error
        finally:
            del error


@dataclass(slots=True, eq=False)
class IndexedBatch(Batch):
    """A batch of indices into a native plan."""

    indices: Indices = field(default_factory=no_indices)
    positions: Positions = range(0)
    """Where its samples stand in the order of the epoch."""
    wanted: Indices = field(default_factory=no_indices)
    """The indices that the sampler gave; others stand in `indices` where bad samples are replaced."""
    leaves: LeafNumbers | None = None
    local: Indices = field(default_factory=no_indices)
    """In their leaf."""
    read_by_python: list[str] = field(default_factory=list)
    """Why Python read a sample, one reason a sample."""
    other: list[Any] | None = None
    """What a sampler gave that is not a list of indices, or that only the dataset knows what to make of."""

    @property
    def count(self) -> int:
        return len(self.indices if self.other is None else self.other)

    def begin(self, work: Callable[[], None]) -> None:
        """Take what the sampler gave, and do the work that begins a batch of indices; an error is kept."""
        assert self.given is not None
        wanted, self.positions = self.given
        if isinstance(wanted, list):
            self.other = wanted
            return
        self.wanted = self.indices = wanted
        self.other = self.error = None
        try:
            work()
        except Unresolved:
            self.other = wanted.tolist()
        except Exception as error:  # of the user's dataset
            self.error = error
