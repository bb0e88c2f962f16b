"""What would help a loop: fewer workers, threads, the CPUs that workers take; from numbers of built cases."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.insight.program_loaders import LoaderFacts
from penstock.insight.run_report import plain_sentence
from penstock.loop_model import Cause, Measured, Workers, measured
from penstock.loop_times import LoopTimes
from penstock.observe import StageTime
from penstock.system.limits import host_cpus
from penstock.verdict import findings, verdict
from tests.test_verdict import MS, WAITS, case


def light(kind: Workers, **given: Any) -> Measured:
    """Return the batches of light samples: 0.2 ms of Python each, 0.03 ms of copies."""
    busy = {Cause.PYTHON: 0.2, Cause.COPY: 0.03}
    return case(work=0.01, busy=busy, kind=kind, batch_size=32, code="Windows.__getitem__", **given)


def test_workers_that_bring_less_than_the_loop_would_make_are_too_many() -> None:
    (fewer,) = findings(light(Workers.PROCESSES, wait=0.67, loop_queued=0.2 * MS, queued=0.1 * MS, other_cpu=0.09 * MS))
    assert (fewer.cause, fewer.options) == (Cause.OVERHEAD, {"num_workers": 0})
    assert fewer.gain == pytest.approx(0.68 / 0.24)
    assert not any(
        one.options for one in findings(light(Workers.CALLER, wait=0.23, workers=0))
    )  # nor are there too few
    assert not any(one.options for one in findings(light(Workers.PROCESSES, wait=0.15)))


@pytest.mark.parametrize("kind", [Workers.CALLER, Workers.PROCESSES])
def test_threads_spare_the_copies_of_samples_that_are_made_natively(kind: Workers) -> None:
    workers = 0 if kind is Workers.CALLER else 2
    given: dict[str, Any] = {"kind": kind, "workers": workers, "code": "Files.__getitem__", "answered": True}
    found = case(wait=59 if workers else 120, work=1, busy={Cause.PYTHON: 10, Cause.COPY: 110}, **given)
    (first,) = (one for one in findings(found) if "worker_method" in one.options)
    assert first.options == {"worker_method": "thread", "num_workers": 2} and first.gain > 3
    assert 'worker_method="thread"' in verdict(found).lower()
    heavy = replace(found, busy={Cause.PYTHON: 0.12}, cpu={Cause.PYTHON: 0.12})  # one thread at a time
    for other in (heavy, replace(found, answered=False)):
        assert not any("worker_method" in one.options for one in findings(other))


def test_workers_that_take_the_cpus_of_the_loops_own_work() -> None:
    given: dict[str, Any] = {"kind": Workers.PROCESSES, "other_cpu": 100 * MS}
    said = " Its workers took 45% of the CPUs, which that work needs too."
    for wait in (2, 7):
        assert said in verdict(case(wait=wait, work=100 - wait, busy={Cause.PYTHON: 90}, **given))
    assert findings(case(wait=2, work=98, busy={Cause.PYTHON: 90}, **given))[0].evidence.endswith(said)
    idle = case(wait=7, work=93, busy={Cause.PYTHON: 90}, kind=Workers.PROCESSES, other_cpu=5 * MS)  # of an accelerator
    assert "of the CPUs" not in verdict(idle) and "of the CPUs" not in verdict(replace(idle, cpus=16.0, other_cpu=0.1))


def test_light_samples_in_the_callers_thread_ran_no_longer_than_the_process() -> None:
    """Beside others: a clock that runs on says 8 s, and the process ran for 2 s."""
    stages = {"getitem": StageTime(8.0, 6400, cpu_seconds=8.0)}
    loop = LoopTimes(batches=100, waited=8.0, worked=2.0, cpu_seconds=2.0, waits=WAITS, queued_seconds=6.0)
    found = measured(loop, stages, samples=6400, workers=0, kind=Workers.PROCESSES, cpus=2)
    assert found is not None
    assert (found.total_cpu, found.total_busy, found.queued) == pytest.approx((0.02, 0.02, 0.06))


def test_a_loop_of_torchs_whose_workers_take_the_cpus_of_its_own_work() -> None:
    cpus = host_cpus()
    loader = LoaderFacts("DataLoader", "Squares", "batch_size=64", 2, "train.py:1", penstock=False)
    times = LoopTimes(batches=100, waited=0.7, worked=9.3, cpu_seconds=6.0, waits=WAITS)

    def said(times: LoopTimes, loader: LoaderFacts = loader) -> str:
        loop: Any = SimpleNamespace(loader=loader, times=times, stats=None, passes=1, samples=0, background=False)
        return plain_sentence(loop)

    full = replace(times, machine_cpu_seconds=10.0 * cpus, cpu_seconds=6.0 * cpus)
    taken = f"; its workers and other programs took {0.4 * cpus:.2g} of your {cpus} CPUs, which its work needs too"
    assert said(full).startswith("Your loop waited 7 % of the time (") and said(full).endswith(taken)
    for other in (times, replace(full, waited=9.0, worked=1.0), replace(full, cpu_seconds=1.0)):  # idle, waits, waits
        assert "which its work needs" not in said(other)
    assert "which its work needs" not in said(full, replace(loader, workers=0))
