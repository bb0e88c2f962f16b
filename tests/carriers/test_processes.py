"""Worker processes: torch's results and rules; one that dies or is stuck is named, and nothing is left behind."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import multiprocessing.connection
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import pickle
import random
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as tud
from torch.utils.data.datapipes.map import SequenceWrapper

import penstock
from penstock.carriers import pipes, protocol
from penstock.carriers.board import Board, WorkerStage
from penstock.carriers.post_mortem import end
from penstock.carriers.processes import ProcessCarrier
from penstock.errors import WorkerDied, WorkerStuck
from penstock.passes.iterator import Pass
from tests.data import Made, Order
from tests.differential import values
from tests.forking import assert_in_child
from tests.resources import collect, run_script
from tests.values import listed, taken
from tests.waiting import wait_until

get_worker_info: Any = tud.get_worker_info
SIZE = 24
BAD = 13  # in batch 3 of 4 samples, by worker 1 of 2


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


crash = partial(ctypes.string_at, 0)


def sleep_for_ever() -> None:
    while True:
        time.sleep(1)  # it is the stuck sample of the test, and ended by a signal


class Numbers(Made):
    """Sample i is the number i; at BAD something happens first."""

    def __init__(self, at_bad: Callable[[], Any] = int, bad: int = BAD) -> None:
        self.at_bad, self.bad, self.size = at_bad, bad, SIZE

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.bad:
            self.at_bad()
        return torch.full((100,), index)


class Stream(tud.IterableDataset[torch.Tensor]):
    """The first half of the numbers in each worker; worker 1 does something at its fifth."""

    def __init__(self, at_fifth: Callable[[], Any] = int) -> None:
        self.at_fifth = at_fifth

    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in range(SIZE // 2):
            if index == 4 and get_worker_info().id == 1:
                self.at_fifth()
            yield torch.full((100,), index)


def loader_of(dataset: Any, **options: Any) -> Any:
    return penstock.DataLoader(dataset, **{"batch_size": 4, "num_workers": 2, "worker_method": "process", **options})


def processes(loader: Any) -> Any:
    iterator = iter(loader)
    assert isinstance(iterator, Pass) and isinstance(iterator.carrier, ProcessCarrier)
    return iterator


def first_column(batches: Any) -> list[list[int]]:
    return [batch[:, 0].tolist() for batch in batches]


def whole(but: int | None = None) -> list[list[int]]:
    return [list(range(i, i + 4)) for i in range(0, SIZE, 4) if i != but]


def is_gone(worker: Any) -> bool:
    return multiprocessing.connection.wait([worker.sentinel], 0) != []


def pids_of(iterator: Any) -> list[int]:
    return [process.pid or 0 for process in iterator._workers]


def assert_gone(held: list[Any], seconds: float = 3) -> None:
    """Assert that a pass, which this list alone holds, ends soon and leaves nothing (torch takes 5 s a worker)."""
    pids, started = pids_of(held[0]), time.monotonic()
    held.clear()
    gc.collect()
    assert time.monotonic() - started < seconds and left_by(pids) == []


def kill_idle(iterator: Any) -> Any:
    worker = iterator._workers[0]
    wait_until(lambda: done_since(iterator) > 0.1)
    os.kill(worker.pid or 0, signal.SIGKILL)
    wait_until(lambda: is_gone(worker))
    return worker


def died(iterator: Any, seconds: float = 100) -> str:
    started = time.monotonic()
    with pytest.raises(WorkerDied) as caught:
        list(iterator)
    assert time.monotonic() - started < seconds
    return str(caught.value)


def stuck(iterator: Any, got: list[Any]) -> str:
    with pytest.raises(WorkerStuck) as caught:
        got.extend(iterator)
    assert isinstance(caught.value, RuntimeError)
    return str(caught.value)


def shared_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith(f"torch_{os.getpid()}_") or "penstock" in name}


def left_by(pids: list[int]) -> list[str]:
    alive = [str(pid) for pid in pids if os.path.exists(f"/proc/{pid}")]
    return alive + [name for name in os.listdir("/dev/shm") if name.startswith(tuple(f"torch_{pid}_" for pid in pids))]


@pytest.fixture(autouse=True)
def _leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    # The fork server and the resource tracker stay, with their descriptors.
    if "method" in request.fixturenames or multiprocessing.get_start_method() == "forkserver":
        multiprocessing.resource_tracker.ensure_running()
        multiprocessing.forkserver.ensure_running()
    collect()
    before = len(os.listdir("/proc/self/fd")), threading.active_count(), shared_memory()
    yield
    collect()
    assert multiprocessing.active_children() == []
    wait_until(lambda: threading.active_count() <= before[1])  # threads of closed queues
    assert len(os.listdir("/proc/self/fd")) <= before[0], sorted(os.listdir("/proc/self/fd"))
    assert shared_memory() == before[2]


class Info(Numbers):
    def note(self, worker: int) -> None:
        info = get_worker_info()
        assert (info.id, info.num_workers, info.seed) == (worker, 2, torch.initial_seed())
        info.dataset.bad = -worker

    def __getitem__(self, index: int) -> torch.Tensor:
        assert get_worker_info().dataset is self
        return torch.tensor([get_worker_info().id, -self.bad])


def test_worker_info_shows_the_users_dataset() -> None:
    batches = processes(loader_of(Info(), worker_init_fn=Info().note))
    assert [batch.unique().tolist() for batch in batches] == [[0], [1]] * 3


def fail(worker: int | None = None) -> None:
    raise KeyError("no such sample")


def test_errors_are_raised_with_the_workers_traceback_and_the_pass_goes_on() -> None:
    iterator = processes(loader_of(Numbers(fail)))
    batches = taken(iterator, 3)
    with pytest.raises(KeyError, match=r"(?s)Caught KeyError in DataLoader worker process 1.*in __getitem__.*fail"):
        next(iterator)
    assert first_column(batches + list(iterator)) == whole(but=12)


def raise_what_cannot_be_pickled(samples: Any) -> Any:
    class LocalError(Exception):
        pass

    raise LocalError("only known here")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"worker_init_fn": fail}, KeyError, "Caught KeyError in DataLoader worker process 0"),
        (
            {"collate_fn": lambda samples: lambda: samples},
            (AttributeError, pickle.PicklingError),  # from Python 3.14 on
            r"(?s)Caught (Attribute|Pickling)Error in .* 0.*Can't (pickle|get) local object",
        ),
        ({"collate_fn": raise_what_cannot_be_pickled}, RuntimeError, r"(?s)worker process 0.*LocalError: only known"),
    ],
    ids=["worker_init_fn", "a batch that cannot be pickled", "an error that cannot be pickled"],
)
def test_errors_of_other_functions(options: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        next(processes(loader_of(Numbers(), **options)))


def big_arrays(samples: list[torch.Tensor]) -> list[np.ndarray]:
    return [np.full(1 << 20, int(sample[0])) for sample in samples]


def test_messages_larger_than_the_pipe() -> None:
    batches = processes(loader_of(Numbers(), collate_fn=big_arrays))
    assert [[int(array[-1]) for array in batch] for batch in batches] == whole()


def test_map_datapipes_are_sharded_as_torch_does() -> None:
    pipe = SequenceWrapper(list(range(SIZE)))
    assert listed(processes(loader_of(pipe))) == listed(tud.DataLoader(pipe, 4, num_workers=2))


@pytest.mark.parametrize("persistent", [False, True])
def test_iterable_datasets_stay_torchs(persistent: bool) -> None:
    loader = loader_of(Stream(), persistent_workers=persistent)
    theirs = first_column(tud.DataLoader(Stream(), 4, num_workers=2))
    iterator = processes(loader)
    pids = pids_of(iterator)
    assert first_column(iterator) == theirs
    assert not persistent or (first_column(loader) == theirs and pids_of(loader._iterator) == pids)


def test_persistent_workers_after_an_early_break() -> None:
    loader = loader_of(Numbers(), persistent_workers=True)
    iterator = processes(loader)
    pids = pids_of(iterator)
    next(iterator)
    assert len(list(loader)) == 6 and loader._iterator is iterator and pids_of(iterator) == pids
    assert iterator.reusable


def done_since(iterator: Any) -> float:
    progress = iterator.carrier._processes.board.progress(0)
    return progress.seconds if progress.stage is WorkerStage.DONE else 0.0


@pytest.mark.parametrize(
    ("what", "torchs", "ours", "stack"),
    [
        (kill, r"\(pid \d+\) is killed by signal: Killed\.", "SIGKILL", False),
        (crash, r"\(pid \d+\) is killed by signal: Segmentation fault\.", "SIGSEGV", True),
        (os.abort, r"\(pid \d+\) is killed by signal: Aborted\.", "SIGABRT", True),
        (partial(os._exit, 3), r"\(pid \d+\) exited unexpectedly with exit code 3\.", "exit code 3", False),
        (sys.exit, r"\(pid\(s\) \d+\) exited unexpectedly\.", "exit code 0", False),
    ],
    ids=["SIGKILL", "segmentation fault", "abort", "os._exit", "sys.exit"],
)
def test_a_dead_worker_is_named(what, torchs, ours, stack, capfd, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where no other process makes folders
    iterator = processes(loader_of(Numbers(what)))
    pids = pids_of(iterator)
    got: list[Any] = []
    with pytest.raises(WorkerDied, match=f"DataLoader worker {torchs}") as caught:
        got.extend(iterator)
    assert "segmentation fault encountered in worker" in capfd.readouterr().err or what is not crash  # torch's own
    text = str(caught.value)
    assert isinstance(caught.value, RuntimeError)
    assert f"Worker 1 (pid {pids[1]}) ended" in text and ours in text
    assert f"in __getitem__ of sample '{BAD}', begun 0." in text
    assert " MiB of memory in use" in text or " GiB of memory in use" in text
    line = Numbers.__getitem__.__code__.co_firstlineno + 2
    assert (f'test_processes.py", line {line} in __getitem__' in text) == stack
    assert first_column(got) == whole()[: len(got)] and left_by(pids) == list(tmp_path.glob("pymp-*")) == []
    with pytest.raises(WorkerDied, match="make a new one"):
        next(iterator)
    assert not iterator.reusable and len(list(processes(loader_of(Numbers())))) == 6


def collating(at: int, do: Callable[[], Any], samples: Any) -> Any:
    if int(samples[0][0]) == at:
        do()
    return torch.stack(samples)


def test_a_process_whose_end_was_not_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Ctrl-C in multiprocessing, behind its waitpid: it takes the process for alive ever after."""
    process = multiprocessing.get_context("fork").Process(target=int)
    process.start()
    assert process.pid is not None
    os.waitpid(process.pid, 0)
    monkeypatch.setattr(process, "kill", partial(pytest.fail, "it is waited for"))
    end([process])
    assert process.is_alive()
    process._popen.returncode = 0  # type: ignore[attr-defined]


def die_at_start(worker: int) -> None:
    if worker == 1:
        os._exit(3)


@pytest.mark.parametrize(
    ("dataset", "options", "words"),
    [
        (Numbers(), {"collate_fn": partial(collating, 12, kill)}, ["in collate_fn, behind sample '15', begun "]),
        (Numbers(), {"worker_init_fn": die_at_start}, ["in worker_init_fn, begun "]),
        (Numbers(kill), {"in_order": False}, [f"sample '{BAD}'"]),
        (Stream(kill), {}, ["ended by SIGKILL", "iterating over its copy of the dataset"]),
        (Stream(crash), {}, ["in __iter__"]),
    ],
    ids=["collate", "start", "out of order", "iterable", "iterable, with a stack"],
)
def test_what_a_dead_worker_did(dataset: Any, options: dict[str, Any], words: list[str]) -> None:
    text = died(processes(loader_of(dataset, **options)))
    assert all(word in text for word in words)


@pytest.mark.parametrize("persistent", [False, True])
def test_killed_while_idle(persistent: bool) -> None:
    """Nothing is raised in the loop's body; next() raises."""
    iterator = processes(loader_of(Numbers(), persistent_workers=persistent))
    next(iterator)
    worker = kill_idle(iterator)
    text = died(iterator)
    assert "sending a batch or waiting for work" in text and str(worker.pid) in text


ENDLESS = Order(itertools.repeat(1))  # type: ignore[arg-type]


def plain(samples: list[torch.Tensor]) -> list[int]:
    return [int(sample[0]) for sample in samples]


def slowly(batches: Any, seconds: float) -> Iterator[Any]:
    for batch in batches:
        yield batch
        time.sleep(seconds)


@pytest.mark.parametrize("seconds", [0.0, 0.02])  # with the longer ones a batch is always ready
@pytest.mark.parametrize("in_order", [True, False])
def test_no_pass_goes_on_without_its_dead(in_order: bool, seconds: float) -> None:
    iterator = processes(loader_of(Numbers(), collate_fn=plain, sampler=ENDLESS, in_order=in_order))
    next(iterator)
    kill_idle(iterator)
    got: list[Any] = []
    with pytest.raises(WorkerDied):
        got.extend(slowly(iterator, seconds))
    assert len(got) <= 4  # those that had come, but not in their turn


SCRIPT = """
import torch, penstock
iterator = iter(penstock.DataLoader(torch.arange(10**6), batch_size=1000, num_workers=2, worker_method="process"))
next(iterator)
print(*(process.pid for process in iterator._workers))
"""


def test_a_program_that_ends_amid_a_pass_leaves_nothing(tmp_path: Path) -> None:
    done = run_script(SCRIPT, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert (done.returncode, done.stderr) == (0, "")
    assert left_by([int(pid) for pid in done.stdout.split()]) == os.listdir(tmp_path) == []


def test_persistent_worker_killed_between_passes() -> None:
    loader = loader_of(Numbers(), persistent_workers=True)
    list(iterator := processes(loader))
    os.kill(iterator._workers[1].pid or 0, signal.SIGKILL)
    wait_until(lambda: is_gone(iterator._workers[1]))
    with pytest.raises(WorkerDied, match=f"{iterator._workers[1].pid}"):
        iter(loader)
    assert not iterator.reusable


def test_several_dead_are_all_named() -> None:
    iterator = processes(loader_of(Numbers()))
    pids = pids_of(iterator)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: all(map(is_gone, iterator._workers)))
    text = died(iterator)
    assert all(f"(pid {pid}) ended by SIGKILL" in text for pid in pids)


def half_a_message(samples: Any) -> Any:
    """Return what ends the worker while its feeder thread writes: it holds the queue's lock."""
    if int(samples[0][0]) == 4:
        threading.Timer(0.2, kill).start()
        return np.zeros(200 << 20, np.uint8)
    return big_arrays(samples)


def test_killed_while_sending() -> None:
    iterator = processes(loader_of(Numbers(), collate_fn=half_a_message))
    pid = iterator._workers[1].pid
    wait_until(lambda: is_gone(iterator._workers[1]))
    assert f"(pid {pid}) ended by SIGKILL" in died(iterator)


@pytest.mark.parametrize("seed", range(6))
def test_killed_at_any_time(seed: int) -> None:
    chance = random.Random(seed)
    iterator = processes(loader_of(Numbers(), collate_fn=[None, big_arrays][seed % 2], sampler=ENDLESS))
    pids = pids_of(iterator)
    killer = threading.Timer(chance.random() * 0.2, os.kill, (chance.choice(pids), signal.SIGKILL))
    killer.start()
    assert "SIGKILL" in died(iterator, 5)
    killer.join()
    assert left_by(pids) == []


def test_a_pass_in_a_cycle_has_its_queues_until_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector ends the objects of a cycle in an order of its own: here a pipe's end for writing may be first."""
    ignored: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    for _ in range(4):
        iterator: Any = processes(loader_of(Numbers()))
        next(iterator)
        ends = [queue._writer for queue in iterator._index_queues]
        held, workers = [iterator], iterator._workers
        del iterator
        gc.collect()  # `ends` are before the iterator among the objects that it goes through, from here on
        held[0].held = held
        del held, ends
        gc.collect()
        assert all(map(is_gone, workers))
    assert [one.exc_value for one in ignored] == []


RUBBISH: dict[str, tuple[Callable[[Any, int], Any], str]] = {
    "unknown status": (lambda sender, number: sender.send(99, number, None), "a message of kind 99 and number 3"),
    "no task": (lambda sender, number: sender.send(0, 1 << 40, None), "a message of kind 0 and number 1099511627776"),
    "another's task": (lambda sender, number: sender.send(0, 4, None), "a message of kind 0 and number 4"),
    "no end": (lambda sender, number: sender.send(2, number, None), "a message of kind 2 and number 3"),
    "truncated": (
        lambda sender, number: os.write(sender._writer.fileno(), pipes._HEADER.pack(9, 0, number) + bytes([128] * 9)),
        r"a truncated message \(",
    ),
    "cut off": (
        lambda sender, number: os.write(sender._writer.fileno(), pipes._HEADER.pack(3, 0, number) + b"\x80\x04]"),
        r"a truncated message \(",
    ),
    "noise": (lambda sender, number: os.write(sender._writer.fileno(), b"\xff" * 64), "a message of kind -1"),
    "no error": (lambda sender, number: sender.send(1, number, "words"), "an error that is a str"),
}


@pytest.mark.parametrize("what", RUBBISH)
def test_a_worker_that_sends_rubbish_is_named(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    send, sending, words = protocol._send, *RUBBISH[what]

    def instead(sender: Any, status: Any, number: int, *given: Any, **options: Any) -> None:
        if number == 3:
            sending(sender, number)
        else:
            send(sender, status, number, *given, **options)

    monkeypatch.setattr(protocol, "_send", instead)  # in the workers, which are forked
    iterator = processes(loader_of(Numbers()))
    pids, got = pids_of(iterator), list[Any]()
    sent = rf"^DataLoader worker 1 \(pid {pids[1]}\) sent {words}.*, which answers no task"
    with pytest.raises(WorkerDied, match=sent):
        got.extend(iterator)
    assert first_column(got) == whole()[: len(got)] and left_by(pids) == []
    with pytest.raises(WorkerDied, match=r"worker 1 .*make a new one"):
        next(iterator)


def test_dropped_with_a_dead_worker() -> None:
    held = [processes(loader_of(Numbers()))]
    next(held[0])
    os.kill(pids_of(held[0])[1], signal.SIGKILL)
    assert_gone(held)


def test_no_reader_is_left_for_large_indices() -> None:
    """The parent's feeder thread is writing to a worker that will never read."""
    indices = {"batch_sampler": [[0] * 100_000] * 6, "batch_size": 1}
    stuck(processes(loader_of(Numbers(sleep_for_ever, bad=0), timeout=0.2, **indices)), [])


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_other_start_methods(method: str) -> None:
    iterator = processes(loader_of(Numbers(kill), num_workers=1, multiprocessing_context=method))
    pids = pids_of(iterator)
    text = died(iterator)
    assert f"is killed by signal: Killed.\nWorker 0 (pid {pids[0]}) ended by SIGKILL" in text
    assert f"sample '{BAD}'" in text and left_by(pids) == []


def test_a_stuck_worker_is_named_with_its_stack() -> None:
    held = [processes(loader_of(Numbers(sleep_for_ever), timeout=0.3))]
    got: list[Any] = []
    text = stuck(held[0], got)
    assert text.startswith("DataLoader timed out after 0.3 seconds.\n")
    assert f"Worker 1 (pid {pids_of(held[0])[1]}) is " in text
    assert f"in __getitem__ of sample '{BAD}', begun " in text and "in sleep_for_ever\n" in text
    assert os.path.join("executors", "fetch.py") not in text  # the way to the user's code is left out
    assert "Worker 0" not in text and len(got) == 3
    assert "in sleep_for_ever\n" in stuck(held[0], got)  # it may be asked again
    assert not held[0].reusable
    assert_gone(held)


STUCK = partial(collating, 4, sleep_for_ever)


@pytest.mark.usefixtures("pinning")
@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        (Numbers(), {"collate_fn": STUCK}, "in collate_fn, behind sample '7', begun .*in collating"),
        (Numbers(), {"collate_fn": STUCK, "in_order": False}, "in collate_fn, .*in collating"),
        (Stream(sleep_for_ever), {}, "iterating over .*in sleep_for_ever"),
        (Numbers(sleep_for_ever), {"pin_memory": True, "timeout": 2}, f"sample '{BAD}'"),
    ],
    ids=["collate", "collate, out of order", "iterable", "before the pinning thread"],
)
def test_where_a_worker_is_stuck(dataset: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkerStuck, match=rf"(?s)Worker 1 .*{message}"):
        list(processes(loader_of(dataset, **{"timeout": 0.3, **options})))


def test_stuck_and_deaf() -> None:
    def deafen(worker: int) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    held = [processes(loader_of(Numbers(sleep_for_ever, bad=0), worker_init_fn=deafen, timeout=0.3))]
    stuck(held[0], [])
    assert_gone(held, 100)


@pytest.fixture
def pinning() -> Iterator[None]:
    """An accelerator as far as torch's loader asks for one."""
    with values.pinning():
        yield


@pytest.mark.usefixtures("pinning")
@pytest.mark.parametrize("collate_fn", [None, half_a_message], ids=["tensors", "killed while sending"])
def test_dead_before_the_pinning_thread(collate_fn: Any) -> None:
    assert "SIGKILL" in died(processes(loader_of(Numbers(kill), pin_memory=True, collate_fn=collate_fn)), 4)


class Untold:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


#: What is recorded of an index: the number or its text.
RECORDS: list[tuple[Any, Any]] = [
    (7, 7), (np.int64(8), 8), (torch.tensor(9), 9), ("größer", "'größer'"),
    ("x" * 1000, f"'{'x' * 37}...{'x' * 38}'"), (("a", 3), "('a', 3)"), ([1] * 99, "[1, 1, 1, 1, 1, 1, ...]"),
    (Untold(), "<Untold instance"), (None, None),
]  # fmt: skip


@contextlib.contextmanager
def board_of(workers: int) -> Iterator[Board]:
    board = Board(workers)
    try:
        yield board
    finally:
        board.remove_folders()
        board.close()
        board.close()


def test_the_record_of_an_index_is_the_index_or_its_text() -> None:
    with board_of(2) as board:

        def check() -> None:
            begin, _ = board.report(1)
            for index, noted in RECORDS:
                begin(WorkerStage.GETITEM, index)
                record = board.progress(1)
                said = re.sub(" at 0x.*", "", record.index) if isinstance(record.index, str) else record.index
                assert said == noted

        assert_in_child(check)
        assert (board.progress(1).stage, board.progress(1).index) == (WorkerStage.GETITEM, None)
        assert board.progress(0).stage is WorkerStage.STARTING


def test_the_indices_of_a_batch_are_noted_one_by_one() -> None:
    with board_of(1) as board:

        def check() -> None:
            _, each = board.report(0)
            indices = [7, 8, "a", "b", 9, 1 << 70, np.int64(10), -1, None, 11]
            noted = [7, 8, "'a'", "'b'", 9, str(1 << 70), 10, -1, None, 11]
            assert [board.progress(0).index for _ in each(indices)] == noted
            assert [board.progress(0).index for _ in each(iter(range(3)))] == [0, 1, 2]

        assert_in_child(check)
        counted = {str(stage): samples for stage, _, samples, *_ in board.stages()}
        assert counted["getitem"] == 10
