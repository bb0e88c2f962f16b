"""A progress bar around a loader knows how long it is."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import penstock
from tests.data import Stream
from tests.values import flat, listed

tqdm = pytest.importorskip("tqdm", reason="tqdm is not installed: pip install tqdm").tqdm


def native(**options: Any) -> Any:
    loader: Any = penstock.DataLoader(TensorDataset(torch.arange(22)), batch_size=4, **options)
    assert "native thread" in loader.explain() or "caller's thread fills" in loader.explain()
    return loader


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("drop_last", "batches", "samples"), [(False, 6, 22), (True, 5, 20)])
def test_the_total_is_the_number_of_batches(workers: int, drop_last: bool, batches: int, samples: int) -> None:
    out = io.StringIO()
    bar = tqdm(native(drop_last=drop_last, num_workers=workers), file=out, mininterval=0)
    assert flat(bar) == list(range(samples))
    assert (bar.total, bar.n) == (batches, batches) and f"{batches}/{batches}" in out.getvalue()


def test_enumerate_needs_the_total_from_len() -> None:
    loader = native(num_workers=2)
    bar = tqdm(enumerate(loader), total=len(loader), file=io.StringIO())
    assert [step for step, _ in bar] == list(range(6)) and (bar.total, bar.n) == (6, 6)


def test_a_bar_that_is_left_leaves_the_loader_in_order() -> None:
    loader = native(num_workers=2)
    assert [listed(next(iter(tqdm(loader, file=io.StringIO())))) for _ in range(2)] == [[[0, 1, 2, 3]]] * 2


def test_no_total_where_torch_has_no_length() -> None:
    bar: Any = tqdm(penstock.DataLoader(Stream(5), batch_size=2), file=io.StringIO())
    assert (bar.total, listed(bar)) == (None, [[0, 1], [2, 3], [4]])
