"""The first step at which two runs parted."""

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
    no later step is equal in both. Two million steps take a second or two.
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
    _, in_one, in_two = np.intersect1d(places_one, places_two, assume_unique=True, return_indices=True)
    if len(a) and len(b) and not len(in_one):
        raise InvalidOption(f"{a.path!r} and {b.path!r} cannot be compared: they have no step in common")
    differs = np.flatnonzero(one["chain"][in_one] != two["chain"][in_two])
    equal = int(differs[0]) if len(differs) else len(in_one)
    next_one, next_two = (int(in_one[equal - 1]) + 1, int(in_two[equal - 1]) + 1) if equal else (0, 0)
    nexts = [next(records(line[at : at + 1]), None) for line, at in ((one, next_one), (two, next_two))]
    if nexts[1] is None:
        verdict = Verdict.EQUAL if nexts[0] is None else Verdict.B_ENDS_FIRST
    else:
        verdict = Verdict.A_ENDS_FIRST if nexts[0] is None else Verdict.PARTED
    at = min((record[:2] for record in nexts if record is not None), default=None)
    of_one, of_two = (record if record is not None and record[:2] == at else None for record in nexts)
    return Comparison(verdict, equal, at, of_one, of_two, since, tuple(facts))


_Line = tuple[Records, NDArray[np.uint64]]


def _common_part(a: LedgerFile, b: LedgerFile) -> tuple[_Line, _Line, tuple[int, int] | None]:
    """Return the steps and positions of both from where both have begun; and that place, if one began before it."""
    ones, twos = positions_of(a.steps), positions_of(b.steps)
    if not len(ones) or not len(twos) or ones[0] == twos[0]:
        return (a.steps, ones), (b.steps, twos), None
    later, begin = (a, ones[0]) if ones[0] > twos[0] else (b, twos[0])
    if not later.continued:
        raise InvalidOption(
            f"{a.path!r} and {b.path!r} cannot be compared: {later.path!r} begins at {where(begin)}, and its "
            "chain does not cover what the other one has before"
        )
    one, two = ones >= begin, twos >= begin
    return (a.steps[one], ones[one]), (b.steps[two], twos[two]), (int(begin) >> 32, int(begin) & 0xFFFFFFFF)
