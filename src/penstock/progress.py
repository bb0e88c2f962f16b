"""How far a pass has come, as its user sees it; and the state of a loader, for checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from penstock.errors import InvalidOption
from penstock.schedule import Schedule

T = TypeVar("T")


class Recording(Protocol):
    """Records what is handed out."""

    def __call__(self, schedule: Schedule, step: int) -> None:
        """Record a step of a pass."""

    @property
    def chain(self) -> str:
        """Return what stands for all that was recorded."""


FORMAT = 1


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
    numbers = {name: state.get(name) for name in ("epoch", "position", "batches")}
    wrong = [name for name, value in numbers.items() if type(value) is not int or value < 0]
    if wrong or not isinstance(state.get("data"), Mapping) or not isinstance(state.get("drawn"), Mapping):
        raise InvalidOption(f"a state whose {wrong[0] if wrong else 'data'} is not what state_dict() writes")
    return state
