"""Where an iterable dataset is that says so itself, by state_dict() and load_state_dict().

A worker process adds the dataset's state to each batch that it makes (`Stating`), so that what is known in the end is
the state behind the batch that was handed out last, however far the workers have read ahead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

from torch.utils.data import IterableDataset, IterDataPipe

from penstock.errors import InvalidOption
from penstock.fetch import Delivered

#: Stands for the state of a worker that has come to its end: the dataset's own may speak of the next pass already.
ENDED: dict[str, Any] = {"ended": True}


def is_stateful(dataset: Any) -> bool:
    """Return whether a dataset is iterable, says where it is, and can be told."""
    if not isinstance(dataset, IterableDataset) or isinstance(dataset, IterDataPipe):
        return False
    return all(callable(getattr(dataset, name, None)) for name in ("state_dict", "load_state_dict"))


class Streams:
    """The states of a dataset's workers behind what was handed out. Read by one thread, handed out by another.

    Args:
        workers: how many; 0: the caller's thread.
        given: what as_state() returned, of the state that the pass goes on from.
        resumed: it goes on from one, be it of the start.
    """

    def __init__(self, workers: int, given: Mapping[str, Any] | None = None, *, resumed: bool = False) -> None:
        self.resumed, self.given = resumed, given is not None
        self._states: list[Any] = [None] * max(1, workers) if given is None else list(given["states"])
        self.following: int = 0 if given is None else given["next"]
        self._read: deque[tuple[int, Any] | None] = deque()
        self.now: Callable[[], Any] | None = None
        """Returns the state of the one there is, where nothing is read ahead of the user."""

    def states(self) -> list[Any]:
        """Return the state of each worker, None at the start."""
        return list(self._states)

    def read(self, worker: int, state: Any) -> None:
        """Note a batch that was taken from a worker, and its state behind it."""
        self._read.append((worker, state))

    def failed(self) -> None:
        """Note that an error came in the place of a batch."""
        self._read.append(None)

    def taken(self) -> None:
        """Note that the user has been given the next of these."""
        noted = self._read.popleft() if self._read else None
        if noted is not None:
            worker, self._states[noted[0]] = noted
            self.following = (worker + 1) % len(self._states)

    def as_state(self) -> dict[str, Any]:
        """Return what a loader's state holds of them."""
        if self.now is not None:
            self._states[0] = self.now()
        return {"states": self.states(), "next": self.following}


def check_streams(given: Any, workers: int) -> None:
    """Raise InvalidOption for what as_state() has not made, or not of as many workers."""
    states = given.get("states") if isinstance(given, Mapping) else None
    if not isinstance(states, list) or type(given.get("next")) is not int or not 0 <= given["next"] < len(states):
        raise InvalidOption("a state whose 'dataset' is not what state_dict() writes")
    if len(states) != max(1, workers):
        raise InvalidOption(
            f"a state of an iterable dataset that {len(states)} workers have read, each at a place of its own, cannot "
            f"go on with num_workers={workers}"
        )


class Stating(IterableDataset[Any]):
    """What a worker process takes for a dataset that says where it is, and for its collate_fn.

    Args:
        dataset: the user's.
        collate_fn: the user's.
        streams: the states that the workers begin with.
    """

    def __init__(self, dataset: Any, collate_fn: Callable[[Any], Any], streams: Streams) -> None:
        self.dataset = dataset
        self.worker = 0
        self._collate_fn = collate_fn
        self._given = streams.states()
        self._samples: _Samples | None = None

    def __iter__(self) -> Iterator[Any]:
        given, self._given[self.worker] = self._given[self.worker], None  # for the first pass
        if given is not None and given != ENDED:
            self.dataset.load_state_dict(given["state"])
        self._samples = _Samples(iter(()) if given == ENDED else iter(self.dataset))
        return self._samples

    def collate(self, samples: Any) -> Delivered:
        """Return the user's batch with the state of the dataset behind it."""
        batch = self._collate_fn(samples)
        return Delivered(batch, state=state_of(self.dataset, ended=self._samples is None or self._samples.ended))


class _Samples(Iterator[Any]):
    """A dataset's iterator that knows whether it has come to its end."""

    def __init__(self, samples: Iterator[Any]) -> None:
        self._samples = samples
        self.ended = False

    def __next__(self) -> Any:
        try:
            return next(self._samples)
        except StopIteration:
            self.ended = True
            raise


def state_of(dataset: Any, *, ended: bool) -> dict[str, Any]:
    """Return where a dataset is. The copy is the caller's own."""
    return ENDED if ended else {"state": deepcopy(dataset.state_dict())}
