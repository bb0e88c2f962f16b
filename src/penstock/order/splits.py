"""Proportions that are exact over any window: a tree of splits, each of them Bresenham's line.

A split sends m of every n consecutive positions to its left side, evenly: of the first p positions it has got
floor(p * m / n). So of any window of w positions each side gets its part of w within 1, and the positions that one
side gets are again consecutive, counted on that side: they are split again in the same way. (Splits by floor are
Sturmian sequences; Lothaire, "Algebraic Combinatorics on Words", chapter 2.) Numbers only; nothing is held but
the tree.

How far a leaf is off: a window holds less than 1 + r * d more or fewer positions of a side than the side's part of
the window, where r is the side's part of its node and d the same number for that node, 0 for the root. For a leaf of
share s this comes to 1 + the sum of s / t over the shares t of the nodes between it and the root.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import count as counting
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.order.permutations import Indices

# Products of positions and shares stay below this.
_LARGEST: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Leaf:
    """One of what is mixed."""

    number: int
    units: int
    """Its share, in parts of the root's."""


@dataclass(frozen=True, slots=True)
class Split:
    """Two sides that share positions."""

    left: Split | Leaf
    right: Split | Leaf
    units: int
    """The share of both."""


def split_tree(units: Sequence[int]) -> Split | Leaf:
    """Return the tree for shares that are given as whole numbers of at least 1 with a sum of at most 2^52."""
    by_share = sorted(range(len(units)), key=lambda i: -units[i])
    leaves = [Leaf(i, units[i]) for i in by_share]
    if len(leaves) == 1:
        return leaves[0]
    # Up to four leaves can be off by less than 2, most others as well.
    for eighths in counting(0 if len(leaves) <= 4 else 8):
        if (tree := _within(leaves, eighths / 8)) is not None:
            return tree
    raise AssertionError  # counting has no end


def _within(leaves: list[Leaf], excess: float) -> Split | None:
    """Return a tree in which each leaf is off by at most 1 + excess, or None.

    Leaves stay sorted by share. What a subtree leaves of its leaves' excesses, divided by their shares, for the nodes
    above it, is best where it is best for its two sides: so the best tree of each run of leaves is built from the best
    of shorter ones.
    """
    size = len(leaves)
    total = float(sum(leaf.units for leaf in leaves))
    ends = np.cumsum([0.0, *(leaf.units / total for leaf in leaves)])
    spare = np.full((size + 1, size + 1), -np.inf)  # [i, j]: of the leaves i to j - 1
    cuts = np.zeros((size + 1, size + 1), dtype=np.int64)
    for i, leaf in enumerate(leaves):
        spare[i, i + 1] = excess * total / leaf.units
    for length in range(2, size + 1):
        for i in range(size - length + 1):
            j = i + length
            best = np.minimum(spare[i, i + 1 : j], spare[i + 1 : j, j])
            cuts[i, j] = i + 1 + int(best.argmax())
            spare[i, j] = best.max() - (1.0 / (ends[j] - ends[i]) if length < size else 0.0)
    return _cut(leaves, cuts, 0, size) if spare[0, size] >= 0 else None


def _cut(leaves: list[Leaf], cuts: NDArray[np.int64], i: int, j: int) -> Split:
    middle = int(cuts[i, j])
    left = leaves[i] if middle - i == 1 else _cut(leaves, cuts, i, middle)
    right = leaves[middle] if j - middle == 1 else _cut(leaves, cuts, middle, j)
    return Split(left, right, left.units + right.units)


def bound(tree: Split | Leaf) -> float:
    """Return the number of positions that the leaves are off by less than, in any window.

    It is 1 for one leaf or two, at most 2 for three or four, and rounded up to a multiple of 1/8.
    """

    def sums(node: Split | Leaf, above: Fraction) -> Iterator[Fraction]:
        if isinstance(node, Leaf):
            yield above * node.units
            return
        total = above + (0 if node is tree else Fraction(1, node.units))
        yield from sums(node.left, total)
        yield from sums(node.right, total)

    return 1 + math.ceil(8 * max(sums(tree, Fraction(0)))) / 8


def depth_first(tree: Split | Leaf, begin: int, count: int) -> Iterator[tuple[int, int, Indices]]:
    """Yield who gets positions begin to begin + count - 1: (leaf, number of the first among the leaf's, places).

    places: the positions of one leaf, counted from begin. A leaf may come more than once, with later positions.
    """
    longest = _LARGEST // tree.units
    for first in range(0, count, longest):
        places = np.arange(first, min(first + longest, count), dtype=np.int64)
        yield from _deal(tree, begin + first, places)


def _deal(node: Split | Leaf, begin: int, places: Indices) -> Iterator[tuple[int, int, Indices]]:
    if not len(places):
        return
    if isinstance(node, Leaf):
        yield node.number, begin, places
        return
    before, rest = divmod(begin * node.left.units, node.units)
    to_left = (rest + node.left.units * np.arange(len(places) + 1, dtype=np.int64)) // node.units
    left = np.diff(to_left) == 1
    yield from _deal(node.left, before, places[left])
    yield from _deal(node.right, begin - before, places[~left])


def first_positions(tree: Split | Leaf, numbers: Sequence[int]) -> list[int]:
    """Return, for each leaf i, which position of the whole is its position numbers[i], both counted from 0."""

    def ascend(node: Split | Leaf) -> dict[int, int]:
        """Return the position on this node by leaf."""
        if isinstance(node, Leaf):
            return {node.number: numbers[node.number]}
        left, whole = node.left.units, node.units
        positions = {leaf: -(-(n + 1) * whole // left) - 1 for leaf, n in ascend(node.left).items()}
        right = {leaf: n * whole // (whole - left) for leaf, n in ascend(node.right).items()}
        return positions | right

    positions = ascend(tree)
    return [positions[leaf] for leaf in range(len(numbers))]
