"""worker_method="thread": the batches of torch's loader, from threads of this process."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as tud
from torch.utils.data import get_worker_info as torchs_get_worker_info
from torch.utils.data.datapipes.iter import IterableWrapper

import penstock
from penstock.carriers.thread_crew import Pace
from penstock.passes.values import IN_FLIGHT
from tests import python_processes
from tests.data import Made, Stream, rows
from tests.resources import collect
from tests.same import assert_passes, assert_same
from tests.samples import image
from tests.values import flat, taken
from tests.waiting import wait_until

get_worker_info: Any = torchs_get_worker_info  # as programs import it; of a type that a thread's may differ from


def in_threads(make: Callable[[int], Any], batch_size: int | None = 4, size: int = 23, **options: Any) -> Any:
    given = {"num_workers": 2, "worker_method": "thread", **options}
    return penstock.DataLoader(Made(make, size), batch_size, **given)


def live() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("penstock-worker")}


@pytest.fixture(autouse=True, scope="module")
def no_thread_outlives_its_loader() -> Iterator[None]:
    before = live()  # loaders of other modules' fixtures may live on
    yield
    gc.unfreeze()  # what conftest.py has frozen may be the iterator of another module's test
    collect()
    wait_until(lambda: live() <= before)  # a crew that the garbage collector ends is ended by a thread of its own


def test_the_first_error_of_a_batch_is_the_one_raised() -> None:
    later = threading.Event()

    def make(i: int) -> int:
        if i == 1:
            later.wait(10)
            raise ValueError("first")
        if i == 3:
            later.set()
            raise ValueError("second")
        return i

    loader = in_threads(make, size=4, num_workers=4, share_dataset=True)
    with pytest.raises(ValueError, match="first"):
        next(iter(loader))


def test_a_dataset_that_cannot_be_copied_and_one_object_for_all() -> None:
    here = threading.Lock()  # no lock can be pickled
    seen: set[int] = set()

    def make(i: int) -> int:
        with here:
            seen.add(id(get_worker_info().dataset))
        return os.getpid()

    loader = in_threads(make, share_dataset=True)
    assert set(flat(loader)) == {os.getpid()} and seen == {id(loader.dataset)}


def test_get_worker_info_is_of_the_thread() -> None:
    both = threading.Barrier(2, timeout=10)
    seen: list[Any] = []

    def make(i: int) -> tuple[int, int, int, str]:
        time.sleep(0.002)  # of samples that cost less fewer threads may work
        both.wait()
        info: Any = tud.get_worker_info()
        seen.append(info)
        assert info is get_worker_info() is not None
        return info.id, info.num_workers, info.seed, info.worker_method

    torch.manual_seed(1)
    infos = list(in_threads(make, None, 8, share_dataset=True))
    (base,) = {seed - worker for worker, _, seed, _ in infos}
    assert set(map(tuple, infos)) == {(worker, 2, base + worker, "thread") for worker in (0, 1)}
    assert len({id(info) for info in seen}) == 2 and get_worker_info() is None


@pytest.mark.parametrize("seed", [None, 5])
def test_a_threads_generators_draw_by_sample(seed: int | None) -> None:
    if not hasattr(torch.random, "thread_safe_generator"):
        pytest.skip("this torch has no thread_safe_generator")

    def make(i: int) -> tuple[torch.Tensor, float, float]:
        info = get_worker_info()
        if info is None:
            return torch.rand(2), random.random(), 0.0
        drawn = torch.rand(2, generator=torch.random.thread_safe_generator())
        return drawn, info.rng.random_generator.random(), info.rng.numpy_generator.random()

    runs = []
    for workers in (1, 2, 5):
        torch.manual_seed(0)
        loader = in_threads(make, num_workers=workers, seed=seed)
        runs.append([list(loader), list(loader)])
    assert_same(runs, [runs[0]] * 3)
    drawn = flat(runs[0][0]), flat(runs[0][1])
    assert drawn[0] != drawn[1], "another epoch"
    assert len(set(drawn[0])) == len(drawn[0])
    if seed is not None:  # in the caller's thread the global generators are set, and given back
        before = torch.get_rng_state(), random.getstate()
        here = list(in_threads(make, num_workers=0, seed=seed))
        assert_same([batch[:2] for batch in here], [batch[:2] for batch in runs[0][0]])
        assert torch.equal(before[0], torch.get_rng_state()) and before[1] == random.getstate()


def test_global_draws_in_threads_are_said() -> None:
    def make(i: int) -> float:
        return random.random() + float(np.random.rand())

    state, text = random.getstate(), in_threads(make, seed=1).explain()
    assert "draws from the global generators of random and numpy.random" in text
    assert random.getstate() == state and "random " not in in_threads(image).explain()


def test_worker_init_fn_runs_once_in_each_thread_and_its_error_is_raised() -> None:
    seen: list[tuple[int, str, int]] = []

    def fails(number: int) -> None:
        raise RuntimeError("no licence")

    def init(number: int) -> None:
        seen.append((number, threading.current_thread().name, get_worker_info().id))

    with pytest.raises(RuntimeError, match="no licence"):
        list(in_threads(image, num_workers=1, worker_init_fn=fails))
    options: dict[str, Any] = dict(num_workers=3, worker_init_fn=init, share_dataset=True)
    list(in_threads(image, **options))
    assert sorted(seen) == [(n, f"penstock-worker-{n}", n) for n in range(3)]
    loader = in_threads(image, persistent_workers=True, **options)
    seen.clear()
    first = iter(loader)
    assert len(list(first)) == 6 and iter(loader) is first  # as torch's
    assert len(list(first)) == len(list(loader)) == 6
    first._shutdown_workers()
    assert len(seen) == 3


def test_in_order_false_hands_out_what_is_done() -> None:
    first = threading.Event()

    def make(i: int) -> int:
        if i == 0:
            first.wait(10)
        return i

    batches = iter(in_threads(make, 1, 6, in_order=False, prefetch_factor=3, share_dataset=True))
    got = flat(taken(batches, 1))
    first.set()
    assert got != [0] and sorted(got + flat(batches)) == list(range(6))


def test_a_stuck_sample_is_named_with_its_stack() -> None:
    forever = threading.Event()

    def stuck_here(i: int) -> int:
        if i == 6:
            forever.wait()
        return i

    batches = iter(in_threads(stuck_here, timeout=0.3, share_dataset=True))
    next(batches)
    with pytest.raises(penstock.WorkerStuck, match=r"(?s)timed out after 0.3 seconds.*sample 6.*in stuck_here"):
        next(batches)
    forever.set()
    assert next(batches).tolist() == [4, 5, 6, 7]


def test_a_cycle_that_holds_an_iterator_may_be_collected_by_its_own_threads() -> None:
    in_cycle = threading.Event()

    def make(i: int) -> int:
        if i > 3:
            in_cycle.wait()  # the threads go no further than the first batch before the cycle holds the iterator
        if i > 8:  # of the batches in flight behind the first, however few these are
            gc.collect()
        return i

    for _ in range(8):
        collect()
        in_cycle.clear()
        batches = iter(in_threads(make, size=60, share_dataset=True))
        next(batches)
        cycle: list[Any] = [batches]
        cycle.append(cycle)
        threads: list[threading.Thread] = batches.carrier._crew._threads
        del batches, cycle
        in_cycle.set()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()


def test_explain_says_who_reads() -> None:
    assert in_threads(image).explain().startswith("plan     Python reads the dataset in 2 threads of this process")
    methods: list[Any] = ["thread", "process"]
    native, asked = (penstock.DataLoader(rows(), num_workers=2, worker_method=one).explain() for one in methods)
    assert native.startswith("plan     2 native threads")
    assert "2 worker processes" in asked and "worker_method=None" in asked


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize(
    ("dataset", "options", "depth"),
    [
        (tud.TensorDataset(torch.arange(600.0).reshape(200, 3), torch.arange(200)), {}, 0),  # rows wait for the loop
        (Made(image, 90), {"worker_method": "thread"}, IN_FLIGHT),
        (Made(image, 90), {"worker_method": "thread", "collate_fn": list}, 7),
        (Made(image, 90), {"worker_method": "thread", "prefetch_factor": 4}, 12),
    ],
    ids=["rows", "threads", "objects", "prefetch_factor"],
)
def test_without_num_workers_there_is_one_for_each_cpu(dataset, options, depth, persistent, monkeypatch) -> None:
    monkeypatch.setattr("penstock.passes.job.usable_cpus", lambda: 3)
    monkeypatch.setattr("penstock.workers.rows.SMALL_BATCH", 0)  # threads fill the smallest batch too
    loader: Any = penstock.DataLoader(dataset, 4, persistent_workers=persistent, **options)
    fixed = penstock.DataLoader(dataset, 4, num_workers=2, **options)
    assert_passes(loader, list(fixed))
    batches: Any = iter(loader)
    taken(batches, 2)
    assert batches.carrier.workers == 3 and len(batches._queue) == depth
    batches._shutdown_workers()


@pytest.mark.parametrize(
    ("rates", "sample_seconds", "wanted"),
    [
        ({1: 100e3, 2: 60e3, 4: 50e3}, 1e-5, 1),
        ({1: 100e3, 2: 190e3, 4: 370e3}, 1e-5, 4),
        ({1: 100e3, 2: 190e3, 4: 195e3}, 1e-5, 2),
        ({1: 100e3, 2: 105e3}, 1e-5, 1),
        ({1: 100e3, 2: 150e3, 3: 220e3}, 1e-5, 3),
        ({1: 2e3, 2: 2e3}, 2e-3, 2),  # slow samples: not worth a trial
    ],
)
def test_the_fewest_threads_that_do_as_much_as_any(rates: Any, sample_seconds: float, wanted: int) -> None:
    clock = [0.0]
    pace = Pace(max(rates), clock=lambda: clock[0])
    for _ in range(2000):
        clock[0] += 0.001
        pace.did(int(rates[pace.active] * 0.001), sample_seconds * int(rates[pace.active] * 0.001))
    assert pace.active == wanted


def test_samples_of_about_a_millisecond_are_no_reason_for_trials() -> None:
    clock, active = [0.0], []
    pace = Pace(2, clock=lambda: clock[0])
    for number in range(2000):  # photos: in some windows they take a little more, in others less
        clock[0] += 0.01
        pace.did(10, 10 * (1.2e-3 if number % 3 else 0.8e-3))
        active.append(pace.active)
    assert active.count(1) < 20


@pytest.mark.parametrize("method", ["thread", "auto"])
def test_an_iterable_dataset_is_gone_through_once_by_default(method: Any) -> None:
    loader = penstock.DataLoader(Stream(10), batch_size=5, worker_method=method)
    assert loader.num_workers == 0 and flat(loader) == list(range(10))
    asked = penstock.DataLoader(Stream(10), batch_size=5, num_workers=2, worker_method=method)
    assert "2 worker processes" in asked.explain()


@pytest.mark.parametrize(
    ("mode", "is_on"),
    [
        (torch.no_grad, lambda: not torch.is_grad_enabled()),
        (torch.inference_mode, lambda: not torch.is_grad_enabled()),  # tests/test_modes.py: what the batches are
        (lambda: torch.autocast("cpu", torch.bfloat16), lambda: torch.is_autocast_enabled("cpu")),
    ],
)
def test_threads_have_the_modes_of_who_starts_them(mode: Any, is_on: Callable[[], bool]) -> None:
    for entered in (False, True):
        with mode() if entered else contextlib.nullcontext():
            assert set(flat(list(in_threads(lambda i: is_on(), 8)))) == {entered}


@pytest.mark.parametrize("seed", [None, 7])
def test_single_samples_come_in_the_order_of_any_number_of_workers(seed: int | None) -> None:
    def run(**options: Any) -> list[list[int]]:
        torch.manual_seed(3)
        loader: Any = penstock.DataLoader(Made(), batch_size=None, shuffle=True, seed=seed, **options)
        return [list(loader), list(loader)]

    wanted = run(num_workers=0)
    assert run(num_workers=2) == run(num_workers=2, worker_method="thread") == wanted
    assert wanted[0] != wanted[1] and sorted(wanted[0]) == list(range(23))


def test_a_process_ends_as_it_should_with_a_thread_in_a_sample() -> None:
    script = """
import time, torch, penstock
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 9
    def __getitem__(self, index):
        for _ in range(400): time.sleep(0.01); torch.ones(3) + 1  # outlives the process's patience
        return index
iterator = iter(penstock.DataLoader(Slow(), num_workers=2, worker_method="thread"))
raise SystemExit(7)
"""
    done = python_processes.run(script)
    assert (done.returncode, done.stderr) == (7, "")


def test_data_pipes_need_processes() -> None:
    pipe: Any = IterableWrapper(range(3))
    with pytest.raises(penstock.InvalidOption, match="DataPipes"):
        penstock.DataLoader(pipe, worker_method="thread")


@pytest.mark.parametrize("method", ["thread", "process", None])
def test_a_persistent_iterator_that_was_closed_makes_way_for_a_new_one(method: Any) -> None:
    dataset: Any = Made(size=8) if method else rows(8)
    loader: Any = penstock.DataLoader(dataset, 4, num_workers=1, worker_method=method, persistent_workers=True)
    for _ in range(2):
        batches = iter(loader)
        assert len(list(batches)) == 2
        batches._shutdown_workers()


def test_a_thread_in_next_gets_its_batch_though_another_begins_the_persistent_pass_anew() -> None:
    ready, read = threading.Event(), threading.Event()

    def sample(index: int) -> int:
        read.set()
        return index if ready.wait(30) else -1

    loader = penstock.DataLoader(
        Made(sample, 8), 4, num_workers=1, worker_method="thread", share_dataset=True, persistent_workers=True
    )
    found: list[Any] = []
    first = threading.Thread(target=lambda: found.append(next(iter(loader)).tolist()), daemon=True)
    first.start()
    assert read.wait(30)
    second = threading.Thread(target=lambda: iter(loader), daemon=True)
    second.start()
    ready.set()
    first.join(30)
    second.join(30)
    assert found == [[0, 1, 2, 3]] and not second.is_alive()
