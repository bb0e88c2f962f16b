"""A user's sampler in a loader's state: its own state, and what the order of an epoch is drawn from.

The state is that of the sampler, and of the iterator that it returns, by state_dict() and load_state_dict(). A sampler
gives batches ahead of the user. So its state is noted behind each batch that it gave, and a loader's state holds the
one behind the batch that was handed out last.

An order that a sampler of torch's or the user's draws is known to that sampler only. Begun anew with its generators and
its epoch as they were, the sampler gives the same order again: a loader's state holds these, and a pass that continues
sets them before the sampler draws.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from copy import deepcopy
from functools import lru_cache
from inspect import isgeneratorfunction, signature
from itertools import chain, islice
from typing import Any

import torch

from penstock.errors import InvalidOption
from penstock.order.batches import SHUFFLING, deepest, samplers_of
from penstock.order.permutations import Positions
from penstock.system.warn_user import warn_user

#: A generator of the user's; None: torch's global one.
Source = torch.Generator | None
#: How many of a sampler's items, from the first on, a state describes: another order differs in them.
_FIRST = 4
#: More bytes than the state of any generator of torch's has.
_LARGEST = 1 << 16


def drawn_from(sampler: Any, *, keyed: bool) -> tuple[Source, ...]:
    """Return the generators that a sampler, and those that it cuts, are known to draw from.

    keyed: the loader has a seed, and torch's samplers without a generator follow it.
    """
    found: list[Source] = []
    for one in samplers_of(sampler):
        generator = getattr(one, "generator", None)
        draws = isinstance(one, SHUFFLING) and not keyed
        if (isinstance(generator, torch.Generator) or (generator is None and draws)) and generator not in found:
            found.append(generator)
    return tuple(found)


class Origin:
    """The generators and the epoch of a sampler as they were when it drew the order of a pass.

    The order counts as drawn where the state of a generator differs behind iter(), or behind the first item.

    Args:
        sampler: of the loader; another one may be begun in its place, which draws from the same.
        generators: that it may draw from.
        given: of as_state(), in the state that the pass continues from; empty: it continues from none.
        inside: the pass begins behind the first item. Then the order was drawn before, and torch's global generator,
            which others draw from too, is left where it is.
    """

    def __init__(
        self, sampler: Any, generators: tuple[Source, ...], given: Mapping[str, Any], *, inside: bool = False
    ) -> None:
        self._sampler, self._generators, self._given, self._inside = deepest(sampler), generators, given, inside
        self.begin()

    def begin(self) -> None:
        """Note that the sampler is begun, or begun anew: it has drawn nothing."""
        self._begun = False
        self._before: list[torch.Tensor | None] | None = None  # of the generators that it has drawn from
        self._epoch: int | None = None
        self._first: list[Any] = []  # items

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Let the sampler draw within it, from what the state says that the pass continues from."""
        self._begun = True
        if self._before is not None:  # all is drawn, or the rest follows from what was
            yield
            return
        present = torch.get_rng_state() if self._given else None
        leaves = self._restore() and self._inside
        before = [_source(one).get_state() for one in self._generators]
        epoch = getattr(self._sampler, "epoch", None)
        self._epoch = epoch if type(epoch) is int and epoch >= 0 else None
        try:
            yield
        finally:
            pairs = list(zip(self._generators, before, strict=True))
            moved = [one for one, was in pairs if not torch.equal(_source(one).get_state(), was)]
            if moved:  # others than the global one are the sampler's own: they may move later
                self._before = [was if one in moved or one is not None else None for one, was in pairs]
            if leaves and present is not None:
                torch.set_rng_state(present)

    def _restore(self) -> bool:
        """Set generators and epoch as the state says; return whether torch's global generator is among them."""
        given = self._given
        texts = dict(zip(self._generators, given.get("generators", ()), strict=False))
        for generator, text in texts.items():
            if text is not None:
                _source(generator).set_state(decoded(text))
        set_epoch, epoch = getattr(self._sampler, "set_epoch", None), given.get("epoch")
        if self._inside and epoch is not None and callable(set_epoch):
            set_epoch(epoch)
        return texts.get(None) is not None

    def watched(self, items: Iterator[Any]) -> Iterator[Any]:
        """Yield what the sampler gives. Warns where it gives other items than it gave before the state was taken."""
        return chain.from_iterable(self._parts(items))

    def _parts(self, items: Iterator[Any]) -> Iterator[Iterator[Any] | list[Any]]:
        with self.drawing():
            part = list(islice(items, 1))
        wanted = list(self._given.get("first", ())) if self._inside else []
        while part and len(self._first) < _FIRST:
            self._first += part
            if wanted and wanted.pop(0) != _digest(part[0]):
                wanted.clear()
                warn_user(
                    f"{type(self._sampler).__name__} gives another order than it gave before the state was taken: some "
                    "samples of this epoch come twice, and others do not come. An order comes again where the sampler "
                    "draws from a torch.Generator that is its attribute `generator`, or has a state_dict() and a "
                    "load_state_dict(); or give shuffle=True and seed= in its place"
                )
            yield part
            part = list(islice(items, 1))
        yield part
        yield items

    def as_state(self) -> dict[str, Any] | None:
        """Return what a loader's state holds of the pass; None: the sampler was not asked yet."""
        asked = self._before is not None or self._first or not self._generators
        if not (self._begun and asked):
            return dict(self._given) or None
        before = self._before or []
        state: dict[str, Any] = {"generators": [None if one is None else encoded(one) for one in before]}
        return {**state, "epoch": self._epoch, "first": [_digest(item) for item in self._first]}


def generator_copy(generator: Source) -> torch.Generator:
    """Return a generator that draws what another one would."""
    source = _source(generator)
    copied = torch.Generator(source.device)
    return copied.set_state(source.get_state())


def is_origin(given: Any) -> bool:
    """Return whether a part of a state is what as_state() and foretold() return."""
    try:
        for text in given.get("generators", ()):
            if text is not None:
                torch.Generator().set_state(decoded(text))
    except Exception:
        return False
    epoch, first = given.get("epoch"), given.get("first", [])
    return (epoch is None or (type(epoch) is int and epoch >= 0)) and isinstance(first, list | tuple)


def encoded(state: torch.Tensor) -> str:
    """Return bytes as a text: the state of a generator of torch's on the CPU takes about 4 KB."""
    return base64.b85encode(zlib.compress(state.numpy().tobytes())).decode()


def decoded(text: str, most: int = _LARGEST) -> torch.Tensor:
    """Return what encoded() was given, up to `most` bytes. Raises ValueError and zlib.error for other texts."""
    found = zlib.decompressobj().decompress(base64.b85decode(text), most)
    return torch.frombuffer(bytearray(found), dtype=torch.uint8)


def _digest(item: Any) -> int:
    """Return what a digest takes in of an item of a sampler: 0 where it does not consist of numbers and texts."""
    try:
        return zlib.crc32(json.dumps(item, default=int).encode())
    except (TypeError, ValueError):
        return 0


def _source(generator: Source) -> torch.Generator:
    return torch.default_generator if generator is None else generator


# --- the state of the sampler itself ----------------------------------------------------------------------------------


def is_stateful(of: Any) -> bool:
    """Return whether an object has a state that can be loaded: torchdata's Stateful protocol.

    The state_dict() of MosaicML's and LitData's StreamingDataset takes arguments that only their own loaders know.
    """
    method = getattr(of, "state_dict", None)
    if not callable(method) or not callable(getattr(of, "load_state_dict", None)):
        return False
    return _needs_no_argument(getattr(method, "__func__", method), hasattr(method, "__self__"))


@lru_cache(maxsize=64)
def _needs_no_argument(function: Any, bound: bool) -> bool:
    try:
        signature(function).bind(*[None] * bound)
    except TypeError:
        return False
    except ValueError:  # of a function that has no signature in Python
        return True
    return True


def saved(**owners: Any) -> dict[str, Any]:
    """Return copies of the states of those that have one."""
    return {name: deepcopy(each.state_dict()) for name, each in owners.items() if is_stateful(each)}


def restore(one: Any, state: Any) -> None:
    """Load a state. Raises InvalidOption."""
    if not is_stateful(one):
        raise InvalidOption(
            f"the state holds a state_dict(), which {type(one).__name__} cannot load: it has no load_state_dict()"
        )
    one.load_state_dict(deepcopy(state))


class SamplerStates:
    """The states of a sampler behind each batch of a pass. One thread takes batches, another hands them out.

    Args:
        given: of as_state(), in the state that the pass continues from.
        origin: of the order, where the sampler has no state_dict().
    """

    def __init__(self, given: Mapping[str, Any] | None = None, origin: Origin | None = None) -> None:
        self._given = given
        self._origin = origin or Origin(None, (), {})
        self._sampler: Any = None
        self._iterator: Any = None
        self._noted: deque[dict[str, Any]] = deque()
        self._first = 0  # batches that lie before the first that is noted
        self.samples = 0 if given is None or given.get("between") else int(given.get("samples", 0))
        """How many samples the sampler has given in this epoch."""
        self._ended = False
        self.pending: dict[str, Any] | None = None
        """The sampler's state for the next pass, where this one continues behind its last sample."""

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the iterator: a copy of the loader begins another."""
        return {**vars(self), "_iterator": None}

    @property
    def resumes(self) -> bool:
        """Whether the sampler continues from its own state."""
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
        self._origin.begin()
        draws_later = isgeneratorfunction(getattr(type(sampler), "__iter__", None))  # as torch's: with the first item
        with nullcontext() if draws_later else self._origin.drawing():
            self._iterator = iter(sampler) if given is None else _restored(sampler, given)
        if is_stateful(sampler) or is_stateful(self._iterator):
            self._note(between=given is None or bool(given.get("between")))
        items = self._anew() if given is not None and given.get("between") else _following(self._iterator)
        self._ended = False
        return self._until_end(items) if self._noted else self._origin.watched(items)

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
        iterator = None if self._iterator is self._sampler else self._iterator
        now = {"between": between, "ended": self._ended, "samples": self.samples}
        self._noted.append(now | saved(sampler=self._sampler, iterator=iterator))

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
    """Return what a loader's state holds of a sampler that no pass has used yet."""
    return {"between": True, **saved(sampler=sampler)} if is_stateful(sampler) else None


def _restored(sampler: Any, given: Mapping[str, Any]) -> Any:
    """Return the iterator of a sampler that continues from a state: the sampler loads its part before iter()."""
    if "sampler" in given:
        restore(sampler, given["sampler"])
    iterator: Any = iter(sampler)
    if "iterator" in given:
        restore(iterator, given["iterator"])
    return iterator
