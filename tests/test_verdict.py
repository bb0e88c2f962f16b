"""Why a loop waits, from numbers of built cases: the first finding, its prediction and the sentence."""

from __future__ import annotations

import gc
import logging
import os
import time
import warnings
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torchvision import transforms

import penstock
from penstock import verdict as verdicts
from penstock.loop_model import Cause, Measured, Workers, measured, outliers
from penstock.loop_times import WAIT_CLASSES, LoopClock, LoopMeter, LoopTimes
from penstock.observe import Delivery, Instant, Meter, StageTime
from penstock.system.limits import machine_cpu_seconds
from penstock.system.words import duration
from penstock.verdict import WAITING, findings, verdict
from tests.data import Made, noise_image
from tests.forking import assert_in_child
from tests.waiting import run_in_threads

MS = 1e-3
WAITS = (0,) * 17 + (100,) + (0,) * (WAIT_CLASSES - 18)


def case(*, wait: float, work: float, busy: dict[Cause, float], cpu: Any = None, **rest: Any) -> Measured:
    """Return a case whose times are in milliseconds a step."""
    seconds, on_cpu = ({cause: MS * time for cause, time in some.items()} for some in (busy, cpu or busy))
    given = {"steps": 100, "workers": 2, "kind": Workers.NATIVE, "cpus": 2, "batch_size": 64, **rest}
    return Measured(wait=MS * wait, work=MS * work, busy=seconds, cpu=on_cpu, **given)


LOCKED: dict[str, Any] = {"cpu": {Cause.PYTHON: 98}, "kind": Workers.THREADS, "workers": 4, "cpus": 4}
OUTLYING: dict[str, Any] = {"outlying_batches": 0.01, "outlying_wait": 28 * MS, "longest_wait": 2.8}
DISK: dict[str, Any] = {"other_cpu": 5 * MS, "read_bytes": 6e6, "cacheable": True}
SLOW: dict[str, Any] = {"kind": Workers.PROCESSES, "other_cpu": 2 * MS}
CASES = {
    # Two native threads read 5 ms for each of 64 files, and no CPU is busy.
    "slow disk": (case(wait=150, work=20, busy={Cause.READ: 340}, cpu={Cause.READ: 10}, cacheable=True), Cause.READ),
    "slow decoding": (case(wait=60, work=20, busy={Cause.DECODE: 140, Cause.READ: 15}, **DISK), Cause.DECODE),
    "slow Python": (case(wait=80, work=20, busy={Cause.PYTHON: 195}, **SLOW), Cause.PYTHON),
    "Python's lock": (case(wait=80, work=20, busy={Cause.PYTHON: 380}, **LOCKED), Cause.LOCK),
    "tiny batches": (case(wait=0.09, work=0.01, busy={Cause.COPY: 0.004}, batch_size=1), Cause.OVERHEAD),
    "a cgroup's quota": (case(wait=60, work=20, busy={Cause.DECODE: 79}, workers=1, cpus=1, host_cpus=8), Cause.QUEUE),
    "copies": (case(wait=30, work=10, busy={Cause.COPY: 78}), Cause.COPY),
    "compute": (case(wait=0.5, work=100, busy={Cause.DECODE: 50}), Cause.COMPUTE),
    "outliers": (case(wait=30, work=20, busy={Cause.PYTHON: 30}, kind=Workers.PROCESSES, **OUTLYING), Cause.OUTLIERS),
    "few workers": (case(wait=60, work=20, busy={Cause.DECODE: 79}, workers=1, cpus=8), Cause.DECODE),
}


@pytest.mark.parametrize("name", CASES)
def test_the_first_finding(name: str) -> None:
    found, cause = CASES[name]
    first = findings(found)[0]
    assert first.cause is cause and first.evidence.endswith("."), findings(found)
    nothing_helps = name in ("compute", "tiny batches")
    assert (first.gain == 1.0 and not first.change) if nothing_helps else first.gain > 1.1
    assert verdict(found).startswith(f"Your loop waited {found.wait / found.step:.0%} of the time (")


def test_predictions_are_those_of_the_pipeline() -> None:
    decoding = case(wait=80, work=20, busy={Cause.DECODE: 200})
    assert (decoding.modelled, decoding.overhead) == pytest.approx((0.1, 0))
    (more, *_) = findings(decoding)
    assert (more.change, more.cause) == ("6 more cores", Cause.DECODE)
    assert more.gain == pytest.approx(200 / 2 / (200 / 8))
    assert findings(replace(decoding, work=0.09, wait=0.01))[0].gain == pytest.approx(100 / 90)
    here = replace(decoding, workers=0, kind=Workers.CALLER, wait=0.2)
    assert here.modelled == pytest.approx(0.22)
    (first, *_) = findings(here)
    assert (first.cause, first.change, first.options) == (Cause.DECODE, "num_workers=2", {"num_workers": 2})
    assert first.gain == pytest.approx(2.2, rel=0.003)  # a batch of worker processes has to be brought


def test_the_sentence() -> None:
    busy = {Cause.DECODE: 270.0, Cause.READ: 74.0, Cause.COPY: 26.0}
    found = case(wait=71, work=116, busy=busy, other_cpu=4 * MS, cacheable=True)
    assert verdict(found) == (
        "Your loop waited 38% of the time (71 ms a step): decode 51.8 ms, read 14.2 ms, copy 4.99 ms of it. 2 more "
        "cores would give about 1.6x, cache= with room for the files, from the second epoch on, would give about 1.2x."
    )
    working = "Your loop waited 1% of the time (1 ms a step): its own work, 99 ms a step, is what takes the time."
    assert verdict(case(wait=1, work=99, busy={Cause.DECODE: 10})) == working


def shown(stages: dict[str, StageTime], *, cpu: float = 1.0, machine: float = 0.0, **given: Any) -> Measured:
    """Return what 100 batches of 64 samples show, of which the loop waited 8 s and worked 2 s."""
    loop = LoopTimes(batches=100, waited=8.0, worked=2.0, cpu_seconds=cpu, machine_cpu_seconds=machine, waits=WAITS)
    found = measured(loop, stages, samples=6400, workers=2, **{"cpus": 2, **given})
    assert found is not None
    return found


def test_stages_of_fillers_run_on_other_cpus() -> None:
    stages = {"decode": StageTime(16.0, 6400, cpu_seconds=15.0)}
    found = shown(stages, cpu=3.0, machine=19.0, kind=Workers.FILLERS, host_cpus=2)
    assert found.busy == pytest.approx({Cause.DECODE: 0.16}) and not found.cpu
    assert [(one.cause, one.gain) for one in findings(found)] == [(Cause.DECODE, 1.0)]
    assert found.other_cpu == pytest.approx(0.03)


def test_nothing_is_said_of_a_short_time() -> None:
    waits = (0,) * 15 + (9,) + (0,) * (WAIT_CLASSES - 16)
    few = LoopTimes(batches=10, waited=9.0, worked=9.0, waits=waits)
    short = LoopTimes(batches=100, waited=0.1, worked=0.1, waits=(99, *waits[1:]))
    for loop in (few, short, LoopTimes()):
        assert measured(loop, {}, samples=640, workers=2, kind=Workers.NATIVE, cpus=2) is None


def test_python_that_does_not_run_reads_only_what_storage_gives() -> None:
    stages = {"getitem": StageTime(16.0, 6400, cpu_seconds=2.0), "read_ahead": StageTime(99.0, 1)}
    found = shown(stages, cpu=3.0, kind=Workers.PROCESSES, code="Clips.__getitem__")
    assert found.busy == pytest.approx({Cause.PYTHON: 0.02, Cause.BLOCKED: 0.14})  # it opens no file
    assert found.cpu == pytest.approx({Cause.PYTHON: 0.02})
    assert (found.batch_size, found.step) == pytest.approx((64, 0.1))
    assert ": blocked in Clips.__getitem__ 56 ms, " in verdict(found)
    reading = {"getitem": stages["getitem"]._replace(bytes=6400 * 4096)}
    found = shown(reading, cpu=3.0, kind=Workers.PROCESSES)
    assert found.busy == pytest.approx({Cause.PYTHON: 0.02, Cause.READ: 0.14})
    in_threads = shown(stages, cpu=3.0, kind=Workers.THREADS)  # which wait for Python's lock too
    assert in_threads.busy == pytest.approx({Cause.PYTHON: 0.16}) and in_threads.other_cpu == pytest.approx(0.01)


@pytest.mark.parametrize("quota", [False, True])
def test_python_that_waits_for_a_cpu_does_not_read(quota: bool) -> None:
    """Other processes take a CPU of two, or a cgroup leaves this one a CPU of eight."""
    cpus: dict[str, Any] = {"cpus": 1, "host_cpus": 8, "machine": 11.0} if quota else {"host_cpus": 2, "machine": 20.5}
    stages = {"getitem": StageTime(19.0, 6400, cpu_seconds=9.5, queued_seconds=9.5)}
    found = shown(stages, kind=Workers.PROCESSES, **cpus)
    assert found.busy == pytest.approx({Cause.PYTHON: 0.095}) and found.queued == pytest.approx(0.095)
    (first, *_) = findings(found)
    if quota:
        assert first.cause is Cause.QUEUE and first.change.startswith("a CPU limit of ")
        assert first.gain > 1.5
    else:
        assert found.foreign_cpus == pytest.approx(1.0, rel=0.01)
        assert first.cause is Cause.PYTHON and "a free CPU (other programs use 1 of your 2 CPUs)." in first.evidence
    others = "" if quota else " (other programs use 1 of your 2 CPUs)"
    assert f"a free CPU{others} " in verdict(found) and "read" not in verdict(found)


@pytest.mark.parametrize("foreign", [0.0, 2.0])
def test_workers_help_a_loop_that_sleeps_however_busy_the_machine_is(foreign: float) -> None:
    """sleep(0.01) in __getitem__, no workers: 16 samples, each of which then waits for a CPU too."""
    queued = 40 * MS * foreign
    sleeping: dict[str, Any] = {
        "busy": {Cause.BLOCKED: 160, Cause.PYTHON: 2},
        "cpu": {Cause.PYTHON: 2},
        "kind": Workers.CALLER,
    }
    found = case(
        wait=162 + queued / MS, work=1, workers=0, foreign_cpus=foreign, host_cpus=2, queued=queued, **sleeping
    )
    (first,) = findings(found)
    assert (first.cause, first.options) == (Cause.BLOCKED, {"num_workers": 8})
    assert first.gain == pytest.approx(163 / (162 / 8 + 0.2))


@pytest.mark.parametrize("kind", [Workers.CALLER, Workers.NATIVE, Workers.PROCESSES])
@pytest.mark.parametrize("cause", [Cause.PYTHON, Cause.DECODE, Cause.BLOCKED])
def test_more_workers_are_never_predicted_to_be_slower_because_of_others(kind: Workers, cause: Cause) -> None:
    workers = 0 if kind is Workers.CALLER else 1
    cpu = {Cause.PYTHON: 1.0} if cause is Cause.BLOCKED else {cause: 40.0}
    for foreign in (0.0, 0.5, 1.9, 2.0, 4.0):
        busy = {cause: 40.0}
        found = case(wait=90, work=1, busy=busy, cpu=cpu, workers=workers, kind=kind, queued=50 * MS, host_cpus=2)
        found = replace(found, foreign_cpus=foreign)
        other = Workers.PROCESSES if kind is Workers.CALLER else kind
        assert all(found.gain(workers=number, kind=other) >= 0.995 for number in range(1, 9))  # but for their way


def test_native_stages_that_wait_for_a_cpu_do_not_read() -> None:
    """As measured beside 8 busy processes: "open" seems to sleep, and it is the look at the clocks that waited."""
    stages = {
        "open": StageTime(0.8, 900, cpu_seconds=0.01, queued_seconds=0.3),
        "decode": StageTime(8.0, 900, cpu_seconds=1.2, queued_seconds=6.8),
    }
    found = shown(stages, kind=Workers.NATIVE, cacheable=True)
    assert found.busy == pytest.approx({Cause.READ: 0.0001, Cause.DECODE: 0.012})
    slow_disk = {**stages, "open": StageTime(8.0, 900, cpu_seconds=0.1, queued_seconds=0.3)}
    slow_disk["decode"] = StageTime(1.3, 900, cpu_seconds=1.2, queued_seconds=0.1)
    assert shown(slow_disk, kind=Workers.NATIVE).busy[Cause.READ] == pytest.approx(0.077)


def test_waits_for_a_cpu_are_no_stragglers_and_no_cost_of_a_batch() -> None:
    """A loop over rows in memory that others take the CPUs from, for some milliseconds at a time."""
    given: dict[str, Any] = {"outlying_batches": 0.005, "outlying_wait": 0.49 * MS, "longest_wait": 24 * MS}
    rows = case(wait=0.5, work=0.1, busy={Cause.COPY: 0.004}, batch_size=1, **given)
    assert [one.cause for one in findings(rows)] == [Cause.OUTLIERS]
    waits = [0] * WAIT_CLASSES
    waits[4], waits[15] = 9950, 50  # up to 16 us, up to 33 ms
    loop = LoopTimes(batches=10_001, waited=5.0, worked=1.0, longest_wait=0.024, waits=tuple(waits))
    assert outliers(loop)[0] == 50
    assert outliers(replace(loop, queued_seconds=4.8))[0] == 0
    queued = replace(rows, outlying_batches=0.0, outlying_wait=0.0, loop_queued=0.48 * MS)
    assert [one.cause for one in findings(queued)] == [Cause.OVERHEAD]


def test_a_straggling_sample_beside_a_load() -> None:
    """As measured beside 8 busy processes: the loop's thread waits for a CPU in each step, and 0.3 s for one sample."""
    given: dict[str, Any] = {"outlying_batches": 0.005, "outlying_wait": 3 * MS, "longest_wait": 0.3}
    found = case(wait=6.9, work=5, busy={Cause.BLOCKED: 1.8}, batch_size=16, loop_queued=4.7 * MS, **given)
    assert next(iter(findings(found))).cause is Cause.OUTLIERS


def test_threads_that_hold_pythons_lock_in_turn_beside_a_load() -> None:
    """As measured beside 8 busy processes: the lock's holder is in the run queue, and so is who looks for the lock."""
    numbers: dict[str, Any] = {"cpu": {Cause.PYTHON: 52}, "kind": Workers.THREADS, "foreign_cpus": 1.9, "host_cpus": 2}
    found = case(wait=630, work=44, busy={Cause.PYTHON: 254}, queued=1.15, **numbers)
    (first, *_) = findings(found)
    assert first.cause is Cause.LOCK and first.gain > 1.3
    asleep = replace(found, cpu={Cause.PYTHON: 2 * MS})  # threads that sleep, and wait for a CPU when they wake
    assert Cause.LOCK not in [one.cause for one in findings(asleep)]


def test_stages_know_their_time_in_the_run_queue() -> None:
    """Two workers on one CPU: each waits for the other."""

    def check() -> None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
        warnings.simplefilter("ignore", UserWarning)  # two workers, one CPU
        loader = penstock.DataLoader(Made(busy_sample, 40), 4, num_workers=2, worker_method="process")
        list(loader)
        stage = loader.stats().stages["getitem"]
        assert stage.queued_seconds > 0.1 * stage.seconds and stage.bytes == 0
        assert stage.queued_seconds + stage.cpu_seconds <= 1.05 * stage.seconds

    if not Path("/proc/thread-self/schedstat").exists():
        pytest.skip("this kernel does not tell the time in the run queue")
    assert_in_child(check)


def test_durations_are_said_in_their_unit() -> None:
    found = [duration(seconds) for seconds in (125, 12.34, 0.0712, 0.0032, 4e-5, 0)]
    assert found == ["2 min 5 s", "12.3 s", "71.2 ms", "3.2 ms", "40 us", "0 us"]


def test_the_machines_cpu_time(tmp_path: Path) -> None:
    path = tmp_path / "stat"
    path.write_text("cpu  100 200 300 4000 5000 60 70 80 9 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n")
    assert machine_cpu_seconds(str(path)) == 810 / os.sysconf("SC_CLK_TCK")
    assert machine_cpu_seconds() > 0
    for text in ("", "cpu 1 2", "cpu a b c d e f g h", "intr 1 2 3 4 5 6 7 8 9"):
        path.write_text(text)
        assert machine_cpu_seconds(str(path)) == 0.0
    assert machine_cpu_seconds(str(tmp_path / "none")) == 0.0


def test_outlying_waits_are_a_few_long_ones() -> None:
    waits = [0] * WAIT_CLASSES
    waits[6], waits[19] = 990, 10  # up to 64 us, up to 0.5 s
    loop = LoopTimes(batches=1001, waited=4.0, longest_wait=0.5, waits=tuple(waits))
    assert outliers(loop) == pytest.approx((10, 4.0), rel=0.02)
    waits[6], waits[19] = 10, 990
    assert outliers(replace(loop, waits=tuple(waits)))[0] == 0


class Collecting(float):
    """A number that has something done when it is added, as a garbage collection in that line would."""

    does: Callable[[], object]

    def __radd__(self, other: Any) -> float:
        self.does()
        return float(self) + other


def test_stages_are_read_and_added_by_a_collection_amid_their_addition() -> None:
    meter, found = Meter(), list[StageTime]()

    def early() -> list[Any]:
        return [("read", 1.0, 1), ("read", seconds, 1), ("read", 4.0, 1)]

    def late() -> list[Any]:
        return [("read", 8.0, 1)]

    def collect() -> None:
        seconds.does = dict  # once
        meter.close(late)
        found.append(meter.stages()["read"])

    seconds = Collecting(2.0)
    seconds.does = collect
    for read in (late, early):
        meter.open(read)
    meter.close(early)
    assert meter.stages()["read"][:2] == (15.0, 4)
    assert found == [StageTime(15.0, 4)] and meter.stages()["read"] == StageTime(15.0, 4)


def test_many_pieces_of_finished_work_keep_their_sum() -> None:
    meter, begun = Meter(), Instant.now()
    run_in_threads(4, lambda _: [meter.add("read", begun, 1) for _ in range(300)])
    assert meter.stages()["read"].samples == 1200


def test_a_loops_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("penstock.loop_times.perf_counter", lambda: now[0])
    monkeypatch.setattr("penstock.loop_times.process_time", lambda: 2 * now[0])
    monkeypatch.setattr("penstock.loop_times.machine_cpu_seconds", lambda: 3 * now[0])
    meter = LoopMeter()
    for _ in range(2):
        clock = LoopClock(meter)
        for waited, worked in ((5.0, 1.0), (0.5, 2.0), (0.25, 3.0)):
            now[0] += waited
            clock.delivered(Delivery(None, 8, waited, in_flight=3))
            now[0] += worked
        clock.failed(ValueError())  # an error comes in a batch's place
        now[0] += 4.0
        clock.ended()
        now[0] += 1000  # between two passes
    times = meter.times()
    assert (times.batches, times.waited, times.first_waited, times.longest_wait) == (6, 11.5, 10.0, 0.5)
    assert times.worked == 2 * (1.0 + 2.0 + 4.0)
    assert (times.in_flight, times.queue_depth) == (18, 3.0)
    assert times.cpu_seconds == 2 * 2 * (1.0 + 0.5 + 2.0 + 0.25 + 3.0 + 4.0)
    assert times.machine_cpu_seconds == 3 * 2 * (1.0 + 0.5 + 2.0 + 0.25 + 3.0 + 4.0)
    assert sum(times.waits) == 4 and times.waits[18] == times.waits[19] == 2
    assert times.wait_share == pytest.approx(1.5 / 15.5)


@pytest.mark.parametrize("own", [True, False])
def test_a_clock_that_a_program_patches_is_not_called(monkeypatch: pytest.MonkeyPatch, own: bool) -> None:
    dataset: Any = Made(float, 8) if own else torch.utils.data.TensorDataset(torch.arange(8.0))
    loader = penstock.DataLoader(dataset, 2, num_workers=0)
    list(loader)  # what torch imports at first use reads the clock
    for name in ("monotonic", "perf_counter", "process_time", "thread_time", "time"):
        monkeypatch.setattr(time, name, mock.Mock(side_effect=AssertionError("the program's clock was called")))
    assert sum(len(batch if own else batch[0]) for batch in loader) == 8
    monkeypatch.undo()
    assert loader.stats().loop.batches == 8


AHEAD: dict[str, Any] = {"num_workers": 2, "prefetch_factor": 3}


@pytest.mark.parametrize("options", [AHEAD, {**AHEAD, "worker_method": "thread"}, {"num_workers": 0}])
def test_the_depth_of_the_queue(options: dict[str, Any]) -> None:
    least, most = (4, 6) if options["num_workers"] else (0, 0)
    rows = penstock.Arrays(torch.zeros(600, 4).numpy())  # rows in memory are gathered within next() only
    for dataset, ahead in ((Made(lambda index: torch.zeros(2), 600), 1), (rows, 0)):
        loader: Any = penstock.DataLoader(dataset, 4, **options)
        list(loader)
        assert ahead * least <= loader.stats().loop.queue_depth <= ahead * most
    assert LoopTimes().queue_depth == 0


def test_a_loader_measures_its_loop() -> None:
    loader = penstock.DataLoader(penstock.Arrays(torch.zeros(64, 4).numpy()), batch_size=4, num_workers=2)
    for _ in range(2):
        for _ in loader:
            time.sleep(2e-3)  # the loop's work
    stats = loader.stats()
    assert (stats.loop.batches, stats.batches, sum(stats.loop.waits)) == (32, 32, 30)
    assert stats.loop.waited == stats.wait_seconds and stats.loop.worked >= 30 * 2e-3


def busy_sample(index: int) -> torch.Tensor:
    end = time.thread_time() + 1e-2
    while time.thread_time() < end:
        pass
    return torch.zeros(2)


@pytest.mark.parametrize("options", [{}, {"worker_method": "thread"}, {"num_workers": 0}])
def test_stages_know_their_cpu_time(options: dict[str, Any]) -> None:
    def idle(index: int) -> torch.Tensor:
        time.sleep(2e-3)  # a file that is slow to read
        return torch.zeros(2)

    for make, least, most in ((busy_sample, 0.05, 1.1), (idle, 0.0, 0.5)):
        loader = penstock.DataLoader(Made(make, 48), 8, **{"num_workers": 1, **options})
        list(loader)
        stage = loader.stats().stages["getitem"]
        assert stage.samples == 48 and least <= stage.cpu_seconds / stage.seconds <= most


def slow(index: int) -> torch.Tensor:
    time.sleep(0.01)  # a loop that waits for over a second
    return torch.zeros(2)


def test_a_loader_that_is_collected_while_its_stages_are_read(caplog: pytest.LogCaptureFixture) -> None:
    loader: Any = penstock.DataLoader(Made(slow, 130), 10, num_workers=0)
    list(loader)
    caplog.set_level(logging.INFO, "penstock")
    read, meter, gone = loader.stats_reader(), loader._pass_factory.counters.meter, weakref.ref(loader)
    loader.cycle = loader
    del loader
    seconds = Collecting(0.0)
    seconds.does = gc.collect
    meter.open(lambda: [("read", seconds, 1)])
    assert "read" in read().stages
    assert gone() is None and "Your loop waited" in caplog.text


def collected(loaders: list[Any], caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what is logged when loaders are gone."""
    with caplog.at_level(logging.INFO, "penstock"):
        loaders.clear()
        gc.collect()
    return [record.getMessage() for record in caplog.records]


def test_a_loader_says_why_its_loop_waited_when_it_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    loaders = [penstock.DataLoader(Made(slow, 130), 10, num_workers=0)]
    list(loaders[0])
    assert "verdict  Your loop waited " in loaders[0].explain()
    assert not caplog.records

    def check() -> None:
        assert not collected(loaders, caplog)  # in a forked child

    assert_in_child(check)
    (said,) = collected(loaders, caplog)
    assert said.startswith("Your loop waited ") and "blocked in Made.__getitem__ " in said
    assert all(record.levelno < logging.WARNING for record in caplog.records)  # of a loop of a second


@pytest.mark.parametrize(
    ("changes", "warns"),
    [
        ({}, True),
        ({"steps": 60}, False),  # of 0.9 s each
        ({"work": 1.8}, False),
        ({"busy": {Cause.PYTHON: 0.7}, "cpu": {Cause.PYTHON: 0.7}, "cpus": 1.0}, False),  # nothing would help
    ],
)
def test_a_process_is_warned_once_of_a_long_loop_that_something_helps(
    changes: dict[str, Any], warns: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts, "_warned", False)
    busy = {Cause.PYTHON: 0.7}
    found = Measured(100, 0.7, 0.2, 0, Workers.CALLER, 4.0, 16.0, busy, {Cause.PYTHON: 0.1})
    caplog.set_level(logging.INFO, "penstock")
    for _ in range(2):
        verdicts.log_verdict(replace(found, **changes))
    levels = [record.levelno for record in caplog.records]
    assert levels == [logging.WARNING if warns else logging.INFO, logging.INFO]


def test_a_loader_whose_loop_works_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    loaders = [penstock.DataLoader(Made(lambda index: torch.zeros(2), 40), 2, num_workers=0)]
    for _ in loaders[0]:
        time.sleep(0.06)  # the loop's work
    found = loaders[0].stats().measured
    assert found is not None
    assert bool(collected(loaders, caplog)) == (found.wait >= WAITING * found.step)  # a busy machine can bring it about


def test_stages_know_the_bytes_that_they_read(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for number in range(40):
        noise_image(number, 30, 20).save(tmp_path / "a" / f"{number:02}.jpg")
    sizes = [path.stat().st_size for path in sorted((tmp_path / "a").iterdir())]
    loader = penstock.DataLoader(penstock.ImageFolder(str(tmp_path), transforms.ToTensor()), 8, num_workers=2)
    list(loader)
    stages, brought = loader.stats().stages, loader.stats().reading.bytes  # by readers, where a worker slept for a file
    # The first batch shows its shape, and is filled anew.
    assert stages["read"].bytes + brought == sum(sizes) + sum(sizes[:8])
    assert stages["decode"].bytes == 0
    for name in ("open", "read", "decode", "convert"):
        assert 0 <= stages[name].cpu_seconds <= stages[name].seconds
