"""Warnings point at the line of the user's program that called the loader."""

from __future__ import annotations

import inspect
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


def _warned(call: Callable[[], Any], line: int) -> tuple[list[str], list[tuple[str, int]]]:
    """Return what a call warned of, and where, as (file, line after the one given)."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(one.message) for one in caught], [(one.filename, one.lineno - line) for one in caught]


def _line() -> int:
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno


needs_no_accelerator = pytest.mark.skipif(torch.accelerator.is_available(), reason="the warning is of its absence")


@needs_no_accelerator
@pytest.mark.parametrize("dataset", [arrays, samples])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_device_that_is_not_there(dataset: Callable[[], Any], workers: int) -> None:
    loader = penstock.DataLoader(dataset(), num_workers=workers, device="cuda")
    line = _line() + 1
    messages, places = _warned(lambda: list(loader), line)
    assert "no cuda device is available" in messages[0]
    assert places == [(__file__, 0)]


@needs_no_accelerator
def test_a_device_that_is_not_there_of_prefetch() -> None:
    batches = prefetch([torch.ones(1)])
    line = _line() + 1
    _, places = _warned(lambda: list(batches), line)
    assert places == [(__file__, 0)]


@needs_no_accelerator
@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}])
def test_pinning_without_an_accelerator(options: dict[str, Any]) -> None:
    loader = penstock.DataLoader(arrays(), pin_memory=True, num_workers=2, **options)
    for _ in range(2):
        line = _line() + 1
        messages, places = _warned(lambda: next(iter(loader)), line)
        assert all("no accelerator is found" in message for message in messages)
        assert set(places) <= {(__file__, 0)}


@needs_no_accelerator
def test_a_batch_asked_for_out_of_order() -> None:
    loader = penstock.DataLoader(arrays(), pin_memory=True, seed=1)
    line = _line() + 1
    _, places = _warned(lambda: loader.batch_at(0, 0), line)
    assert places == [(__file__, 0)]


@pytest.mark.parametrize(
    ("dataset", "options", "words"),
    [(arrays, {}, "as many native threads,"), (samples, {"worker_method": "thread"}, "as many threads,")],
)
def test_too_many_threads(dataset: Callable[[], Any], options: dict[str, Any], words: str) -> None:
    line = _line() + 1
    messages, places = _warned(lambda: penstock.DataLoader(dataset(), num_workers=5000, **options), line)
    assert len(messages) == 1
    assert words in messages[0]
    assert "num_workers=5,000" in messages[0]
    assert "process" not in messages[0].replace("the process may use", "")
    assert places == [(__file__, 0)]


def test_too_many_processes_are_warned_of_by_torch() -> None:
    messages, _ = _warned(lambda: penstock.DataLoader(samples(), num_workers=5000), 0)
    assert "worker processes in total" in messages[0]


def test_a_stream_that_is_gone_through_again() -> None:
    loader = penstock.DataLoader(Stream(8), batch_size=2)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    line = _line() + 1
    messages, places = _warned(lambda: loader.load_state_dict(state), line)
    assert "1 batch will be read and dropped" in messages[0]
    assert places == [(__file__, 0)]


def test_a_damaged_manifest(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"id": broken\n', encoding="utf-8")
    line = _line() + 1
    messages, places = _warned(lambda: penstock.DataLoader(arrays(), on_error=penstock.Replace(manifest=path)), line)
    assert "damaged lines" in messages[0]
    assert places == [(__file__, 0)]


def test_a_loader_of_ones_own_class() -> None:
    class Own(penstock.DataLoader[Any]):
        pass

    line = _line() + 1
    _, places = _warned(lambda: Own(arrays(), num_workers=5000), line)
    assert places == [(__file__, 0)]
