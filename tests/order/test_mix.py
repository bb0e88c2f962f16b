"""Mix: proportions over all windows, rounds of each dataset, torch's DataLoader, and what is refused."""

from __future__ import annotations

import itertools
import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Sampler, TensorDataset

import penstock
from penstock.errors import InvalidOption
from penstock.order.mix import Mix

pytestmark = pytest.mark.native


def numbers(size: int) -> TensorDataset:
    return TensorDataset(torch.arange(size))


def made(shares: list[Any], sizes: list[int] | None = None, length: int | None = None) -> Mix[Any]:
    sizes = sizes or [7 + i for i in range(len(shares))]
    return Mix({f"d{i}": (numbers(n), s) for i, (n, s) in enumerate(zip(sizes, shares, strict=True))}, length=length)


def parts_of(mix: Mix[Any], indices: np.ndarray) -> np.ndarray:
    return np.searchsorted(mix.cumulative_sizes, indices, side="right")


def deviations(mix: Mix[Any], drawn: np.ndarray) -> list[Fraction]:
    """Return, for each dataset, the greatest deviation from n * share in any window of these positions, exactly.

    That of the window from p to q is the difference of how far the counts of the first p and q positions are off.
    """
    found = []
    for number, share in enumerate(mix.shares):
        counts = [0, *itertools.accumulate((parts_of(mix, drawn) == number).astype(int).tolist())]
        off = [count - p * share for p, count in enumerate(counts)]
        found.append(max(off) - min(off))
    return found


exact_shares = st.lists(
    st.one_of(
        st.integers(1, 12),
        st.floats(1e-6, 1.0),
        st.sampled_from([0.1, 0.2, 0.25, 0.3, 0.5, 0.7, 1e-4, Fraction(1, 3), 1000, 2.0**0.5, 3.0**0.5]),
    ),
    min_size=1,
    max_size=9,
)


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
    for count in range(1, 40):
        assert made([1] * count).bound <= (1 if count <= 2 else 2.25)


def test_exact_over_windows_of_a_long_epoch() -> None:
    """Counts over windows of 10^5 at far positions, with shares of no small denominator."""
    mix = made([2**0.5, 3**0.5, 0.1, 5**0.5], sizes=[1000, 10**6, 10, 30], length=10**12)
    order = mix.order(1, 3)
    for begin in (0, 999_999, 10**12 - 100_000):
        counts = np.bincount(parts_of(mix, order.take(begin, 100_000)), minlength=4)
        assert all(abs(int(n) - 100_000 * share) < 2 for n, share in zip(counts, mix.shares, strict=True))


def test_decimal_shares_are_what_they_print_as() -> None:
    assert made([0.7, 0.2, 0.1]).shares == (Fraction(7, 10), Fraction(2, 10), Fraction(1, 10))
    mix = made([0.7, 0.2, 0.1], sizes=[70, 20, 10])
    assert mix.length == 100
    for begin in range(90):  # ten consecutive: 7, 2 and 1, with no deviation but that of a whole sample
        counts = np.bincount(parts_of(mix, mix.order(1, 0).take(begin, 10)), minlength=3)
        assert np.abs(counts - [7, 2, 1]).max() <= 1


@pytest.mark.parametrize("shuffle", [True, False])
def test_each_sample_of_a_dataset_once_a_round(shuffle: bool) -> None:
    sizes = [3, 40, 1, 500]
    mix = made([0.5, 0.2, 0.05, 0.25], sizes=sizes, length=130)
    drawn = np.concatenate([mix.order(9, epoch, shuffle=shuffle).take(0, 130) for epoch in range(40)])
    starts = [0, *mix.cumulative_sizes[:-1]]
    for number, (size, start) in enumerate(zip(sizes, starts, strict=True)):
        stream = drawn[parts_of(mix, drawn) == number] - start
        rounds = [stream[i : i + size] for i in range(0, len(stream) - size + 1, size)]
        assert len(rounds) >= 2
        assert all(np.array_equal(np.sort(samples), np.arange(size)) for samples in rounds)
        if not shuffle:
            assert np.array_equal(stream, np.arange(len(stream)) % size)
        elif size > 3:
            assert not np.array_equal(rounds[0], rounds[1])


def test_datasets_have_orders_of_their_own() -> None:
    drawn = made([1, 1], sizes=[50, 50]).order(1, 0).take(0, 100)
    assert not np.array_equal(drawn[drawn < 50], drawn[drawn >= 50] - 50)


@settings(max_examples=80, deadline=None)
@given(shares=exact_shares, data=st.data())
def test_the_first_epoch_is_as_long_as_no_sample_comes_twice(shares: list[Any], data: st.DataObject) -> None:
    sizes = [data.draw(st.integers(1, 30)) for _ in shares]
    mix = made(shares, sizes=sizes)
    if mix.length > 50_000:
        return
    longer = made(shares, sizes=sizes, length=mix.length + 1).order(4, 0).take(0, mix.length + 1)
    assert np.array_equal(mix.order(4, 0).take(0, mix.length), longer[:-1])
    assert len(set(longer[:-1].tolist())) == mix.length
    assert longer[-1] in longer[:-1]


def test_an_epoch_through_every_dataset() -> None:
    """The length that the documentation gives for it."""
    sizes, shares = [5, 100, 33], [0.5, 0.2, 0.3]
    bound = made(shares, sizes=sizes).bound
    length = max(-int(-(size + bound) // share) for size, share in zip(sizes, shares, strict=True))
    drawn = made(shares, sizes=sizes, length=length).order(1, 0).take(0, length)
    assert set(drawn.tolist()) == set(range(138))


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
    assert [x.item() for (x,) in DataLoader(ConcatDataset(mix.datasets))] == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5]


def test_in_torchs_loader() -> None:
    mix = made([3, 1], sizes=[90, 30])
    sampler = mix.sampler(generator=torch.Generator().manual_seed(1))
    assert isinstance(sampler, Sampler)
    expected = list(mix.sampler(generator=torch.Generator().manual_seed(1)))
    loader = DataLoader(mix, batch_size=8, sampler=sampler)
    assert len(loader) == 15
    assert torch.cat([x for (x,) in loader]).tolist() == [mix[i][0].item() for i in expected]
    in_sequence = list(mix.sampler(shuffle=False))
    assert [i for i in in_sequence if i < 90] == list(range(90))
    assert [i for i in in_sequence if i >= 90] == list(range(90, 120))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("shuffle", [False, True])
def test_torchs_loader_without_the_sampler_is_refused(shuffle: bool, workers: int) -> None:
    loader = DataLoader(made([3, 1], sizes=[90, 30]), 8, shuffle, num_workers=workers)
    with pytest.raises(InvalidOption, match=r"nothing would be mixed: give torch's loader sampler=mix.sampler\(\)"):
        next(iter(loader))


def test_the_loaders_generator_makes_the_order() -> None:
    def first(seed: int) -> Any:
        torch.manual_seed(seed)  # whatever the global generator holds
        one = torch.Generator().manual_seed(1)
        loader: Any = penstock.DataLoader(made([3, 1], sizes=[90, 30]), 8, shuffle=True, generator=one)
        return next(iter(loader))[0].tolist()

    assert first(1) == first(2)


def test_pickled() -> None:
    mix = made([3, 1.5, 1], sizes=[4, 6, 5])
    twin = pickle.loads(pickle.dumps(mix))
    assert np.array_equal(twin.order(1, 2).take(0, mix.length), mix.order(1, 2).take(0, mix.length))
    assert repr(twin) == repr(mix) == "Mix(d0: 0.545 of 4, d1: 0.273 of 6, d2: 0.182 of 5; 9 an epoch)"


class Endless(IterableDataset[int]):
    def __iter__(self) -> Any:
        return itertools.count()


class Unsized(torch.utils.data.Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("parts", "kind", "message"),
    [
        ([numbers(3)], TypeError, "not list"),
        ({}, InvalidOption, "no datasets"),
        ({1: (numbers(3), 1)}, TypeError, "1 is given as tuple"),
        ({"a": numbers(3)}, TypeError, "'a' is given as TensorDataset"),
        ({"a": (numbers(3), 1, 2)}, TypeError, "'a' is given as tuple"),
        ({"a": (numbers(3), 1), "b": (numbers(0), 1)}, InvalidOption, "'b' is empty"),
        ({"a": (Endless(), 1)}, InvalidOption, "'a' is an IterableDataset"),
        ({"a": (Unsized(), 1)}, TypeError, "'a' .Unsized. has no length"),
        ({"a": (made([1, 2]), 1)}, InvalidOption, "'a' is itself a Mix"),
        ({"a": (numbers(3), 0)}, InvalidOption, "the share of 'a' is 0"),
        ({"a": (numbers(3), -0.5)}, InvalidOption, "the share of 'a' is -0.5"),
        ({"a": (numbers(3), float("nan"))}, InvalidOption, "the share of 'a' is nan"),
        ({"a": (numbers(3), float("inf"))}, InvalidOption, "the share of 'a' is inf"),
        ({"a": (numbers(3), True)}, TypeError, "the share of 'a' is True"),
        ({"a": (numbers(3), "1")}, TypeError, "the share of 'a' is '1'"),
        ({"a": (numbers(3), 1), "b": (numbers(3), 1e-300)}, InvalidOption, "the share of 'b' is too small: 1e-300"),
    ],
)
def test_bad_parts(parts: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        Mix(parts)


@pytest.mark.parametrize("length", [0, -1, 1 << 62, 2.0])
def test_bad_lengths(length: Any) -> None:
    with pytest.raises(TypeError if length == 2 else InvalidOption, match=r"length(=| must be an integer)"):
        made([1], length=length)
