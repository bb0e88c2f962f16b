"""One seam for whoever watches a loader: every executor tells the same observers of each batch, error and end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import WorkerStuck


@dataclass(slots=True, eq=False)
class Delivery:
    """A batch on its way to its user."""

    batch: Any
    samples: int
    """Samples in it: what the sampler gave for it. Of an iterable dataset, what the batch shows."""
    waited: float = 0.0
    """Seconds that the caller's thread spent until it had the batch."""
    read_by_python: Sequence[str] = ()
    """Why Python read some of its samples, where the native core reads the dataset."""
    seen: int = 0
    """Observers that know of it."""


class Observer:
    """Watches the passes of a loader. Its methods are called by the thread that calls next(); here they do nothing."""

    def delivered(self, delivery: Delivery) -> None:
        """Take note of a batch that its user is about to get; an exception is raised in its place."""

    def failed(self, error: Exception) -> None:
        """Take note of an error that its user gets in a batch's place."""

    def ended(self) -> None:
        """Take note that the pass was gone through to its end."""


Observers = tuple[Observer, ...]


def observed(observers: Observers, take: Callable[[], Delivery]) -> Any:
    """Return the batch of the delivery that take() returns; the observers know of it, or of the error in its place.

    After an interrupt the same delivery may come a second time: who has seen it is not told twice.
    """
    try:
        delivery = take()
    except StopIteration:
        for observer in observers:
            observer.ended()
        raise
    except WorkerStuck:
        raise  # the next call waits for the same batch
    except Exception as error:
        for observer in observers:
            observer.failed(error)
        raise
    while delivery.seen < len(observers):
        observers[delivery.seen].delivered(delivery)
        delivery.seen += 1
    return delivery.batch
