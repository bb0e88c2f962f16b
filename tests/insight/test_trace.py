"""The trace: valid JSON of the Trace Event Format, whose slices do not overlap on a track, and whose sums are right."""

from __future__ import annotations

import gzip
import itertools
import json
import os
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import InvalidOption
from penstock.insight import loop_rows, record
from penstock.insight.trace import tracks_for
from tests.sample_datasets import Made, Numbers, rows
from tests.waiting import run_in_threads


def read(file: Path) -> list[dict[str, Any]]:
    """Return the events of a trace, which are well-formed."""
    text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    events: list[dict[str, Any]] = json.loads(text)["traceEvents"]
    assert_well_formed(events)
    return events


def named(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in events if event["name"] == name]


def samples_of(events: list[dict[str, Any]]) -> int:
    return sum(event["args"]["samples"] for event in events)


def assert_well_formed(events: list[dict[str, Any]]) -> None:
    """Assert that slices do not overlap on a track, that asynchronous ones end, and that each track has a name."""
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    open_: dict[str, float] = {}
    for event in events:
        assert event["ph"] in "XMbei" and isinstance(event["pid"], int)
        if event["ph"] == "X":
            assert event["dur"] >= 0 <= event["ts"]
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] == "b":
            assert event["id"] not in open_
            open_[event["id"]] = event["ts"]
        elif event["ph"] == "e":
            assert event["ts"] >= open_[event["id"]]
            open_[event["id"]] = float("inf")
    assert all(begun == float("inf") for begun in open_.values())
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    for track, slices in tracks.items():
        assert track in named
        slices.sort()
        for (_, end), (begin, _) in itertools.pairwise(slices):
            assert end <= begin + 1e-3  # a nanosecond, of doubles


def seconds_of(events: list[dict[str, Any]], name: str) -> float:
    return sum(event["dur"] for event in named(events, name) if event["ph"] == "X") / 1e6


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("method", ["native", "thread"])
def test_a_trace_of_two_passes(file: Path, workers: int, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.executors.rows.SMALL_BATCH", 0)  # read natively, however small
    options: dict[str, Any] = {"worker_method": "thread"} if method == "thread" else {}
    with record(trace=file) as made:
        loader = penstock.DataLoader(Made() if options else rows(), batch_size=4, num_workers=workers, **options)
        for _ in range(2):
            list(loader)
    events, times, samples = read(file), made.all_loops()[0].times, loader.stats().samples
    assert seconds_of(events, "wait") == pytest.approx(times.waited, abs=1e-5)
    assert seconds_of(events, "work") == pytest.approx(times.worked, abs=1e-4)
    waits = named(events, "wait")
    assert [event["args"]["batch"] for event in waits] == [*range(len(loader))] * 2
    assert samples_of(waits) == samples
    assert sum(event["ph"] == "b" for event in events) == len(waits)
    stages = {event["name"] for event in events if event["ph"] == "X"} - {"wait", "work"}
    assert stages == ({"gather"} if method == "native" else {"getitem", "collate"})
    for stage in stages:
        assert samples_of([event for event in named(events, stage) if event["ph"] == "X"]) == samples


def test_passes_that_overlap_have_tracks_of_their_own(file: Path) -> None:
    loader = penstock.DataLoader(rows(), batch_size=8)
    with record(trace=file):
        list(zip(loader, loader, strict=True))
    assert {event["tid"] for event in named(read(file), "wait")} == {0, 1}


def test_threads_that_share_a_pass(file: Path) -> None:
    with record(trace=file):
        batches = iter(penstock.DataLoader(rows(400), batch_size=2, num_workers=1))
        run_in_threads(3, lambda _: [None for _ in batches])
    assert len(named(read(file), "wait")) == 200


def test_a_long_run_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_rows.Rows.__init__, "__defaults__", (16,))
    with record(trace=tmp_path / "trace.json.gz") as made:
        list(penstock.DataLoader(rows(1000), batch_size=2))
    events = read(tmp_path / "trace.json.gz")
    assert [event["args"]["batch"] for event in named(events, "wait")][-16:] == [*range(484, 500)]
    assert sum(event["ph"] == "X" and event["name"] not in ("getitem", "collate") for event in events) < 70
    assert made.all_loops()[0].times.batches == 500


def test_errors_have_marks_and_nothing_of_a_sample_is_in_a_trace(file: Path) -> None:
    with record(trace=file) as made:
        batches = iter(penstock.DataLoader(Numbers(bad=[5]), batch_size=4))
        next(batches)
        with pytest.raises(ValueError, match="number 5"):
            next(batches)
        list(batches)
        list(penstock.DataLoader(Made(lambda index: f"secret-{index}"), batch_size=4))
    assert [event["name"] for event in read(file) if event["ph"] == "i"] == ["error: ValueError"]
    assert [one.meter.failed for one in made.all_loops()] == [1, 0]
    assert "secret" not in file.read_text(encoding="utf-8")


def test_a_trace_is_written_when_the_block_fails(file: Path) -> None:
    with pytest.raises(KeyboardInterrupt), record(trace=file):  # noqa: PT012
        next(iter(penstock.DataLoader(rows(), batch_size=4)))
        raise KeyboardInterrupt
    assert len(named(read(file), "wait")) == 1
    assert list(file.parent.iterdir()) == [file] and file.stat().st_mode & 0o077 == 0


def test_wrong_files_are_refused_before_the_block(tmp_path: Path) -> None:
    for options, words in (
        ({"trace": tmp_path}, "it is a folder"),
        ({"trace": ""}, "name a file"),
        ({"report": tmp_path / "no" / "such.html"}, "there is no folder"),
        ({"trace": b"bytes"}, "not bytes"),
        ({"trace": tmp_path / "one", "report": tmp_path / "x" / ".." / "one"}, "same file"),
    ):
        with pytest.raises(InvalidOption, match=words), record(**options):
            raise AssertionError("the block ran")


def test_a_file_that_cannot_be_written_is_logged(file: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with record(trace=file):
        pass
    assert "trace.json could not be written" in caplog.text and list(file.parent.iterdir()) == []


def test_a_symbolic_link_and_a_pipe_stay_what_they_are(tmp_path: Path) -> None:
    target, link, pipe = (tmp_path / name for name in ("real.json", "link.json", "pipe"))
    link.symlink_to(target)
    os.mkfifo(pipe)
    with record(trace=link):
        pass
    assert link.is_symlink() and read(target) == []
    with ThreadPoolExecutor() as pool:
        found = pool.submit(pipe.read_bytes)
        with record(trace=pipe):
            pass
    assert json.loads(found.result())["traceEvents"] == [] and pipe.is_fifo()


def test_ranks_have_files_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    with record(trace=tmp_path / "trace-{rank}.json"):
        pass
    assert os.listdir(tmp_path) == ["trace-3.json"]


def test_tracks_are_few() -> None:
    assert tracks_for([]) == []
    assert tracks_for([(0, 1), (1, 2), (2, 3)]) == [0, 0, 0]
    assert tracks_for([(0, 5), (1, 2), (2, 3), (4, 6), (5, 7)]) == [0, 1, 1, 1, 0]
