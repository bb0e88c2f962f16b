"""What a recording keeps of the loops over loaders: every second of waiting and work, in a bounded memory."""

from __future__ import annotations

import gc
import itertools
import json
import re
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penstock
from penstock.insight import record, recording
from penstock.insight.loop_rows import COLUMNS, Rows, column
from penstock.insight.recording import Recording
from penstock.insight.run_report import advice, import_line
from tests.data import Made, Stream, rows
from tests.forking import assert_in_child
from tests.values import flat


def table_of(recorded: Recording, number: int = 0) -> Any:
    return whole(recorded.all_loops()[number].rows)


def whole(rows: Rows) -> Any:
    """Return the rows of all passes, by COLUMNS."""
    return np.concatenate([np.empty((0, len(COLUMNS))), *rows.passes()])


def sums(table: Any, *names: str) -> list[float]:
    return [column(table, name).sum() for name in names]


WAYS: dict[str, dict[str, Any]] = {
    "native": {"dataset": rows(), "num_workers": 2},
    "native here": {"dataset": rows(), "num_workers": 0},
    "threads": {"dataset": Made(), "num_workers": 2, "worker_method": "thread"},
    "inline": {"dataset": Made(), "num_workers": 0},
    "iterable": {"dataset": Stream(), "num_workers": 0},
}


@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_read_is_recorded(way: str) -> None:
    with record() as made:
        loader: penstock.DataLoader[Any] = penstock.DataLoader(batch_size=4, **WAYS[way])
        samples = len(flat(loader)) + len(flat(loader))
    stats, table = loader.stats(), table_of(made)
    (recorded,) = made.all_loops()
    assert (recorded.passes, recorded.meter.failed, recorded.read_by) == (2, 0, loader.read_by)
    assert sums(table, "batches", "samples") == [stats.batches, samples] and stats.samples == samples
    assert column(table, "waited").sum() == pytest.approx(recorded.times.waited, abs=1e-9)
    assert recorded.times.steady_waited == pytest.approx(stats.loop.steady_waited, abs=1e-9)
    assert (column(table, "first_waited") > 0).sum() == 2
    delivered = table[column(table, "batches") == 1]
    assert way != "native" or ((begun := column(delivered, "begun")) > 0).all()
    assert way != "native" or (begun <= column(delivered, "got")).all()
    assert recorded.stats is not None and recorded.stats.batches == stats.batches
    assert recorded.explained.startswith("plan ")
    assert loader._pass_factory.counters.meter.sinks == ()


def test_loaders_of_torch_are_recorded() -> None:
    before = vars(torch.utils.data.DataLoader)["__iter__"]
    first, second = record(), record()
    made, other = first.__enter__(), second.__enter__()
    for _ in range(2):  # loaders of one line are one
        assert len(list(torch.utils.data.DataLoader(Made(), batch_size=4))) == 6
    first.__exit__(None, None, None)
    list(torch.utils.data.DataLoader(Made(), batch_size=4))
    second.__exit__(None, None, None)
    assert vars(torch.utils.data.DataLoader)["__iter__"] is before
    assert [one.times.batches for one in other.all_loops()] == [12, 6]
    (recorded,) = made.all_loops()
    assert (recorded.loaders, recorded.passes, recorded.read_by) == (2, 2, "the caller's thread")
    assert sums(whole(recorded.rows), "batches", "samples") == [12, recorded.samples] == [12, 46]
    assert sums(whole(recorded.rows), "waited") == [pytest.approx(recorded.times.waited)]


@pytest.mark.parametrize(
    ("dataset", "collate_fn", "instead"),
    [
        (rows(), None, "native threads would fill the batches"),
        (rows(), lambda batch: torch.utils.data.default_collate(batch), "native code would fill the batches that your"),
        (Made(), None, ""),
    ],
    ids=["native", "functions", "unknown"],
)
def test_what_the_native_core_would_do_for_torchs_loader(dataset: Any, collate_fn: Any, instead: str) -> None:
    with record() as made:
        list(torch.utils.data.DataLoader(dataset, batch_size=4, collate_fn=collate_fn))
    (recorded,) = made.all_loops()
    assert recorded.instead.startswith(instead) and bool(recorded.instead) is bool(instead)
    recorded.meter.add(1.0, None, 0)  # a long wait
    assert import_line(recorded).startswith('with "from penstock import DataLoader"') is bool(instead)
    assert re.match("give num_workers=[0-9]+: .*penstock run --compare", advice(recorded))
    for _ in range(50):
        recorded.meter.add_work(1.0)
    assert import_line(recorded) == "" and advice(recorded).startswith("nothing: ")


def test_threads_record_their_work() -> None:
    with record() as made:
        list(penstock.DataLoader(Made(), batch_size=4, num_workers=2, worker_method="thread"))
    found = made.all_loops()[0].spans.by_thread()
    assert found.keys() <= {"penstock-worker-0", "penstock-worker-1", "MainThread"}
    spans = list(itertools.chain(*found.values()))
    assert all(one.begin <= one.end for one in spans)
    for stage in {"getitem", "collate", *(one.stage for one in spans)}:
        assert sum(one.samples for one in spans if one.stage == stage) == 23 and stage in ("getitem", "collate")


def test_passes_before_and_after_are_not_recorded() -> None:
    loader = penstock.DataLoader(rows(), batch_size=4)
    before = list(loader)
    with record() as made:
        list(loader)
    list(loader)
    assert sums(table_of(made), "batches") == [len(before)]
    assert {count for _, count in made.all_loops()[0].stages.values()} == {53}


def test_two_recordings_at_once_and_loops_in_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    with record() as outer:
        loader = penstock.DataLoader(rows(), batch_size=16)
        with record() as inner:
            for _ in loader:
                list(loader)
        list(loader)
    for made, passes in ((inner, 1 + len(loader)), (outer, 2 + len(loader))):
        spans = itertools.chain(*made.all_loops()[0].spans.by_thread().values())
        assert made.all_loops()[0].passes == passes
        assert sum(one.samples for one in spans) == 2 * 53 * passes  # rows are read, and a batch is made of them
    monkeypatch.setattr(recording, "MOST_LOOPS", 2)
    with record() as made:  # where further loaders are counted
        loaders = [penstock.DataLoader(rows(), batch_size=32 + number) for number in range(4)]
        for loader in loaders:
            list(loader)
    assert (len(made.all_loops()), made.unrecorded) == (2, 2)


def test_a_recording_keeps_no_loader_and_no_sample() -> None:
    made = Recording()
    made.begin()
    for kind in (penstock.DataLoader, torch.utils.data.DataLoader):
        loader = kind(Made(lambda index: torch.zeros(2)), batch_size=4)
        loader.witness = witness = Made()
        list(loader)
        alive = weakref.ref(witness)
        del loader, witness
        gc.collect()
        assert alive() is None
    made.end()
    assert [one.times.batches for one in made.all_loops()] == [6, 6]
    assert made.all_loops()[0].explained


def test_a_forked_child_leaves_the_recording_alone(tmp_path: Path) -> None:
    def check() -> None:
        list(penstock.DataLoader(rows(), batch_size=4, num_workers=0))
        list(torch.utils.data.DataLoader(Made(), 4))
        everything.end()
        block.__exit__(None, None, None)
        assert not file.exists() and everything.all_loops() == made.all_loops() == []

    file, everything = tmp_path / "trace.json", Recording()
    block = record(trace=file)
    made = block.__enter__()
    everything.begin()
    assert_in_child(check)
    everything.end()
    block.__exit__(None, None, None)
    assert json.loads(file.read_text())["traceEvents"] == []
