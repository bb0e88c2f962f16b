"""Two settings of a loader's threads compared in turns, by what the loop does in windows of its time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import median

from penstock.loop_times import LoopTimes

#: By this factor a loop must be faster to be worth a change, and by this one it may be slower for fewer threads.
FASTER, AS_FAST = 1.05, 0.99
#: A setting that makes the loop so much slower is not tried for another window.
HOPELESS = 0.8
#: Windows of either setting, in turns.
ROUNDS = 3


@dataclass(frozen=True)
class Setting:
    """What is tuned."""

    threads: int
    """How many threads may fill batches."""
    in_flight: int | None = None
    """Batches in flight; None: as chosen by their size."""


@dataclass(frozen=True)
class Span:
    """What a loop did in a window of its time."""

    batches: int
    waited: float
    worked: float
    rare: float
    """The share of the batches that half of the wait was for, those with the longest waits."""

    @property
    def seconds(self) -> float:
        """The loop's time."""
        return self.waited + self.worked

    @property
    def rate(self) -> float:
        """Batches a second."""
        return self.batches / self.seconds

    @property
    def share(self) -> float:
        """The share of the time that the loop waited."""
        return self.waited / self.seconds


def span_between(begin: LoopTimes, end: LoopTimes) -> Span:
    """Return what a loop did between two readings of its times."""
    waits = [after - before for before, after in zip(begin.waits, end.waits, strict=True)]
    batches = sum(waits)
    waited = end.steady_waited - begin.steady_waited
    half, longest = waited / 2, 0
    for group in reversed(range(len(waits))):
        each = 0.75e-6 * (1 << group)  # of waits up to 2 to the power of the group, in microseconds
        enough = math.ceil(half / each)
        longest += min(waits[group], enough)
        if waits[group] >= enough:
            break
        half -= waits[group] * each
    return Span(batches, waited, end.worked - begin.worked, longest / max(1, batches))


@dataclass(frozen=True)
class Candidate:
    """A setting that is worth a trial."""

    setting: Setting
    least: float
    """The rate that it must reach, as a factor of the rate with the setting in use."""
    why: str
    batches: int = 0
    """The batches of a window, where long waits are rare; 0: as usual."""


@dataclass
class Trial:
    """Two settings in turns: the one in use, the candidate, the one in use, ..."""

    before: Setting
    candidate: Candidate
    rates: list[float] = field(default_factory=list)

    @property
    def setting(self) -> Setting:
        """Whose turn it is."""
        return self.candidate.setting if len(self.rates) % 2 else self.before

    @property
    def deepens(self) -> bool:
        """Whether the settings differ in the number of batches in flight."""
        return self.candidate.setting.in_flight != self.before.in_flight

    @property
    def factors(self) -> list[float]:
        """The rate with the candidate over the one before, of each round."""
        return [after / before for before, after in zip(self.rates[::2], self.rates[1::2], strict=False)]

    @property
    def decided(self) -> bool:
        """Whether nothing more need be measured."""
        return len(self.factors) == ROUNDS or (bool(self.factors) and self.factors[-1] < HOPELESS)

    @property
    def better(self) -> bool:
        """Whether the candidate is better: other threads that are to be faster are so in every round."""
        factors, least = self.factors, self.candidate.least
        every = least < 1 or self.deepens or min(factors) > 1
        return len(factors) == ROUNDS and median(factors) >= least and every
