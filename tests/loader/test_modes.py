"""Modes of torch that hold for a thread: what batches made under one are in another, compared with torch's loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from torch.utils.data import Dataset, TensorDataset

import penstock

Make = Callable[[Any], Any]

SAMPLES = 8
BATCH = 4


class Samples(Dataset[Any]):
    """Of each kind of part: a tensor, an array, a number, and a string that stays as it is."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "x": torch.full((3,), float(index)),
            "pair": (np.full(2, index, np.float32), index / 2),
            "name": str(index),
        }


def own_collate(samples: list[Any]) -> Any:
    return torch.stack([sample["x"] for sample in samples])


def arrays() -> TensorDataset:
    return TensorDataset(torch.arange(3.0 * SAMPLES).view(SAMPLES, 3), torch.arange(float(SAMPLES)))


CASES: dict[str, tuple[Callable[[], Any], dict[str, Any], dict[str, Any]]] = {
    "native": (arrays, {"num_workers": 2}, {}),
    "native, here": (arrays, {"num_workers": 0}, {}),
    "native, default": (arrays, {}, {}),
    "native, persistent": (arrays, {"num_workers": 2, "persistent_workers": True}, {}),
    "Python, here": (Samples, {"num_workers": 0}, {}),
    "Python, here, seed": (Samples, {"num_workers": 0}, {"seed": 1}),
    "Python, collate_fn": (Samples, {"num_workers": 0, "collate_fn": own_collate}, {}),
    "threads": (Samples, {"num_workers": 2}, {"worker_method": "thread"}),
    "threads, collate_fn": (Samples, {"num_workers": 2, "collate_fn": own_collate}, {"worker_method": "thread"}),
    "threads, persistent": (Samples, {"num_workers": 2, "persistent_workers": True}, {"worker_method": "thread"}),
    "threads, none": (Samples, {"num_workers": 0}, {"worker_method": "thread"}),
    "processes": (Samples, {"num_workers": 1}, {}),
    "device": (arrays, {"num_workers": 2}, {"device": "cpu"}),
    "device, Python": (Samples, {"num_workers": 0}, {"device": "cpu"}),
    "device, cache": (arrays, {"num_workers": 2}, {"device": penstock.Feed("cpu", cache="device")}),
}


@pytest.fixture(params=CASES, ids=list(CASES))
def make(request: pytest.FixtureRequest) -> Make:
    dataset, theirs, ours = CASES[request.param]

    def make_loader(kind: Any) -> Any:
        if issubclass(kind, penstock.DataLoader):
            return kind(dataset(), batch_size=BATCH, **theirs, **ours)
        # With two, which batch torch receives in which call of next() depends on the workers' pace.
        workers = min(1, theirs.get("num_workers", 0))
        return kind(dataset(), batch_size=BATCH, **{**theirs, "num_workers": workers})

    return make_loader


def tensors(batch: Any) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, dict):
        for value in batch.values():
            yield from tensors(value)
    elif isinstance(batch, list | tuple):
        for value in batch:
            yield from tensors(value)


def kinds(batch: Any) -> list[tuple[bool, bool, list[float]]]:
    return [(t.is_inference(), t.requires_grad, t.flatten().tolist()) for t in tensors(batch)]


def train(batch: Any) -> None:
    for tensor in tensors(batch):
        weight = torch.ones(tensor.shape, requires_grad=True)
        (tensor * weight * weight).sum().backward()
        assert weight.grad is not None


def _inference_then_training(loader: Any) -> list[Any]:
    seen = []
    with torch.inference_mode():
        seen += [kinds(batch) for batch in loader]
    for _ in range(2):
        for batch in loader:
            train(batch)
            seen.append(kinds(batch))
    return seen


def _made_inside_used_outside(loader: Any) -> list[Any]:
    with torch.inference_mode():
        batches = iter(loader)
    seen = []
    for batch in batches:
        train(batch)
        seen.append(kinds(batch))
    return seen


def _made_outside_used_inside(loader: Any) -> list[Any]:
    batches = iter(loader)
    with torch.inference_mode():
        return [kinds(batch) for batch in batches]


def _in_turns(loader: Any) -> list[Any]:
    seen = []
    batches = iter(loader)
    for number in range(SAMPLES // BATCH):
        with torch.inference_mode(number % 2 == 0):
            batch = next(batches)
        if number % 2:
            train(batch)
        seen.append(kinds(batch))
    return seen


def _no_grad_then_training(loader: Any) -> list[Any]:
    with torch.no_grad():
        seen = [kinds(batch) for batch in loader]
    for batch in loader:
        train(batch)
        seen.append(kinds(batch))
    return seen


@pytest.mark.parametrize(
    "use",
    [
        _inference_then_training,
        _made_inside_used_outside,
        _made_outside_used_inside,
        _in_turns,
        _no_grad_then_training,
    ],
)
def test_batches_are_inference_tensors_where_torchs_are(make: Make, use: Callable[[Any], list[Any]]) -> None:
    loader = make(penstock.DataLoader)
    assert use(loader) == use(make(torch.utils.data.DataLoader))


def test_a_loader_that_is_made_under_inference_mode(make: Make) -> None:
    with torch.inference_mode():
        loader = make(penstock.DataLoader)
        loader.explain()
    for batch in loader:
        train(batch)
        assert not any(inference for inference, _, _ in kinds(batch))


class Modes(Dataset[Any]):
    """Samples that say what modes they are read in."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return (
            torch.is_grad_enabled(),
            torch.is_autocast_enabled("cpu"),
            str(torch.get_default_dtype()),
            str(torch.zeros(()).device),
        )


@pytest.mark.parametrize("workers", [1, 2])
def test_persistent_threads_read_each_pass_in_its_modes(workers: int) -> None:
    loader = penstock.DataLoader(
        Modes(),
        batch_size=1,
        num_workers=workers,
        worker_method="thread",
        persistent_workers=True,
        collate_fn=lambda samples: samples[0],
    )
    before = torch.get_default_dtype()

    def read(*around: AbstractContextManager[Any]) -> set[Any]:
        with around[0], around[1] if len(around) > 1 else nullcontext():
            return set(loader)

    plain = (True, False, str(before), "cpu")
    try:
        assert read(torch.inference_mode()) == {(False, *plain[1:])}
        assert read(nullcontext()) == {plain}
        assert read(torch.no_grad(), torch.autocast("cpu")) == {(False, True, *plain[2:])}
        torch.set_default_dtype(torch.float64)
        assert read(nullcontext()) == {(True, False, "torch.float64", "cpu")}
        torch.set_default_dtype(before)
        assert read(torch.device("meta")) == {(*plain[:3], "meta")}
        assert read(nullcontext()) == {plain}
    finally:
        torch.set_default_dtype(before)


def test_a_pass_of_threads_that_was_left_early_leaves_its_modes_too() -> None:
    loader = penstock.DataLoader(
        Modes(), batch_size=1, num_workers=2, worker_method="thread", persistent_workers=True, collate_fn=list
    )
    with torch.no_grad():
        next(iter(loader))
    assert all(sample[0] for batch in loader for sample in batch)
