"""The states of a user's sampler, and of the iterator that it returns, by state_dict() and load_state_dict().

A sampler gives batches ahead of the user. So its state is noted behind each batch that it gave, and a loader's state
holds the one behind the batch that was handed out last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from itertools import islice
from typing import Any

from penstock.order.permutations import Positions


def is_stateful(of: Any) -> bool:
    """Return whether an object has a state that can be loaded: torchdata's Stateful protocol."""
    return callable(getattr(of, "state_dict", None)) and callable(getattr(of, "load_state_dict", None))


class SamplerStates:
    """The states of a sampler behind each batch of a pass. One thread takes batches, another hands them out.

    Args:
        given: of as_state(), in the state that the pass goes on from.
    """

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        self._given = given
        self._sampler: Any = None
        self._iterator: Any = None
        self._noted: deque[dict[str, Any]] = deque()
        self._first = 0  # batches that lie before the first that is noted
        self.samples = 0 if given is None or given.get("between") else int(given.get("samples", 0))
        """How many samples the sampler has given in this epoch."""
        self._ended = False
        self.pending: dict[str, Any] | None = None
        """The sampler's state for the next pass, where this one goes on behind its last sample."""

    @property
    def resumes(self) -> bool:
        """Whether the sampler goes on from a state of its own."""
        return self._given is not None

    def begin(self, sampler: Any) -> Iterator[Any]:
        """Return what a sampler gives from the beginning of the pass on. Its state is noted, where it has any."""
        given, self._sampler = self._given, sampler
        self._noted.clear()  # torch's iterators call iter() twice while they are made
        self._first = 0
        if given is not None and given.get("ended") and not given.get("between"):
            self.pending = {**given, "between": True}
            self._noted.append(dict(given))
            return iter(())
        self._iterator = iter(sampler) if given is None else _restored(sampler, given)
        if is_stateful(sampler) or is_stateful(self._iterator):
            self._note(between=given is None or bool(given.get("between")))
        items = self._anew() if given is not None and given.get("between") else _following(self._iterator)
        self._ended = False
        return self._until_end(items) if self._noted else items

    def _until_end(self, items: Iterator[Any]) -> Iterator[Any]:
        yield from items
        self._ended = True

    def begun_later(self, sampler: Any) -> Iterator[Any]:
        """Yield what begin() returns; iter() of the sampler is called with the first item."""
        self._sampler = sampler
        yield from self.begin(sampler)

    def _anew(self) -> Iterator[Any]:
        """Yield what a sampler gives after a state that was taken between two passes: the first may be at its end."""
        first = list(islice(_following(self._iterator), 1))
        if not first:
            self._iterator = iter(self._sampler)
        yield from first
        yield from _following(self._iterator)

    def followed(self, batches: Iterator[tuple[Any, Positions]]) -> Iterator[tuple[Any, Positions]]:
        """Yield batches, and note the sampler's state behind each, where there is any."""
        for batch, positions in batches:
            if self._noted:
                self.samples = positions[-1] + 1 if positions else self.samples
                self._note(between=False)
            yield batch, positions
        if self._noted and self.pending is None:
            self._note(between=True)

    def _note(self, *, between: bool) -> None:
        now: dict[str, Any] = {"between": between, "ended": self._ended, "samples": self.samples}
        for name, each in (("sampler", self._sampler), ("iterator", self._iterator)):
            if is_stateful(each) and not (name == "iterator" and each is self._sampler):
                now[name] = deepcopy(each.state_dict())
        self._noted.append(now)

    def handed(self, batches: int) -> None:
        """Note that all of the first so many batches of the pass were handed out."""
        while self._first < batches and len(self._noted) > 1:
            self._noted.popleft()
            self._first += 1

    def as_state(self, *, done: bool) -> dict[str, Any] | None:
        """Return what a loader's state holds of the sampler, None where the sampler has no state."""
        if not self._noted:
            given = self._given if self._iterator is None else None
            return dict(given) if given is not None else between_passes(self._sampler)
        return {**self._noted[-1], "between": True} if done else dict(self._noted[0])


def _following(iterator: Any) -> Iterator[Any]:
    """Yield what next() gives, without iter(): an iterator may begin anew by it, and torch calls it once."""
    with suppress(StopIteration):
        while True:
            yield next(iterator)


def between_passes(sampler: Any) -> dict[str, Any] | None:
    """Return what a loader's state holds of a sampler that no pass has gone through yet."""
    return {"between": True, "sampler": deepcopy(sampler.state_dict())} if is_stateful(sampler) else None


def _restored(sampler: Any, given: Mapping[str, Any]) -> Any:
    """Return the iterator of a sampler that goes on from a state: the sampler loads its part before iter()."""
    if "sampler" in given and is_stateful(sampler):
        sampler.load_state_dict(given["sampler"])
    iterator: Any = iter(sampler)
    if "iterator" in given and is_stateful(iterator):
        iterator.load_state_dict(given["iterator"])
    return iterator
