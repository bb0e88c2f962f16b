"""worker_method="auto": what it takes and leaves as it was."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data as tud

import penstock
from penstock.carriers.auto import LIMIT_SECONDS, Choice, Measurement, choose
from penstock.settings import Method
from penstock.system.randomness import generator_states, generators_drawn_from
from tests.data import Drawing, Made, Opening, rows
from tests.same import assert_passes
from tests.values import flat, listed
from tests.waiting import wait_until


def chosen(loader: Any) -> str:
    (line,) = [line for line in loader.explain().splitlines() if line.startswith("chosen")]
    return str(line.removeprefix("chosen").strip())


def auto(dataset: Any, batch_size: int | None = 4, **options: Any) -> Any:
    return penstock.DataLoader(dataset, batch_size, worker_method="auto", **{"num_workers": 2, **options})


PAIRS = Made(lambda index: (torch.zeros(10), index), 9)
OF_LOADER = 2, 64  # workers, and samples of a batch


def found(one: float, every: float, draws: tuple[str, ...] = ()) -> Measurement:
    return Measurement(draws, one, every)


@pytest.mark.parametrize(
    ("measured", "samples", "wanted"),
    [
        (found(1e-6, 2e-6), 4_000, Method.THREAD),  # the start of processes does not pay
        (found(1e-6, 2e-6), None, Method.PROCESS),  # their way here is no longer than what a batch costs in threads
        (found(1e-3, 1.2e-3), 10_000, Method.PROCESS),  # Python's lock
        (found(1e-3, 1.2e-3), 20, Method.THREAD),
        (found(1e-3, 0.55e-3), None, Method.PROCESS),  # code may do in threads what no trial shows
        (found(1e-3, 0.3e-3), None, Method.THREAD),
        (found(1e-3, 0.3e-3, ("torch", "random", "numpy.random")), None, Method.THREAD),  # draws: no seed is given
    ],
)
def test_the_faster_method_is_taken(measured: Measurement, samples: Any, wanted: Method, monkeypatch: Any) -> None:
    monkeypatch.setattr("penstock.carriers.auto.usable_cpus", lambda: 4)
    choice = choose(measured, *OF_LOADER, samples, seeded=False)
    assert choice.method is wanted
    assert f"one thread fetched {1 / measured.one:,.0f} samples/s and 2 threads {1 / measured.all:,.0f}" in choice.why
    assert "after a start of 50 ms" in choice.why
    assert choice.why.startswith("threads: ") == (wanted is Method.THREAD)


def test_measuring_leaves_the_generators_as_they_were() -> None:
    read: list[int] = []
    before = generator_states()

    def draw(index: int) -> Any:
        read.append(index)
        return Drawing(12)[index]

    why = chosen(auto(Made(draw, 12), seed=1))
    assert why.startswith("processes: with seed= the draws from random, numpy.random and torch must follow")
    assert generators_drawn_from(before) == ()
    assert not read  # a child tried them: what a dataset opens or counts there ends there


def test_it_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fake(*given: Any, **more: Any) -> Choice:
        calls.append(given)
        return choose(found(1e-5, 1e-5), *OF_LOADER, 100, seeded=False)

    monkeypatch.setattr("penstock.carriers.auto.try_out", fake)
    loader = auto(range(40))
    assert not calls  # not before somebody iterates or asks
    assert_passes(loader, list(tud.DataLoader(range(40), 4)))  # type: ignore[arg-type]
    assert "in 2 threads" in loader.explain()
    assert chosen(loader).startswith("threads: tried for a moment, one thread fetched 100,000")
    assert len(calls) == 1


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_a_file_that_the_dataset_opens_is_not_shared_by_the_workers(tmp_path: Path) -> None:
    dataset = Opening(tmp_path / "numbers", 2000, lambda: sum(range(2000)))  # so that processes are chosen
    loader = auto(dataset, 50)
    loader.explain()
    assert dataset.file is None
    assert not chosen(loader).startswith("processes") or flat(loader) == list(range(2000))


@pytest.mark.parametrize("slow", [(5,), (0,), (1,), range(10)], ids=str)
def test_a_trial_takes_no_longer_than_its_limit_and_what_it_has_started_ends_with_it(slow: Any, tmp_path: Path) -> None:
    def make(index: int) -> int:
        (tmp_path / str(os.getpid())).touch()
        return threading.Event().wait() if index in slow else index

    began, why = time.monotonic(), chosen(auto(Made(make, 10), 2))
    assert time.monotonic() - began < LIMIT_SECONDS + 10  # on a machine that does other things, too
    assert why.startswith("processes") and "a trial of threads was not over after 1.0 s" in why
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert pids and os.getpid() not in pids
    wait_until(lambda: not any(map(is_running, pids)))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


TIMED: list[dict[str, Any]] = [
    {}, {"batch_size": None}, {"collate_fn": len}, {"persistent_workers": True, "prefetch_factor": 3},
    {"batch_size": 1, "batch_sampler": [[1, 2], [3]]}, {"batch_size": 2, "seed": 3, "on_error": "replace"},
    {"batch_size": 2, "share_dataset": True},
]  # fmt: skip


@pytest.mark.parametrize("options", TIMED, ids=str)
def test_threads_are_timed(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.carriers.auto.LIMIT_SECONDS", 60.0)  # of a busy machine
    loader = auto(PAIRS, **options)
    why = chosen(loader)
    assert "tried for a moment, one thread fetched" in why and "processes would fetch about" in why
    assert ("an epoch of" in why) == (not options.get("persistent_workers"))
    assert len(list(loader)) == len(loader)
    if options.get("persistent_workers"):
        loader._iterator._shutdown_workers()


@pytest.mark.parametrize("fails_in", ["worker_init_fn", "sample"])
def test_an_error_of_one_thread_ends_the_trial(fails_in: str) -> None:
    def make(index: int) -> int:
        if fails_in == "sample" and (info := tud.get_worker_info()) is not None and info.id == 1:
            raise KeyError("sample")
        return index

    def init(number: int) -> None:
        if fails_in == "worker_init_fn" and number == 1:
            raise KeyError("init")

    why = chosen(auto(Made(make, 9), worker_init_fn=init))
    assert why.startswith("processes: trying a few samples failed, KeyError: ")


@pytest.mark.parametrize(
    ("dataset", "workers", "why"),
    [(list(range(9)), 0, "num_workers=0"), ({"a": 1, "b": 2}, 2, "KeyError"), ([], 2, "empty")],
)
def test_what_cannot_be_tried_goes_as_torch_would(dataset: Any, workers: int, why: str) -> None:
    text = chosen(auto(dataset, 1, num_workers=workers))
    assert why in text and text.startswith("processes") == ("Error" in why)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_auto_over_a_native_dataset_tries_nothing(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.carriers.auto.try_out", None)
    loader = auto(rows(8), num_workers=workers, persistent_workers=workers > 0)
    for _ in range(2):
        assert listed(loader) == [[[0, 1, 2, 3]], [[4, 5, 6, 7]]]
    assert loader.state_dict()["position"] == 0 and "native" in loader.explain()


@pytest.mark.filterwarnings("ignore:This DataLoader will create 8")
@pytest.mark.parametrize("samples", [1, 2, 3, 7, 40, 10_000])
@pytest.mark.parametrize(
    "options", [{"num_workers": 8}, {"seed": 1}, {"batch_size": None}, {"collate_fn": len}], ids=str
)
def test_a_trial_reads_a_few_batches_in_all_and_each_sample_once_at_most(samples: int, options: dict[str, Any]) -> None:
    reads = torch.zeros(samples, dtype=torch.int64).share_memory_()

    def read(index: int) -> int:
        reads[index] += 1
        return index

    loader = auto(Made(read, samples), **{"batch_size": 4, **options})
    assert "tried for a moment" in chosen(loader)
    assert int(reads.max()) == 1 and int(reads.sum()) <= 2 + 2 * (4 + max(8, loader.num_workers))
    tried = reads.clone()
    for _ in loader if samples <= 40 else ():
        pass
    assert samples > 40 or torch.equal(reads, tried + 1)
