"""The shards of object stores that the batches of a pass are made of: which ones, and whether they are here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from penstock.order.permutations import Indices
from penstock.plan import NativePlan
from penstock.sources.tree import LeafNumbers
from penstock.storage.stage import ShardStage, Ticket


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
        """Let them go."""
        for ticket in self._tickets:
            ticket.release()


class Staging:
    """The shards of one pass, brought here ahead of need; nothing for a plan whose sources are all local.

    Args:
        plan: of the pass.
        coming: called for each source, returns the indices of each batch of the pass from its first on; None: they are
            not known before a batch is begun.
    """

    def __init__(self, plan: NativePlan, coming: Callable[[], Iterator[Indices]] | None) -> None:
        self._stages: dict[int, tuple[ShardStage, Callable[[Indices], Indices]]] = {}
        for number, leaf in enumerate(plan.leaves):
            if leaf.remote is not None and leaf.shard_of is not None:
                ahead = None if coming is None else _coming_shards(plan, number, leaf.shard_of, coming)
                self._stages[number] = ShardStage(leaf.remote, ahead), leaf.shard_of

    def __bool__(self) -> bool:
        return bool(self._stages)

    def batch(self, leaves: LeafNumbers | None, local: Indices) -> BatchShards:
        """Return the shards of the next batch, which are fetched where they are not here."""
        return BatchShards(
            [
                stage.ticket(_shards(number, shard_of, leaves, local))
                for number, (stage, shard_of) in self._stages.items()
            ]
        )

    def missing(self) -> str:
        """Return, for messages, which shards batches wait for."""
        return "; ".join(text for stage, _ in self._stages.values() if (text := stage.missing()))

    @property
    def waited(self) -> float:
        """Return the seconds that batches have waited for shards."""
        return sum(stage.waited for stage, _ in self._stages.values())

    def close(self) -> None:
        """End the downloads."""
        for stage, _ in self._stages.values():
            stage.close()


def _coming_shards(
    plan: NativePlan, number: int, shard_of: Callable[[Indices], Indices], coming: Callable[[], Iterator[Indices]]
) -> Iterator[tuple[int, ...]]:
    for indices in coming():
        leaves, local = plan.root.resolve(indices)
        yield _shards(number, shard_of, leaves, local)


def _shards(
    number: int, shard_of: Callable[[Indices], Indices], leaves: LeafNumbers | None, local: Indices
) -> tuple[int, ...]:
    """Return the shards of the samples of one leaf in a batch."""
    own: Any = local if leaves is None else local[leaves == number]
    return tuple(np.unique(shard_of(own)).tolist()) if len(own) else ()
