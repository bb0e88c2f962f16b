"""What Penstock adds to torch's own iterators, whether they work in the caller's thread or in worker processes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from penstock.executors.job import Job
from penstock.observe import Delivery, Observers, observed
from penstock.state.manifest import BadSample


class LoaderView:
    """A loader as torch's own iterators are to see it: with some attributes replaced."""

    def __init__(self, loader: Any, **replaced: Any) -> None:
        self.__dict__.update(replaced)
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def view_of(job: Job, **seen: Any) -> Any:
    """Return the loader of a pass, with these attributes. Torch would warn of a pin_memory_device at our own line."""
    loader, generator = job.loader(), job.settings.draws_from
    if not seen and loader.pin_memory == job.pins and loader.generator is generator and not loader.pin_memory_device:
        return loader
    return LoaderView(loader, pin_memory_device="", pin_memory=job.pins, generator=generator, **seen)


def batches_in_flight(iterator: Any) -> int:
    """Return how many batches worker processes of an iterator of torch's have begun that were not handed out."""
    return getattr(iterator, "_tasks_outstanding", 0)


class TorchPass:
    """The part of an iterator that reports to observers; torch's class comes behind it."""

    observers: Observers = ()
    _bad: Sequence[BadSample] = ()
    """Samples that were found bad in the batch that came last."""

    def _next_batch(self) -> Any:
        """Return what torch's __next__ returns."""
        return super().__next__()  # type: ignore[misc]

    @abstractmethod
    def _samples(self, batch: Any) -> int:
        """Return the number of samples in the batch that came last."""

    def __next__(self) -> Any:
        return observed(self.observers, self._delivery)

    def _delivery(self) -> Delivery:
        started = perf_counter()
        batch = self._next_batch()
        waited = perf_counter() - started
        bad, self._bad = self._bad, ()
        return Delivery(batch, self._samples(batch), waited, bad=bad, in_flight=batches_in_flight(self))
