"""An iterable dataset in one Python worker thread, which goes through it on its own, as a worker process does."""

from __future__ import annotations

from typing import Any

from torch.utils.data._utils.fetch import _IterableDatasetFetcher

from penstock.errors import InvalidOption
from penstock.executors.fetch import Fetch
from penstock.executors.workers.loading import FetchedBatch
from penstock.state.streams import restore_fetcher, state_of


class IterableReader:
    """Goes through the dataset once.

    Args:
        fetch: the thread's own.
        drop_last: a last batch that is not full is left out.
        state: where the dataset goes on; None: at its beginning.
        alone: no other thread goes through the same dataset object.

    Raises (when made): InvalidOption, and what iter() of the dataset raises.
    """

    def __init__(self, fetch: Fetch, *, drop_last: bool, state: Any, alone: bool) -> None:
        self._fetcher = _IterableDatasetFetcher(fetch.dataset, fetch.batched, fetch.collate_fn, drop_last)
        if state is not None:
            restore_fetcher(self._fetcher, state)
        if not alone and self._fetcher.dataset_iter is fetch.dataset:
            raise InvalidOption(
                f"{type(fetch.dataset).__name__}.__iter__ returns the dataset itself, which several threads "
                "would go through at once: let it return an iterator of its own, or give no share_dataset=True"
            )

    def read(self, batch: FetchedBatch) -> None:
        """Make a batch, or mark it as ended. Raises what the dataset and collate_fn raise."""
        assert batch.task is not None
        try:
            batch.result = self._fetcher.fetch(batch.task.given)  # type: ignore[no-untyped-call]
        except StopIteration:
            batch.ended = True
        batch.state = state_of(None, self._fetcher.dataset_iter, ended=batch.ended or self._fetcher.ended)
