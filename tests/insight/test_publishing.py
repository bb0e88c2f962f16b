"""The live recordings of processes: private files, written seldom, and gone when their process is."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.utils.data

import penstock
from penstock.errors import PenstockError
from penstock.insight import live_files, publish, publishing, record
from penstock.insight.live_files import Job, ProcessName, job_of, jobs, machine, read_all, started_at, this_process
from penstock.system.words import compact
from tests.data import Made, Numbers, rows
from tests.forking import assert_in_child
from tests.python_processes import run


def read(folder: Path) -> Job:
    (found,) = jobs(folder)
    return found


def loaders_of(folder: Path) -> list[str]:
    return [line[:8] for line in read(folder).lines if line.startswith("loader ")]


def test_a_recording_says_what_the_loader_does(folder: Path) -> None:
    batches = iter(penstock.DataLoader(Numbers(bad=[9]), batch_size=4))
    next(batches), next(batches)
    with pytest.raises(ValueError):
        next(batches)
    next(batches)
    job = read(folder)
    assert (job.name, job.host, job.summary[2], job.ended) == (this_process(), os.uname().nodename, "Numbers", False)
    assert job.lines[1] == "loader 1: Numbers, batches of 4, no workers, read by Python"
    assert job.lines[2].startswith("  rate ") and job.lines[2].endswith("; 3 batches in 1 pass")
    assert "! errors    1 came instead of a batch" in job.lines and job.patience >= 5
    assert any("getitem" in line for line in job.lines)


def test_rates_are_those_of_the_loop(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "RECENT", 0.0)  # then they are of all passes
    loader = penstock.DataLoader(rows())
    list(loader)
    loop, samples = loader.stats().loop, loader.stats().samples
    rate = compact(samples / (loop.steady_waited + loop.worked))
    assert read(folder).summary == (f"{loop.wait_share:.0%}", rate, "TensorDataset")


def test_open_passes(folder: Path) -> None:
    loader = penstock.DataLoader(rows(), batch_size=4)
    next(iter(loader))  # a pass that is left
    list(loader)
    assert "in 2 passes" in read(folder).lines[2] and not read(folder).patience
    del loader
    batches = iter(penstock.DataLoader(rows(), batch_size=4, num_workers=1))  # which only its pass keeps
    next(batches), next(batches)
    assert "2 batches in 1 pass" in read(folder).lines[2]


def test_writes_are_seldom_and_none_of_short_programs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    monkeypatch.setattr(publishing, "FIRST_AFTER", 3600.0)
    publish()
    list(penstock.DataLoader(rows()))
    assert not folder.exists()
    monkeypatch.setattr(publishing, "FIRST_AFTER", 0.0)
    publish()
    monkeypatch.setattr(publishing, "EVERY", 3600.0)
    monkeypatch.setattr(publishing, "write", lambda *_: written.append(1))
    for _ in range(3):
        list(penstock.DataLoader(rows()))
    assert len(written) == 1


def test_only_the_latest_loaders_are_written_and_gone_ones_are_not(folder: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(publishing, "MOST_LOADERS", 3)
    publish()
    loaders = [penstock.DataLoader(rows(), batch_size=n) for n in (1, 2, 3, 4, 5)]
    for loader in loaders:
        list(loader)
    assert loaders_of(folder) == ["loader 3", "loader 4", "loader 5"]
    del loader, loaders[2:4]
    list(loaders[0])
    assert loaders_of(folder) == ["loader 2", "loader 5", "loader 1"]


def test_publish_false_removes_the_file_and_writes_none(folder: Path) -> None:
    loader = penstock.DataLoader(rows())
    list(loader)
    read(folder)
    publish(False)
    list(loader)
    publish(False)
    assert jobs(folder) == []


def test_a_forked_child_has_a_recording_of_its_own(folder: Path) -> None:
    loader = penstock.DataLoader(rows(), batch_size=4)
    list(loader)
    before = read_all(folder)

    def check() -> None:
        list(loader)
        assert {job.name.pid for job in jobs(folder)} == {os.getpid(), os.getppid()}
        publishing._remove_at_exit()
        assert [job.name.pid for job in jobs(folder)] == [os.getppid()]

    assert_in_child(check)
    assert read_all(folder) == before


def test_workers_write_none(folder: Path) -> None:
    inner = penstock.DataLoader(rows(8), batch_size=4)
    outer = Made(lambda index: len(list(inner)), size=4)
    for options in ({"worker_method": "process"}, {"worker_method": "thread", "share_dataset": True}):
        publish()
        loader: penstock.DataLoader[Any] = penstock.DataLoader(outer, num_workers=1, **options)
        assert [batch.item() for batch in loader] == [2] * 4
        (job,) = jobs(folder)
        assert job.name == this_process() and job.summary[2] == "Made" and loaders_of(folder) == ["loader 1"]


@pytest.mark.parametrize("how", ["occupied", "full", "homeless"])  # row 20 has folders and links of others
def test_where_it_cannot_be_written_the_process_goes_on(
    folder: Path, how: str, recwarn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    if how == "full":
        monkeypatch.setattr(os, "replace", full)
    elif how == "homeless":
        monkeypatch.setattr(publishing, "live_folder", lambda: None)
    else:
        folder.parent.mkdir(parents=True)
        folder.write_text("no folder", encoding="utf-8")
    for _ in range(2):
        assert len(list(penstock.DataLoader(rows(), batch_size=4))) == 14
    assert publishing._publisher is not None and publishing._publisher._due == float("inf")
    assert list(folder.glob("*.*")) == []
    publish(False)
    assert list(recwarn) == []


def test_a_user_s_class_that_fails_hurts_nobody(folder: Path) -> None:
    class Odd(penstock.DataLoader[Any]):
        def stats_reader(self) -> Any:
            raise RuntimeError("not today")

        @property
        def read_by(self) -> str:
            raise RuntimeError("not today")

    batches = iter(Odd(rows(), batch_size=4, num_workers=0))
    next(batches), next(batches)
    assert read(folder).lines[1] == "loader 1: TensorDataset, batches of 4, no workers, read by native threads"
    assert len(list(batches)) == 12


def test_a_process_removes_its_recording_at_its_end(folder: Path) -> None:
    program = """
import penstock, torch
from penstock import loop_times
from penstock.insight import publishing
publishing.FIRST_AFTER = loop_times.SHORT_PASS = 0
list(penstock.DataLoader(torch.utils.data.TensorDataset(torch.zeros(8))))
print(publishing.live_folder().joinpath(publishing.this_process().file).exists(), publishing.program_name())
"""
    assert run(program) == (0, "True -c\n", "")
    assert jobs(folder) == [] == read_all(folder)


def test_the_arguments_of_a_program_are_not_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/home/me/train<script>.py", "--key=secret"])
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    list(penstock.DataLoader(rows()))
    assert read(folder).program == "train<script>.py"
    assert b"secret" not in b"".join(data for _, data in read_all(folder))


def test_a_number_that_was_given_anew_is_another_process() -> None:
    pid, begun = os.getpid(), started_at(os.getpid())
    assert begun is not None and started_at(2**22 + 1) is None
    names = ((machine(), pid, begun), (machine(), pid, begun + 1), ("0" * 16, pid, begun))
    assert [ProcessName(*name).alive() for name in names] == [True, False, None]


def test_files_of_dead_processes_go_and_those_of_other_machines_after_a_week(folder: Path) -> None:
    new, old, dead = ProcessName("0" * 16, 1, 1), ProcessName("1" * 16, 1, 1), ProcessName(machine(), os.getpid(), 1)
    for name in (new, old, dead):
        live_files.write(folder, name, b"{}")
    (folder / "somebody's.txt").write_text("keep", encoding="utf-8")
    os.utime(folder / old.file, (0, 0))
    list(penstock.DataLoader(rows()))
    assert {file.name for file in folder.iterdir()} == {new.file, this_process().file, "somebody's.txt"}


def test_damaged_files_are_left_out(folder: Path) -> None:
    list(penstock.DataLoader(rows()))
    ((name, data),) = read_all(folder)
    job_of(name, data)
    odd: dict[str, Any] = {"began": float("nan"), "program": 5, "lines": [1], "patience": "no", "summary": 5}
    for spoiled in (
        *(b"", b"null", b"[" * 100_000, b" " * (live_files.MOST_BYTES + 1), b'{"format": 4, "began": 1e999}'),
        *(data[:-10], data.replace(b'"format": 4', b'"format": 3')),
        *(json.dumps({**json.loads(data), key: value}).encode() for key, value in odd.items()),
    ):
        with pytest.raises(PenstockError):
            job_of(name, spoiled)
        live_files.write(folder, name, spoiled)
        assert jobs(folder) == []


def test_a_loader_of_torchs_that_is_recorded_can_be_watched(folder: Path) -> None:
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=4)
    list(loader)
    assert jobs(folder) == []
    with record():
        batches = iter(loader)
        next(batches), next(batches)
        job = read(folder)
        assert job.lines[1] == "loader 1: Numbers, batch_size=4, no workers, read by the caller's thread"
        assert job.lines[2].endswith("; 2 batches in 1 pass") and job.summary[2] == "Numbers" and job.patience >= 5
