"""Several datasets mixed by proportions that are exact over any window of an epoch's order.

The order is a tree of splits, each of them Bresenham's line. A split sends m of every n consecutive positions to its
left side, evenly: of the first p positions it has got floor(p * m / n). So of any window of w positions each side gets
its part of w within 1, and the positions that one side gets are again consecutive, counted on that side: they are split
again in the same way. (Splits by floor are Sturmian sequences; Lothaire, "Algebraic Combinatorics on Words", chapter
2.)

How far a leaf is off: a window holds less than 1 + r * d more or fewer positions of a side than the side's part of the
window, where r is the side's part of its node and d the same number for that node, 0 for the root. For a leaf of share
s this comes to 1 + the sum of s / t over the shares t of the nodes between it and the root.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from numbers import Rational, Real
from typing import Any, Final, TypeVar

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset

from penstock.errors import InvalidOption
from penstock.order.permutations import (
    Indices,
    KeyedSampler,
    KeyedShuffle,
    check_positions,
    checked_count,
    derived_seed,
)

T_co = TypeVar("T_co", covariant=True)

# Shares are multiples of one part in this many where their own denominators are greater: products with the positions
# that are asked for at once stay below 2^62.
_PARTS: Final = 1 << 31


class Mix(ConcatDataset[T_co]):
    """A dataset that mixes several datasets in given proportions.

    As a dataset it is torch's ConcatDataset, so that a sample keeps its name. The proportions are in the order.
    ``penstock.DataLoader(mix, shuffle=...)`` takes `sampler()` by itself; torch's loader is refused without it, because
    it would give each sample of each dataset once.

    Of any n consecutive positions, within an epoch or over the end of one, the number that fall to a dataset differs
    from n * share by less than `bound`: 1 for two datasets, at most 2 for three, and below 3 for all of the 20,000
    lists of up to 16 shares that were tried. Any position is found at once, in constant memory.

    Each dataset is read in rounds: every sample once, by a permutation keyed by (seed, dataset, round) or in sequence.
    Epochs of one seed continue where the epoch before stopped; where each pass has another seed, as with seed=None,
    each pass has its own permutations.

    Args:
        parts: by name, in order: (dataset, share). A float means the decimal fraction that it prints as: 0.7, 0.2 and
            0.1 are exactly 7 : 2 : 1. Shares whose common denominator is over 2^31 are rounded to multiples of 2^-31.
        length: samples in an epoch. None: as many as the first epoch can have before a sample of any dataset comes a
            second time. To go through every dataset in the first epoch, give max((len(dataset) + bound) / share),
            rounded up.

    Attributes:
        names: of the datasets; datasets, cumulative_sizes: as in ConcatDataset.
        shares: exact fractions with the sum 1.
        length: samples in an epoch, which is not len(mix): that is the number of samples in all datasets.
        bound: of the deviation in any window.

    Raises InvalidOption, TypeError: see docs/order.md; and InvalidOption for a share below 2^-31 of the sum.
    """

    def __init__(self, parts: Mapping[str, tuple[Dataset[T_co], float]], *, length: int | None = None) -> None:
        given = _checked(parts)
        super().__init__([dataset for dataset, _ in given.values()])
        self.names = tuple(given)
        units = _units({name: share for name, (_, share) in given.items()})
        total = sum(units)
        self.shares = tuple(Fraction(unit, total) for unit in units)
        leaves = [Node(unit, number) for number, unit in enumerate(units)]
        self._tree = _split(sorted(leaves, key=lambda leaf: -leaf.units))
        self.bound = _bound(self._tree)
        sizes = [len(dataset) for dataset in self.datasets]  # type: ignore[arg-type]
        self.length = _first_repeat(self._tree, sizes) if length is None else checked_count("length", length)

    _sampled = False  # sampler() was called

    @property
    def __getitems__(self) -> None:
        """None: samples are read one by one. Loaders ask for it when they read a batch. Raises InvalidOption."""
        if not self._sampled:
            raise InvalidOption(
                "this Mix is read without its sampler, and nothing would be mixed: give torch's loader "
                "sampler=mix.sampler(), or torch.utils.data.ConcatDataset(mix.datasets) for each sample once"
            )

    def order(self, seed: int, epoch: int, *, shuffle: bool = True) -> MixOrder:
        """Return an epoch's indices into the concatenation, by position.

        shuffle: each dataset's rounds are permutations; False: each dataset comes in sequence.
        """
        return MixOrder(self._tree, self.cumulative_sizes, self.length, seed if shuffle else None, epoch)

    def sampler(self, *, shuffle: bool = True, generator: torch.Generator | None = None) -> MixSampler:
        """Return the sampler that draws from this dataset by its proportions; see `order` and KeyedSampler."""
        self._sampled = True
        return MixSampler(self, shuffle=shuffle, generator=generator)

    def __repr__(self) -> str:
        parts = zip(self.names, self.datasets, self.shares, strict=True)
        texts = (f"{name}: {float(share):.3g} of {len(part)}" for name, part, share in parts)  # type: ignore[arg-type]
        return f"Mix({', '.join(texts)}; {self.length} an epoch)"


class MixSampler(KeyedSampler):
    """The indices of a Mix's samples, in its order."""

    def __init__(self, mix: Mix[Any], *, shuffle: bool = True, generator: torch.Generator | None = None) -> None:
        super().__init__(generator)
        self.mix = mix
        self.shuffle = shuffle

    def __len__(self) -> int:
        return self.mix.length

    def fingerprint(self) -> str:
        what = ["halves", self.mix.length, self.shuffle, *map(str, self.mix.shares)]
        return hashlib.blake2b(repr(what).encode(), digest_size=8).hexdigest()

    def drawn_from(self) -> Sequence[int]:
        return range(len(self.mix))

    def order(self, seed: int, epoch: int) -> MixOrder:
        return self.mix.order(seed, epoch, shuffle=self.shuffle)


class MixOrder:
    """The indices of one epoch into the concatenation of a Mix's datasets.

    It holds one permutation a dataset, at most 8 KiB. One thread uses it.
    """

    def __init__(self, tree: Node, ends: list[int], length: int, seed: int | None, epoch: int) -> None:
        self._tree, self._length = tree, length
        self._begin = epoch * length  # positions are counted through all epochs
        self._begins = begins = [0, *ends[:-1]]
        self._sizes = sizes = [end - begin for begin, end in zip(begins, ends, strict=True)]

        def shuffled(number: int, turn: int) -> KeyedShuffle:
            return KeyedShuffle(sizes[number], derived_seed(seed or 0, number, b"mixed by"), turn)

        self._shuffled = None if seed is None else lru_cache(len(ends))(shuffled)

    def take(self, begin: int, count: int) -> Indices:
        check_positions(begin, count, self._length)
        out = np.empty(count, dtype=np.int64)
        for number, first, places in _deal(self._tree, self._begin + begin, np.arange(count, dtype=np.int64)):
            out[places] = self._begins[number] + self._samples(number, first, len(places))
        return out

    def _samples(self, number: int, begin: int, count: int) -> Indices:
        """Return the samples of one dataset at its consecutive positions, round after round."""
        size = self._sizes[number]
        if self._shuffled is None or size == 1:
            return (begin % size + np.arange(count, dtype=np.int64)) % size
        parts = []
        while count:
            turn, inside = divmod(begin, size)
            taken = min(count, size - inside)
            parts.append(self._shuffled(number, turn).take(inside, taken))
            begin, count = begin + taken, count - taken
        return np.concatenate(parts)


def _checked(parts: object) -> dict[str, tuple[Any, Any]]:
    if not isinstance(parts, Mapping):
        raise TypeError(f"Mix takes {{name: (dataset, share)}}, not {type(parts).__name__}")
    if not parts:
        raise InvalidOption("Mix has no datasets: give {name: (dataset, share)}")
    for name, part in parts.items():
        if not isinstance(name, str) or not isinstance(part, tuple) or len(part) != 2:
            raise TypeError(f"Mix takes {{name: (dataset, share)}}; {name!r} is given as {type(part).__name__}")
        dataset, _ = part
        if isinstance(dataset, IterableDataset):
            raise InvalidOption(f"dataset {name!r} is an IterableDataset, which has no sample at a position")
        if isinstance(dataset, Mix):
            raise InvalidOption(
                f"dataset {name!r} is itself a Mix, whose shares would not count: give its datasets, with their shares "
                f"multiplied by that of {name!r}"
            )
        if not hasattr(dataset, "__len__"):
            raise TypeError(f"dataset {name!r} ({type(dataset).__name__}) has no length")
        if not len(dataset):
            raise InvalidOption(f"dataset {name!r} is empty: no share can be drawn from it")
    return dict(parts)


def _fraction(name: str, share: object) -> Fraction:
    if isinstance(share, bool) or not isinstance(share, Real):
        raise TypeError(f"the share of {name!r} is {share!r}, which is not a number")
    if not (isinstance(share, Rational) or math.isfinite(share)) or share <= 0:
        raise InvalidOption(f"the share of {name!r} is {share}: shares are positive and finite")
    if isinstance(share, Rational):
        return Fraction(int(share.numerator), int(share.denominator))
    return Fraction(str(float(share)))


def _units(shares: Mapping[str, object]) -> list[int]:
    """Return the shares as whole numbers, with a sum of at most _PARTS."""
    given = {name: _fraction(name, share) for name, share in shares.items()}
    total = sum(given.values())
    parts = math.lcm(*((share / total).denominator for share in given.values()))
    if parts > _PARTS:
        for name, share in given.items():
            if share * _PARTS < total:
                raise InvalidOption(f"the share of {name!r} is too small: {shares[name]}, below 2^-31 of the sum")
    return [int(share / total * min(parts, _PARTS)) for share in given.values()]


# --- splits -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Node:
    """One of what is mixed, or two sides that share positions."""

    units: int
    """Its share, in parts of the root's."""
    number: int = -1
    """Which one of what is mixed; -1: two sides."""
    sides: tuple[Node, ...] = ()


def _split(leaves: Sequence[Node]) -> Node:
    """Return the tree of leaves in descending order of shares: those that have half of their sum go to the left."""
    if len(leaves) == 1:
        return leaves[0]
    sums = list(accumulate(leaf.units for leaf in leaves))
    middle = min(bisect_left(sums, sums[-1] / 2) + 1, len(leaves) - 1)
    return Node(sums[-1], sides=(_split(leaves[:middle]), _split(leaves[middle:])))


def _bound(tree: Node) -> float:
    """Return what no leaf is off by as many positions in any window: 1 for up to two leaves, a multiple of 1/8."""

    def largest(node: Node, above: Fraction) -> Fraction:
        if not node.sides:
            return above * node.units
        total = above + (0 if node is tree else Fraction(1, node.units))
        return max(largest(side, total) for side in node.sides)

    return 1 + math.ceil(8 * largest(tree, Fraction(0))) / 8


def _deal(node: Node, begin: int, places: Indices) -> Iterator[tuple[int, int, Indices]]:
    """Yield who gets positions begin to begin + len(places) - 1: (leaf, number of the first among the leaf's, places).

    places: replaces these positions; each leaf gets a part of them, in their order.
    """
    if not len(places):
        return
    if not node.sides:
        yield node.number, begin, places
        return
    left, right = node.sides
    before, rest = divmod(begin * left.units, node.units)
    to_left = np.diff((rest + left.units * np.arange(len(places) + 1, dtype=np.int64)) // node.units) == 1
    yield from _deal(left, before, places[to_left])
    yield from _deal(right, begin - before, places[~to_left])


def _first_repeat(node: Node, sizes: Sequence[int]) -> int:
    """Return the first position, counted on this node, at which a leaf i has had sizes[i] positions before."""
    if not node.sides:
        return sizes[node.number]
    left, right = node.sides
    by_left = -(-(_first_repeat(left, sizes) + 1) * node.units // left.units) - 1
    return min(by_left, _first_repeat(right, sizes) * node.units // right.units)
