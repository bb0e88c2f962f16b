"""Warnings point at the line of the user's program that called the loader."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import penstock
import penstock.state.manifest
from penstock.device.feeding import prefetch
from tests.sample_datasets import Made, Stream, rows

arrays = partial(rows, 8)
samples = partial(Made, float, 8)


def _warned(call: Any, *, here: bool = True) -> list[str]:
    """Return what a call, a lambda of one line, warned of; all warnings point at that line (here)."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    places = {(one.filename, one.lineno) for one in caught}
    assert not here or places <= {(__file__, call.__code__.co_firstlineno)}
    return [str(one.message) for one in caught]


needs_no_accelerator = pytest.mark.skipif(torch.accelerator.is_available(), reason="the warning is of its absence")


@needs_no_accelerator
@pytest.mark.parametrize("dataset", [arrays, samples])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_device_that_is_not_there(dataset: Callable[[], Any], workers: int) -> None:
    loader = penstock.DataLoader(dataset(), num_workers=workers, device="cuda")
    (message,) = _warned(lambda: list(loader))
    assert "no cuda device is available" in message


@needs_no_accelerator
def test_a_device_that_is_not_there_of_prefetch() -> None:
    batches = prefetch([torch.ones(1)])
    assert len(_warned(lambda: list(batches))) == 1


@needs_no_accelerator
@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}])
def test_pinning_without_an_accelerator(options: dict[str, Any]) -> None:
    loader = penstock.DataLoader(arrays(), pin_memory=True, num_workers=2, **options)
    for _ in range(2):
        assert all("no accelerator is found" in message for message in _warned(lambda: next(iter(loader))))


@needs_no_accelerator
def test_a_batch_asked_for_out_of_order() -> None:
    loader = penstock.DataLoader(arrays(), pin_memory=True, seed=1)
    assert len(_warned(lambda: loader.batch_at(0, 0))) == 1


def test_too_many_processes_are_warned_of_by_torch() -> None:
    messages = _warned(lambda: penstock.DataLoader(samples(), num_workers=5000), here=False)
    assert "worker processes in total" in messages[0]


def test_a_stream_that_is_gone_through_again() -> None:
    loader = penstock.DataLoader(Stream(8), batch_size=2)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    (message,) = _warned(lambda: loader.load_state_dict(state))
    assert "1 batch will be read and dropped" in message


class Own(penstock.DataLoader[Any]):
    """A loader of a program's own class."""


@pytest.mark.parametrize("kind", [penstock.DataLoader, Own])
def test_a_damaged_manifest(kind: Any, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"id": broken\n', encoding="utf-8")
    (message,) = _warned(lambda: kind(arrays(), on_error=penstock.Replace(manifest=path)))
    assert "damaged lines" in message
