"""How far a pass has come, as its user sees it; and the state of a loader, for checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from penstock.errors import InvalidOption
from penstock.order import Indices, Order
from penstock.schedule import Schedule
from penstock.streams import Streams

T = TypeVar("T")


class Recording(Protocol):
    """Records what is handed out."""

    def __call__(self, schedule: Schedule, step: int) -> None:
        """Record a step of a pass."""

    @property
    def chain(self) -> str:
        """Return what stands for all that was recorded."""


FORMAT = 1


@dataclass(frozen=True)
class Rest:
    """What is left of an epoch whose dataset has changed: it begins at a position, and has an order of its own."""

    begin: int
    indices: Indices
    """Of the samples that were not handed out, ascending."""
    past: tuple[Mapping[str, Any], ...]
    """What the dataset was: "data", its fingerprint, and "to", the position up to which it was that; in turn."""

    @property
    def end(self) -> int:
        """Return the number of positions of the epoch."""
        return self.begin + len(self.indices)

    def order(self, among: Callable[[], Order]) -> Order:
        """Return the order of the rest: `among` makes one of len(indices) positions."""
        return _RestOrder(self, among())


class _RestOrder:
    def __init__(self, rest: Rest, among: Order) -> None:
        self._rest = rest
        self._among = among

    def take(self, begin: int, count: int) -> Indices:
        return self._rest.indices[self._among.take(begin - self._rest.begin, count)]


@dataclass
class Progress:
    """One pass: what was handed to the user, not what was read ahead. Changed by the iterator that the user calls."""

    epoch: int
    start: int = 0
    """The position of the epoch that the pass began at."""
    skipped: int = 0
    """Batches of a user's sampler that the pass began behind."""
    drawn: dict[str, int] = field(default_factory=dict)
    """Without a seed: what was drawn for the pass, "order" and "base"."""
    chain: bytes | None = None
    """Of the ledger, in the state that the pass goes on from."""
    streams: Streams | None = None
    """Where an iterable dataset is that says so itself."""
    rest: Rest | None = None
    """None: the dataset is what it was when the epoch began."""
    schedule: Schedule | None = None
    """None: a sampler of the user's says what comes."""
    taken: int = 0
    """Batches that came, or failed."""
    handed: int = 0
    """The number of the last batch that came, from 1 on."""
    record: Recording | None = None
    """Writes a batch that came to the ledger."""
    done: bool = False
    """The pass was gone through to its end."""

    @property
    def position(self) -> int:
        """Return how many of the epoch's samples lie before what comes next, on all ranks."""
        return self.start if self.schedule is None else self.schedule.position_after(self.handed)

    def took(self, *, handed: bool) -> None:
        """Count a batch that came, or whose error was raised."""
        self.taken += 1
        if self.streams is not None:
            self.streams.taken()
        if handed:
            self.handed = self.taken
            if self.record is not None and self.schedule is not None:
                self.record(self.schedule, self.handed - 1)


def counted(progress: Progress | None, take: Callable[[], T]) -> T:
    """Return what take() returns, counted."""
    if progress is None:
        return take()
    try:
        batch = take()
    except StopIteration:
        progress.done = True
        raise
    except Exception:
        progress.took(handed=False)
        raise
    progress.took(handed=True)
    return batch


def checked_state(state: Any) -> Mapping[str, Any]:
    """Return a state that state_dict() has made. Raises TypeError, InvalidOption."""
    if not isinstance(state, Mapping):
        raise TypeError(f"a state is what state_dict() returns, not {type(state).__name__}")
    if state.get("format") != FORMAT:
        raise InvalidOption(f"a state of format {state.get('format')!r}: this version reads format {FORMAT}")
    wrong = [name for name in ("epoch", "position", "batches") if not _is_count(state.get(name))]
    wrong += [name for name in ("data", "drawn") if not isinstance(state.get(name), Mapping)]
    past = state.get("past")
    if not isinstance(past, list | tuple) or not all(
        isinstance(one, Mapping) and isinstance(one.get("data"), Mapping) and _is_count(one.get("to")) for one in past
    ):
        wrong.append("past")
    if wrong:
        raise InvalidOption(f"a state whose {wrong[0]!r} is not what state_dict() writes")
    return state


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0
