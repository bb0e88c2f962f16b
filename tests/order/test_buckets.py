"""Batches of samples of like length: budgets, orders, ranks, states; and padding, against torch's pad_sequence."""

from __future__ import annotations

import pickle
from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import TensorDataset

import penstock
from penstock.errors import InvalidOption, ShapeMismatch
from penstock.testing import assert_each_sample_once, assert_resume_exact, assert_same_as_torch, assert_worker_invariant
from tests.executors_under_test import PYTHON, options
from tests.same import assert_same
from tests.sample_datasets import Made
from tests.values import loaded, resumed, stopped, stored

COUNT = 301
LENGTHS = (np.random.default_rng(0).lognormal(3, 0.8, COUNT).astype(np.int64) % 200).tolist()


def sentence(index: int) -> Any:
    """Return a sequence of its own length, with its number."""
    return torch.arange(LENGTHS[index]) + index, index


SENTENCES = Made(sentence, COUNT)


def numbers(batch: Any) -> list[int]:
    return batch[1].tolist()


def batches_of(**arguments: Any) -> list[list[int]]:
    arguments = {"max_tokens": 400, **arguments}
    return list(penstock.Buckets(LENGTHS, **arguments))


# --- the batches ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("size", [None, 1, 5])
def test_each_sample_comes_once_within_the_budget(shuffle: bool, size: int | None) -> None:
    buckets = penstock.Buckets(LENGTHS, 400, batch_size=size, shuffle=shuffle)
    found = list(buckets)
    assert len(found) == len(buckets)
    assert sorted(index for batch in found for index in batch) == list(range(COUNT))
    for batch in found:
        longest, shortest = max(LENGTHS[i] for i in batch), min(LENGTHS[i] for i in batch)
        assert longest * len(batch) <= 400
        assert size is None or len(batch) <= size
        assert longest <= max(shortest + 1, shortest * 9 / 8 + 1)


def test_lengths_of_every_kind() -> None:
    wanted = list(penstock.Buckets(LENGTHS, 400, shuffle=False))
    for given in (np.array(LENGTHS, dtype=np.uint8), torch.tensor(LENGTHS), tuple(LENGTHS)):
        assert list(penstock.Buckets(given, 400, shuffle=False)) == wanted
    assert list(penstock.Buckets([0, 0, 0], 2)) and list(penstock.Buckets([7], 7)) == [[0]]


def test_boundaries_of_ones_own() -> None:
    found = list(penstock.Buckets(LENGTHS, batch_size=10, boundaries=[20, 50]))
    for batch in found:
        assert len({(LENGTHS[i] >= 20) + (LENGTHS[i] >= 50) for i in batch}) == 1


def test_passes_differ_and_follow_torchs_generator() -> None:
    torch.manual_seed(3)
    first, second = batches_of(), batches_of()
    assert first != second
    torch.manual_seed(3)
    assert batches_of() == first
    own = torch.Generator().manual_seed(3)
    assert batches_of(generator=own) == first


def test_neighbours_are_mixed() -> None:
    torch.manual_seed(0)
    found = batches_of()
    for mixed in ([LENGTHS[batch[0]] for batch in found], [i for batch in found for i in batch]):
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


# --- in a loader ------------------------------------------------------------------------------------------------------


def loader(**arguments: Any) -> penstock.DataLoader[Any]:
    buckets = {name: arguments.pop(name) for name in ("batch_size", "shuffle") if name in arguments}
    sampler = penstock.Buckets(LENGTHS, 400, **buckets)
    return penstock.DataLoader(SENTENCES, batch_sampler=sampler, collate_fn=penstock.Padded(), **arguments)


@options(*PYTHON)
def test_the_same_as_torchs_loader(options: Any) -> None:
    if "seed" in options or not options.get("in_order", True):
        pytest.skip("torch's loader draws otherwise, or batches come as they are ready")
    sampler = penstock.Buckets(LENGTHS, 400)
    theirs = TorchDataLoader(SENTENCES, batch_sampler=sampler, collate_fn=penstock.Padded())
    ours = penstock.DataLoader(SENTENCES, batch_sampler=sampler, collate_fn=penstock.Padded(), **options)
    assert len(ours) == len(theirs)
    for _ in range(1 if options.get("persistent_workers") else 2):  # whose later passes draw less than torch's here
        torch.manual_seed(7)
        found = list(ours)
        torch.manual_seed(7)
        assert_same(found, list(theirs))


def make(**options: Any) -> penstock.DataLoader[Any]:
    return loader(seed=5, **options)


def test_conforms() -> None:
    buckets = penstock.Buckets(LENGTHS, 700)
    assert_same_as_torch(SENTENCES, batch_sampler=buckets, collate_fn=penstock.Padded(), samples=None)
    assert_each_sample_once(make, ranks=(1, 3), workers=(0,), epochs=2)
    assert_worker_invariant(make, workers=(0, 1, 2))
    assert_resume_exact(make, stops=(0, 3, 11, 1, 7, 5), workers=(0,), ranks=(1, 3, 2))


def test_ranks_have_batches_of_one_order() -> None:
    whole = [numbers(batch) for batch in make()]
    parts = [[numbers(batch) for batch in make(shard=(rank, 3))] for rank in range(3)]
    together = [batch for step in zip(*parts, strict=True) for batch in step]
    assert together[: len(whole)] == whole
    assert all(sorted(batch) in [sorted(one) for one in whole] for batch in together[len(whole) :])


def test_epochs_differ_and_come_again() -> None:
    one, again = make(), make()
    first, second = list(map(numbers, one)), list(map(numbers, one))
    assert first != second
    for each in (one, again):
        each.set_epoch(1)
        assert list(map(numbers, each)) == second
    step = len(second) // 2
    assert numbers(again.batch_at(1, step)) == second[step]
    assert again.ids(1, step) == [str(number) for number in second[step]]


def test_a_state_in_the_middle_without_a_seed() -> None:
    torch.manual_seed(1)
    before, state, batches = stopped(loader(), 4)
    rest = list(map(numbers, batches))
    torch.manual_seed(99)
    assert list(map(numbers, loaded(loader(), state))) == rest
    assert sorted(i for batch in [*map(numbers, before), *rest] for i in batch) == list(range(COUNT))


def test_a_loader_is_pickled_in_the_middle_of_an_epoch() -> None:
    one = make()
    _, state, batches = stopped(one, 4)
    twin = pickle.loads(pickle.dumps(one))
    assert stored(twin.state_dict()) == state
    assert_same(list(loaded(twin, state)), list(batches))


def test_a_state_of_batches_that_came_as_they_were_ready() -> None:
    first, rest = resumed(make(num_workers=2, in_order=False), make(), 9)
    assert sorted(number for batch in (*first, *rest) for number in numbers(batch)) == list(range(COUNT))


def test_a_state_of_other_buckets_is_refused() -> None:
    one = make()
    next(iter(one))
    other = make(batch_size=3)
    with pytest.raises(penstock.DatasetChanged, match="LengthBuckets"):
        other.load_state_dict(one.state_dict())


def test_shards_need_a_seed_where_the_order_is_random() -> None:
    with pytest.raises(InvalidOption, match="needs seed="):
        loader(shard=(0, 2))
    assert list(loader(shard=(0, 2), shuffle=False))


def test_the_ledger(tmp_path: Any) -> None:
    for name in ("a", "b"):
        assert list(make(ledger=tmp_path / name))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_explained() -> None:
    rows = TensorDataset(torch.arange(COUNT))
    ours = penstock.DataLoader(rows, batch_sampler=penstock.Buckets(LENGTHS, 400), seed=1, num_workers=1)
    assert "by LengthBuckets, any position at once" in ours.explain()
    assert sorted(number for (batch,) in ours for number in batch.tolist()) == list(range(COUNT))
    assert repr(penstock.Buckets([1, 2], 4)) == "Buckets(2 samples in 2 batches)"


def test_bad_samples_are_replaced() -> None:
    def bad(index: int) -> Any:
        if index == 3:
            raise ValueError("bad")
        return sentence(index)

    sampler = penstock.Buckets(LENGTHS, 400)
    ours = penstock.DataLoader(
        Made(bad, COUNT),
        batch_sampler=sampler,
        collate_fn=penstock.Padded(),
        seed=1,
        on_error=penstock.Replace(max_share=0.1),
    )
    found = [number for batch in ours for number in numbers(batch)]
    assert len(found) == COUNT and 3 not in found


def test_tensor_folders_are_read_natively(tmp_path: Any) -> None:
    for i, length in enumerate(LENGTHS[:20]):
        torch.save(torch.arange(length * 2.0).reshape(length, 2), tmp_path / f"{i:02}.pt")
    folder = penstock.TensorFolder(tmp_path, labels={f"{i:02}": i for i in range(20)})
    ours = penstock.DataLoader(
        folder,
        batch_sampler=penstock.Buckets(LENGTHS[:20], 400, shuffle=False),
        collate_fn=penstock.Padded(-1),
        num_workers=1,
    )
    assert "one preadv each" in ours.explain()
    for padded, labels in ours:
        samples = [folder[i][0] for i in labels.tolist()]
        assert torch.equal(padded.values, pad_sequence(samples, batch_first=True, padding_value=-1))
        assert padded.lengths.tolist() == [len(sample) for sample in samples]


# --- padding ----------------------------------------------------------------------------------------------------------

Named = namedtuple("Named", "tokens label")


def sequences(*lengths: int, dtype: torch.dtype = torch.float32) -> Iterator[torch.Tensor]:
    return (torch.arange(length * 3).reshape(length, 3).to(dtype) for length in lengths)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16, torch.bool, torch.uint8])
def test_padded_as_pad_sequence_does_it(dtype: torch.dtype) -> None:
    given = list(sequences(3, 5, 0, 1, dtype=dtype))
    found = penstock.Padded(1)(given)
    assert_same(found, penstock.PaddedSequences(pad_sequence(given, True, 1), torch.tensor([3, 5, 0, 1])))


def test_samples_of_every_form() -> None:
    pad = penstock.Padded()
    lengths = torch.tensor([2, 4])
    one, two = sequences(2, 4)
    values = pad_sequence([one, two], batch_first=True)
    padded = penstock.PaddedSequences(values, lengths)
    assert_same(pad([(one, 1, "a"), (two, 2, "b")]), [padded, torch.tensor([1, 2]), ["a", "b"]])
    assert_same(pad([{"x": one, "y": 0.5}, {"x": two, "y": 1.5}])["x"], padded)
    assert_same(pad([Named(one, 1), Named(two, 2)]), Named(padded, torch.tensor([1, 2])))
    assert_same(pad([one.numpy(), two.numpy()]), padded)
    assert_same(pad([[1, 2], []]).values, torch.tensor([[1, 2], [0, 0]]))
    assert_same(pad([[], []]).lengths, torch.tensor([0, 0]))
    assert_same(pad([(one,)]), [penstock.PaddedSequences(one[None], torch.tensor([2]))])
    assert pad([torch.tensor(1), torch.tensor(2)]).tolist() == [1, 2]


def test_fields_of_ones_choice() -> None:
    image = torch.zeros(3, 2)
    one, two = sequences(2, 4)
    found = penstock.Padded(fields=[1])([(image, one), (image, two)])
    assert found[0].shape == (2, 3, 2)
    assert found[1].lengths.tolist() == [2, 4]
    found = penstock.Padded(fields=["x"])([{"x": one, "z": image}, {"x": two, "z": image}])
    assert found["z"].shape == (2, 3, 2)
    with pytest.raises(InvalidOption, match="no 'y'"):
        penstock.Padded(fields=["y"])([{"x": one}])
    with pytest.raises(TypeError, match="not one string"):
        penstock.Padded(fields="x")


def test_sequences_that_differ_in_more_than_their_lengths() -> None:
    with pytest.raises(ShapeMismatch, match=r"sample 1 .* \(2, 4\)"):
        penstock.Padded()([torch.zeros(2, 3), torch.zeros(2, 4)])
    with pytest.raises(ShapeMismatch, match="int64"):
        penstock.Padded()([torch.zeros(2), torch.zeros(2, dtype=torch.int64)])


def test_a_sequence_with_a_gradient() -> None:
    sequence = torch.zeros(2, requires_grad=True)
    values = penstock.Padded()([sequence, torch.zeros(3)]).values
    values.sum().backward()
    assert sequence.grad is not None
