"""Batches of samples of like length: budgets, orders, ranks, states; and padding, against torch's pad_sequence."""

from __future__ import annotations

import functools
import itertools
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader as TorchDataLoader

import penstock
from penstock.errors import InvalidOption, ShapeMismatch
from penstock.testing import assert_each_sample_once, assert_resume_exact, assert_same_as_torch, assert_worker_invariant
from tests.carriers_under_test import PYTHON, options
from tests.data import Made, rows
from tests.same import assert_same, seeded_outcome
from tests.samples import Point
from tests.values import flat, loaded, resumed, stopped, stored

COUNT = 301
LENGTHS = (np.random.default_rng(0).lognormal(3, 0.8, COUNT).astype(np.int64) % 200).tolist()


def sentence(index: int) -> Any:
    return torch.arange(LENGTHS[index]) + index, index


def numbers(batches: Any) -> list[list[int]]:
    """Return the numbers of the samples in each batch."""
    return [batch[1].tolist() for batch in batches]


SENTENCES = Made(sentence, COUNT)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("size", [None, 1, 5])
def test_each_sample_comes_once_within_the_budget(shuffle: bool, size: int | None) -> None:
    buckets = penstock.Buckets(LENGTHS, 400, batch_size=size, shuffle=shuffle)
    found = list(buckets)
    assert len(found) == len(buckets)
    assert sorted(itertools.chain(*found)) == list(range(COUNT))
    for batch in found:
        longest, shortest = max(LENGTHS[i] for i in batch), min(LENGTHS[i] for i in batch)
        assert longest * len(batch) <= 400 and len(batch) <= (size or COUNT)
        assert longest <= max(shortest + 1, shortest * 9 / 8 + 1)


def test_lengths_of_every_kind_and_boundaries_of_ones_own() -> None:
    wanted = list(penstock.Buckets(LENGTHS, 400, shuffle=False))
    for given in (np.array(LENGTHS, dtype=np.uint8), torch.tensor(LENGTHS), tuple(LENGTHS)):
        assert list(penstock.Buckets(given, 400, shuffle=False)) == wanted
    assert list(penstock.Buckets([0, 0, 0], 2)) and list(penstock.Buckets([7], 7)) == [[0]]
    for batch in penstock.Buckets(LENGTHS, batch_size=10, boundaries=[20, 50]):
        assert len({(LENGTHS[i] >= 20) + (LENGTHS[i] >= 50) for i in batch}) == 1


def test_passes_differ_are_mixed_and_follow_torchs_generator() -> None:
    torch.manual_seed(3)
    buckets = penstock.Buckets(LENGTHS, max_tokens=400)
    first, second = list(buckets), list(buckets)
    assert first != second
    torch.manual_seed(3)
    assert list(buckets) == list(penstock.Buckets(LENGTHS, 400, generator=torch.Generator().manual_seed(3))) == first
    for mixed in ([LENGTHS[batch[0]] for batch in first], list(itertools.chain(*first))):
        assert mixed != sorted(mixed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lengths": [3, 500], "max_tokens": 400}, r"lengths\[1\] is 500, more than max_tokens=400"),
        ({"lengths": [3, -1], "max_tokens": 4}, r"lengths\[1\] is -1"),
        ({"lengths": [], "max_tokens": 4}, "one for each sample"),
        ({"lengths": [[1, 2]], "max_tokens": 4}, "one for each sample"),
        ({"lengths": [1, 2]}, "max_tokens=, batch_size= or both"),
        ({"lengths": [1, 2], "max_tokens": 0}, "max_tokens=0"),
        ({"lengths": [1, 2], "batch_size": 2, "boundaries": [5, 5]}, "do not ascend"),
        ({"lengths": np.array([1.5]), "max_tokens": 4}, "whole numbers are needed"),
        ({"lengths": LENGTHS[:-1], "max_tokens": 400}, "give one for each"),
    ],
)
def test_refused(arguments: Any, message: str) -> None:
    with pytest.raises(TypeError if "whole" in message else InvalidOption, match=message):
        penstock.DataLoader(SENTENCES, batch_sampler=penstock.Buckets(**arguments))


def loader(**arguments: Any) -> penstock.DataLoader[Any]:
    buckets = {name: arguments.pop(name) for name in ("batch_size", "shuffle") if name in arguments}
    arguments = {"dataset": SENTENCES, "collate_fn": penstock.Padded(), **arguments}
    return penstock.DataLoader(batch_sampler=penstock.Buckets(LENGTHS, 400, **buckets), **arguments)


@options(*PYTHON)
def test_the_same_as_torchs_loader(options: Any) -> None:
    if "seed" in options or not options.get("in_order", True):
        pytest.skip("torch's loader draws otherwise, or batches come as they are ready")
    given: Any = dict(batch_sampler=penstock.Buckets(LENGTHS, 400), collate_fn=penstock.Padded())
    ours, theirs = penstock.DataLoader(SENTENCES, **given, **options), TorchDataLoader(SENTENCES, **given)
    assert len(ours) == len(theirs)
    for _ in range(1 if options.get("persistent_workers") else 2):  # whose later passes draw less than torch's here
        assert_same(*(seeded_outcome(functools.partial(list, one), 7)[0] for one in (ours, theirs)))


make = functools.partial(loader, seed=5)


def test_conforms() -> None:
    buckets = penstock.Buckets(LENGTHS, 700)
    assert_same_as_torch(SENTENCES, batch_sampler=buckets, collate_fn=penstock.Padded(), samples=None)
    assert_each_sample_once(make, ranks=(1, 3), workers=(0,), epochs=2)
    assert_worker_invariant(make, workers=(0, 1, 2))
    assert_resume_exact(make, stops=(0, 3, 11, 1, 7, 5), workers=(0,), ranks=(1, 3, 2))


def test_epochs_differ_and_come_again() -> None:
    one, again = make(), make()
    first, second = numbers(one), numbers(one)
    assert first != second
    for each in (one, again):
        each.set_epoch(1)
        assert numbers(each) == second
    step = len(second) // 2
    assert numbers([again.batch_at(1, step)]) == [second[step]]
    assert again.ids(1, step) == [str(number) for number in second[step]]


def test_a_state_in_the_middle_without_a_seed() -> None:
    torch.manual_seed(1)
    before, state, batches = stopped(loader(), 4)
    rest = numbers(batches)
    torch.manual_seed(99)
    assert numbers(loaded(loader(), state)) == rest
    assert sorted(itertools.chain(*numbers(before), *rest)) == list(range(COUNT))


def test_a_loader_is_pickled_in_the_middle_of_an_epoch() -> None:
    one = make()
    _, state, batches = stopped(one, 4)
    twin = pickle.loads(pickle.dumps(one))
    assert stored(twin.state_dict()) == state
    assert_same(list(loaded(twin, state)), list(batches))


def test_a_state_of_batches_that_came_as_they_were_ready() -> None:
    first, rest = resumed(make(num_workers=2, in_order=False), make(), 9)
    assert sorted(itertools.chain(*numbers([*first, *rest]))) == list(range(COUNT))


def test_a_state_of_other_buckets_and_shards_without_a_seed_are_refused() -> None:
    _, state, _ = stopped(make(), 1)
    with pytest.raises(penstock.DatasetChanged, match="LengthBuckets"):
        make(batch_size=3).load_state_dict(state)
    with pytest.raises(InvalidOption, match="needs seed="):
        loader(shard=(0, 2))
    assert list(loader(shard=(0, 2), shuffle=False))


def test_the_ledger(tmp_path: Any) -> None:
    for name in ("a", "b"):
        assert list(make(ledger=tmp_path / name))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_explained() -> None:
    ours = loader(dataset=rows(COUNT), collate_fn=None, seed=1, num_workers=1)
    assert "by LengthBuckets, any position at once" in ours.explain()
    assert sorted(flat(ours)) == list(range(COUNT))
    assert repr(penstock.Buckets([1, 2], 4)) == "Buckets(2 samples in 2 batches)"


def test_bad_samples_are_replaced() -> None:
    def bad(index: int) -> Any:
        if index == 3:
            raise ValueError("bad")
        return sentence(index)

    ours = make(dataset=Made(bad, COUNT), on_error=penstock.Replace(max_share=0.1))
    found = list(itertools.chain(*numbers(ours)))
    assert len(found) == COUNT and 3 not in found


def test_files_of_tensor_folders_are_loaded_natively(tmp_path: Any) -> None:
    for i, length in enumerate(LENGTHS[:20]):
        torch.save(torch.arange(length * 2.0).reshape(length, 2), tmp_path / f"{i:02}.pt")
    folder = penstock.TensorFolder(tmp_path, labels={f"{i:02}": i for i in range(20)})
    sampler = penstock.Buckets(LENGTHS[:20], 400, shuffle=False)
    ours = penstock.DataLoader(folder, batch_sampler=sampler, collate_fn=penstock.Padded(-1), num_workers=1)
    for padded, labels in ours:
        samples = [folder[i][0] for i in labels.tolist()]
        assert torch.equal(padded.values, pad_sequence(samples, batch_first=True, padding_value=-1))
        assert padded.lengths.tolist() == [len(sample) for sample in samples]
    assert "torch.load: 20 answered natively" in ours.explain()


def sequences(*lengths: int, dtype: torch.dtype = torch.float32) -> Iterator[torch.Tensor]:
    return (torch.arange(length * 3).reshape(length, 3).to(dtype) for length in lengths)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16, torch.bool, torch.uint8])
def test_padded_as_pad_sequence_does_it(dtype: torch.dtype) -> None:
    given = list(sequences(3, 5, 0, 1, dtype=dtype))
    found = penstock.Padded(1)(given)
    assert_same(found, penstock.PaddedSequences(pad_sequence(given, True, 1), torch.tensor([3, 5, 0, 1])))


def test_samples_of_every_form() -> None:
    pad, (one, two) = penstock.Padded(), sequences(2, 4)
    padded = penstock.PaddedSequences(pad_sequence([one, two], batch_first=True), torch.tensor([2, 4]))
    for given, wanted in (
        ([(one, 1, "a"), (two, 2, "b")], [padded, torch.tensor([1, 2]), ["a", "b"]]),
        ([Point(one, 1), Point(two, 2)], Point(padded, torch.tensor([1, 2]))),
        ([one.numpy(), two.numpy()], padded),
        ([(one,)], [penstock.PaddedSequences(one[None], torch.tensor([2]))]),
    ):
        assert_same(pad(given), wanted)
    assert_same(pad([{"x": one, "y": 0.5}, {"x": two, "y": 1.5}])["x"], padded)
    assert_same(pad([[1, 2], []]).values, torch.tensor([[1, 2], [0, 0]]))
    assert_same(pad([[], []]).lengths, torch.tensor([0, 0]))
    assert pad([torch.tensor(1), torch.tensor(2)]).tolist() == [1, 2]


def test_fields_of_ones_choice() -> None:
    image, (one, two) = torch.zeros(3, 2), sequences(2, 4)
    images, padded = penstock.Padded(fields=[1])([(image, one), (image, two)])
    assert (images.shape, padded.lengths.tolist()) == ((2, 3, 2), [2, 4])
    assert penstock.Padded(fields=["x"])([{"x": one, "z": image}, {"x": two, "z": image}])["z"].shape == (2, 3, 2)
    with pytest.raises(InvalidOption, match="no 'y'"):
        penstock.Padded(fields=["y"])([{"x": one}])
    with pytest.raises(TypeError, match="not one string"):
        penstock.Padded(fields="x")


def test_sequences_with_a_gradient_and_unlike_ones() -> None:
    sequence = torch.zeros(2, 3, requires_grad=True)
    penstock.Padded()([sequence, torch.zeros(3, 3)]).values.sum().backward()
    assert sequence.grad is not None
    unlike = {r"sample 1 .* \(2, 4\)": torch.zeros(2, 4), "int64": torch.zeros(2, 3, dtype=torch.int64)}
    for words, other in unlike.items():
        with pytest.raises(ShapeMismatch, match=words):
            penstock.Padded()([torch.zeros(2, 3), other])
