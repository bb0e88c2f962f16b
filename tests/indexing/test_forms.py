"""The forms that people publish: each gives the batches of torch's loader, to the bit, whatever the loader is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.utils.data as tud

import penstock
from tests.differential.values import describe, pinning, tensors_of
from tests.indexing.both import assert_as_torch, seen
from tests.indexing.forms import FORMS

_NEEDS_PANDAS = {name for name in FORMS if name.startswith("Frame")}


def form(name: str) -> Callable[[], Any]:
    if name in _NEEDS_PANDAS:
        pytest.importorskip("pandas", reason="pandas is not installed: pip install pandas")
    return FORMS[name]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def as_list(samples: list[Any]) -> list[Any]:
    return samples


def stacked_first(samples: list[Any]) -> Any:
    return torch.stack([tensors_of(sample)[0] for sample in samples]) if tensors_of(samples) else len(samples)


class Way(NamedTuple):
    """How a dataset is read."""

    options: Callable[[], dict[str, Any]]
    own: dict[str, Any] | None = None
    wrap: Callable[[Any], Any] = lambda dataset: dataset


WAYS = {
    "one at a time": Way(dict),
    "batches": Way(lambda: {"batch_size": 4}),
    "no batches": Way(lambda: {"batch_size": None}),
    "shuffled": Way(lambda: {"batch_size": 4, "shuffle": True}),
    "by a generator": Way(lambda: {"batch_size": 4, "shuffle": True, "generator": generator(3), "drop_last": True}),
    "no batches, shuffled": Way(lambda: {"batch_size": None, "shuffle": True, "generator": generator(3)}),
    "numbers of numpy": Way(lambda: {"batch_size": 3, "sampler": np.array([3, 1, 4, 1, 5, 9, 2, 6])}),
    "tensors as indices": Way(lambda: {"batch_size": 3, "sampler": torch.tensor([3, 1, 4, 1, 5, 9, 2, 6])}),
    "from behind": Way(lambda: {"batch_size": 2, "sampler": [0, 3, -1, -2, 5, -3]}),
    "out of range": Way(lambda: {"batch_size": 2, "sampler": [0, 1, 2, 1000, 4, 5]}),
    "batch sampler": Way(lambda: {"batch_sampler": [[1, 2], [0], [5, 5, 5]]}),
    "weighted": Way(lambda: {"batch_size": 4, "sampler": tud.WeightedRandomSampler([1.0, 2.0, 3.0], 11)}),
    "subset": Way(lambda: {"batch_size": 4, "shuffle": True}, None, lambda d: tud.Subset(d, [*range(0, 9, 2), 1])),
    "concatenated": Way(lambda: {"batch_size": 5}, {},
    lambda data: tud.ConcatDataset([data, tud.Subset(data, [3, 4])])),
    "split": Way(lambda: {"batch_size": 3}, None, lambda data: tud.random_split(data, [0.7, 0.3], generator(1))[0]),
    "pinned": Way(lambda: {"batch_size": 4, "pin_memory": True}),
    "seed": Way(lambda: {"batch_size": 4}, {"seed": 7}),
    "seed, no batches": Way(lambda: {"batch_size": None}, {"seed": 7}),
    "in threads": Way(lambda: {"batch_size": 4}, {"num_workers": 2, "worker_method": "thread"}),
    "collate_fn": Way(lambda: {"batch_size": 4, "collate_fn": as_list}),
    "another collate_fn": Way(lambda: {"batch_size": 4, "shuffle": True, "collate_fn": stacked_first}),
    "collate_fn of singles": Way(lambda: {"batch_size": None, "collate_fn": lambda sample: (sample, 1)}),
}  # fmt: skip
#: Threads copy an array's sample as a row: its strides are then other ones.
_OF_NO_THREAD = {"collate_fn"}


@pytest.mark.parametrize("name", FORMS)
def test_batches_are_torchs(name: str) -> None:
    make = form(name)
    with pinning():
        for word, way in WAYS.items():
            try:
                assert_as_torch(make, way.options, way.own, wrap=way.wrap)
            except AssertionError as error:
                raise AssertionError(f"{word}: {error}") from None


#: Forms that do more than the language of the reader allows.
_BY_PYTHON = {
    *("Converted", "CharacterWindows", "MiddleDimension", "ChannelsFirst", "WithOwnTransform", "FrameColumns"),
    *("FrameTargets", "Wrapper", "Slots", "Lambdas", "Decorated"),
}


def test_the_others_are_gathered() -> None:
    for name in FORMS:
        loader = penstock.DataLoader(form(name)(), 4)
        for _ in range(2):
            list(loader)
        assert ("gather, as" in loader.explain()) is (name not in _BY_PYTHON), name


#: Every second form: processes take time to start.
IN_PROCESSES = [*FORMS][::2]


@pytest.mark.parametrize("name", IN_PROCESSES)
def test_worker_processes(name: str) -> None:
    assert_as_torch(form(name), lambda: {"batch_size": 4, "shuffle": True, "num_workers": 1}, passes=1)


@pytest.mark.parametrize("name", ["TensorPair", "Encodings", "MappedWindows"])
@pytest.mark.parametrize("way", ["no batches", "collate_fn", "out of range", "concatenated", "tensors as indices"])
def test_worker_processes_in_other_ways(name: str, way: str) -> None:
    if (name, way) == ("MappedWindows", "out of range"):
        return  # windows of another length: a worker of torch's stacks them in shared memory, and says that of it
    one = WAYS[way]
    assert_as_torch(
        form(name), lambda: {**one.options(), "num_workers": 2, "persistent_workers": True}, one.own, wrap=one.wrap
    )


@pytest.mark.parametrize("name", FORMS)
def test_seed_gives_the_same_samples_in_its_own_order(name: str) -> None:
    make = form(name)
    wanted = sorted(describe(sample) for sample in tud.DataLoader(make(), batch_size=None))
    orders = []
    ways: list[dict[str, Any]] = [{}, {"num_workers": 2, "worker_method": "thread"}]
    for workers in ways:
        loader = penstock.DataLoader(make(), batch_size=None, shuffle=True, seed=3, **workers)
        orders.append([describe(sample) for sample in loader])
        assert sorted(orders[-1]) == wanted
    assert orders[0] == orders[1]


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("batch_size", [None, 4])
def test_who_owns_the_memory(name: str, batch_size: int | None) -> None:
    """What the loop writes into a batch, or a collate_fn into a sample, is in the dataset where torch's is."""

    def spoil(batch: Any) -> Any:
        for tensor in tensors_of(batch):
            with torch.no_grad():
                tensor.zero_() if tensor.dtype is not torch.bool else tensor.logical_not_()
        return batch

    make = form(name)
    assert_as_torch(make, lambda: {"batch_size": batch_size}, receive=spoil)
    assert_as_torch(make, lambda: {"batch_size": batch_size, "collate_fn": spoil})


def test_each_class_has_rows_that_differ() -> None:
    """No form would hide rows that are exchanged."""
    for name in FORMS:
        if name == "StackedConstants":
            continue
        lines = seen(tud.DataLoader, form(name), lambda: {"batch_size": None}, {}, passes=1)
        rows = lines[: lines.index("end")]
        assert len(set(rows)) > len(rows) / 8, name
