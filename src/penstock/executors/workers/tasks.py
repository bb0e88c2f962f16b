"""The tasks of worker processes: what a sampler gives, with the seed and epoch of the pass, and memory to fill."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from penstock.executors.staging import BatchShards, PassShards, Staging
from penstock.executors.workers.shared_memory import Lease, SharedBuffers
from penstock.order.batches import with_sample_numbers
from penstock.order.permutations import Positions
from penstock.sources.unchanged import collates_as_torch
from penstock.state.delivery import Task

Batches = Callable[[int, int], Iterator[tuple[Any, Positions]]]
MakeStaging = Callable[[int, int], Staging]
"""Returns the staging of a pass, called with its seed and epoch."""


class Tasks:
    """A sampler of batches (or indices) that yields tasks."""

    def __init__(self, sampler: Any, *, batched: bool, shared: SharedBuffers | None) -> None:
        self._sampler = sampler
        self._batched = batched
        self._shared = shared
        self.lease: Lease | None = None
        """Of the memory for the latest task."""
        self.shards: PassShards | None = None
        """Brings those of the tasks, where some lie in an object store."""
        self.needed: BatchShards | None = None
        """Those of the latest task."""
        self.batches: Batches | None = None
        self.seed = self.epoch = 0

    def bring_shards(self, owner: object, make: MakeStaging | None) -> None:
        """Bring the shards of the pass that begins, for the workers; None: of no pass.

        owner: the pass, with which that ends.
        """
        if self.shards is not None:
            self.shards.close()
        self.shards = None if make is None else PassShards(owner, make(self.seed, self.epoch))
        self.needed = None

    def __iter__(self) -> Iterator[Task]:
        given = with_sample_numbers(iter(self._sampler), 0, batched=self._batched)
        return map(self._task, given if self.batches is None else self.batches(self.seed, self.epoch))

    def _task(self, given: tuple[Any, Positions]) -> Task:
        self.lease = None if self._shared is None else self._shared.reserve()
        if self.shards is not None:
            listed = given[0] if self._batched else [given[0]]
            self.needed = self.shards.shards_of(listed if isinstance(listed, list | tuple) else ())
        return Task(given[0], self.seed, self.epoch, given[1], None if self.lease is None else self.lease.sent())

    def __len__(self) -> int:
        return len(self._sampler)


def makes_own_batches() -> bool:
    """Return whether workers may make batches in memory of our choice: nobody has replaced torch's ways."""
    strategy = torch.multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
    return strategy == "file_descriptor" and collates_as_torch()
