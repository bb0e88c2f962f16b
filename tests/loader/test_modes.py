"""Modes of torch that hold for a thread: what batches made under one are in another, compared with torch's loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import cycle, islice
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from torch.utils.data import TensorDataset

import penstock
from tests.carriers_under_test import EXECUTORS, Executor
from tests.data import Made
from tests.differential.values import tensors_of

Make = Callable[[Any], Any]

SAMPLES = 8
BATCH = 4


def parts(index: int) -> dict[str, Any]:
    """Return a sample of each kind of part: a tensor, an array, a number, and a string that stays as it is."""
    pair = np.full(2, index, np.float32), index / 2
    return {"x": torch.full((3,), float(index)), "pair": pair, "name": str(index)}


def modes(index: int) -> Any:
    """Return what modes a sample is read in."""
    autocast, dtype = torch.is_autocast_enabled("cpu"), str(torch.get_default_dtype())
    return torch.is_grad_enabled(), autocast, dtype, str(torch.zeros(()).device)


def own_collate(samples: list[Any]) -> Any:
    return torch.stack([sample["x"] for sample in samples])


def arrays() -> TensorDataset:
    return TensorDataset(torch.arange(3.0 * SAMPLES).view(SAMPLES, 3), torch.arange(float(SAMPLES)))


NAMES = (
    "native, 2", "native, caller", "native, default", "native, persistent", "native, fed",
    "caller", "caller, seed", "caller, fed", "threads, caller", "threads, 2", "threads, persistent", "processes, 1",
)  # fmt: skip
CASES: dict[str, tuple[Executor, dict[str, Any]]] = {
    **{name: (EXECUTORS[name], {}) for name in NAMES},
    "caller, collate_fn": (EXECUTORS["caller"], {"collate_fn": own_collate}),
    "threads, collate_fn": (EXECUTORS["threads, 2"], {"collate_fn": own_collate}),
    "native, cache": (EXECUTORS["native, 2"], {"device": penstock.Feed("cpu", cache="device")}),
}


@pytest.fixture(params=CASES, ids=list(CASES))
def make(request: pytest.FixtureRequest) -> Make:
    executor, more = CASES[request.param]

    def make_loader(kind: Any) -> Any:
        dataset: Any = arrays() if executor.native else Made(parts, SAMPLES)
        if issubclass(kind, penstock.DataLoader):
            return kind(dataset, batch_size=BATCH, **{**executor.options, **more})
        # With two, which batch torch receives in which call of next() depends on the workers' pace.
        options = executor.options | more
        taken = {name: options[name] for name in ("persistent_workers", "collate_fn") if name in options}
        return kind(dataset, batch_size=BATCH, num_workers=min(1, options.get("num_workers", 0)), **taken)

    return make_loader


def kinds(batch: Any) -> list[tuple[bool, bool, list[float]]]:
    return [(t.is_inference(), t.requires_grad, t.flatten().tolist()) for t in tensors_of(batch)]


def train(batch: Any) -> None:
    for tensor in tensors_of(batch):
        weight = torch.ones(tensor.shape, requires_grad=True)
        (tensor * weight * weight).sum().backward()
        assert weight.grad is not None


INFERENCE, NO_GRAD, TRAINING = torch.inference_mode, torch.no_grad, nullcontext
#: By use: for each pass the mode of iter(), and those of next(), by turns; a batch that comes in no mode is trained on.
USES: dict[str, list[tuple[Any, list[Any]]]] = {
    "inference, then training": [(INFERENCE, [INFERENCE]), (TRAINING, [TRAINING]), (TRAINING, [TRAINING])],
    "made inside, used outside": [(INFERENCE, [TRAINING])],
    "made outside, used inside": [(TRAINING, [INFERENCE])],
    "in turns": [(TRAINING, [INFERENCE, TRAINING])],
    "no_grad, then training": [(NO_GRAD, [NO_GRAD]), (TRAINING, [TRAINING])],
}


@pytest.mark.parametrize("use", USES)
def test_batches_are_inference_tensors_where_torchs_are(make: Make, use: str) -> None:
    def seen(loader: Any) -> Iterator[Any]:
        for begun, used in USES[use]:
            with begun():
                batches = iter(loader)
            for mode in islice(cycle(used), SAMPLES // BATCH):
                with mode():
                    batch = next(batches)
                if mode is TRAINING:
                    train(batch)
                yield kinds(batch)
            assert next(batches, None) is None

    assert list(seen(make(penstock.DataLoader))) == list(seen(make(torch.utils.data.DataLoader)))


def test_a_loader_that_is_made_under_inference_mode(make: Make) -> None:
    with torch.inference_mode():
        loader = make(penstock.DataLoader)
        loader.explain()
    for batch in loader:
        train(batch)
        assert not any(inference for inference, _, _ in kinds(batch))


@pytest.mark.parametrize("workers", [1, 2])
def test_persistent_threads_read_each_pass_in_its_modes(workers: int) -> None:
    options: Any = {**EXECUTORS["threads, persistent"].options, "num_workers": workers}
    loader = penstock.DataLoader(Made(modes, SAMPLES), 1, collate_fn=lambda samples: samples[0], **options)
    before = torch.get_default_dtype()

    def read(*around: AbstractContextManager[Any]) -> set[Any]:
        with around[0], around[1] if len(around) > 1 else nullcontext():
            return set(loader)

    plain = (True, False, str(before), "cpu")
    try:
        assert read(torch.inference_mode()) == {(False, *plain[1:])} and read(nullcontext()) == {plain}
        assert read(torch.no_grad(), torch.autocast("cpu")) == {(False, True, *plain[2:])}
        torch.set_default_dtype(torch.float64)
        assert read(nullcontext()) == {(True, False, "torch.float64", "cpu")}
        torch.set_default_dtype(before)
        assert read(torch.device("meta")) == {(*plain[:3], "meta")} and read(nullcontext()) == {plain}
    finally:
        torch.set_default_dtype(before)


def test_a_pass_of_threads_that_was_left_early_leaves_its_modes_too() -> None:
    options: Any = {**EXECUTORS["threads, persistent"].options, "collate_fn": list}
    loader = penstock.DataLoader(Made(modes, SAMPLES), batch_size=1, **options)
    with torch.no_grad():
        next(iter(loader))
    assert all(sample[0] for batch in loader for sample in batch)
