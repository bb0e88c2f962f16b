"""At which step two runs parted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from penstock.errors import InvalidOption
from penstock.state.ledger.reading import LedgerFile, Record, Records, positions_of, records, unlike, where

#: Facts that say which samples a step holds; ledgers in which one of them differs cannot be compared.
STEP_FACTS = ("batch_size", "rank", "world")


class Verdict(Enum):
    """How two ledgers stand to each other."""

    EQUAL = "equal"
    A_ENDS_FIRST = "a is a prefix of b"
    B_ENDS_FIRST = "b is a prefix of a"
    PARTED = "parted"


@dataclass(frozen=True)
class Comparison:
    """What compare() found."""

    verdict: Verdict
    equal: int
    """Steps that both hold, with equal chains."""
    at: tuple[int, int] | None
    """Epoch and step: the first at which they parted, or that the longer one has alone; None when they are equal."""
    a: Record | None
    """What a holds of that step; None: nothing."""
    b: Record | None
    """What b holds of that step; None: nothing."""
    since: tuple[int, int] | None
    """Where one of them begins, when the other begins before that; its chain covers what is not in the file."""
    facts: tuple[tuple[str, str, str], ...]
    """Name and both values, as JSON, of each fact of the runs that is not the same."""


def compare(a: LedgerFile, b: LedgerFile) -> Comparison:
    """Return at which step two runs parted first: by their surviving lines, steps being matched by (epoch, step).

    Equal chains at one step say that all before it was equal; so a step that only one of them recorded counts only when
    no later step is equal in both. Two million steps take some tenths of a second.
    Raises InvalidOption where they cannot be compared: a fact of STEP_FACTS is not the same, they have no step in
    common, or one begins later than the other, by a chain that does not go on from there.
    """
    facts = unlike(a.run, b.run)
    for name, in_a, in_b in facts:
        if name in STEP_FACTS:
            raise InvalidOption(
                f"{a.path!r} and {b.path!r} cannot be compared: {name} is {in_a} and {in_b}, "
                "so that their steps hold other samples in any case"
            )
    (one, places_one), (two, places_two), since = _common_part(a, b)
    index = np.minimum(np.searchsorted(places_two, places_one), max(len(two) - 1, 0))
    in_one = np.flatnonzero(places_two[index] == places_one) if len(two) else np.empty(0, np.intp)
    in_two = index[in_one]
    if len(a) and len(b) and not len(in_one):
        raise InvalidOption(f"{a.path!r} and {b.path!r} cannot be compared: they have no step in common")
    differs = np.flatnonzero(one["chain"][in_one] != two["chain"][in_two])
    equal = int(differs[0]) if len(differs) else len(in_one)
    next_one, next_two = (int(in_one[equal - 1]) + 1, int(in_two[equal - 1]) + 1) if equal else (0, 0)
    goes_on = next_one < len(one), next_two < len(two)
    verdict = {
        (False, False): Verdict.EQUAL,
        (False, True): Verdict.A_ENDS_FIRST,
        (True, False): Verdict.B_ENDS_FIRST,
        (True, True): Verdict.PARTED,
    }[goes_on]
    nexts = [next(records(line[at : at + 1]), None) for line, at in ((one, next_one), (two, next_two))]
    at = min((record[:2] for record in nexts if record is not None), default=None)
    of_one, of_two = (record if record is not None and record[:2] == at else None for record in nexts)
    return Comparison(verdict, equal, at, of_one, of_two, since, tuple(facts))


_Line = tuple[Records, NDArray[np.uint64]]


def _common_part(a: LedgerFile, b: LedgerFile) -> tuple[_Line, _Line, tuple[int, int] | None]:
    """Return the steps and positions of both from where both have begun; and that place, if one began before it."""
    lines = [(file.steps, positions_of(file.steps)) for file in (a, b)]
    (_, ones), (_, twos) = lines
    if not len(ones) or not len(twos) or ones[0] == twos[0]:
        return lines[0], lines[1], None
    later, begin = (a, ones[0]) if ones[0] > twos[0] else (b, twos[0])
    if not later.continued:
        raise InvalidOption(
            f"{a.path!r} and {b.path!r} cannot be compared: {later.path!r} begins at {where(begin)}, and its "
            "chain does not cover what the other one has before"
        )
    lines = [(steps[skip:], places[skip:]) for steps, places in lines for skip in (np.searchsorted(places, begin),)]
    return lines[0], lines[1], (int(begin) >> 32, int(begin) & 0xFFFFFFFF)
