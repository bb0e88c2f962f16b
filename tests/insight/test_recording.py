"""What a recording keeps of the loops over loaders: every second of waiting and work, in a bounded memory."""

from __future__ import annotations

import gc
import itertools
import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import penstock
from penstock import loop_times
from penstock.insight import record, recording
from penstock.insight.loop_rows import Rows, WorkSpans, column
from penstock.insight.recording import Recording
from penstock.observe import Delivery
from tests.forking import assert_in_child
from tests.sample_datasets import Made, Numbers, Stream, rows


def table_of(recorded: Recording, number: int = 0) -> Any:
    return recorded.all_loops()[number].rows.table()


# --- rows -------------------------------------------------------------------------------------------------------------


def test_the_latest_rows_are_kept() -> None:
    """One batch a second: of one pass, and of one pass each."""
    for count, passes in ((0, False), (7, False), (1001, False), (1001, True)):
        found = Rows(8)
        for number in range(count):
            place = (number, 1) if passes else (1, number + 1)
            found.add(number + 0.75, (0.25, 0.0, 0.5, 4, 1), *place, number)
        table = found.table()
        assert len(table) == count if count < 8 else 8 <= len(table) < 16
        assert column(table, "got").tolist() == [number + 0.75 for number in range(count - len(table), count)]
        assert column(table, "start").tolist() == list(range(count - len(table), count))


# --- the loop ---------------------------------------------------------------------------------------------------------


def test_rows_agree_with_the_loop_times(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    tick = lambda: now[0]  # noqa: E731
    for module, names in ((loop_times, ("perf_counter", "process_time")), (recording, ("perf_counter", "wall_clock"))):
        for name in names:
            monkeypatch.setattr(module, name, tick)
    made = Recording()
    loader = penstock.DataLoader(rows())
    for waits in ([0.5, 0.25, 4.0], [1.0], [], [0.125] * 5):
        observer = made.observe(loader)
        assert observer is not None
        for waited in waits:
            now[0] += 3.0 + waited
            observer.delivered(Delivery(None, 7, waited))
        now[0] += 2.0
        observer.ended()
    table, times = table_of(made), made.all_loops()[0].times
    assert column(table, "batches").sum() == times.batches == 9
    assert column(table, "samples").sum() == 63
    assert column(table, "waited").sum() == times.waited == 0.25 + 4.0 + 3.5 + 4.0 + 3.125 + 4 * 0.125
    assert column(table, "first_waited").sum() == times.first_waited == 3.5 + 4.0 + 3.125
    assert column(table, "worked").sum() == times.worked


@pytest.mark.parametrize(
    "options",
    [
        {"dataset": rows(), "num_workers": 2},
        {"dataset": rows(), "num_workers": 0},
        {"dataset": Made(), "num_workers": 2, "worker_method": "thread"},
        {"dataset": Made(), "num_workers": 0},
        {"dataset": Stream(), "num_workers": 0},
    ],
    ids=["native", "native here", "threads", "inline", "iterable"],
)
def test_each_way_to_read_is_recorded(options: dict[str, Any]) -> None:
    with record() as made:
        loader: penstock.DataLoader[Any] = penstock.DataLoader(batch_size=4, **options)
        for _ in range(2):
            samples = sum(len(batch[0] if isinstance(batch, list) else batch) for batch in loader)
    stats, table = loader.stats(), table_of(made)
    (recorded,) = made.all_loops()
    assert (recorded.passes, recorded.meter.failed, recorded.read_by) == (2, 0, loader.read_by)
    assert column(table, "batches").sum() == stats.batches
    assert column(table, "samples").sum() == stats.samples == 2 * samples
    assert column(table, "waited").sum() == pytest.approx(recorded.times.waited, abs=1e-9)
    assert recorded.times.steady_waited == pytest.approx(stats.loop.steady_waited, abs=1e-9)
    assert (column(table, "first_waited") > 0).sum() == 2
    assert recorded.stats is not None and recorded.stats.batches == stats.batches
    assert recorded.explained.startswith("plan ")
    assert loader._executors.counters.meter.sinks == ()


def test_loaders_of_torch_are_recorded_where_that_is_asked_for() -> None:
    made = Recording(torch=True)
    made.begin()
    for _ in range(2):  # loaders of one line are one
        assert len(list(torch.utils.data.DataLoader(Made(), batch_size=4))) == 6
    made.end()
    (recorded,) = made.all_loops()
    table = recorded.rows.table()
    assert (recorded.loaders, recorded.passes, recorded.read_by) == (2, 2, "the caller's thread")
    assert column(table, "batches").sum() == 12 and column(table, "samples").sum() == recorded.samples == 46
    assert column(table, "waited").sum() == pytest.approx(recorded.times.waited)


def test_threads_record_their_work() -> None:
    with record() as made:
        loader = penstock.DataLoader(Made(), batch_size=4, num_workers=2, worker_method="thread")
        list(loader)
    found = made.all_loops()[0].spans.by_thread()
    assert found.keys() <= {"penstock-worker-0", "penstock-worker-1", "MainThread"}
    samples = {"getitem": 0.0, "collate": 0.0}
    for one in itertools.chain(*found.values()):
        assert one.begin <= one.end
        samples[one.stage] += one.samples
    assert samples == {"getitem": 23, "collate": 23}


def test_batches_say_when_they_were_begun() -> None:
    with record() as made:
        list(penstock.DataLoader(rows(), batch_size=4, num_workers=2))
    table = table_of(made)
    delivered = table[column(table, "batches") == 1]
    assert (column(delivered, "begun") > 0).all()
    assert (column(delivered, "begun") <= column(delivered, "got")).all()


def test_errors_are_recorded_by_type_alone() -> None:
    with record() as made:
        loader = iter(penstock.DataLoader(Numbers(bad=[5]), batch_size=4))
        next(loader)
        with pytest.raises(ValueError, match="number 5"):
            next(loader)
        assert len(list(loader)) == 4
    (recorded,) = made.all_loops()
    assert (recorded.meter.failed, [kind for _, kind in recorded.errors]) == (1, ["ValueError"])


def test_passes_before_and_after_are_not_recorded() -> None:
    loader = penstock.DataLoader(rows(), batch_size=4)
    before = list(loader)
    with record() as made:
        list(loader)
    list(loader)
    assert column(table_of(made), "batches").sum() == len(before)
    assert {count for _, count in made.all_loops()[0].stages.values()} == {53}


def test_two_recordings_at_once_and_loops_in_loops() -> None:
    with record() as outer:
        loader = penstock.DataLoader(rows(), batch_size=16)
        with record() as inner:
            for _ in loader:
                for _ in loader:
                    pass
        list(loader)
    assert inner.all_loops()[0].passes == 1 + len(loader)
    assert outer.all_loops()[0].passes == 2 + len(loader)
    spans = [made.all_loops()[0].spans.by_thread().values() for made in (inner, outer)]
    gathered = [sum(one.samples for one in itertools.chain(*found)) for found in spans]
    assert gathered == [2 * 53 * 5, 2 * 53 * 6]  # rows are read, and a batch is made of them


def test_a_recording_keeps_no_loader_and_no_sample() -> None:
    class Witness:
        pass

    made = Recording(torch=True)
    made.begin()
    for kind in (penstock.DataLoader, torch.utils.data.DataLoader):
        loader = kind(Made(lambda index: torch.zeros(2)), batch_size=4)
        loader.witness = witness = Witness()
        list(loader)
        alive = weakref.ref(witness)
        del loader, witness
        gc.collect()
        assert alive() is None
    made.end()
    assert [one.times.batches for one in made.all_loops()] == [6, 6]
    assert made.all_loops()[0].explained


def test_further_loaders_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MOST_LOOPS", 2)
    with record() as made:
        loaders = [penstock.DataLoader(rows(), batch_size=32) for _ in range(4)]
        for loader in loaders:
            list(loader)
    assert (len(made.all_loops()), made.unrecorded) == (2, 2)


def test_a_forked_child_leaves_the_recording_alone(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"

    def check() -> None:
        list(penstock.DataLoader(rows(), batch_size=4, num_workers=0))
        list(torch.utils.data.DataLoader(Made(), 4))
        assert everything.all_loops() == []
        everything.end()
        block.__exit__(None, None, None)
        assert not file.exists()
        assert made.all_loops() == []

    block = record(trace=file)
    made, everything = block.__enter__(), Recording(torch=True)
    everything.begin()
    assert_in_child(check)
    everything.end()
    block.__exit__(None, None, None)
    assert json.loads(file.read_text())["traceEvents"] == []


# --- spans ------------------------------------------------------------------------------------------------------------


def test_the_latest_spans_are_kept() -> None:
    spans = WorkSpans(8)
    for number in range(101):
        spans("read", 0.5, 1, float(number), "reader")
    (done,) = spans.by_thread().values()
    assert [one.end for one in done] == [*range(93, 101)] and done[0][:3] == ("reader", "read", 92.5)
