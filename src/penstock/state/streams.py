"""The states of datasets, and of their iterators, that have a state_dict() and a load_state_dict().

A worker process adds the dataset's state to each batch that it makes (`Stream`), so that a loader's state
holds the one behind the batch that was handed out last, however far the workers have read ahead. The rules are
torchdata's: the iterator's state is taken; the dataset's too, where it is not its own iterator. When a pass continues,
the dataset's state is loaded first, then iter() is called, then the iterator's state is loaded.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, Protocol

from torch.utils.data import IterDataPipe

from penstock.errors import InvalidOption
from penstock.state.samplers import is_stateful, restore, saved

Entry = Mapping[str, Any]
"""The state of one worker. "dataset", "iterator": of their state_dict(); "ended": the worker has come to its end;
"between": it has, and the state is of the next pass."""


def is_stateful_dataset(dataset: Any) -> bool:
    """Return whether a dataset has state_dict() and load_state_dict(); an iterator of an iterable one may have too."""
    return is_stateful(dataset) and not isinstance(dataset, IterDataPipe)


class Split(Protocol):
    """The streams that a pass carries, where a worker may carry another number of them than one."""

    @property
    def count(self) -> int:
        """How many."""

    @property
    def deals(self) -> bool:
        """Whether some of the batches are other ranks', by their order."""

    def passes_over(self) -> bool:
        """Return whether the batch that came is another rank's; called for each in turn."""

    def afresh(self, workers: int) -> Split:
        """Return the streams of a pass that begins at the start of an epoch."""

    def opened(self, streams: Mapping[int, Entry | None], *, brief: bool) -> dict[int, Stream]:
        """Return streams by their numbers, at the states that are given. brief: their states are sent to a process."""

    def as_state(self, states: Sequence[Entry | None]) -> dict[str, Any]:
        """Return what a loader's state holds of the streams."""


class Streams:
    """The states of a dataset's workers behind what was handed out. One thread takes batches, another hands them out.

    Args:
        workers: how many; 0: the caller's thread.
        given: of as_state(), in the state that the pass continues from.
        resumed: a state was loaded, be it of the start.
        before: of the pass before, whose workers this one keeps.
        kept: the next pass has the same workers, with the dataset as they leave it.
        split: of the dataset, whose states are not asked for between passes; None: each worker is one stream.
    """

    def __init__(
        self,
        workers: int,
        given: Mapping[str, Any] | None,
        *,
        resumed: bool,
        before: Streams | None,
        kept: bool,
        split: Split | None = None,
    ) -> None:
        count = max(1, workers) if split is None else split.count
        self.resumed, self.split = resumed, split
        self._kept = kept
        self.done = False
        self._states: list[Entry | None] = [None] * count
        self.counts = [0] * count
        """Batches of the epoch that each worker's part of it had and that were handed out."""
        self.following = 0
        if given is not None:
            if len(given["states"]) != count:  # which are all alike
                given = {"states": given["states"][:1] * count, "next": 0}
            self._states = list(given["states"])
            self.counts = list(given.get("counts", self.counts))
            self.following = given["next"]
        elif before is not None and before.done and split is None:
            self._states = before._between()
        self.given = given is not None and any(state is not None for state in self._states)
        self.to_drop = [0] * count if self.given or split is not None else list(self.counts)
        """Batches that each worker makes again, because no state of it is known."""
        self._read: deque[tuple[int, Entry | None, int] | None] = deque()
        self.now: Callable[[], list[Entry | None]] | None = None
        """Returns the states, where nothing is read ahead of the user."""

    def states(self) -> list[Any]:
        """Return the state of each worker, None at the start."""
        return list(self._states)

    def restore_between_passes(self, dataset: Any) -> None:
        """Load a state of the caller's thread that was taken between two passes, before the pass that begins draws."""
        given = self._states[0]
        if given is not None and given.get("between") and "dataset" in given:
            restore_dataset(dataset, given)
            self._states[0] = {name: value for name, value in given.items() if name != "dataset"}

    def begin_with(self, state: Entry | None) -> None:
        """Note the state of the caller's thread before the first batch."""
        self._states[0] = state

    def read(self, worker: int, state: Entry | None) -> None:
        """Note a batch that was taken from a worker, and its state behind it."""
        self._read.append((worker, state, _HANDED))

    def leaves_out(self, worker: int, state: Entry | None) -> bool:
        """Return whether a batch that came is not handed out, and note it then.

        A worker has made it again, or it is another rank's.
        """
        if self.to_drop[worker]:
            self.to_drop[worker] -= 1
            self._states[worker] = state
            return True
        if self.split is None or not self.split.passes_over():
            return False
        self._read.append((worker, state, _PASSED))
        return True

    def ended(self, worker: int, state: Entry | None) -> None:
        """Note that a worker has come to its end, behind the batches that were taken before."""
        self._read.append((worker, state, _ENDED))

    def failed(self) -> None:
        """Note that an error came instead of a batch."""
        self._read.append(None)

    def taken(self) -> None:
        """Note that the user was given the next of the batches that were taken from workers."""
        self._take_others()
        noted = self._read.popleft() if self._read else None
        if self.now is not None and self.split is None:
            self.counts[0] += 1
        elif noted is not None:
            self._take(*noted)

    def finish(self) -> None:
        """Note that the user has come to the end of the pass."""
        self._take_others()
        self.done = True

    def _take_others(self) -> None:
        """Take what lies before the next batch that is handed out."""
        while self._read and (noted := self._read[0]) is not None and noted[2] != _HANDED:
            self._read.popleft()
            self._take(*noted)

    def _take(self, worker: int, state: Entry | None, kind: int) -> None:
        self._states[worker] = state
        if kind != _ENDED:
            self.counts[worker] += 1
            self.following = (worker + 1) % len(self._states)

    def _between(self) -> list[Entry | None]:
        """Return the states that the next pass begins with."""
        if not self._kept or self.split is not None:
            return [None] * len(self._states)
        states = self._states if self.now is None else self.now()
        return [None if state is None else {**state, "between": True} for state in states]

    def as_state(self) -> dict[str, Any] | None:
        """Return what a loader's state holds of the dataset; None: nothing is known."""
        if self.now is not None:
            self._states = self.now()
        if self.done:
            states, counts, following = self._between(), [0] * len(self._states), 0
        else:
            states, counts, following = list(self._states), list(self.counts), self.following
        if not any(counts) and all(state is None for state in states) and (self.split is None or self.done):
            return None
        own = {"states": states} if self.split is None else self.split.as_state(states)
        return {**own, "next": following, "counts": counts}


#: What has become of a batch: it is handed out, it is another rank's, or there is none, for the stream has ended.
_HANDED, _PASSED, _ENDED = range(3)


def check_streams(given: Any, workers: int) -> None:
    """Raise InvalidOption for what as_state() has not made, or has made of another number of workers."""
    states = given.get("states") if isinstance(given, Mapping) else None
    if not isinstance(states, list) or type(given.get("next")) is not int or not 0 <= given["next"] < len(states):
        raise InvalidOption("a state whose 'dataset' is not what state_dict() writes")
    if len(states) != max(1, workers) and not _alike(states):
        readers, remedy = f"{len(states)} workers have read to different places", f"num_workers={len(states)}"
        if len(states) == 1:
            readers, remedy = "1 worker has read", "num_workers=1 or 0"
        raise InvalidOption(
            f"a state of a dataset that {readers} cannot continue with num_workers={workers}: give {remedy}"
        )


def _alike(states: list[Any]) -> bool:
    """Return whether all workers of a map-style dataset, or between two passes, have equal states."""
    if len(states) == 1 or any(state is None or "iterator" in state or "ended" in state for state in states):
        return False
    try:
        return len({pickle.dumps(state) for state in states}) == 1
    except Exception:  # of a state that only its dataset can make sense of
        return False


def restore_dataset(dataset: Any, given: Entry | None) -> None:
    """Load the state of a dataset, before iter() is called."""
    if given is not None and "dataset" in given:
        restore(dataset, given["dataset"])


def restore_fetcher(fetcher: Any, given: Entry) -> None:
    """Let torch's fetcher of an iterable dataset continue from a state."""
    iterator = _restored(fetcher.dataset, fetcher.dataset_iter, given)
    fetcher.ended = _has_ended(given)
    if not fetcher.ended:
        fetcher.dataset_iter = iterator


def _has_ended(given: Entry) -> bool:
    return bool(given.get("ended")) and not given.get("between")


def _restored(dataset: Any, iterator: Any, given: Entry) -> Any:
    """Return the iterator of a pass that continues from a state, of what iter() has returned."""
    if "iterator" in given:
        restore(iterator, given["iterator"])
    if given.get("between"):
        return iter(dataset) if "iterator" in given else iterator
    return iter(()) if given.get("ended") else iterator


def state_of(dataset: Any, iterator: Any = None, *, ended: bool = False) -> dict[str, Any] | None:
    """Return a copy of the states of a dataset and its iterator, None where they have none."""
    state = saved(dataset=None if iterator is dataset else dataset, iterator=iterator)
    if state and ended:
        state["ended"] = True
    return state or None


class Stream:
    """An iterable dataset in one pass of a worker process: its samples, and its state behind them.

    given: the state that the pass continues from; None: it begins at the start.
    """

    def __init__(self, dataset: Any, given: Entry | None) -> None:
        restore_dataset(dataset, given)
        self._dataset = dataset
        self._samples = self._iterator = iter(dataset)
        if given is not None:
            self._samples = _restored(dataset, self._iterator, given)
            self._iterator = self._iterator if _has_ended(given) else self._samples
        self._ended = self._told = False

    def take(self, count: int) -> list[Any]:
        """Return the next samples, fewer at the end."""
        samples: list[Any] = []
        try:
            while len(samples) < count and not self._ended:
                samples.append(next(self._samples))
        except StopIteration:
            self._ended = True
        return samples

    def state(self) -> Entry | None:
        """Return the states of the dataset and its iterator; None: they have none."""
        self._told = self._ended
        return state_of(self._dataset, self._iterator, ended=self._ended)

    def end(self) -> Entry | None:
        """Return the states at the end, where none that was returned is of it."""
        return None if self._told else self.state()


class Turns:
    """The batches of several streams in turn, in the caller's thread, as torch's fetcher makes those of one.

    Args:
        ahead: batches are fetched ahead of the user, and the state behind each is noted.
    """

    def __init__(
        self, streams: Streams, collate_fn: Callable[[Any], Any], *, batched: bool, drop_last: bool, ahead: bool
    ) -> None:
        assert streams.split is not None
        self.collate_fn, self.ended = collate_fn, False
        self._streams, self._batched, self._drop_last, self._ahead = streams, batched, drop_last, ahead
        given = streams.states()
        self._opened = streams.split.opened(dict(enumerate(given)), brief=False)
        self._left = [number for number, state in enumerate(given) if state is None or not state.get("ended")]
        self._turn = streams.following
        if not ahead:
            # It does not hold this, which holds the streams: what the garbage collector ends may wait for a thread that
            # waits for the collector (the package's generators end threads).
            streams.now = partial(_states_now, list(self._opened.values()))

    def fetch(self, asked: Any) -> Any:
        """Return the next batch. Raises StopIteration at the end of all streams."""
        while self._left:
            number = next((one for one in self._left if one >= self._turn), self._left[0])
            stream, self._turn = self._opened[number], number + 1
            samples = stream.take(len(asked) if self._batched else 1)
            self.ended = self._batched and len(samples) < len(asked)
            state = stream.state() if self._ahead else None
            if not samples or (self.ended and self._drop_last):
                self._left.remove(number)
                self._streams.ended(number, state)
            elif not self._streams.leaves_out(number, state):
                self._streams.read(number, state)
                return self.collate_fn(samples if self._batched else samples[0])
        raise StopIteration


def _states_now(streams: list[Stream]) -> list[Entry | None]:
    return [stream.state() for stream in streams]


def with_first_drawn(batches: Iterator[Any]) -> Iterator[Any]:
    """Return a sampler's batches in the middle of an epoch: it draws the first before the dataset's state is loaded."""
    return chain(list(islice(batches, 1)), batches)
