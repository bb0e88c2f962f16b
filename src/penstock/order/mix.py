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
from itertools import accumulate
from numbers import Rational, Real
from typing import Any, Final, TypeVar

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset

from penstock.errors import InvalidOption
from penstock.order.keyed import KeyedSampler, check_positions, checked_count
from penstock.order.permutations import Indices, KeyedShuffle
from penstock.system.randomness import digest

T_co = TypeVar("T_co", covariant=True)

# Shares are multiples of one part in this many where their own denominators are greater.
_PARTS: Final = 1 << 52


class Mix(ConcatDataset[T_co]):
    """Several datasets, drawn from by proportions.

    As a dataset it is torch's ConcatDataset: sample i is sample i of the concatenation in every epoch, so that a sample
    keeps its name. The proportions are in the order. ``penstock.DataLoader(mix, shuffle=...)`` takes `sampler()` by
    itself; torch's loader needs it: ``DataLoader(mix, sampler=mix.sampler())``, and is refused without it, because it
    would give each sample of each dataset once. (For that, give it ``ConcatDataset(mix.datasets)``.)

    Of any n consecutive positions, within an epoch or over the end of one, the number that fall to a dataset differs
    from n * share by less than `bound`: 1 for two datasets, at most 2 for three, and below 3 for all of the 20,000
    lists of up to 16 shares that were tried. Each batch is such a window, and so is each rank's part of it where ranks
    take contiguous parts. Any position is found at once, in constant memory.

    Each dataset is gone through in rounds: every sample once, by a permutation keyed by (seed, dataset, round) or in
    sequence; then the next round begins. Epochs of one seed go on where the epoch before stopped. So a small dataset
    with a large share comes several times in an epoch, and a large one with a small share is spread over several
    epochs, with nothing left out and nothing repeated before its round is through. (Where each pass has another seed,
    as with seed=None, each pass has permutations of its own.)

    Args:
        parts: by name, in order: (dataset, share). Shares are positive numbers of any sum. A float means the decimal
            fraction that it prints as: 0.7, 0.2 and 0.1 are exactly 7 : 2 : 1. Shares whose common denominator is over
            2^52 are rounded to multiples of 2^-52.
        length: samples in an epoch. None: as many as the first epoch can have before a sample of any dataset comes a
            second time, which is about min(len(dataset) / share). To go through every dataset in the first epoch, give
            max((len(dataset) + bound) / share), rounded up.

    Attributes:
        names: of the datasets; datasets, cumulative_sizes: as in ConcatDataset.
        shares: exact fractions with the sum 1.
        length: samples in an epoch, which is not len(mix): that is the number of samples in all datasets.
        bound: of the deviation in any window.

    Raises:
        InvalidOption: no datasets; one that is empty, iterable, or itself a Mix; a share that is not positive and
            finite, or below 2^-53 of the sum; length below 1; a batch is read, and sampler() was never called.
        TypeError: parts or shares of another type; a dataset without a length.
    """

    def __init__(self, parts: Mapping[str, tuple[Dataset[T_co], float]], *, length: int | None = None) -> None:
        given = _checked(parts)
        super().__init__([dataset for dataset, _ in given.values()])
        self.names = tuple(given)
        units = _units({name: share for name, (_, share) in given.items()})
        total = sum(units)
        self.shares = tuple(Fraction(unit, total) for unit in units)
        self._tree = split_tree(units)
        self.bound = bound(self._tree)
        sizes = [len(dataset) for dataset in self.datasets]  # type: ignore[arg-type]
        # By default the first position at which a sample comes a second time.
        self.length = min(first_positions(self._tree, sizes)) if length is None else checked_count("length", length)

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

    def __init__(self, tree: Split | Leaf, ends: list[int], length: int, seed: int | None, epoch: int) -> None:
        self._tree = tree
        self._length = length
        self._begin = epoch * length  # positions are counted through all epochs
        self._rounds = [
            _Rounds(begin, end - begin, None if seed is None else _key(seed, number))
            for number, (begin, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True))
        ]

    def take(self, begin: int, count: int) -> Indices:
        check_positions(begin, count, self._length)
        out = np.empty(count, dtype=np.int64)
        for leaf, first, places in depth_first(self._tree, self._begin + begin, count):
            out[places] = self._rounds[leaf].take(first, len(places))
        return out


class _Rounds:
    """The samples of one dataset, round after round."""

    def __init__(self, offset: int, size: int, key: int | None) -> None:
        self._offset = offset
        self._size = size
        self._key = key
        self._round = -1
        self._shuffle: KeyedShuffle | None = None

    def take(self, begin: int, count: int) -> Indices:
        if self._key is None or self._size == 1:
            return self._offset + (begin % self._size + np.arange(count, dtype=np.int64)) % self._size
        out = np.empty(count, dtype=np.int64)
        done = 0
        while done < count:
            number, inside = divmod(begin + done, self._size)
            if number != self._round or self._shuffle is None:
                self._round, self._shuffle = number, KeyedShuffle(self._size, self._key, number)
            taken = min(count - done, self._size - inside)
            out[done : done + taken] = self._shuffle.take(inside, taken)
            done += taken
        out += self._offset
        return out


def _key(seed: int, number: int) -> int:
    """Return the seed of one dataset's permutations; the name sets its digest apart from those of samples."""
    return int.from_bytes(digest(seed, number, int.from_bytes(b"mixed by", "little"))[:8], "little")


def _checked(parts: object) -> dict[str, tuple[Any, Any]]:
    if not isinstance(parts, Mapping):
        raise TypeError(f"Mix takes {{name: (dataset, share)}}, not {type(parts).__name__}")
    if not parts:
        raise InvalidOption("Mix has no datasets: give {name: (dataset, share)}")
    for name, part in parts.items():
        if not isinstance(name, str):
            raise TypeError(f"the name {name!r} of a dataset is no string")
        if not isinstance(part, tuple) or len(part) != 2:
            raise TypeError(f"{name!r} is given as {type(part).__name__}: (dataset, share) is needed")
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
        raise TypeError(f"the share of {name!r} is {share!r}, which is no number")
    if not (isinstance(share, Rational) or math.isfinite(share)) or share <= 0:
        raise InvalidOption(f"the share of {name!r} is {share}: shares are positive and finite")
    if isinstance(share, Rational):
        return Fraction(int(share.numerator), int(share.denominator))
    return Fraction(str(float(share)))


def _units(shares: Mapping[str, object]) -> list[int]:
    """Return the shares as whole numbers, with a sum of at most _PARTS."""
    exact = [_fraction(name, share) for name, share in shares.items()]
    denominator = math.lcm(*(share.denominator for share in exact))
    units = [share.numerator * (denominator // share.denominator) for share in exact]
    common = math.gcd(*units)
    units = [unit // common for unit in units]
    total = sum(units)
    if total <= _PARTS:
        return units
    for (name, share), unit in zip(shares.items(), units, strict=True):
        if unit * _PARTS < total:
            raise InvalidOption(f"the share of {name!r} is too small: {share}, below 2^-52 of the sum")
    return [unit * _PARTS // total for unit in units]


# --- splits -----------------------------------------------------------------------------------------------------------

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
    return _split([Leaf(i, units[i]) for i in sorted(range(len(units)), key=lambda i: -units[i])])


def _split(leaves: list[Leaf]) -> Split | Leaf:
    """Return the tree of leaves in descending order of shares: those that have half of their sum go to the left."""
    if len(leaves) == 1:
        return leaves[0]
    sums = list(accumulate(leaf.units for leaf in leaves))
    middle = min(bisect_left(sums, sums[-1] / 2) + 1, len(leaves) - 1)
    return Split(_split(leaves[:middle]), _split(leaves[middle:]), sums[-1])


def bound(tree: Split | Leaf) -> float:
    """Return the number of positions that the leaves are off by less than, in any window.

    It is 1 for one leaf or two, and rounded up to a multiple of 1/8.
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
