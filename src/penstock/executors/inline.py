"""Torch's own pass in the caller's thread."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from operator import itemgetter
from typing import Any

from torch.utils.data import default_collate
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data.dataloader import _DatasetKind, _SingleProcessDataLoaderIter

from penstock.executors.job import Job
from penstock.executors.torch_pass import TorchPass, view_of
from penstock.hooks.calls import ANSWERED
from penstock.observe import Instant, Meter
from penstock.recipe.compose_hook import working
from penstock.recipe.exchange import Lease
from penstock.sample_notes import collated, fetch_samples, one_by_one
from penstock.settings import Method
from penstock.state.streams import Streams, restore_dataset, restore_fetcher, state_of, with_first_drawn
from penstock.stats import samples_given, samples_in


class InlinePass(TorchPass, _SingleProcessDataLoaderIter):
    """torch's own pass in the caller's thread.

    Args:
        loader: a torch DataLoader with num_workers=0.
        batches: what the loader's sampler gives; None: torch's iterator calls the sampler.
        composes: each Compose that the dataset calls runs natively.
        streams: the states of a dataset that has a state_dict().
        ahead: the pass is read ahead of its user.
        meter: counts getitem, collate and iterate (over an iterable dataset).
    """

    def __init__(
        self,
        loader: Any,
        batches: Iterator[Any] | None = None,
        *,
        composes: bool = True,
        streams: Streams | None = None,
        ahead: bool = False,
        meter: Meter,
    ) -> None:
        (given,) = [None] if streams is None else streams.states()
        self._given, self._batches = given, batches
        self._mid_epoch = streams is not None and any(streams.counts)
        super().__init__(loader)
        if type(self._dataset_fetcher) is _MapDatasetFetcher:
            self._dataset_fetcher.__class__ = _Noting
            self._dataset_fetcher.meter = meter  # type: ignore[attr-defined]
        self._meter = meter
        self._composes = composes
        self._lease = Lease(ANSWERED) if composes else Lease()  # for the pass: to exchange functions takes 10 us
        if self._batches is not None:
            self._sampler_iter = self._batches
        fetcher = self._dataset_fetcher
        if given is not None and batches is None:
            restore_fetcher(fetcher, given)
        self._streams = streams if ahead else None
        if streams is not None and not ahead:
            streams.now = partial(_state_now, loader.dataset, fetcher)

    @property
    def _base_seed(self) -> int:
        return self._base

    @_base_seed.setter
    def _base_seed(self, drawn: int) -> None:
        # torch's __init__ has drawn the seed, and calls iter() next. The dataset's state may be that of a generator.
        self._base = drawn
        if self._given is not None:
            if self._batches is not None and self._mid_epoch:
                self._batches = with_first_drawn(self._batches)
            restore_dataset(self._dataset, self._given)

    def _next_index(self) -> Any:
        self._asked_for = super()._next_index()  # type: ignore[no-untyped-call]
        return self._asked_for

    def _samples(self, batch: Any) -> int:
        if not self._auto_collation:
            return 1
        iterable = self._dataset_kind == _DatasetKind.Iterable
        stacks = self._collate_fn is default_collate
        return samples_in(batch, samples_given(self._asked_for), iterable=iterable, stacks=stacks)

    def _next_batch(self) -> Any:
        if self._streams is None:
            return super()._next_batch()
        try:
            batch = super()._next_batch()
        except StopIteration:
            self._streams.ended(0, _state_now(self._dataset_fetcher.dataset, self._dataset_fetcher))
            raise
        except Exception:
            self._streams.failed()
            raise
        self._streams.read(0, _state_now(self._dataset_fetcher.dataset, self._dataset_fetcher))
        return batch

    def _next_data(self) -> Any:
        begun = Instant.now()
        self._lease.meet()
        try:
            with working(self._meter.calls) if self._composes else nullcontext():
                batch = super()._next_data()  # type: ignore[no-untyped-call]
        except StopIteration:
            self._lease.close()
            raise
        if self._dataset_kind == _DatasetKind.Iterable:
            self._meter.add("iterate", begun, self._samples(batch))
        return batch


class _Noting(_MapDatasetFetcher):
    """torch's fetcher, whose errors get a note of their sample, and whose stages are counted."""

    meter: Meter

    def fetch(self, given: Any) -> Any:
        """Return the batch of what a sampler gave."""
        begun = Instant.now()
        if self.auto_collation:
            samples = fetch_samples(self.dataset, given)
        else:
            (samples,) = one_by_one(partial(operator.getitem, self.dataset), [given])
        count = samples_given(given) if self.auto_collation else 1
        self.meter.add("getitem", begun, count)
        begun = Instant.now()
        batch = collated(self.collate_fn, given, samples)
        self.meter.add("collate", begun, count)
        return batch


def _state_now(dataset: Any, fetcher: Any) -> dict[str, Any] | None:
    return state_of(dataset, getattr(fetcher, "dataset_iter", None), ended=getattr(fetcher, "ended", False))


class InlineExecutor:
    """Torch's own iterator: for what no other executor accepts."""

    kind = InlinePass

    def accepts(self, job: Job) -> bool:
        """Return True."""
        return True

    def open(self, job: Job) -> InlinePass:
        """Return an iterator of the batches."""
        settings = job.settings
        job.epochs.next(counted=True)
        made = InlinePass(
            view_of(job),
            None if settings.iterable else map(itemgetter(0), job.batches(0, 0)),
            composes=settings.method is not Method.PROCESS,
            streams=job.streams,
            ahead=settings.device is not None,
            meter=job.resources.meter,
        )
        job.progress.arrivals = None  # batches come in order
        return made

    def restart(self, held: InlinePass, job: Job) -> None:
        """Raise RuntimeError: torch keeps no iterator without workers."""
        raise RuntimeError("an iterator of the caller's thread makes one pass")
