"""The shards of object stores that the batches of a pass are made of: which ones, and whether they are here."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from penstock.errors import WorkerStuck
from penstock.order.permutations import Indices
from penstock.sources.native_source import RemoteSamples
from penstock.sources.tree import LeafNumbers, RemoteLeaves
from penstock.storage.remote_shards import WORTH_WHOLE, Range
from penstock.storage.stage import ShardStage, Ticket
from penstock.workers.batch import Batch, BatchShards

#: Samples of a short pass whose shards are counted before its first batch, at the most.
_COUNTED = 1 << 20


B = TypeVar("B", bound=Batch)


class Staging:
    """The shards of one pass over a dataset of which a part lies in object stores, brought here ahead of need.

    Of a shard of which the pass needs few samples only these are read, each by its range.

    Args:
        coming: called for each source, returns the indices of each batch of the pass from its first on; None: they are
            not known before a batch is begun.
        samples: of the pass, where they are known.
        elsewhere: other processes read the samples: what does not come in whole shards they bring themselves.
    """

    def __init__(
        self,
        dataset: RemoteLeaves,
        coming: Callable[[], Iterator[Indices]] | None,
        samples: int,
        *,
        elsewhere: bool = False,
    ) -> None:
        self._closed, self._dataset = False, dataset
        self._leaves = [
            _Leaf(dataset, number, remote, coming, samples, elsewhere=elsewhere)
            for number, remote in enumerate(dataset.leaves)
            if remote is not None
        ]

    def shards_of(self, given: Sequence[Any]) -> BatchShards:
        """Let the shards of the next batch, of samples that Python reads, be fetched and kept. given: their indices."""
        try:
            indices = np.array([operator.index(index) for index in given], np.int64)
            return self.shards_at(*self._dataset.resolve(indices))
        except Exception:  # the dataset raises it, where the sample is read
            return self.shards_at(None, np.empty(0, np.int64))

    def shards_at(self, leaves: LeafNumbers | None, local: Indices) -> BatchShards:
        """Let the shards of the next batch be fetched where they are not here, and kept."""
        return BatchShards([leaf.ticket(leaves, local) for leaf in self._leaves])

    def submit_ready(self, queue: Iterable[B], submit: Callable[[B], None]) -> None:
        """Submit the batches in a queue whose shards are here, in order."""
        for batch in queue:
            if not batch.waits_for_shards or batch.shards is None or batch.error is not None:
                continue
            try:
                if not batch.shards.ready():
                    return
            except Exception as error:
                batch.error = error
                continue
            submit(batch)

    def wait_and_submit(self, batch: B, seconds: float, submit: Callable[[B], None]) -> None:
        """Wait for the shards of the oldest batch, and submit it; 0 seconds: for ever. Raises WorkerStuck."""
        assert batch.shards is not None
        try:
            here = batch.shards.wait(seconds or None)
        except Exception as error:
            batch.error = error
            return
        if here:
            submit(batch)
        elif self._closed:
            raise RuntimeError("the loader's iterator was closed while it waited for a batch")
        else:
            missing = "; ".join(text for leaf in self._leaves if (text := leaf.stage.missing()))
            raise WorkerStuck(
                f"DataLoader timed out after {seconds} seconds: shards are still on their way from the object store: "
                f"{missing}. Raise timeout=, or look at the network"
            )

    def close(self) -> None:
        self._closed = True
        for leaf in self._leaves:
            leaf.stage.close()


class _Leaf:
    """The shards of one source of a plan."""

    def __init__(
        self,
        dataset: RemoteLeaves,
        number: int,
        remote: RemoteSamples,
        coming: Callable[[], Iterator[Indices]] | None,
        samples: int,
        *,
        elsewhere: bool,
    ) -> None:
        self._dataset, self._number, self._remote, self._coming, self._samples = (
            dataset, number, remote, coming, samples,
        )  # fmt: skip
        self._elsewhere = elsewhere
        self._few: set[int] | None = None
        """Shards of which a pass in a known order needs few samples; None: they were not counted yet."""
        self.stage = ShardStage(remote.shards, None if coming is None else self._ahead(coming))

    def ticket(self, leaves: LeafNumbers | None, local: Indices) -> Ticket:
        own = self._own(leaves, local)
        of_sample = self._remote.shard_of(own)
        shards, counts = np.unique(of_sample, return_counts=True)
        whole: list[int | Range] = [
            shard for shard, count in zip(shards.tolist(), counts.tolist(), strict=True) if self._is_whole(shard, count)
        ]
        alone = own[~np.isin(of_sample, whole)]
        ranges_of = self._remote.ranges_of
        ranges = ranges_of(alone) if ranges_of is not None and len(alone) and not self._elsewhere else []
        return self.stage.ticket([*whole, *ranges])

    def _is_whole(self, shard: int, count: int) -> bool:
        if self._remote.ranges_of is None:
            return True
        if self._coming is None:
            return self._remote.shards.wants_whole(shard, count)
        if self._few is None:  # the first batch of the pass has drawn the seed of the order by now
            self._few = self._count()
        return shard not in self._few

    def _count(self) -> set[int]:
        shards = self._remote.shards.shards
        if self._coming is None or self._samples > min(WORTH_WHOLE * self._dataset.size, _COUNTED):
            return set()
        wanted = np.zeros(len(shards), dtype=np.int64)
        for indices in self._coming():
            of_sample = self._remote.shard_of(self._own(*self._dataset.resolve(indices)))
            wanted += np.bincount(of_sample, minlength=len(shards))[: len(shards)]
        return {number for number, shard in enumerate(shards) if wanted[number] <= WORTH_WHOLE * shard.samples}

    def _own(self, leaves: LeafNumbers | None, local: Indices) -> Any:
        return local if leaves is None else local[leaves == self._number]

    def _ahead(self, coming: Callable[[], Iterator[Indices]]) -> Iterator[tuple[int, ...]]:
        for indices in coming():
            of_sample = np.unique(self._remote.shard_of(self._own(*self._dataset.resolve(indices))))
            yield tuple(shard for shard in of_sample.tolist() if shard not in (self._few or ()))
