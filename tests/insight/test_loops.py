"""The times of loops over any loader of a process, torch's and Penstock's, and that nothing else changes by them."""

from __future__ import annotations

import copy
import inspect
import logging
import threading
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.utils.data
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    Subset,
    TensorDataset,
)
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

import penstock
from penstock.insight.recording import Loop, Recording
from penstock.insight.run_report import RunReport, plain_sentence
from penstock.system.words import duration
from tests.same import assert_same, outcomes

ROWS = TensorDataset(torch.arange(12))


class Squares(Dataset[int]):
    """Numbers that Python makes."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        return index * index


class Bad(Squares):
    """One of its samples cannot be read."""

    def __getitem__(self, index: int) -> int:
        if index == 5:
            raise LookupError("no sample 5")
        return index


class Stream(IterableDataset[int]):
    """Seven numbers; it says that it has six."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(7))

    def __len__(self) -> int:
        return 6


class Derived(DataLoader[Any]):
    """A library's loader."""

    def __init__(self, dataset: Any, **named: Any) -> None:
        super().__init__(dataset, batch_size=3, **named)


class Endless(DataLoader[Any]):
    """Keeps one iterator of torch's for ever, and goes through parts of it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.kept = super().__iter__()

    def __iter__(self) -> Any:
        for _ in range(2):
            yield next(self.kept)


@pytest.fixture
def loops() -> Iterator[Recording]:
    before = surroundings()
    found = Recording(detail=False, torch=True)
    found.begin()
    yield found
    found.end()
    assert surroundings() == before


def surroundings() -> list[Any]:
    kinds = (_SingleProcessDataLoaderIter, _MultiProcessingDataLoaderIter)
    names: list[tuple[Any, str]] = [
        (kind, name) for kind in kinds for name in ("__init__", "_next_data", "__next__", "_reset")
    ]
    names += [(DataLoader, "__init__"), (DataLoader, "__iter__"), (penstock.DataLoader, "__iter__")]
    return [getattr(kind, name) for kind, name in names]


def only(loops: Recording) -> Loop:
    (record,) = loops.loops()
    return record


def here(offset: int = 0) -> str:
    """Return the file and line of the caller, as a record names it."""
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return f"tests/insight/test_loops.py:{frame.f_back.f_lineno + offset}"


# --- what is counted ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [DataLoader, torch.utils.data.DataLoader, DataLoader[Any], penstock.DataLoader])
def test_each_loader_counts_once(loops: Recording, kind: Any, workers: int) -> None:
    loader, place = kind(Squares(), 4, num_workers=workers), here()
    for _ in range(2):
        assert len(list(loader)) == 3
    record = only(loops)
    ours = kind is penstock.DataLoader
    name = "penstock.DataLoader" if ours else "DataLoader"
    assert (record.loader.name, record.loader.dataset, record.loader.place) == (name, "Squares", place)
    assert (record.loader.batching, record.loader.workers) == ("batch_size=4", workers)
    assert (record.loaders, record.passes, record.times.batches, record.samples) == (1, 2, 6, 20)
    assert sum(record.times.waits) == 4 and record.times.waited > 0 and record.times.worked > 0
    assert not record.background and record.loader.penstock is ours
    if ours:
        assert record.stats is not None and record.stats.batches == 6
        assert record.times.waited >= record.stats.loop.waited


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_and_passes_of_torch(loops: Recording, persistent: bool) -> None:
    loader = DataLoader(Squares(), 4, num_workers=2, persistent_workers=persistent)
    next(iter(loader))  # a pass that is left early
    for number, (one, two) in enumerate(zip(loader, DataLoader(Squares(), 4), strict=True)):
        assert torch.equal(one, two), number
    records = loops.loops()
    assert sorted((one.passes, one.times.batches, one.samples) for one in records) == [(1, 3, 10), (2, 4, 14)]


def test_the_start_of_workers_is_part_of_the_first_wait(loops: Recording) -> None:
    for loader in (DataLoader(Squares(), 4, num_workers=1), penstock.DataLoader(Squares(), 4, num_workers=1)):
        list(loader)
    for record in loops.loops():
        # What a fork takes is more than the way of a batch that is there.
        assert record.times.first_waited > 0
        assert record.times.first_waited > record.times.steady_waited / 1000


def test_loaders_of_one_line_are_one_record(loops: Recording) -> None:
    for _ in range(3):
        loader, place = DataLoader(Squares(), 4), here()
        list(loader)
    record = only(loops)
    assert (record.loader.place, record.loaders, record.passes, record.times.batches) == (place, 3, 3, 9)


def test_derived_classes_name_the_line_that_made_them(loops: Recording) -> None:
    loader, place = Derived(Subset(Squares(), range(5))), here()
    list(loader)
    assert str(only(loops).loader) == f"Derived(Subset of Squares, batch_size=3, num_workers=0) at {place}"


@pytest.mark.parametrize("kind", ["'/x/site-packages/library/data.py'", "'/x/dist-packages/library.py'"])
def test_a_library_that_makes_a_loader_is_called_by_a_line_of_the_program(loops: Recording, kind: str) -> None:
    names: dict[str, Any] = {"DataLoader": DataLoader, "ROWS": ROWS}
    exec(compile("def made():\n    return DataLoader(ROWS, 4)", kind.strip("'"), "exec"), names)
    loader, place = names["made"](), here()
    list(loader)
    assert only(loops).loader.place == place
    thread = threading.Thread(target=lambda made=names["made"]: list(made()))
    thread.start()
    thread.join()
    assert {one.loader.place for one in loops.loops()} == {place, here(-3)}


def test_a_loader_that_keeps_its_iterator(loops: Recording) -> None:
    loader = Endless(Squares(), 1)
    for _ in range(2):
        assert len(list(loader)) == 2
    assert (only(loops).passes, only(loops).times.batches) == (1, 4)


def test_kinds_of_batches(loops: Recording) -> None:
    cases = [
        (DataLoader(Stream(), 3), "batch_size=3", 7),
        (DataLoader(ROWS, batch_sampler=[[0, 1], [2]]), "batch_sampler=list", 3),
        (DataLoader(ROWS, batch_sampler=[[0, 1], [2]], collate_fn=len), "batch_sampler=list", 0),
        (DataLoader(ROWS, 5, collate_fn=len), "batch_size=5", 15),
        (DataLoader(ROWS, batch_sampler=BatchSampler(range(7), 3, False)), "batch_size=3", 7),
        (DataLoader(ROWS, batch_sampler=BatchSampler(SequentialSampler(ROWS), 5, False)), "batch_size=5", 12),
        (DataLoader(ROWS, 5, drop_last=True), "batch_size=5", 10),
        (DataLoader(ROWS, batch_size=None), "batch_size=None", 0),
    ]
    for loader, batching, samples in cases:
        batches = len(list(loader))
        found = loops.loops()
        loops._loops.clear()
        loops._of.clear()
        assert [(one.loader.batching, one.samples, one.times.batches) for one in found] == [
            (batching, samples, batches)
        ]


def test_nested_loops_and_a_copy(loops: Recording) -> None:
    inner, outer = DataLoader(Squares(), 5), DataLoader(ROWS, 4)
    for _ in outer:
        list(inner)
    list(copy.copy(outer))
    counts = {(one.loader.dataset, one.loader.place != ""): (one.passes, one.times.batches) for one in loops.loops()}
    assert counts == {("Squares", True): (3, 6), ("TensorDataset", True): (1, 3), ("TensorDataset", False): (1, 3)}


def test_a_background_thread(loops: Recording) -> None:
    thread = threading.Thread(target=lambda: list(DataLoader(Squares(), 4)))
    thread.start()
    thread.join()
    assert only(loops).background
    assert plain_sentence(only(loops)).startswith("A background thread waited")


def test_install(loops: Recording) -> None:
    with penstock.install():
        for loader, ours in ((DataLoader(ROWS, 4), True), (Derived(ROWS), False)):
            assert isinstance(loader, penstock.DataLoader) is ours
            list(loader)
    assert sorted((one.loader.name, one.passes) for one in loops.loops()) == [
        ("Derived", 1),
        ("penstock.DataLoader", 1),
    ]
    assert type(DataLoader(ROWS)) is DataLoader


def test_prefetch_on_top(loops: Recording) -> None:
    assert len(list(penstock.prefetch(DataLoader(ROWS, 4), "cpu"))) == 3
    assert (only(loops).passes, only(loops).times.batches, only(loops).samples) == (1, 3, 12)


# --- what stays ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dataset", [Squares(), Bad(), ROWS, Stream()], ids=lambda dataset: type(dataset).__name__)
def test_batches_and_errors_are_the_same(dataset: Any, workers: int) -> None:
    def made() -> Any:
        torch.manual_seed(3)
        return DataLoader(dataset, 2, None if isinstance(dataset, Stream) else True, num_workers=workers)

    wanted = outcomes(made())
    recording = Recording(detail=False, torch=True)
    recording.begin()
    try:
        found = outcomes(made())
    finally:
        recording.end()
    assert_same([str(one) for one in found], [str(one) for one in wanted])


def test_torchs_warnings_name_the_same_lines(loops: Recording) -> None:
    loader = DataLoader(Stream(), pin_memory=not torch.accelerator.is_available())
    len(loader)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches = list(loader)
    assert len(batches) == 7
    files = [warning.filename.rpartition("/")[2] for warning in caught]
    assert files == [*(["dataloader.py"] if loader.pin_memory else []), "test_loops.py"]


def test_a_persistent_iterator_left_in_the_middle(loops: Recording) -> None:
    loader = DataLoader(Squares(), 4, num_workers=1, persistent_workers=True)
    batches = iter(loader)
    next(batches)
    assert iter(loader) is batches
    assert len(list(batches)) == 3
    assert (only(loops).passes, only(loops).times.batches) == (2, 4)


def test_an_error_of_observation_is_logged(
    loops: Recording, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("observed badly")

    monkeypatch.setattr("penstock.insight.recording.LoopClock.delivered", fails)
    with caplog.at_level(logging.ERROR, "penstock"):
        assert len(list(DataLoader(ROWS, 4))) == 3
        monkeypatch.setattr("penstock.insight.recording.facts_of", fails)
        assert len(list(DataLoader(ROWS, 4))) == 3
        monkeypatch.setattr("penstock.insight.recording.place_of", fails)
        assert len(list(DataLoader(ROWS, 4))) == 3
    assert caplog.text.count("RuntimeError: observed badly") == 4  # the last loader has no place, and no facts


def test_one_frame_more(loops: Recording) -> None:
    with pytest.raises(LookupError) as caught:
        list(DataLoader(Bad(), 10))
    files = [entry.filename for entry in traceback.extract_tb(caught.value.__traceback__)]
    assert sum("penstock/insight/program_loaders.py" in file for file in files) == 1


# --- steps and words ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [DataLoader, penstock.DataLoader])
def test_steps_end_the_program(kind: Any) -> None:
    seen = 0

    def passes() -> None:
        nonlocal seen
        for _ in range(5):
            for _ in kind(ROWS, 4):
                seen += 1

    loops = Recording(detail=False, torch=True, steps=4)
    loops.begin()
    with pytest.raises(SystemExit) as stop:
        passes()
    loops.end()
    assert (stop.value.code, seen, only(loops).times.batches) == (0, 4, 4)


def test_report(loops: Recording) -> None:
    assert RunReport(2.5, loops.loops()).lines() == ["no DataLoader was used, in 2.5 s"]
    failing, place = DataLoader(Bad(), 8), here()
    with pytest.raises(LookupError):
        next(iter(failing))
    (line,) = RunReport(2.5, loops.loops(), loops.without_batches()).lines()
    assert line == f"no batch came from DataLoader(Bad, batch_size=8, num_workers=0) at {place}, in 2.5 s"
    loader, place = DataLoader(ROWS, 4), here()
    next(iter(loader))
    (line,) = RunReport(1.0, loops.loops()).lines()
    assert line.startswith("The consumer took 1 batch in 1 pass, ") and line.endswith(f"num_workers=0) at {place}")
    list(loader)
    (line,) = RunReport(1.0, loops.loops()).lines()
    assert "% of the time (" in line and "4 batches in 2 passes" in line
    for size in range(1, 13):
        list(DataLoader(ROWS, size))
    lines = RunReport(1.0, loops.loops()).lines()
    assert len(lines) == 11 and lines[-1] == "and 3 loaders more, for which it waited less"


def test_durations() -> None:
    found = [duration(seconds) for seconds in (125, 12.34, 0.0712, 0.0032, 4e-5, 0)]
    assert found == ["2 min 5 s", "12.3 s", "71.2 ms", "3.2 ms", "40 us", "0 us"]
