"""The live recordings of processes: private files, written seldom, and gone when their process is."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import PenstockError
from penstock.insight import live_files, publish, publishing
from penstock.insight.jobs import Job, job_of, jobs
from penstock.insight.live_files import ProcessName, machine, read_all, started_at, this_process
from tests.forking import assert_in_child
from tests.sample_datasets import Made, Numbers, rows
from tests.waiting import wait_until


def read(folder: Path) -> Job:
    (found,) = jobs(folder)
    return found


@contextmanager
def training() -> Iterator[int]:
    """Give the number of a forked child that goes through a loader until it is killed, or the block ends."""
    ends = os.pipe()
    child = os.fork()
    if child == 0:  # what pytest holds must not run here
        try:
            os.close(ends[1])
            loader = penstock.DataLoader(rows(), batch_size=10)
            while not select.select([ends[0]], [], [], 0.01)[0]:
                list(loader)
            publishing._remove_at_exit()
        finally:
            os._exit(0)
    os.close(ends[0])
    try:
        yield child
    finally:
        os.close(ends[1])
        with suppress(ChildProcessError):
            os.waitpid(child, 0)


# --- what is written --------------------------------------------------------------------------------------------------


def test_a_recording_says_what_the_loader_does(folder: Path) -> None:
    loader = penstock.DataLoader(Numbers(bad=[9]), batch_size=4)
    batches = iter(loader)
    next(batches), next(batches)
    with pytest.raises(ValueError):
        next(batches)
    next(batches)
    job = read(folder)
    assert (job.name, job.host) == (this_process(), os.uname().nodename)
    (found,) = job.loaders
    assert found.lines[0] == "loader 1: Numbers, batches of 4, no workers, read by Python"
    assert found.lines[1].endswith("; 3 batches in 1 pass") and found.lines[1].startswith("  rate ")
    assert (found.dataset, found.open) == ("Numbers", True)
    assert "! errors    1 came in the place of a batch" in found.lines
    assert any("getitem" in line for line in found.lines)
    assert not job.ended and found.still(time.time(), 0.5) is None
    assert found.got and found.still(found.got + 100, 0.5) == pytest.approx(100)


def test_a_pass_that_was_left_is_not_open(folder: Path) -> None:
    loader = penstock.DataLoader(rows(), batch_size=4)
    for _ in loader:
        break
    list(loader)
    (found,) = read(folder).loaders
    assert "in 2 passes" in found.lines[1] and not found.open
    assert found.still(time.time() + 100, 0.5) is None


def test_the_folder_and_its_files_are_private(folder: Path) -> None:
    list(penstock.DataLoader(rows()))
    assert folder.stat().st_mode & 0o777 == 0o700
    files = [file for file in folder.iterdir() if file.suffix == ".json"]
    assert [file.name for file in files] == [this_process().file]
    assert files[0].stat().st_mode & 0o777 == 0o600
    assert not list(folder.glob("*.tmp"))


def test_short_programs_write_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "FIRST_AFTER", 3600.0)
    publish()
    list(penstock.DataLoader(rows()))
    assert not folder.exists()


def test_writes_are_seldom(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
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
    assert [one.number for one in read(folder).loaders] == [3, 4, 5]
    del loader, loaders[2:4]
    list(loaders[0])
    assert [one.number for one in read(folder).loaders] == [5, 1]


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
    before = next(folder.glob("*.json")).read_bytes()

    def check() -> None:
        list(loader)
        assert sorted(job.name.pid for job in jobs(folder)) == sorted([os.getpid(), os.getppid()])
        publishing._remove_at_exit()
        assert [job.name.pid for job in jobs(folder)] == [os.getppid()]

    assert_in_child(check)
    assert next(folder.glob("*.json")).read_bytes() == before


def test_workers_write_none(folder: Path) -> None:
    inner = penstock.DataLoader(rows(8), batch_size=4)
    outer = Made(lambda index: len(list(inner)), size=4)
    for options in ({"worker_method": "process"}, {"worker_method": "thread", "share_dataset": True}):
        publish()
        loader: penstock.DataLoader[Any] = penstock.DataLoader(outer, num_workers=1, **options)
        assert [batch.item() for batch in loader] == [2] * 4
        (job,) = jobs(folder)
        assert job.name == this_process() and [one.dataset for one in job.loaders] == ["Made"]


# --- what goes wrong --------------------------------------------------------------------------------------------------


def unsafe(folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)


def occupied(folder: Path) -> None:
    folder.parent.mkdir(parents=True)
    folder.write_text("no folder", encoding="utf-8")


def linked(folder: Path) -> None:
    folder.mkdir(parents=True, mode=0o700)
    (folder / this_process().file.replace("json", "tmp")).symlink_to("/dev/null")


@pytest.mark.parametrize("spoil", [unsafe, occupied, linked])
def test_where_it_cannot_be_written_the_process_goes_on(folder: Path, spoil: Any, recwarn: Any) -> None:
    spoil(folder)
    for _ in range(2):
        assert len(list(penstock.DataLoader(rows(), batch_size=4))) == 14
    assert publishing._publisher is not None and publishing._publisher._due == float("inf")
    if folder.is_dir():
        assert [file.name for file in folder.iterdir() if file.suffix == ".json"] == []
    assert list(recwarn) == []


def test_a_full_disk_ends_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    list(penstock.DataLoader(rows()))
    assert list(folder.glob("*.json")) == list(folder.glob("*.tmp")) == []


def test_no_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "live_folder", lambda: None)
    list(penstock.DataLoader(rows()))
    publish(False)
    assert not folder.exists()


def test_a_user_s_class_that_fails_hurts_nobody(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Odd(penstock.DataLoader[Any]):
        def stats_reader(self) -> Any:
            raise RuntimeError("not today")

    assert len(list(Odd(rows(), batch_size=4))) == 14
    assert not folder.exists()
    assert "a follower of loaders failed" in caplog.text


def test_a_loader_that_only_its_pass_keeps(folder: Path) -> None:
    batches = iter(penstock.DataLoader(rows(), batch_size=4, num_workers=1))
    next(batches), next(batches)
    (found,) = read(folder).loaders
    assert "2 batches in 1 pass" in found.lines[1]


# --- other processes --------------------------------------------------------------------------------------------------


def test_two_processes_and_one_that_is_killed(folder: Path) -> None:
    with training() as first:
        with training() as second:
            wait_until(lambda: {job.name.pid for job in jobs(folder)} == {first, second})
            os.kill(second, signal.SIGKILL)
            os.waitpid(second, 0)
        assert [job.name.pid for job in jobs(folder)] == [first]
        assert {name.pid for name, _ in read_all(folder)} == {first, second}  # the killed one's is left
        list(penstock.DataLoader(rows()))
        assert {name.pid for name, _ in read_all(folder)} == {first, os.getpid()}
    assert [name.pid for name, _ in read_all(folder)] == [os.getpid()]


def test_a_process_removes_its_recording_at_its_end(folder: Path) -> None:
    program = """
import penstock, torch
from penstock.insight import publishing
publishing.FIRST_AFTER = 0
list(penstock.DataLoader(torch.utils.data.TensorDataset(torch.zeros(8))))
print(publishing.live_folder().joinpath(publishing.this_process().file).exists(), publishing.program_name())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("True -c\n", "")
    assert jobs(folder) == [] == read_all(folder)


def test_the_arguments_of_a_program_are_not_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/home/me/train<script>.py", "--key=secret"])
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    list(penstock.DataLoader(rows()))
    assert read(folder).program == "train<script>.py"
    assert b"secret" not in b"".join(data for _, data in read_all(folder))


def test_a_number_that_was_given_anew_is_another_process() -> None:
    pid, started_ = os.getpid(), started_at(os.getpid())
    assert started_ is not None
    assert ProcessName(machine(), pid, started_).alive() is True
    assert ProcessName(machine(), pid, started_ + 1).alive() is False
    assert ProcessName("0" * 16, pid, started_).alive() is None
    assert started_at(2**22 + 1) is None


def test_files_of_other_machines_go_after_a_week(folder: Path) -> None:
    live_files.write(folder, name := ProcessName("0" * 16, 1, 1), b"{}")
    live_files.write(folder, old := ProcessName("1" * 16, 1, 1), b"{}")
    (folder / "somebody's.txt").write_text("keep", encoding="utf-8")
    os.utime(folder / old.file, (0, 0))
    live_files.remove_stale(folder)
    assert sorted(file.name for file in folder.iterdir()) == sorted([name.file, "somebody's.txt"])


# --- what is read -----------------------------------------------------------------------------------------------------


def test_damaged_files_are_left_out(folder: Path) -> None:
    list(penstock.DataLoader(rows()))
    ((name, data),) = read_all(folder)
    said = json.loads(data)
    job_of(name, data)
    for spoiled in (
        b"",
        b"null",
        b"[" * 100_000,
        b" " * (live_files.MOST_BYTES + 1),
        data[:-10],
        data.replace(b'"format": 3', b'"format": 2'),
        json.dumps({**said, "began": float("nan")}).encode(),
        json.dumps({**said, "program": 5}).encode(),
        json.dumps({**said, "loaders": [{**said["loaders"][0], "lines": [1]}]}).encode(),
        json.dumps({**said, "loaders": [{**said["loaders"][0], "step": "no"}]}).encode(),
        json.dumps({**said, "loaders": [{"lines": []}]}).encode(),
        json.dumps({**said, "loaders": 5}).encode(),
        b'{"format": 3, "began": 1e999}',
    ):
        with pytest.raises(PenstockError):
            job_of(name, spoiled)
        live_files.write(folder, name, spoiled)
        assert jobs(folder) == []


def test_rates_and_shares(folder: Path) -> None:
    loader = penstock.DataLoader(rows())
    followed = publishing._Followed(loader, 1)
    followed._history = [publishing._Reading(*one) for one in ((0,), (10, 100, 800, 2, 6), (20, 200, 1600, 3, 10))]
    followed._history.append(publishing._Reading(30, 300, 2400, 11, 12))
    assert followed._course() == "▃▂▇" and followed._history[-1].share(followed._history[0]) == pytest.approx(11 / 23)
    followed._history = [publishing._Reading(0)]
    list(loader)
    state = followed.state(100.0, 0.0)
    assert state is not None and state["rate"] == pytest.approx(
        loader.stats().samples / (loader.stats().loop.steady_waited + loader.stats().loop.worked)
    )
