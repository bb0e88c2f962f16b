"""Every order: any part is that of the whole; and batches that do not depend on the number of workers."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from hypothesis import given, settings, strategies as st
from torchvision import transforms as v1

import penstock
from penstock.errors import InvalidOption
from penstock.order.blocks import Blocks, checked_window
from penstock.order.permutations import KeyedShuffle, torch_shuffle
from tests.data import photo_files, rows
from tests.same import assert_same

pytestmark = pytest.mark.native

#: Returns the order of an epoch, called with (seed, epoch), its size, and whether it is a permutation.
Orders = tuple[Callable[[int, int], Any], int, bool]


def shuffled(data: st.DataObject) -> Orders:
    size = data.draw(st.sampled_from([0, 1, 2, 3, 17, 1024, 1025, 4096]))
    return (lambda seed, epoch: KeyedShuffle(size, seed, epoch)), size, True


def torchs(data: st.DataObject) -> Orders:
    size = data.draw(st.integers(0, 3000))
    return (lambda seed, epoch: torch_shuffle(size, seed)), size, True


def blocks(data: st.DataObject) -> Orders:
    sizes = data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=12))
    made = Blocks(np.array(sizes, dtype=np.int64), data.draw(st.integers(1, 14)))
    return made.order, made.samples, True


def mixed(data: st.DataObject) -> Orders:
    shares = data.draw(st.lists(st.one_of(st.integers(1, 12), st.floats(1e-6, 1.0)), min_size=1, max_size=9))
    parts: Any = {f"d{i}": (rows(7 + i), share) for i, share in enumerate(shares)}
    return penstock.Mix(parts, length=150).order, 150, False


def weighted(data: st.DataObject) -> Orders:
    weights = data.draw(st.lists(st.floats(0.001, 1000), min_size=1, max_size=50))
    replacement = data.draw(st.booleans())
    return penstock.Weighted(weights, replacement=replacement).order, len(weights), not replacement


@pytest.mark.parametrize("kind", [shuffled, torchs, blocks, mixed, weighted])
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_any_part_is_that_of_the_whole(kind: Callable[[st.DataObject], Orders], data: st.DataObject) -> None:
    order, size, once = kind(data)
    key = data.draw(st.integers(-(2**63), 2**64 - 1)), data.draw(st.integers(0, 2**40))
    whole = order(*key).take(0, size)
    assert not once or np.array_equal(np.sort(whole), np.arange(size))
    begin = data.draw(st.integers(0, size))
    count = data.draw(st.integers(0, size - begin))
    part = order(*key).take(begin, count)
    assert part.dtype == np.int64 and np.array_equal(part, whole[begin : begin + count])
    backwards = order(*key)
    assert [backwards.take(p, 1)[0] for p in range(size - 1, -1, -1)][:200] == whole[::-1][:200].tolist()
    for begin, count in ((size, 1), (0, size + 1), (-1, 1), (2**63, 1)):
        with pytest.raises((IndexError, TypeError)):
            order(*key).take(begin, count)


def test_blocks_are_open_within_a_window() -> None:
    blocks = Blocks(np.full(40, 50), 4)
    of_position = blocks.of_samples(blocks.order(7, 0).take(0, 2000))
    places = [np.flatnonzero(of_position == block) for block in range(40)]
    opened = [sum(int(each[0] <= position <= each[-1]) for each in places) for position in range(2000)]
    assert max(opened) <= 2 * 4  # at most the window of a slot and of the next one


def test_windows() -> None:
    blocks = Blocks(np.array([5, 6, 7]), 3)  # a window of all blocks is the full shuffle
    assert np.array_equal(blocks.order(1, 2).take(0, 18), KeyedShuffle(18, 1, 2).take(0, 18))
    assert blocks.kind() == ""
    for window in (0, -1, True, 1.5, "8"):
        with pytest.raises(InvalidOption, match="number of shards"):
            checked_window(window)


def mix(**options: Any) -> Any:
    return penstock.Mix({"a": (rows(90), 3), "b": (rows(30), 1)}).sampler(**options)


def weights(**options: Any) -> Any:
    return penstock.Weighted([1, 2, 3], 120, **options)


@pytest.mark.parametrize("make", [mix, weights])
def test_a_pass_follows_torchs_generator_and_the_epoch(make: Any) -> None:
    sampler = make()
    torch.manual_seed(1)
    first, second = list(sampler), list(sampler)
    assert first != second
    torch.manual_seed(1)
    assert [list(sampler), list(sampler)] == [first, second]
    seed = int(torch.empty((), dtype=torch.int64).random_(generator=torch.Generator().manual_seed(1)).item())
    assert first == sampler.order(seed, 0).take(0, 120).tolist()
    before = torch.get_rng_state()
    own = make(generator=torch.Generator().manual_seed(1))
    assert list(own) == first and torch.equal(torch.get_rng_state(), before)
    own.set_epoch(3)
    twin = pickle.loads(pickle.dumps(own))
    assert (len(twin), twin.epoch, repr(twin)) == (120, 3, repr(own)) or make is mix
    assert list(twin) == list(own)
    torch.manual_seed(1)
    sampler.set_epoch(1)
    assert list(sampler) == sampler.order(seed, 1).take(0, 120).tolist() != first
    with pytest.raises(InvalidOption, match="epoch=-1 is out of range"):
        sampler.set_epoch(-1)
    with pytest.raises(TypeError):
        sampler.set_epoch("1")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return photos with random augmentations, and with their numbers in the places of their labels."""
    root = photo_files(tmp_path_factory.mktemp("photos"), 30, (50, 80), ("png", "jpg", "jpg", "jpg", "jpg"))
    steps = [v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.RandomCrop(24, padding=3), v1.ToTensor()]
    found = torchvision.datasets.ImageFolder(str(root), v1.Compose(steps))
    found.samples = [(path, i) for i, (path, _) in enumerate(found.samples)]
    return found


@pytest.mark.parametrize("seed", [None, 5])
def test_same_bytes_for_any_number_of_workers(dataset: Any, seed: int | None) -> None:
    runs = []
    for workers in (0, 1, 2, 8, 2):
        torch.manual_seed(1)
        loader = penstock.DataLoader(dataset, batch_size=7, shuffle=True, num_workers=workers, seed=seed)
        runs.append([torch.cat([x for x, _ in loader]) for _ in range(2)])
    for run in runs[1:]:
        assert_same(run, runs[0])
    assert not torch.equal(*runs[0])  # epochs differ


def test_draws_belong_to_the_sample_and_its_position_not_to_its_batch(dataset: Any) -> None:
    def by_sample(**options: Any) -> dict[int, torch.Tensor]:
        loader = penstock.DataLoader(dataset, num_workers=2, seed=9, **options)
        return {int(y): x for images, labels in loader for x, y in zip(images, labels, strict=True)}

    sevens, fours = by_sample(shuffle=True, batch_size=7), by_sample(shuffle=True, batch_size=4)
    backwards = by_sample(sampler=range(29, -1, -1))
    assert all(torch.equal(fours[i], sevens[i]) for i in range(30))
    assert sum(torch.equal(backwards[i], sevens[i]) for i in range(30)) < 5
