"""What a recording keeps of loops over loaders, torch's and Penstock's, and that nothing else changes by it."""

from __future__ import annotations

import copy
import gc
import inspect
import itertools
import json
import logging
import re
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, Subset, TensorDataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

import penstock
from penstock.insight import record, recording
from penstock.insight.loop_rows import COLUMNS, Rows, column
from penstock.insight.recording import Loop, Recording
from penstock.insight.run_report import RunReport, advice, import_line, plain_sentence
from tests import data
from tests.data import Made, Numbers, rows
from tests.forking import assert_in_child
from tests.frameworks import derived_loaders as kinds
from tests.same import assert_same, outcomes
from tests.values import flat
from tests.waiting import run_in_threads

ROWS, BAD = TensorDataset(torch.arange(12)), Numbers(bad=[5], size=10, error=LookupError)


class Squares(Made):
    def __init__(self) -> None:
        super().__init__(lambda index: index * index, 10)


class Stream(data.Stream):
    def __len__(self) -> int:
        return self.size - 1


@pytest.fixture
def loops() -> Iterator[Recording]:
    before = surroundings()
    found = Recording(detail=False)
    found.begin()
    yield found
    found.end()
    assert surroundings() == before


def surroundings() -> list[Any]:
    kinds = (_SingleProcessDataLoaderIter, _MultiProcessingDataLoaderIter, DataLoader, penstock.DataLoader)
    names = ("__init__", "__iter__", "__next__", "_next_data", "_reset")
    return [getattr(kind, name, None) for kind in kinds for name in names]


def counts(loops: Recording) -> list[tuple[int, int, int]]:
    """Return the passes, batches and samples of each record."""
    return sorted((one.passes, one.times.batches, one.samples) for one in loops.loops())


def only(loops: Recording) -> Loop:
    (record,) = loops.loops()
    return record


def whole(rows: Rows) -> Any:
    """Return the rows of all passes, by COLUMNS."""
    return np.concatenate([np.empty((0, len(COLUMNS))), *rows.passes()])


def sums(table: Any, *names: str) -> list[float]:
    return [column(table, name).sum() for name in names]


def here(offset: int = 0) -> str:
    """Return the file and line of the caller, as a record names it."""
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return f"tests/insight/test_recording.py:{frame.f_back.f_lineno + offset}"


# --- what is recorded -------------------------------------------------------------------------------------------------

OURS = penstock.DataLoader
WAYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "torch": (DataLoader, {"dataset": Squares(), "num_workers": 0}),
    "torch, workers": (DataLoader, {"dataset": Squares(), "num_workers": 2}),
    "torch, generic": (DataLoader[Any], {"dataset": Squares(), "num_workers": 0}),
    "native": (OURS, {"dataset": rows(), "num_workers": 2}),
    "native here": (OURS, {"dataset": rows(), "num_workers": 0}),
    "threads": (OURS, {"dataset": Squares(), "num_workers": 2, "worker_method": "thread"}),
    "processes": (OURS, {"dataset": Squares(), "num_workers": 2}),
    "inline": (OURS, {"dataset": Squares(), "num_workers": 0}),
    "iterable": (OURS, {"dataset": data.Stream(), "num_workers": 0}),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_read_is_recorded_once(way: str) -> None:
    kind, options = WAYS[way]
    with record() as made:
        loader, place = kind(batch_size=4, **options), here()
        samples = len(flat(loader)) + len(flat(loader))
    (recorded,) = made.all_loops()
    ours, times, table = kind is OURS, recorded.times, whole(recorded.rows)
    name, what = "penstock.DataLoader" if ours else "DataLoader", type(options["dataset"]).__name__
    assert str(recorded.loader) == f"{name}({what}, batch_size=4, num_workers={options['num_workers']}) at {place}"
    assert (recorded.loaders, recorded.passes, recorded.samples, recorded.meter.failed) == (1, 2, samples, 0)
    assert not recorded.background and recorded.loader.penstock is ours
    assert sums(table, "batches", "samples", "waited") == [times.batches, samples, pytest.approx(times.waited)]
    assert (column(table, "first_waited") > 0).sum() == 2 == times.batches - sum(times.waits)
    assert times.waited > 0 and times.worked > 0
    delivered = table[column(table, "batches") == 1]
    assert way != "native" or ((begun := column(delivered, "begun")) > 0).all()
    assert way != "native" or (begun <= column(delivered, "got")).all()
    if ours:
        stats = loader.stats()
        assert (stats.batches, stats.samples, loader.read_by) == (times.batches, samples, recorded.read_by)
        assert times.steady_waited == pytest.approx(stats.loop.steady_waited, abs=1e-9)
        assert times.first_waited > stats.loop.first_waited, "with the start of the workers"
        assert recorded.stats is not None and recorded.stats.batches == stats.batches
        assert recorded.explained.startswith("plan ")
        assert loader._pass_factory.counters.meter.sinks == ()
    else:
        assert recorded.read_by == ("worker processes" if options["num_workers"] else "the caller's thread")


def test_recordings_at_once_of_torchs_loaders() -> None:
    first, second = record(), record()
    made, other = first.__enter__(), second.__enter__()
    for _ in range(2):  # loaders of one line are one
        assert len(list(DataLoader(Made(), batch_size=4))) == 6
    first.__exit__(None, None, None)
    list(DataLoader(Made(), batch_size=4))
    second.__exit__(None, None, None)
    assert [one.times.batches for one in other.all_loops()] == [12, 6]
    assert (only(made).loaders, counts(made)) == (2, [(2, 12, 46)])


@pytest.mark.parametrize("persistent", [False, True])
def test_a_pass_of_torchs_workers_that_is_left(loops: Recording, persistent: bool) -> None:
    loader = DataLoader(Squares(), 4, num_workers=2, persistent_workers=persistent)
    next(iter(loader))  # a pass that is left early
    assert_same(list(loader), list(DataLoader(Squares(), 4)))
    assert counts(loops) == [(1, 3, 10), (2, 4, 14)]


def test_the_start_of_workers_is_part_of_the_first_wait(loops: Recording) -> None:
    for loader in (DataLoader(Squares(), 4, num_workers=1), penstock.DataLoader(Squares(), 4, num_workers=1)):
        list(loader)
    for one in loops.loops():  # what a fork takes is more than the way of a batch that is there
        assert one.times.first_waited > max(0, one.times.steady_waited / 1000)


def test_derived_classes(loops: Recording) -> None:
    loader, place = kinds.Plain(Subset(Squares(), range(5)), batch_size=3), here()
    list(loader)
    assert str(only(loops).loader) == f"Plain(Subset of Squares, batch_size=3, num_workers=0) at {place}"
    keeps, other = kinds.Infinite(Squares(), 5), here()  # whose own lines call torch's
    assert [len(list(keeps)), len(list(keeps))] == [2, 2]
    assert counts(loops) == [(1, 2, 5), (1, 4, 20)]
    assert {one.loader.place for one in loops.loops()} == {place, other}


@pytest.mark.parametrize("kind", ["'/x/site-packages/library/data.py'", "'/x/dist-packages/library.py'"])
def test_a_library_that_makes_a_loader_is_called_by_a_line_of_the_program(loops: Recording, kind: str) -> None:
    names: dict[str, Any] = {"DataLoader": DataLoader, "ROWS": ROWS}
    exec(compile("def made():\n    return DataLoader(ROWS, 4)", kind.strip("'"), "exec"), names)
    loader, place = names["made"](), here()
    list(loader)
    assert only(loops).loader.place == place
    run_in_threads(1, lambda _: list(names["made"]()))
    assert {one.loader.place for one in loops.loops()} == {place, here(-1)}


@pytest.mark.parametrize(
    ("make", "batching", "samples"),
    [
        (lambda: DataLoader(Stream(7), 3), "batch_size=3", 7),
        (lambda: DataLoader(ROWS, batch_sampler=[[0, 1], [2]]), "batch_sampler=list", 3),
        (lambda: DataLoader(ROWS, batch_sampler=[[0, 1], [2]], collate_fn=len), "batch_sampler=list", 0),
        (lambda: DataLoader(ROWS, 5, collate_fn=len), "batch_size=5", 15),
        (lambda: DataLoader(ROWS, batch_sampler=BatchSampler(range(7), 3, False)), "batch_size=3", 7),
        (lambda: DataLoader(ROWS, batch_sampler=BatchSampler(SequentialSampler(ROWS), 5, False)), "batch_size=5", 12),
        (lambda: DataLoader(ROWS, 5, drop_last=True), "batch_size=5", 10),
        (lambda: DataLoader(ROWS, batch_size=None), "batch_size=None", 0),
    ],
)
def test_kinds_of_batches(make: Any, batching: str, samples: int, loops: Recording) -> None:
    batches = len(list(make()))
    assert (only(loops).loader.batching, counts(loops)) == (batching, [(1, batches, samples)])


def test_nested_loops_and_a_copy(loops: Recording) -> None:
    inner, outer = DataLoader(Squares(), 5), DataLoader(ROWS, 4)
    for _ in outer:
        list(inner)
    list(copy.copy(outer))
    counts = {(one.loader.dataset, one.loader.place != ""): (one.passes, one.times.batches) for one in loops.loops()}
    assert counts == {("Squares", True): (3, 6), ("TensorDataset", True): (1, 3), ("TensorDataset", False): (1, 3)}


def test_a_background_thread(loops: Recording) -> None:
    run_in_threads(1, lambda _: list(DataLoader(Squares(), 4)))
    assert only(loops).background
    assert plain_sentence(only(loops)).startswith("A background thread waited")


def test_install_and_prefetch_on_top(loops: Recording) -> None:
    with penstock.install():
        for loader, ours in ((DataLoader(ROWS, 4), True), (kinds.Plain(ROWS, 3), False)):
            assert isinstance(loader, penstock.DataLoader) is ours
            list(loader)
    assert {one.loader.name: one.passes for one in loops.loops()} == {"Plain": 1, "penstock.DataLoader": 1}
    prefetched = DataLoader(ROWS, 5)
    assert type(prefetched) is DataLoader and len(list(penstock.prefetch(prefetched, "cpu"))) == 3
    assert counts(loops) == [(1, 3, 12), (1, 3, 12), (1, 4, 12)]


def test_passes_before_and_after_are_not_recorded() -> None:
    loader = penstock.DataLoader(rows(), batch_size=4)
    before = list(loader)
    with record() as made:
        list(loader)
    list(loader)
    assert sums(whole(only(made).rows), "batches") == [len(before)]
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


# --- what is said of it ---------------------------------------------------------------------------------------------


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
        list(DataLoader(dataset, batch_size=4, collate_fn=collate_fn))
    (recorded,) = made.all_loops()
    assert recorded.instead.startswith(instead) and bool(recorded.instead) is bool(instead)
    recorded.meter.add(1.0, None, 0)  # a long wait
    assert import_line(recorded).startswith('with "from penstock import DataLoader"') is bool(instead)
    assert re.match("give num_workers=[0-9]+: .*penstock run --compare", advice(recorded))
    for _ in range(50):
        recorded.meter.add_work(1.0)
    assert import_line(recorded) == "" and advice(recorded).startswith("nothing: ")


def test_report(loops: Recording) -> None:
    def lines() -> list[str]:
        return RunReport(2.5, loops.loops()).lines()

    assert lines() == ["no loop over a DataLoader was seen, in 2.5 s"]
    failing, place = DataLoader(BAD, 8), here()
    with pytest.raises(LookupError):
        next(iter(failing))
    (line,) = RunReport(2.5, loops.loops(), loops.without_batches()).lines()
    assert line == f"no batch came from DataLoader(Numbers, batch_size=8, num_workers=0) at {place}, in 2.5 s"
    loader, place = DataLoader(ROWS, 4), here()
    next(iter(loader))
    (line,) = lines()
    assert line.startswith("Your loop took 1 batch in 1 pass, ") and line.endswith(f"num_workers=0) at {place}")
    list(loader)
    line, gain = lines()
    assert "% of the time (" in line and "4 batches in 2 passes" in line
    assert "native threads would fill the batches" in gain and place in gain
    assert RunReport(2.5, loops.loops()).lines(whole=False) == [line]
    for size in range(1, 13):
        list(DataLoader(ROWS, size))
    assert len(lines()) == 12 and lines()[-2] == "and 3 loaders more, for which it waited less"


# --- nothing else changes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "dataset", [Squares(), BAD, ROWS, Stream(7, shared=False)], ids=lambda dataset: type(dataset).__name__
)
def test_batches_and_errors_are_the_same(dataset: Any, workers: int, request: pytest.FixtureRequest) -> None:
    def found() -> list[str]:
        torch.manual_seed(3)
        shuffle = None if isinstance(dataset, Stream) else True
        return [str(one) for one in outcomes(DataLoader(dataset, 2, shuffle, num_workers=workers))]

    wanted = found()
    request.getfixturevalue("loops")
    assert found() == wanted


def test_torchs_warnings_name_the_same_lines(loops: Recording) -> None:
    loader = DataLoader(Stream(7), pin_memory=not torch.accelerator.is_available())
    len(loader)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches = list(loader)
    assert len(batches) == 7
    files = [warning.filename.rpartition("/")[2] for warning in caught]
    assert files == [*(["dataloader.py"] if loader.pin_memory else []), "test_recording.py"]


def test_an_error_of_observation_is_logged(
    loops: Recording, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("observed badly")

    with caplog.at_level(logging.ERROR, "penstock"):
        for name in ("LoopClock.delivered", "facts_of", "place_of"):
            monkeypatch.setattr(f"penstock.insight.recording.{name}", fails)
            assert len(list(DataLoader(ROWS, 4))) == 3
    assert caplog.text.count("RuntimeError: observed badly") == 4  # the last loader has no place, and no facts


@pytest.mark.parametrize("kind", [DataLoader, penstock.DataLoader])
def test_steps_end_the_program(kind: Any) -> None:
    seen: list[Any] = []
    loops = Recording(detail=False, steps=4)
    loops.begin()
    with pytest.raises(SystemExit) as stop:
        seen.extend(itertools.chain.from_iterable(kind(ROWS, 4) for _ in range(5)))
    loops.end()
    assert (stop.value.code, len(seen), only(loops).times.batches) == (0, 4, 4)


def test_a_forked_child_leaves_the_recording_alone(tmp_path: Path) -> None:
    def check() -> None:
        list(penstock.DataLoader(rows(), batch_size=4, num_workers=0))
        list(DataLoader(Made(), 4))
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
