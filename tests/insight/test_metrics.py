"""Stats.metrics(): a flat dictionary of floats, and where it goes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.data import Made, tensor_files
from tests.pages import ROOT, rows_of


def loader_of(folder: Path) -> penstock.DataLoader[Any]:
    loader: penstock.DataLoader[Any] = penstock.DataLoader(
        penstock.TensorFolder(tensor_files(folder, 10)), batch_size=4, cache="1MiB", num_workers=1
    )
    for _ in range(2):
        assert len(list(loader)) == 3
    return loader


def test_numbers_of_a_loader(tmp_path: Path) -> None:
    stats = loader_of(tmp_path / "data").stats()
    metrics, found = stats.metrics(), stats.metrics(prefix="")
    assert all(type(value) is float for value in metrics.values())
    assert all(re.fullmatch(r"penstock/[a-z0-9_/]+", name) for name in metrics)
    assert {f"penstock/{name}": value for name, value in found.items()} == metrics
    assert set(stats.metrics("a/")) == {f"a/{name}" for name in found}
    assert (found["batches"], found["samples"], found["wait_share"]) == (6, 20, stats.loop.wait_share)
    assert found["wait_seconds"] == stats.loop.waited > 0
    assert found["stage/read/seconds"] == stats.stages["read"].seconds
    assert found["cache/hits"] == stats.cache["memory"].hits > 0
    waits = [found[f"{name}_seconds"] for name in ("wait_p50", "wait_p90", "wait_p99", "longest_wait")]
    assert waits == sorted(waits)
    nothing = penstock.DataLoader(Made(), num_workers=0).stats().metrics()
    assert set(nothing.values()) == {0.0} and nothing.keys() >= {"penstock/wait_p99_seconds"}


def test_every_name_is_in_the_table(tmp_path: Path) -> None:
    rows = " ".join(row[0] for row in rows_of(ROOT / "docs" / "metrics.md", "name, after the prefix"))
    names = loader_of(tmp_path / "data").stats().metrics("")
    known = set(re.findall(r"`([^`]+)`", rows))
    assert {re.sub("^stage/[a-z_]+/", "stage/NAME/", name) for name in names} == known


def test_quantiles_of_waits() -> None:
    none = penstock.DataLoader(Made()).stats().loop

    def times(longest: float, counts: dict[int, int]) -> Any:
        return replace(none, waits=tuple(counts.get(n, 0) for n in range(len(none.waits))), longest_wait=longest)

    assert none.wait_quantile(0.5) == 0.0
    assert times(3e-6, {2: 1}).wait_quantile(0.5) == 3e-6  # never more than the longest
    mixed = times(0.9, {0: 50, 10: 45, 20: 5})
    assert mixed.wait_quantile(0.5) == 1e-6
    assert mixed.wait_quantile(0.9) == mixed.wait_quantile(0.95) == pytest.approx(1e-6 * 2**10)
    assert mixed.wait_quantile(0.99) == mixed.wait_quantile(1.0) == 0.9
    assert times(500.0, {27: 1}).wait_quantile(0.5) == 500.0
    assert times(0.5, {3: 1, 19: 1}).wait_quantile(0.0) == pytest.approx(8e-6)
