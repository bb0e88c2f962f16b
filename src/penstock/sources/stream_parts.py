"""An iterable dataset that is shared out: each worker of each rank iterates over its part."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from penstock.errors import InvalidOption
from penstock.order.schedule import Shard, Share, share_of
from penstock.recipe.originals import own_class
from penstock.system.warn_user import warn_user


class StreamPart(IterableDataset[Any]):
    """The part of an iterable dataset that the calling worker goes through.

    Args:
        dataset: has a .shard(num_shards=, index=), which returns one of so many parts of it.
        share: of this rank.
    """

    def __init__(self, dataset: Any, share: Share) -> None:
        self.dataset, self.share = dataset, share

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        number = self.share.rank * workers + worker
        return iter(self.dataset.shard(num_shards=self.share.world * workers, index=number))


def part_of(dataset: Any, shard: Shard) -> Any:
    """Return what a pass of shard= goes through of an iterable dataset; without shard= the dataset itself."""
    share = share_of(shard)
    return dataset if share is None else StreamPart(dataset, share)


def refuse_parts(dataset: Any) -> None:
    """Raise InvalidOption where shard= cannot share out an iterable dataset."""
    stream = own_class("datasets", "IterableDataset")
    if stream is not None and isinstance(dataset, stream):
        raise InvalidOption(
            "shard= of a datasets.IterableDataset: its workers share it out already; for ranks give "
            "datasets.distributed.split_dataset_by_node(dataset, rank, ranks)"
        )
    names: set[str] = set()
    with contextlib.suppress(AttributeError, TypeError, ValueError):  # it has none, or one that does not tell
        names = set(inspect.signature(dataset.shard).parameters)
    if not {"num_shards", "index"} <= names:
        raise InvalidOption(
            f"shard= needs a .shard(num_shards, index) that returns one part of a {type(dataset).__name__}, or a "
            "map-style dataset. Without it __iter__ takes its part by torch.utils.data.get_worker_info()"
        )
    if callable(getattr(dataset, "state_dict", None)):
        raise InvalidOption(
            f"shard= and the state_dict() of a {type(dataset).__name__} exclude each other: the parts have states of "
            "their own"
        )


class RepeatWatch:
    """Warns once of workers that each go through all of an iterable dataset, and ask for no part of it."""

    def __init__(self, dataset: Any, workers: int) -> None:
        self._dataset = dataset
        self._batches = [0] * workers
        self._said = False

    def came(self, worker: int, *, asked: bool) -> None:
        """Note a batch of a worker: the first one tells, where the dataset has a length.

        asked: code of the worker has asked which worker it is.
        """
        self._batches[worker] += 1
        if self._batches[worker] > 1 or self._said or asked:
            return
        try:
            size = len(self._dataset)
        except Exception:  # it has none, or the user's code fails
            return
        if size:
            self._warn(f"{len(self._batches) * size:,} samples are coming of {size:,}")

    def ended(self, *, asked: bool) -> None:
        """Note that all workers have come to their ends."""
        count = self._batches[0]
        if count and len(set(self._batches)) == 1 and not asked:
            came = f"{sum(self._batches):,} batches came, {count:,} from each"
            self._warn(f"{came}: the same ones, unless they are drawn at random")
        self._said = True

    def _warn(self, count: str) -> None:
        if self._said:
            return
        self._said = True
        parts = callable(getattr(self._dataset, "shard", None))
        remedy = "shard='auto' (it has a .shard())" if parts else "each its part in __iter__, by get_worker_info()"
        kind, workers = type(self._dataset).__name__, len(self._batches)
        warn_user(
            f"each of the {workers} worker processes goes through all of the {kind}, "
            f"which does not ask get_worker_info() for its part: {count}; give {remedy}, or num_workers=1"
        )
