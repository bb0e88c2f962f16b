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
from torch.utils.data import TensorDataset

import penstock
from penstock.testing import Ranks, assert_each_sample_once, assert_resume_exact, assert_worker_invariant, simulate
from penstock.testing.bitwise import difference, digest, rows
from tests.data import Made
from tests.values import flat

SIZE = 53
NATIVE = TensorDataset(torch.arange(SIZE), torch.arange(float(SIZE)).view(SIZE, 1).expand(SIZE, 3).contiguous())


def sample(index: int) -> Any:
    """Return a sample with draws, one of them NaN."""
    return index, {"x": torch.rand(3), "y": random.random(), "z": float("nan")}, f"name-{index}"


DRAWING = Made(sample, SIZE)


def loader(dataset: Any = NATIVE, kind: Any = penstock.DataLoader, **options: Any) -> Any:
    return kind(dataset, **{"batch_size": 4, "shuffle": True, "seed": 7, **options})


def numbers(batch: Any) -> list[int]:
    found: list[int] = batch[0].tolist()
    return found


def wrong(words: str) -> Any:
    """Return the context of an assertion that fails with these words."""
    return pytest.raises(AssertionError, match=words)


GOOD = pytest.mark.parametrize("dataset", [NATIVE, DRAWING], ids=["native", "python"])
EACH_KEY = pytest.mark.parametrize("key", [None, numbers])
EACH_END = pytest.mark.parametrize("drop_last", [False, True])


@GOOD
@EACH_KEY
@EACH_END
def test_each_sample_once(dataset: Any, key: Any, drop_last: bool) -> None:
    assert_each_sample_once(partial(loader, dataset, drop_last=drop_last), key=key, workers=(0,), epochs=2)


def test_each_sample_once_by_workers() -> None:
    assert_each_sample_once(partial(loader, DRAWING), ranks=(2,))
    assert_each_sample_once(partial(loader, NATIVE), ranks=(1, 3))
    assert_each_sample_once(partial(loader, NATIVE, batch_size=None), ranks=(1, 2), key=lambda sample: [int(sample[0])])


def test_worker_invariant() -> None:
    assert_worker_invariant(loader, epochs=2)
    assert_worker_invariant(partial(loader, DRAWING), workers=(0, 2), epochs=2)
    assert_worker_invariant(lambda num_workers, shard: penstock.DataLoader(NATIVE, 4, sampler=[3, 1, 2]))


@GOOD
def test_more_workers_than_cpus_are_no_warning(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    assert_worker_invariant(partial(loader, dataset), workers=(0, 2, 5))


@GOOD
@EACH_KEY
@EACH_END
def test_resume_exact(dataset: Any, key: Any, drop_last: bool) -> None:
    workers = (0, 2) if dataset is NATIVE else (0,)
    make = partial(loader, dataset, drop_last=drop_last)
    assert_resume_exact(make, key=key, workers=workers, batch_sizes=(3, 4, 7), epochs=2)


def test_resume_exact_with_processes_and_given_stops() -> None:
    assert_resume_exact(partial(loader, DRAWING), stops=[0, 5, 1000], workers=(2, 1), ranks=(1,))
    assert_resume_exact(partial(loader, NATIVE, batch_size=None), stops=5, ranks=(1, 2))


def test_a_weighted_order_resumes_and_is_not_one_of_each() -> None:
    make = partial(loader, shuffle=None, sampler=penstock.Weighted([1.0] * SIZE, 40))
    for drop_last in (False, True):
        assert_resume_exact(partial(make, drop_last=drop_last), stops=8)
    with pytest.raises(penstock.InvalidOption, match="Weighted draws samples more than once"):
        assert_each_sample_once(make)


def test_simulate() -> None:
    steps = simulate(loader, 3, workers=1)
    assert [len(step) for step in steps] == [3] * len(loader(shard=(0, 3)))
    assert flat(batch for step in steps[:4] for batch in step) == flat(loader())[:48]
    assert difference(simulate(loader, 3, 2), steps[:2]) is None and simulate(loader, 3, 0) == []
    assert difference(simulate(loader, 3, 1, epoch=1), steps[:1]) is not None
    other = Ranks(loader, 2, epoch=1)
    taken = iter(other)
    next(taken)
    state = other.state_dict()
    assert (state["epoch"], state["position"]) == (1, 8)
    again = Ranks(loader, 2, state=state)
    assert again.epoch == 1 and difference(next(iter(again)), next(taken)) is None and other.padded() == [0, 0]


class Counting(Made):
    """Gives something else at each reading."""

    def __init__(self) -> None:
        super().__init__(self.counted, SIZE)
        self.count = 0

    def counted(self, index: int) -> Any:
        self.count += 1
        return index, torch.tensor([0, index, self.count if index == 17 else 0])


def test_samples_that_depend_on_what_was_read_before() -> None:
    dataset, where = Counting(), r"epoch 0, step \d+, rank 0, sample 17: "
    with wrong(where + r"with 1 worker.*: batch\[1\]\[\d, 2\] is \d+, and \d+ with 0 workers"):
        assert_worker_invariant(partial(loader, dataset, worker_method="thread"))
    with wrong(where + "stopped after step 0 with 1 rank, 0 workers, and continued with 1 rank"):
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


AT = "step 2, rank 0"
BATCH, OTHER = (numbers(loader(shard=(rank, 2)).batch_at(0, 2)) for rank in range(2))


@pytest.mark.parametrize(
    ("kind", "key", "words"),
    [
        (REPEATS, numbers, f"epoch 0, 2 ranks, 0 workers: sample {BATCH[0]} came 2 times: step 2, rank 0; step 2, r"),
        (DROPS, numbers, f"51 samples came, 53 should have; sample ({BATCH[-1]}|{OTHER[-1]}) did not come"),
        (INVENTS, numbers, f"sample {BATCH[0] + 1000} is none that should have come: {AT}"),
        (DROPS, None, f"{AT}: the batch has 3 rows, for 4 samples"),
        (EndsEarly, None, "epoch 0, step 3: rank 1 has no batch left and rank 0 has one"),
    ],
)
def test_samples_that_come_twice_or_not_at_all(kind: Any, key: Any, words: str) -> None:
    with wrong(words):
        assert_each_sample_once(partial(loader, kind=kind), ranks=(2,), workers=(0,), key=key)


def test_a_dataset_that_gives_one_sample_for_two_indices() -> None:
    twice = Made(lambda index: (4, 0) if index == 9 else (index, 0), SIZE)
    with wrong("indices 4 and 9 of the dataset have one key, 4"):
        assert_each_sample_once(partial(loader, twice), key=numbers)
    with wrong("key\\(\\) gives 2 keys for a batch of one sample, of index 0"):
        assert_each_sample_once(loader, key=lambda batch: [0, 1])


def stating(change: Any) -> Any:
    """Return a class of loaders whose states a function changes."""

    class Stating(penstock.DataLoader[Any]):
        def state_dict(self) -> dict[str, Any]:
            state = super().state_dict()
            return {**state, **change(state, (0, 1) if self.shard is None else self.shard)}

    return Stating


#: Counts a batch of each rank that was not handed out.
COUNTS_AHEAD = stating(lambda state, shard: {"position": min(SIZE, state["position"] + 4 * shard[1])})
COUNTS_ITSELF = stating(lambda state, shard: {"position": 4 * shard[0]})
NO_JSON = stating(lambda state, shard: {"more": torch.zeros(1)})


class OtherOrder(penstock.DataLoader[Any]):
    """Forgets the seed's epoch when it goes on with other ranks: hands out what was handed out."""

    def load_state_dict(self, state: Any, on_change: Any = "raise") -> None:
        super().load_state_dict({**state, "position": state["position"] - 1} if self.shard == (0, 2) else state)


TWICE = (
    "epoch 0, stopped after step 3 with 1 rank, 0 workers, and continued with 2 ranks, 0 workers: sample "
    f"{numbers(loader().batch_at(0, 2))[-1]} came 2 times: step 2, rank 0 before the stop; step 0, rank 0 after it"
)


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (COUNTS_AHEAD, {}, r"epoch 0, step 3, rank 0, sample \d+: stopped after step 3 .* is \d+, and"),
        (COUNTS_ITSELF, {"ranks": (2,)}, "rank 1 has another state than rank 0"),
        (NO_JSON, {}, r"the state cannot be written as JSON: .*Tensor"),
        (OtherOrder, {"ranks": (1, 2)}, TWICE),
        (
            OtherOrder,
            {"ranks": (1, 2), "batch_sizes": (4,), "key": numbers},
            TWICE.replace("2 ranks, 0 workers:", "2 ranks, 0 workers, batches of 4:"),
        ),
    ],
)
def test_states_that_are_wrong(kind: Any, options: dict[str, Any], words: str) -> None:
    with wrong(words):
        assert_resume_exact(partial(loader, kind=kind), **{"stops": [3], "ranks": (1,), "workers": (0,), **options})


def test_batches_without_rows_need_a_key() -> None:
    make = partial(loader, collate_fn=lambda samples: {"sum": sum(float(sample[0]) for sample in samples)})
    assert_worker_invariant(make, workers=(0, 1))
    with pytest.raises(TypeError, match="a batch with a float in it, which has no rows: give key="):
        assert_resume_exact(make, stops=[2], workers=(0,))


class Pair(NamedTuple):
    a: Any
    b: Any


class Plain:
    def __init__(self, value: Any) -> None:
        self.value = value


NAN = float("nan")
SAME: list[Any] = [
    lambda: torch.tensor([1.0, NAN]), lambda: torch.tensor(3), lambda: torch.empty(0, 3),
    lambda: torch.tensor([True, False]), lambda: torch.tensor([1 + 2j]).conj(),
    lambda: torch.zeros(2, 3, dtype=torch.bfloat16).t(), lambda: torch.tensor([[0.0, 2.0]]).to_sparse(),
    lambda: np.array([NAN, 1.0]), lambda: np.array(["a", None], dtype=object), lambda: np.float32(NAN),
    lambda: OrderedDict(a=[1, NAN], b=Pair("x", b"y")), lambda: Plain({"x": torch.tensor(NAN)}),
    lambda: Image.new("RGB", (2, 2)), lambda: None,
]  # fmt: skip


@pytest.mark.parametrize("make", SAME)
def test_the_same(make: Any) -> None:
    assert (difference(make(), make()), digest(make())) == (None, digest(make()))


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
    assert difference(a, b) == (path, row, what) and digest(a) != digest(b)


def test_rows() -> None:
    batch = {"x": torch.arange(4).view(2, 2), "y": [np.array([1, 2]), ("a", "b")]}
    assert [(x.tolist(), y) for x, y in rows(batch)] == [([0, 1], (1, "a")), ([2, 3], (2, "b"))]
    with pytest.raises(TypeError, match="whose parts have 2, 3 rows: give key="):
        rows([torch.zeros(2), torch.zeros(3)])
