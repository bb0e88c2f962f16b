"""Mix: proportions over all windows, rounds of each dataset, torch's DataLoader, and what is refused."""

from __future__ import annotations

import itertools
import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Sampler

import penstock
from penstock import Mix
from penstock.errors import InvalidOption
from tests.data import Stream, rows
from tests.values import flat, taken

pytestmark = pytest.mark.native


def made(shares: list[Any], sizes: list[int] | None = None, length: int | None = None) -> Mix[Any]:
    sizes = sizes or [7 + i for i in range(len(shares))]
    return Mix({f"d{i}": (rows(n), s) for i, (n, s) in enumerate(zip(sizes, shares, strict=True))}, length=length)


def parts_of(mix: Mix[Any], indices: np.ndarray) -> np.ndarray:
    return np.searchsorted(mix.cumulative_sizes, indices, side="right")


def deviations(mix: Mix[Any], drawn: np.ndarray) -> list[Fraction]:
    """Return, for each dataset, the greatest deviation from n * share in any window of these positions, exactly."""
    found = []
    for number, share in enumerate(mix.shares):
        counts = [0, *itertools.accumulate((parts_of(mix, drawn) == number).astype(int).tolist())]
        off = [count - p * share for p, count in enumerate(counts)]  # a window's is the difference of its ends'
        found.append(max(off) - min(off))
    return found


ODD = st.sampled_from([0.1, 0.2, 0.25, 0.3, 0.5, 0.7, 1e-4, Fraction(1, 3), 1000, 2.0**0.5, 3.0**0.5])
exact_shares = st.lists(st.one_of(st.integers(1, 12), st.floats(1e-6, 1.0), ODD), min_size=1, max_size=9).filter(
    lambda shares: min(shares) * 2**31 > sum(shares)
)  # else Mix refuses them


@settings(max_examples=150, deadline=None)
@given(shares=exact_shares, epoch=st.integers(0, 10**6))
def test_exact_over_all_windows(shares: list[Any], epoch: int) -> None:
    """All windows of 400 positions, among them those over the end of an epoch, for many shares."""
    mix = made(shares, length=200)
    drawn = np.concatenate([mix.order(1, epoch + i).take(0, 200) for i in range(2)])
    assert sum(mix.shares) == 1
    assert max(deviations(mix, drawn)) < mix.bound
    assert mix.bound <= {1: 1, 2: 1, 3: 2}.get(len(shares), 3)


def test_the_bound_of_equal_shares_of_any_number() -> None:
    assert all(made([1] * count).bound <= (1 if count <= 2 else 2.25) for count in range(1, 40))


def test_exact_over_windows_of_a_long_epoch() -> None:
    """Counts over windows of 10^5 at far positions, with shares of no small denominator."""
    mix = made([2**0.5, 3**0.5, 0.1, 5**0.5], sizes=[1000, 10**6, 10, 30], length=10**12)
    for begin in (0, 999_999, 10**12 - 100_000):
        counts = np.bincount(parts_of(mix, mix.order(1, 3).take(begin, 100_000)), minlength=4)
        assert all(abs(int(n) - 100_000 * share) < 2 for n, share in zip(counts, mix.shares, strict=True))


def test_decimal_shares_are_what_they_print_as() -> None:
    mix = made([0.7, 0.2, 0.1], sizes=[70, 20, 10])
    assert (mix.length, mix.shares) == (100, (Fraction(7, 10), Fraction(2, 10), Fraction(1, 10)))
    for begin in range(90):  # ten consecutive: 7, 2 and 1, with no deviation but that of a whole sample
        counts = np.bincount(parts_of(mix, mix.order(1, 0).take(begin, 10)), minlength=3)
        assert np.abs(counts - [7, 2, 1]).max() <= 1


@pytest.mark.parametrize("shuffle", [True, False])
def test_each_sample_of_a_dataset_once_a_round(shuffle: bool) -> None:
    sizes = [3, 40, 1, 500]
    mix = made([0.5, 0.2, 0.05, 0.25], sizes=sizes, length=130)
    drawn = np.concatenate([mix.order(9, epoch, shuffle=shuffle).take(0, 130) for epoch in range(40)])
    for number, (size, end) in enumerate(zip(sizes, mix.cumulative_sizes, strict=True)):
        stream = drawn[parts_of(mix, drawn) == number] - (end - size)
        rounds = stream[: len(stream) // size * size].reshape(-1, size)
        assert len(rounds) >= 2 and (np.sort(rounds) == np.arange(size)).all()
        if not shuffle:
            assert np.array_equal(stream, np.arange(len(stream)) % size)
        elif size > 3:
            assert not np.array_equal(rounds[0], rounds[1])


def test_datasets_have_orders_of_their_own() -> None:
    drawn = made([1, 1], sizes=[50, 50]).order(1, 0).take(0, 100)
    assert not np.array_equal(drawn[drawn < 50], drawn[drawn >= 50] - 50)


def test_an_epoch_through_every_dataset() -> None:
    """The length that the documentation gives for it."""
    sizes, shares = [5, 100, 33], [0.5, 0.2, 0.3]
    bound = made(shares, sizes=sizes).bound
    length = max(-int(-(size + bound) // share) for size, share in zip(sizes, shares, strict=True))
    assert set(made(shares, sizes=sizes, length=length).order(1, 0).take(0, length).tolist()) == set(range(138))


@settings(max_examples=80, deadline=None)
@given(shares=exact_shares, data=st.data())
def test_the_first_epoch_is_as_long_as_no_sample_comes_twice(shares: list[Any], data: st.DataObject) -> None:
    sizes = [data.draw(st.integers(1, 30)) for _ in shares]
    length = made(shares, sizes=sizes).length
    if length <= 50_000:
        *drawn, last = made(shares, sizes=sizes, length=length + 1).order(4, 0).take(0, length + 1).tolist()
        assert made(shares, sizes=sizes).order(4, 0).take(0, length).tolist() == drawn
        assert len(set(drawn)) == length and last in drawn


def test_orders_stay_what_they_are() -> None:
    """A checkpoint continues under a later version: these numbers are part of the format of a state."""
    assert made([3, 2, 1], sizes=[10, 10, 10]).order(7, 3).take(0, 10).tolist() == [0, 12, 1, 28, 5, 16, 2, 17, 3, 27]


def test_it_is_the_concatenation() -> None:
    mix = made([3, 1], sizes=[4, 6])
    plain: ConcatDataset[Any] = ConcatDataset(mix.datasets)
    assert isinstance(mix, ConcatDataset)
    assert len(mix) == len(plain) == 10
    assert [mix[i] for i in range(-10, 10)] == [plain[i] for i in range(-10, 10)]
    assert mix.cumulative_sizes == plain.cumulative_sizes
    assert flat(DataLoader(plain)) == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5]


def test_in_torchs_loader() -> None:
    mix = made([3, 1], sizes=[90, 30])
    sampler, again = (mix.sampler(generator=torch.Generator().manual_seed(1)) for _ in range(2))
    loader = DataLoader(mix, batch_size=8, sampler=sampler)
    assert isinstance(sampler, Sampler)
    assert len(loader) == 15
    assert flat(loader) == [mix[i][0].item() for i in again]
    assert sorted(mix.sampler(shuffle=False), key=lambda i: i >= 90) == list(range(120))  # each in sequence


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("shuffle", [False, True])
def test_torchs_loader_without_the_sampler_is_refused(shuffle: bool, workers: int) -> None:
    loader = DataLoader(made([3, 1], sizes=[90, 30]), 8, shuffle, num_workers=workers)
    with pytest.raises(InvalidOption, match=r"nothing would be mixed: give torch's loader sampler=mix.sampler\(\)"):
        next(iter(loader))


def test_the_loaders_generator_makes_the_order() -> None:
    first = []
    for seed in (1, 2):
        torch.manual_seed(seed)  # whatever the global generator holds
        own = torch.Generator().manual_seed(1)
        mix = made([3, 1], sizes=[90, 30])
        first.append(flat(taken(iter(penstock.DataLoader(mix, 8, shuffle=True, generator=own)), 1)))
    assert first[0] == first[1]


def test_pickled() -> None:
    mix = made([3, 1.5, 1], sizes=[4, 6, 5])
    twin = pickle.loads(pickle.dumps(mix))
    assert np.array_equal(twin.order(1, 2).take(0, mix.length), mix.order(1, 2).take(0, mix.length))
    assert repr(twin) == repr(mix) == "Mix(d0: 0.545 of 4, d1: 0.273 of 6, d2: 0.182 of 5; 9 an epoch)"


@pytest.mark.parametrize(
    ("part", "kind", "message"),
    [
        (rows(3), TypeError, "'a' is given as TensorDataset"),
        ((rows(3), 1, 2), TypeError, "'a' is given as tuple"),
        ((rows(0), 1), InvalidOption, "'a' is empty"),
        ((Stream(), 1), InvalidOption, "'a' is an IterableDataset"),
        ((Dataset(), 1), TypeError, "'a' .Dataset. has no length"),
        ((made([1, 2]), 1), InvalidOption, "'a' is itself a Mix"),
        *(((rows(3), share), InvalidOption, f"the share of 'a' is {share}") for share in (0, -0.5, np.nan, np.inf)),
        *(((rows(3), share), TypeError, f"the share of 'a' is {share!r}") for share in (True, "1")),
        ((rows(3), 1e-300), InvalidOption, "the share of 'a' is too small: 1e-300"),
    ],
)
def test_bad_parts(part: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        Mix({"b": (rows(3), 1), "a": part})


def test_other_mistakes() -> None:
    wrong: Any = [([rows(3)], TypeError, "not list"), ({}, InvalidOption, "no datasets")]
    for parts, kind, message in (*wrong, ({1: (rows(3), 1)}, TypeError, "1 is given as tuple")):
        with pytest.raises(kind, match=message):
            Mix(parts)
    for length in (0, -1, 1 << 62, 2.0):
        with pytest.raises(TypeError if length == 2 else InvalidOption, match=r"length(=| must be an integer)"):
            made([1], length=length)  # type: ignore[arg-type]
