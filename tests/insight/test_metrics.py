"""Stats.metrics(): a flat dictionary of floats, and where it goes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.loop_times import WAIT_CLASSES, LoopTimes
from tests.pages import ROOT, rows_of
from tests.sample_datasets import Made, tensor_files


def loader_of(folder: Path) -> penstock.DataLoader[Any]:
    loader: penstock.DataLoader[Any] = penstock.DataLoader(
        penstock.TensorFolder(tensor_files(folder, 10)), batch_size=4, cache="1MiB", num_workers=1
    )
    for _ in range(2):
        assert len(list(loader)) == 3
    return loader


def test_numbers_of_a_loader(tmp_path: Path) -> None:
    loader = loader_of(tmp_path / "data")
    stats = loader.stats()
    metrics = stats.metrics()
    assert all(type(value) is float for value in metrics.values())
    assert all(re.fullmatch(r"penstock/[a-z0-9_/]+", name) for name in metrics)
    assert metrics["penstock/batches"] == 6 and metrics["penstock/samples"] == 20
    assert metrics["penstock/wait_seconds"] == stats.loop.waited > 0
    assert metrics["penstock/wait_share"] == stats.loop.wait_share
    assert metrics["penstock/stage/read/seconds"] == stats.stages["read"].seconds
    assert metrics["penstock/cache/hits"] == stats.cache["memory"].hits > 0
    waits = [metrics[f"penstock/wait_p{share}_seconds"] for share in (50, 90, 99)]
    assert waits == sorted(waits) and waits[-1] <= metrics["penstock/longest_wait_seconds"]
    assert set(stats.metrics("a/")) == {name.replace("penstock/", "a/") for name in metrics}
    assert stats.metrics(prefix="")["batches"] == 6


def test_a_loader_that_did_nothing() -> None:
    metrics = penstock.DataLoader(Made(), num_workers=0).stats().metrics()
    assert set(metrics.values()) == {0.0} and "penstock/wait_p99_seconds" in metrics


def test_every_name_is_in_the_table(tmp_path: Path) -> None:
    rows = " ".join(row[0] for row in rows_of(ROOT / "docs" / "metrics.md", "name, behind the prefix"))
    names = loader_of(tmp_path / "data").stats().metrics("")
    known = set(re.findall(r"`([^`]+)`", rows))
    assert {re.sub("^stage/[a-z_]+/", "stage/NAME/", name) for name in names} == known


def test_quantiles_of_waits() -> None:
    def times(longest: float, **counts: int) -> LoopTimes:
        waits = [0] * WAIT_CLASSES
        for place, count in counts.items():
            waits[int(place[1:])] = count
        return LoopTimes(waits=tuple(waits), longest_wait=longest)

    assert LoopTimes().wait_quantile(0.5) == 0.0
    assert times(3e-6, c2=1).wait_quantile(0.5) == 3e-6  # never more than the longest
    mixed = times(0.9, c0=50, c10=45, c20=5)
    assert mixed.wait_quantile(0.5) == 1e-6
    assert mixed.wait_quantile(0.9) == mixed.wait_quantile(0.95) == pytest.approx(1e-6 * 2**10)
    assert mixed.wait_quantile(0.99) == mixed.wait_quantile(1.0) == 0.9
    assert times(500.0, c27=1).wait_quantile(0.5) == 500.0
    assert times(0.5, c3=1, c19=1).wait_quantile(0.0) == pytest.approx(8e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_takes_them(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install tensorboard")
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    writing = pytest.importorskip("torch.utils.tensorboard")

    metrics = loader_of(tmp_path / "data").stats().metrics()
    with writing.SummaryWriter(str(tmp_path / "runs")) as writer:
        for name, value in metrics.items():
            writer.add_scalar(name, value, 7)
    events = reading.EventAccumulator(str(tmp_path / "runs"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == set(metrics)
    (batches,) = events.Scalars("penstock/batches")
    assert (batches.step, batches.value) == (7, 6.0)
