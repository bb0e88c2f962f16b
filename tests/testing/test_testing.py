"""penstock.testing: it passes what is right, and says of what is wrong where it is."""

from __future__ import annotations

import os
import random
from collections import OrderedDict
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

import penstock
from penstock.testing import Ranks, assert_each_sample_once, assert_resume_exact, assert_worker_invariant, simulate
from penstock.testing.bitwise import difference, digest, rows

SIZE = 53
NATIVE = TensorDataset(torch.arange(SIZE), torch.arange(float(SIZE)).view(SIZE, 1).expand(SIZE, 3).contiguous())


class Drawing(Dataset[Any]):
    """Read by Python, with draws in each sample, one of them NaN."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        return index, {"x": torch.rand(3), "y": random.random(), "z": float("nan")}, f"name-{index}"


def loader(dataset: Any = NATIVE, kind: Any = penstock.DataLoader, **options: Any) -> Any:
    return kind(dataset, **{"batch_size": 4, "shuffle": True, "seed": 7, **options})


def numbers(batch: Any) -> list[int]:
    found: list[int] = batch[0].tolist()
    return found


GOOD = pytest.mark.parametrize("dataset", [NATIVE, Drawing()], ids=["native", "python"])

# --- what is right ----------------------------------------------------------------------------------------------------


@GOOD
@pytest.mark.parametrize("key", [None, numbers])
@pytest.mark.parametrize("drop_last", [False, True])
def test_each_sample_once(dataset: Any, key: Any, drop_last: bool) -> None:
    make = partial(loader, dataset, drop_last=drop_last)
    assert_each_sample_once(make, key=key, workers=(0,), epochs=2)


def test_each_sample_once_by_workers() -> None:
    assert_each_sample_once(partial(loader, Drawing()), ranks=(2,))
    assert_each_sample_once(partial(loader, NATIVE), ranks=(1, 3))
    assert_each_sample_once(partial(loader, NATIVE, batch_size=None), ranks=(1, 2), key=lambda sample: [int(sample[0])])


def test_worker_invariant() -> None:
    assert_worker_invariant(loader, epochs=2)
    assert_worker_invariant(partial(loader, Drawing()), workers=(0, 2), epochs=2)
    assert_worker_invariant(lambda num_workers, shard: penstock.DataLoader(NATIVE, 4, sampler=[3, 1, 2]))


@GOOD
def test_more_workers_than_cpus_are_no_warning(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    assert_worker_invariant(partial(loader, dataset), workers=(0, 2, 5))


@GOOD
@pytest.mark.parametrize("key", [None, numbers])
@pytest.mark.parametrize("drop_last", [False, True])
def test_resume_exact(dataset: Any, key: Any, drop_last: bool) -> None:
    workers = (0, 2) if dataset is NATIVE else (0,)
    make = partial(loader, dataset, drop_last=drop_last)
    assert_resume_exact(make, key=key, workers=workers, batch_sizes=(3, 4, 7), epochs=2)


def test_resume_exact_with_processes_and_given_stops() -> None:
    assert_resume_exact(partial(loader, Drawing()), stops=[0, 5, 1000], workers=(2, 1), ranks=(1,))
    assert_resume_exact(partial(loader, NATIVE, batch_size=None), stops=5, ranks=(1, 2))


def test_a_weighted_order_resumes_and_is_not_one_of_each() -> None:
    def make(**options: Any) -> Any:
        return penstock.DataLoader(NATIVE, 4, sampler=penstock.Weighted([1.0] * SIZE, 40), seed=1, **options)

    assert_resume_exact(make, stops=8)
    assert_resume_exact(partial(make, drop_last=True), stops=8)
    with pytest.raises(penstock.InvalidOption, match="Weighted draws samples more than once"):
        assert_each_sample_once(make)


def test_simulate() -> None:
    steps = simulate(loader, 3, workers=1)
    assert len(steps) == len(loader(shard=(0, 3))) and {len(step) for step in steps} == {3}
    whole = [number for batch in loader() for number in numbers(batch)]
    assert [number for step in steps[:4] for batch in step for number in numbers(batch)] == whole[:48]
    assert difference(simulate(loader, 3, 2), steps[:2]) is None
    assert simulate(loader, 3, 0) == []
    assert difference(simulate(loader, 3, 1, epoch=1), steps[:1]) is not None
    other = Ranks(loader, 2, epoch=1)
    taken = iter(other)
    next(taken)
    assert other.state_dict()["epoch"] == 1 and other.state_dict()["position"] == 8
    again = Ranks(loader, 2, state=other.state_dict())
    assert again.epoch == 1
    assert difference(next(iter(again)), next(taken)) is None
    assert other.padded() == [0, 0]


# --- what is wrong ----------------------------------------------------------------------------------------------------


class Counting(Drawing):
    """Gives something else at each reading."""

    def __init__(self) -> None:
        self.count = 0

    def __getitem__(self, index: int) -> Any:
        self.count += 1
        return index, torch.tensor([0, index, self.count if index == 17 else 0])


def test_samples_that_depend_on_what_was_read_before() -> None:
    dataset = Counting()
    where = r"epoch 0, step \d+, rank 0, sample 17: with 1 worker.*: batch\[1\]\[\d, 2\] is \d+, and \d+ with 0 workers"
    with pytest.raises(AssertionError, match=where):
        assert_worker_invariant(partial(loader, dataset, worker_method="thread"))
    where = (
        r"epoch 0, step \d+, rank 0, sample 17: stopped behind step 0 with 1 rank, 0 workers, and gone on with 1 rank"
    )
    with pytest.raises(AssertionError, match=where):
        assert_resume_exact(partial(loader, dataset), stops=[0], workers=(0,))


def changed(change: Any) -> Any:
    """Return a class of loaders that change the third batch."""

    class Changed(penstock.DataLoader[Any]):
        def __iter__(self) -> Any:
            for step, batch in enumerate(super().__iter__()):
                yield [change(field) for field in batch] if step == 2 else batch

    return Changed


REPEATS = changed(lambda field: torch.cat([field[:1], field[:-1]]))
DROPS = changed(lambda field: field[:-1])
INVENTS = changed(lambda field: field + 1000)


class EndsEarly(penstock.DataLoader[Any]):
    def __iter__(self) -> Any:
        batches = super().__iter__()
        last = 3 if self.shard == (1, 2) else 100
        return (batch for step, batch in enumerate(batches) if step < last)


def test_samples_that_come_twice_or_not_at_all() -> None:
    batch = loader(shard=(0, 2)).batch_at(0, 2)[0].tolist()
    once = partial(assert_each_sample_once, ranks=(2,), workers=(0,), key=numbers)
    twice = rf"epoch 0, 2 ranks, 0 workers: sample {batch[0]} came 2 times: step 2, rank 0; step 2, rank 0"
    with pytest.raises(AssertionError, match=twice):
        once(partial(loader, kind=REPEATS))
    last = {loader(shard=(rank, 2)).batch_at(0, 2)[0].tolist()[-1] for rank in range(2)}
    one = "|".join(map(str, last))
    lost = rf"51 samples came, 53 should have; sample ({one}) did not come"
    with pytest.raises(AssertionError, match=lost):
        once(partial(loader, kind=DROPS))
    with pytest.raises(
        AssertionError, match=rf"sample {batch[0] + 1000} is none that should have come: step 2, rank 0"
    ):
        once(partial(loader, kind=INVENTS))
    with pytest.raises(AssertionError, match="step 2, rank 0: the batch has 3 rows, for 4 samples"):
        once(partial(loader, kind=DROPS), key=None)
    with pytest.raises(AssertionError, match="epoch 0, step 3: rank 1 has no batch left and rank 0 has one"):
        once(partial(loader, kind=EndsEarly), key=None)


def test_a_dataset_that_gives_one_sample_for_two_indices() -> None:
    class Twice(Drawing):
        def __getitem__(self, index: int) -> Any:
            return (4, 0) if index == 9 else (index, 0)

    with pytest.raises(AssertionError, match="indices 4 and 9 of the dataset have one key, 4"):
        assert_each_sample_once(partial(loader, Twice()), key=numbers)
    with pytest.raises(AssertionError, match="key\\(\\) gives 2 keys for a batch of one sample, of index 0"):
        assert_each_sample_once(loader, key=lambda batch: [0, 1])


class CountsAhead(penstock.DataLoader[Any]):
    """Counts a batch of each rank that was not handed out."""

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        world = 1 if self.shard is None else self.shard[1]
        return {**state, "position": min(SIZE, state["position"] + 4 * int(world))}


class CountsItself(penstock.DataLoader[Any]):
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "position": 4 * int(self.shard[0]) if self.shard else 0}


class NoJSON(penstock.DataLoader[Any]):
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "more": torch.zeros(1)}


class OtherOrder(penstock.DataLoader[Any]):
    """Forgets the seed's epoch when it goes on with other ranks: hands out what was handed out."""

    def load_state_dict(self, state: Any, on_change: Any = "raise") -> None:
        super().load_state_dict({**state, "position": state["position"] - 1} if self.shard == (0, 2) else state)


def test_states_that_are_wrong() -> None:
    def check(kind: Any, **options: Any) -> None:
        assert_resume_exact(partial(loader, kind=kind), **{"stops": [3], "ranks": (1,), "workers": (0,), **options})

    with pytest.raises(
        AssertionError, match=r"epoch 0, step 3, rank 0, sample \d+: stopped behind step 3 .* is \d+, and"
    ):
        check(CountsAhead)
    with pytest.raises(AssertionError, match="rank 1 has another state than rank 0"):
        check(CountsItself, ranks=(2,))
    with pytest.raises(AssertionError, match=r"the state cannot be written as JSON: .*Tensor"):
        check(NoJSON)
    twice = loader().batch_at(0, 2)[0].tolist()[-1]
    said = (
        "epoch 0, stopped behind step 3 with 1 rank, 0 workers, and gone on with 2 ranks, 0 workers: "
        f"sample {twice} came 2 times: step 2, rank 0 before the stop; step 0, rank 0 after it"
    )
    with pytest.raises(AssertionError, match=said):
        check(OtherOrder, ranks=(1, 2))
    with pytest.raises(AssertionError, match=said.replace("2 ranks, 0 workers:", "2 ranks, 0 workers, batches of 4:")):
        check(OtherOrder, ranks=(1, 2), batch_sizes=(4,), key=numbers)


def test_batches_without_rows_need_a_key() -> None:
    make = partial(loader, collate_fn=lambda samples: {"sum": sum(float(sample[0]) for sample in samples)})
    assert_worker_invariant(make, workers=(0, 1))
    with pytest.raises(TypeError, match="a batch with a float in it, which has no rows: give key="):
        assert_resume_exact(make, stops=[2], workers=(0,))


# --- bit for bit ------------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    a: Any
    b: Any


class Plain:
    def __init__(self, value: Any) -> None:
        self.value = value


NAN = float("nan")
SAME: list[Any] = [
    lambda: torch.tensor([1.0, NAN]),
    lambda: torch.tensor(3),
    lambda: torch.empty(0, 3),
    lambda: torch.tensor([True, False]),
    lambda: torch.tensor([1 + 2j]).conj(),
    lambda: torch.zeros(2, 3, dtype=torch.bfloat16).t(),
    lambda: torch.tensor([[0.0, 2.0]]).to_sparse(),
    lambda: np.array([NAN, 1.0]),
    lambda: np.array(["a", None], dtype=object),
    lambda: np.float32(NAN),
    lambda: OrderedDict(a=[1, NAN], b=Pair("x", b"y")),
    lambda: Plain({"x": torch.tensor(NAN)}),
    lambda: Image.new("RGB", (2, 2)),
    lambda: None,
]


@pytest.mark.parametrize("make", SAME)
def test_the_same(make: Any) -> None:
    assert difference(make(), make()) is None
    assert digest(make()) == digest(make())


@pytest.mark.parametrize(
    ("a", "b", "path", "row", "what"),
    [
        (torch.tensor([0.0]), torch.tensor([-0.0]), "[0]", 0, "is 0.0, and -0.0"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int32), "", None, "has dtype torch.float32, and torch.int32"),
        (torch.zeros(2), torch.zeros(2, 1), "", None, "has shape (2,), and (2, 1)"),
        (torch.tensor([[1, 2], [3, 4]]), torch.tensor([[1, 2], [3, 5]]), "[1, 1]", 1, "is 4, and 5"),
        (np.array([1, 2]), np.array([1, 3]), "[1]", 1, "is 2, and 3"),
        (np.array(["a", 1], dtype=object), np.array(["a", 2], dtype=object), "[1]", 1, "is 1, and 2"),
        (1, 1.0, "", None, "is a int, and a float"),
        (0.0, -0.0, "", None, "is 0.0, and -0.0"),
        ([1, [2]], [1, [3]], "[1][0]", None, "is 2, and 3"),
        (["a", "b"], ["a", "c"], "[1]", 1, "is 'b', and 'c'"),
        ([1], [1, 2], "", None, "has length 1, and 2"),
        ({"a": 1}, {"b": 1}, "", None, "has the keys ['a'], and ['b']"),
        ({"a": torch.tensor(1)}, {"a": torch.tensor(2)}, "['a']", None, "is 1, and 2"),
        (Pair(1, 2), Pair(1, 3), "[1]", None, "is 2, and 3"),
        (Plain(1), Plain(2), ".value", None, "is 1, and 2"),
        (1j, 2j, "", None, "is 1j, and 2j"),
    ],
)
def test_differences(a: Any, b: Any, path: str, row: int | None, what: str) -> None:
    assert difference(a, b) == (path, row, what)
    assert digest(a) != digest(b)


def test_rows() -> None:
    batch = {"x": torch.arange(4).view(2, 2), "y": [np.array([1, 2]), ("a", "b")]}
    first, second = rows(batch)
    assert first[0].tolist() == [0, 1] and first[1] == (1, "a")
    assert second[0].tolist() == [2, 3] and second[1] == (2, "b")
    with pytest.raises(TypeError, match="whose parts have 2, 3 rows: give key="):
        rows([torch.zeros(2), torch.zeros(3)])
