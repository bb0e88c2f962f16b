"""worker_method="auto": what it takes and leaves as it was; explain() advises threads by the times of processes."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as tud

import penstock
from penstock.executors.fetch import Fetch
from penstock.executors.method import LIMIT_SECONDS, Choice, Measurement, Speed, Trial, choose, try_both
from penstock.explain import FEWEST_BATCHES, THREAD_BATCH_SECONDS, one_thread
from penstock.observe import ProcessTimes, StageTime
from penstock.settings import Method
from penstock.system.randomness import generator_states, generators_drawn_from
from tests.same import assert_same
from tests.sample_datasets import Made, Opening
from tests.waiting import wait_until


def chosen(loader: Any) -> str:
    """Return what "auto" came to, and why, as explain() says it."""
    (line,) = [line for line in loader.explain().splitlines() if line.startswith("chosen")]
    return str(line.removeprefix("chosen").strip())


def found(threads: Speed | None, processes: Speed | None, draws: tuple[str, ...] = ()) -> Measurement:
    return Measurement(draws, 0.5, processes, threads)


@pytest.mark.parametrize(
    ("threads", "processes", "samples", "wanted"),
    [
        (Speed(0, 1e-5), Speed(0.05, 4e-5), 10_000, Method.THREAD),
        (Speed(0, 2e-3), Speed(0.05, 1e-3), 10_000, Method.PROCESS),
        (Speed(0, 2e-3), Speed(0.05, 1e-3), 20, Method.THREAD),  # the start of processes does not pay
        (Speed(0, 2e-3), Speed(0.05, 1e-3), None, Method.PROCESS),
        (Speed(0, 1e-3), Speed(0, 1.2e-3), None, Method.PROCESS),  # code may do in threads what no trial shows
        (Speed(0, 1e-3), Speed(0, 1.4e-3), None, Method.THREAD),
    ],
)
def test_the_faster_method_is_taken(threads: Speed, processes: Speed, samples: int | None, wanted: Method) -> None:
    choice = choose(found(threads, processes), samples, seeded=False)
    assert choice.method is wanted
    assert f"threads fetched {1 / threads.sample:,.0f} samples/s" in choice.why
    assert f"processes {1 / processes.sample:,.0f}" in choice.why
    assert choice.why.endswith(" times as fast") == (wanted is Method.THREAD)


def test_samples_too_slow_to_compare_go_to_processes() -> None:
    choice = choose(found(None, None), 10, seeded=False)
    assert choice.method is Method.PROCESS and "a sample took 0.5 s" in choice.why


def test_with_a_seed_global_draws_need_processes() -> None:
    facts = found(Speed(0, 1e-5), Speed(0, 4e-5), ("torch", "random", "numpy.random"))
    assert choose(facts, None, seeded=False).method is Method.THREAD
    choice = choose(facts, None, seeded=True)
    assert choice.method is Method.PROCESS
    assert "torch, random and numpy.random" in choice.why


class Drawing(tud.Dataset[Any]):
    """Samples drawn from all global generators."""

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        self.threads.add(threading.get_ident())
        return torch.rand(2) + random.random() + float(np.random.rand())


def test_measuring_leaves_the_generators_as_they_were() -> None:
    before = generator_states()
    dataset = Drawing()
    loader = penstock.DataLoader(dataset, 4, num_workers=2, worker_method="auto", seed=1)
    text = loader.explain()
    assert "chosen   processes: with seed= the draws from random, numpy.random and torch must follow" in text
    assert generators_drawn_from(before) == ()
    assert not dataset.threads  # a child tried them: what a dataset opens or counts there ends there


def test_it_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fake(*given: Any, **more: Any) -> Choice:
        calls.append(given)
        return choose(found(Speed(0, 1e-5), Speed(0, 4e-5)), None, seeded=False)

    monkeypatch.setattr("penstock.executors.method.try_out", fake)
    dataset: Any = list(range(40))
    loader: Any = penstock.DataLoader(dataset, 4, num_workers=2, worker_method="auto")
    assert not calls  # not before somebody iterates or asks
    assert_same(list(loader), list(tud.DataLoader(dataset, 4)))
    list(loader)
    assert (
        "in 2 threads" in loader.explain()
        and "chosen   threads: tried for a moment, threads fetched 100,000" in loader.explain()
    )
    assert len(calls) == 1


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_a_file_that_the_dataset_opens_is_not_shared_by_the_workers(tmp_path: Path) -> None:
    dataset = Opening(tmp_path / "numbers", 2000, lambda: sum(range(2000)))  # so that processes are chosen
    loader = penstock.DataLoader(dataset, 50, num_workers=2, worker_method="auto")
    loader.explain()
    assert dataset.file is None
    if chosen(loader).startswith("processes"):
        assert torch.cat(list(loader)).tolist() == list(range(2000))


class Waiting(tud.Dataset[Any]):
    """Has some samples that take for ever."""

    def __init__(self, *slow: int) -> None:
        self.slow = slow

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        if index in self.slow:
            threading.Event().wait()
        return index


@pytest.mark.parametrize("slow", [(5,), (0,), (1,), tuple(range(10))], ids=str)
def test_a_trial_takes_no_longer_than_its_limit(slow: tuple[int, ...]) -> None:
    began = time.monotonic()
    why = chosen(penstock.DataLoader(Waiting(*slow), 2, num_workers=2, worker_method="auto"))
    assert time.monotonic() - began < LIMIT_SECONDS + 10  # on a machine that does other things, too
    assert why.startswith("processes") and "a trial of both was not over after 1.0 s" in why


def test_what_a_trial_has_started_ends_with_it(tmp_path: Path) -> None:
    class Noting(Waiting):
        def __getitem__(self, index: int) -> int:
            (tmp_path / str(os.getpid())).touch()
            return super().__getitem__(index)

    chosen(penstock.DataLoader(Noting(7), 2, num_workers=2, worker_method="auto"))
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert pids and os.getpid() not in pids
    wait_until(lambda: not any(map(is_running, pids)))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


PAIRS = Made(lambda index: (torch.zeros(10), index), 9)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 4},
        {"batch_size": None},
        {"batch_size": 4, "collate_fn": len},
        {"batch_size": 4, "persistent_workers": True, "prefetch_factor": 3},
        {"batch_sampler": [[1, 2], [3]]},
        {"batch_size": 2, "seed": 3, "on_error": "replace"},
        {"batch_size": 2, "share_dataset": True},
    ],
    ids=str,
)
def test_both_executors_are_timed(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.executors.method.LIMIT_SECONDS", 60.0)  # of a busy machine
    loader = penstock.DataLoader(PAIRS, num_workers=2, worker_method="auto", **options)
    why = chosen(loader)
    assert "tried for a moment, threads fetched" in why and "ms, processes" in why
    assert ("an epoch of" in why) == (not options.get("persistent_workers"))
    assert len(list(loader)) == len(loader)
    if options.get("persistent_workers"):
        loader._iterator._shutdown_workers()


def test_a_trial_finds_more_and_more() -> None:
    fetch = Fetch(PAIRS, batched=True, collate_fn=tud.default_collate)
    found = list(try_both(Trial(fetch, 4, 2)))
    assert found[0].threads is None and found[0].sample_seconds > 0
    last = found[-1]
    assert last.threads is not None and last.processes is not None
    assert last.threads.sample > 0 and last.processes.sample > 0 and last.processes.start >= 0
    assert last.draws == ()


@pytest.mark.parametrize(
    ("dataset", "workers", "why"),
    [
        (list(range(9)), 0, "num_workers=0"),
        ({"a": 1, "b": 2}, 2, "KeyError"),
        ([], 2, "empty"),
    ],
)
def test_what_cannot_be_tried_goes_as_torch_would(dataset: Any, workers: int, why: str) -> None:
    text = chosen(penstock.DataLoader(dataset, num_workers=workers, worker_method="auto"))
    assert why in text
    assert text.startswith("processes") == ("Error" in why)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_auto_over_a_native_dataset_tries_nothing(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.executors.method.try_out", None)
    loader = penstock.DataLoader(
        tud.TensorDataset(torch.arange(8)), 4, num_workers=workers, worker_method="auto", persistent_workers=workers > 0
    )
    for _ in range(2):
        assert [batch.tolist() for (batch,) in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert loader.state_dict()["position"] == 0
    assert "native" in loader.explain()


# --- passes in worker processes tell what one thread would need ------------------------------------------------------


STAGES = {"getitem": StageTime(1.0, 1000), "collate": StageTime(0.5, 1000), "iterate": StageTime(9.0, 1000)}
AUTO = "worker_method='auto' would measure"


def test_the_seconds_are_those_of_one_thread_in_turn_with_the_loop() -> None:
    found = one_thread(ProcessTimes(loader=6.0, loop=0.5, batches=100, samples=1000), STAGES, 1000)
    assert found == pytest.approx((6.5, 1.5 + 0.5 + 100 * THREAD_BATCH_SECONDS))


def test_too_little_is_known() -> None:
    assert one_thread(ProcessTimes(6.0, 0.5, FEWEST_BATCHES - 1, 1000), STAGES, 1000) is None
    assert one_thread(ProcessTimes(6.0, 0.5, 100, 1000), STAGES, 1001) is None, "one was read in another way"


class Holding(list[int]):
    """Unchanged a lock, which threads cannot copy."""

    def __init__(self) -> None:
        super().__init__(range(8))
        self.lock = threading.Lock()


def advice_of(loader: Any) -> str:
    return str([line for line in loader.explain().splitlines() if line.startswith("advice")][-1])


def test_passes_are_timed() -> None:
    loader: Any = penstock.DataLoader(list(range(100)), 2, num_workers=2)  # type: ignore[arg-type]
    times = loader._executors.counters.meter.processes
    for epochs in (1, 2):
        began_with = times.loader
        for _ in loader:
            pass
        assert (times.batches, times.samples) == (50 * epochs, 100 * epochs)
        assert times.loader > began_with and times.loop > 0
    assert loader.stats().wait_seconds <= times.loader


@pytest.mark.parametrize(
    ("seconds", "options", "factor"),
    [
        (1e6, {}, True),
        (1e6, {"persistent_workers": True}, True),
        (0.0, {}, False),
        (1e6, {"seed": 1}, False),  # its draws follow the sample in worker processes alone
    ],
)
def test_threads_are_advised_by_their_factor(seconds: float, options: dict[str, Any], factor: bool) -> None:
    loader: Any = penstock.DataLoader(list(range(100)), 2, num_workers=2, **options)  # type: ignore[arg-type]
    assert AUTO in advice_of(loader)
    list(loader)
    times = loader._executors.counters.meter.processes
    times.loader, times.loop = seconds, 0.0
    text = advice_of(loader)
    assert (AUTO in text) != factor
    if factor:
        assert text.startswith("advice   worker_method='thread' would be at least about ")
        assert " times as fast: passes in worker processes took 1e+06 s, of which one thread would need " in text
        assert text.endswith("penstock.testing.assert_same_as_torch(dataset) checks the dataset in threads")


def test_threads_are_not_advised_where_they_cannot_copy_the_dataset() -> None:
    loader: Any = penstock.DataLoader(Holding(), 1, num_workers=1)  # type: ignore[arg-type]
    list(loader)
    loader._executors.counters.meter.processes = ProcessTimes(1e6, 0.0, FEWEST_BATCHES, 8)
    assert AUTO in advice_of(loader)


def test_other_workers_are_not_advised_so() -> None:
    for options in ({"worker_method": "thread"}, {"worker_method": "process"}):
        loader: Any = penstock.DataLoader(tud.Subset(list(range(8)), range(8)), num_workers=2, **options)  # type: ignore[arg-type]
        list(loader)
        loader._executors.counters.meter.processes = ProcessTimes(1e6, 0.0, FEWEST_BATCHES, 8)
        assert "times as fast" not in loader.explain()
