"""The trace: valid JSON of the Trace Event Format, whose slices do not overlap on a track, and whose sums are right."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import InvalidOption
from penstock.insight import loop_rows, record
from penstock.insight.trace import tracks_for
from tests.sample_datasets import Made, Numbers, rows


def read(file: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    return events


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
    return sum(event["dur"] for event in events if event["ph"] == "X" and event["name"] == name) / 1e6


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("method", ["native", "thread"])
def test_a_trace_of_two_passes(tmp_path: Path, workers: int, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.executors.job.SMALL_BATCH", 0)  # read natively, however small
    file = tmp_path / "trace.json"
    options: dict[str, Any] = {"worker_method": "thread"} if method == "thread" else {}
    with record(trace=file) as made:
        loader = penstock.DataLoader(Made() if options else rows(), batch_size=4, num_workers=workers, **options)
        for _ in range(2):
            list(loader)
    events = read(file)
    assert_well_formed(events)
    times = made.all_loops()[0].times
    assert seconds_of(events, "wait") == pytest.approx(times.waited, abs=1e-5)
    assert seconds_of(events, "work") == pytest.approx(times.worked, abs=1e-4)
    waits = [event for event in events if event["name"] == "wait"]
    assert [event["args"]["batch"] for event in waits] == [*range(len(loader))] * 2
    assert sum(event["args"]["samples"] for event in waits) == loader.stats().samples
    begun = [event for event in events if event["ph"] == "b"]
    assert len(begun) == len(waits)
    stages = [event for event in events if event["ph"] == "X" and event["name"] not in ("wait", "work")]
    assert {event["name"] for event in stages} == ({"gather"} if method == "native" else {"getitem", "collate"})
    for stage in {event["name"] for event in stages}:
        found = sum(event["args"]["samples"] for event in stages if event["name"] == stage)
        assert found == loader.stats().samples


def test_passes_that_overlap_have_tracks_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    loader = penstock.DataLoader(rows(), batch_size=8)
    with record(trace=file):
        for _ in zip(loader, loader, strict=True):
            pass
    events = read(file)
    assert_well_formed(events)
    assert {event["tid"] for event in events if event["name"] == "wait"} == {0, 1}


def test_threads_that_share_a_pass(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    loader = penstock.DataLoader(rows(400), batch_size=2, num_workers=1)
    with record(trace=file):
        batches = iter(loader)
        threads = [threading.Thread(target=lambda: [None for _ in batches]) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    events = read(file)
    assert_well_formed(events)
    assert sum(event["name"] == "wait" for event in events) == 200


def test_a_long_run_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_rows.Rows.__init__, "__defaults__", (16,))
    file = tmp_path / "trace.json.gz"
    with record(trace=file) as made:
        list(penstock.DataLoader(rows(1000), batch_size=2))
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    assert_well_formed(events)
    slices = [event for event in events if event["ph"] == "X" and event["name"] not in ("getitem", "collate")]
    assert [event["args"]["batch"] for event in slices if event["name"] == "wait"][-16:] == [*range(484, 500)]
    assert len(slices) < 70 and made.all_loops()[0].times.batches == 500


def test_errors_have_marks(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    with record(trace=file):
        batches = iter(penstock.DataLoader(Numbers(bad=[5]), batch_size=4))
        next(batches)
        with pytest.raises(ValueError):
            next(batches)
        list(batches)
    events = read(file)
    assert_well_formed(events)
    assert [event["name"] for event in events if event["ph"] == "i"] == ["error: ValueError"]


def test_a_trace_is_written_when_the_block_fails(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    with pytest.raises(KeyboardInterrupt), record(trace=file):  # noqa: PT012
        next(iter(penstock.DataLoader(rows(), batch_size=4)))
        raise KeyboardInterrupt
    assert sum(event["name"] == "wait" for event in read(file)) == 1
    assert list(tmp_path.iterdir()) == [file]
    assert file.stat().st_mode & 0o077 == 0


def test_nothing_of_a_sample_is_in_a_trace(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    with record(trace=file):
        list(penstock.DataLoader(Made(lambda index: f"secret-{index}"), batch_size=4))
    assert "secret" not in file.read_text(encoding="utf-8")


# --- files ------------------------------------------------------------------------------------------------------------


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


def test_a_file_that_cannot_be_written_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with record(trace=tmp_path / "trace.json"):
        pass
    assert "trace.json could not be written" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_symbolic_link_and_a_pipe_stay_what_they_are(tmp_path: Path) -> None:
    target = tmp_path / "real.json"
    (tmp_path / "link.json").symlink_to(target)
    with record(trace=tmp_path / "link.json"):
        pass
    assert (tmp_path / "link.json").is_symlink() and read(target) == []
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    with record(trace=pipe):
        pass
    reader.join()
    assert json.loads(found[0])["traceEvents"] == []
    assert pipe.is_fifo()


def test_ranks_have_files_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    with record(trace=tmp_path / "trace-{rank}.json"):
        pass
    assert [file.name for file in tmp_path.iterdir()] == ["trace-3.json"]


def test_tracks_are_few() -> None:
    assert tracks_for([]) == []
    assert tracks_for([(0, 1), (1, 2), (2, 3)]) == [0, 0, 0]
    assert tracks_for([(0, 5), (1, 2), (2, 3), (4, 6), (5, 7)]) == [0, 1, 1, 1, 0]
