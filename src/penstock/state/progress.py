"""What of a pass was handed out, as its user counts it; and the check of a loader's state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import InvalidOption
from penstock.observe import Delivery, Observer
from penstock.order.leftover import WHOLE, Arrivals, Leftover, step_of
from penstock.order.schedule import Steps
from penstock.state.samplers import Origin, SamplerStates
from penstock.state.streams import Streams

#: The format of states.
FORMAT = 1


@dataclass
class Progress(Observer):
    """One pass: what was handed to the user, not what was read ahead. Changed by the iterator that the user calls."""

    epoch: int
    left: Leftover = WHOLE
    """What was left of the epoch when the pass began, by the state that it goes on from."""
    skipped: int = 0
    """Samples, or batches, of a user's sampler that the pass began behind."""
    drawn: dict[str, int] = field(default_factory=dict)
    """Without a seed: what was drawn for the pass, "order" and "base"."""
    streams: Streams | None = None
    """The dataset's states in the workers, where it has any."""
    samplers: SamplerStates | None = None
    """The states of a user's sampler."""
    origin: Origin | None = None
    """What the order is drawn from, where a user's sampler or generator draws it."""
    unit: int = 1
    """What a batch counts in `skipped` and `left` where a user's sampler gives the batches: its samples; 1: one."""
    arrivals: Arrivals | None = None
    """Which batches came; None: they come in order."""
    schedule: Steps | None = None
    """None: a user's sampler gives the batches."""
    taken: int = 0
    """Batches that came, or failed."""
    handed: int = 0
    """The number of the last batch that came, from 1 on."""
    done: bool = False
    """The pass was gone through to its end."""
    named: bool = False
    """set_epoch() has said which epoch it is of."""

    @property
    def latest(self) -> int:
        """Return which step of the schedule was handed out last, -1 before the first."""
        latest = self.handed - 1 if self.arrivals is None else self.arrivals.latest
        return step_of(self.left.early, latest)

    @property
    def missing(self) -> int:
        """Return the first step, counted from where the pass began, that was not handed out."""
        return step_of(self.left.early, self.handed if self.arrivals is None else self.arrivals.prefix)

    @property
    def coming(self) -> int:
        """Return which batch of the schedule is handed out next."""
        return step_of(self.left.early, self.taken if self.arrivals is None else self.arrivals.coming)

    @property
    def position(self) -> int:
        """Return how many of the epoch's samples lie before the first that is missing, on all ranks."""
        return self.left.start if self.schedule is None else self.schedule.position_after(self.missing)

    @property
    def given(self) -> int:
        """Return how many samples, or batches, of a user's sampler lie before the first that is missing."""
        return 0 if self.schedule is not None else self.skipped + self.missing * self.unit

    def handed_early(self) -> list[int]:
        """Return which of the steps behind the first that is missing were handed out, counted from that one."""
        early, missing = self.left.early, self.missing
        came = [] if self.arrivals is None else [step_of(early, batch) for batch in self.arrivals.early()]
        return sorted(step - missing for step in (*early, *came) if step > missing)

    def delivered(self, delivery: Delivery) -> None:
        """Count a batch that came."""
        self._took(handed=True)
        self.handed = self.taken
        if self.samplers is not None:
            self.samplers.handed(self.missing)

    def failed(self, error: Exception) -> None:
        """Count a batch whose error was raised."""
        self._took(handed=False)

    def ended(self) -> None:
        """Note that the pass was gone through to its end."""
        self.done = True
        if self.streams is not None:
            self.streams.finish()

    def _took(self, *, handed: bool) -> None:
        self.taken += 1
        if self.streams is not None:
            self.streams.taken()
        if self.arrivals is not None:
            self.arrivals.took(handed=handed)


def checked_state(state: Any) -> Mapping[str, Any]:
    """Return a state that state_dict() has made. Raises TypeError, InvalidOption."""
    if not isinstance(state, Mapping):
        raise TypeError(f"a state is what state_dict() returns, not {type(state).__name__}")
    if state.get("format") != FORMAT:
        raise InvalidOption(f"a state of format {state.get('format')!r}: this version reads format {FORMAT}")
    wrong = [name for name in ("epoch", "position", "batches") if not is_count(state.get(name))]
    wrong += [name for name in ("data", "drawn") if not isinstance(state.get(name), Mapping)]
    if wrong:
        raise InvalidOption(f"a state whose {wrong[0]!r} is not what state_dict() writes")
    return state


def is_count(value: object) -> bool:
    """Return whether a value is an int of 0 or more."""
    return type(value) is int and value >= 0
