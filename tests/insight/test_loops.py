"""The times of loops over any loader of a process, torch's and Penstock's, and that nothing else changes by them."""

from __future__ import annotations

import copy
import inspect
import itertools
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.utils.data
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, Subset, TensorDataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

import penstock
from penstock.insight.recording import Loop, Recording
from penstock.insight.run_report import RunReport, plain_sentence
from penstock.system.words import duration
from tests import data
from tests.data import Made, Numbers
from tests.same import assert_same, outcomes
from tests.waiting import run_in_threads

ROWS, BAD = TensorDataset(torch.arange(12)), Numbers(bad=[5], size=10, error=LookupError)


class Squares(Made):
    def __init__(self) -> None:
        super().__init__(lambda index: index * index, 10)


class Endless(DataLoader[Any]):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.kept = super().__iter__()

    def __iter__(self) -> Any:
        for _ in range(2):
            yield next(self.kept)


class Derived(DataLoader[Any]):
    def __init__(self, dataset: Any, **named: Any) -> None:
        super().__init__(dataset, batch_size=3, **named)


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


def here(offset: int = 0) -> str:
    """Return the file and line of the caller, as a record names it."""
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return f"tests/insight/test_loops.py:{frame.f_back.f_lineno + offset}"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [DataLoader, torch.utils.data.DataLoader, DataLoader[Any], penstock.DataLoader])
def test_each_loader_counts_once(loops: Recording, kind: Any, workers: int) -> None:
    loader, place = kind(Squares(), 4, num_workers=workers), here()
    for _ in range(2):
        assert len(list(loader)) == 3
    record, ours = only(loops), kind is penstock.DataLoader
    name = "penstock.DataLoader" if ours else "DataLoader"
    assert str(record.loader) == f"{name}(Squares, batch_size=4, num_workers={workers}) at {place}"
    assert (record.loaders, counts(loops)) == (1, [(2, 6, 20)])
    assert sum(record.times.waits) == 4 and record.times.waited > 0 and record.times.worked > 0
    assert not record.background and record.loader.penstock is ours
    if ours:
        assert record.stats is not None and record.stats.batches == 6
        assert record.times.waited >= record.stats.loop.waited


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_and_passes_of_torch(loops: Recording, persistent: bool) -> None:
    loader = DataLoader(Squares(), 4, num_workers=2, persistent_workers=persistent)
    next(iter(loader))  # a pass that is left early
    assert_same(list(loader), list(DataLoader(Squares(), 4)))
    assert counts(loops) == [(1, 3, 10), (2, 4, 14)]


def test_the_start_of_workers_is_part_of_the_first_wait(loops: Recording) -> None:
    for loader in (DataLoader(Squares(), 4, num_workers=1), penstock.DataLoader(Squares(), 4, num_workers=1)):
        list(loader)
    for record in loops.loops():  # what a fork takes is more than the way of a batch that is there
        assert record.times.first_waited > max(0, record.times.steady_waited / 1000)


def test_derived_classes(loops: Recording) -> None:
    loader, place = Derived(Subset(Squares(), range(5))), here()
    list(loader)
    assert str(only(loops).loader) == f"Derived(Subset of Squares, batch_size=3, num_workers=0) at {place}"
    keeps = Endless(Squares(), 1)
    assert [len(list(keeps)), len(list(keeps))] == [2, 2]
    assert counts(loops) == [(1, 2, 5), (1, 4, 4)]


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
        for loader, ours in ((DataLoader(ROWS, 4), True), (Derived(ROWS), False)):
            assert isinstance(loader, penstock.DataLoader) is ours
            list(loader)
    assert {one.loader.name: one.passes for one in loops.loops()} == {"Derived": 1, "penstock.DataLoader": 1}
    prefetched = DataLoader(ROWS, 5)
    assert type(prefetched) is DataLoader and len(list(penstock.prefetch(prefetched, "cpu"))) == 3
    assert counts(loops) == [(1, 3, 12), (1, 3, 12), (1, 4, 12)]


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
    assert files == [*(["dataloader.py"] if loader.pin_memory else []), "test_loops.py"]


def test_a_persistent_iterator_left_in_the_middle(loops: Recording) -> None:
    loader = DataLoader(Squares(), 4, num_workers=1, persistent_workers=True)
    batches = iter(loader)
    next(batches)
    assert iter(loader) is batches and len(list(batches)) == 3
    assert counts(loops) == [(2, 4, 14)]


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


def test_durations() -> None:
    found = [duration(seconds) for seconds in (125, 12.34, 0.0712, 0.0032, 4e-5, 0)]
    assert found == ["2 min 5 s", "12.3 s", "71.2 ms", "3.2 ms", "40 us", "0 us"]
