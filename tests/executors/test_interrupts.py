"""Ctrl-C in any line, and close() in another thread: no batch is lost without a word."""

from __future__ import annotations

import contextlib
import linecache
import multiprocessing
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

import penstock
from penstock.device.gathering import ResidentFiller
from penstock.device.resident import Resident, ResidentPlan
from penstock.executors.buffers import Buffers
from penstock.executors.filler import PassInput, PassResources
from penstock.executors.iterator import Pass
from penstock.order.batches import with_sample_numbers
from penstock.plan import NativePlan, plan
from penstock.recipe import working
from tests.python_processes import run
from tests.sample_datasets import Made

#: What may be interrupted: the code of passes, not the interpreter's or torch's between its lines.
FILES = tuple(
    str(Path(penstock.__file__).parent / name)
    for name in (
        "executors/inline.py", "executors/iterator.py", "executors/native.py", "executors/threads.py",
        "executors/filler.py", "observe.py", "executors/workers/crew.py", "executors/workers/native.py",
        "device/gathering.py", "state/progress.py", "executors/workers/processes.py", "executors/torch_pass.py",
        "executors/workers/queues.py",
    )
)  # fmt: skip


def test_what_is_interrupted_is_there() -> None:
    assert all(Path(file).is_file() for file in FILES)


class Interrupting:
    """Raises KeyboardInterrupt at a line of the passes' code that this thread comes to, once."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.where: tuple[str, int] | None = None

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        if name not in FILES or frame.f_code.co_name in SPARED:
            return None
        # A line of a `with` comes again at its end, where no signal is looked for before the lock is let go; none is
        # looked for between what is assigned and the `return` of it, or before the thread's state is given back.
        whole = source(frame).startswith(("with ", "return batch", "answering.native, counting.sink = before"))
        if event == "line" and self.where is None and not whole:
            self.left -= 1
            if self.left < 0:
                self.where = (frame.f_code.co_name, frame.f_lineno)
                raise KeyboardInterrupt
        return self


def source(frame: FrameType) -> str:
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()


#: Ends of passes, where an interrupt ends the pass; and what takes note of it.
SPARED = ("close", "__init__", "_hold", "_take_back", "took", "_stop", "end_crew", "counted")


@contextlib.contextmanager
def tracing(interrupting: Interrupting) -> Iterator[None]:
    before = sys.gettrace()
    sys.settrace(interrupting)
    try:
        yield
    finally:
        sys.settrace(before)


def interrupted_everywhere(make: Callable[[], Any], step: int = 1) -> Iterator[tuple[Any, list[Any]]]:
    """Yield, for each line of a pass in turn that an interrupt may come at, where it came and all that was got."""
    for at in range(0, 100_000, step):
        interrupting = Interrupting(at)
        batches = iter(make())
        got: list[Any] = []
        ended = False
        while not ended:
            try:
                with tracing(interrupting):
                    batch = next(batches)
                got.append(batch)
            except KeyboardInterrupt:
                continue
            except StopIteration:
                ended = True
        if hasattr(batches, "_shutdown_workers"):  # torch's iterators have it where they have workers
            batches._shutdown_workers()
        assert not working.this_thread.native, "the loop's own calls are its own"
        if interrupting.where is None:
            assert at > 20
            return
        yield interrupting.where, got


def square(index: int) -> int:
    return index * index


def numbers(batch: Any) -> list[int]:
    """Return a batch of numbers, of one field or in a list, as numbers."""
    if isinstance(batch, list) and isinstance(batch[0], torch.Tensor):
        batch = batch[0]
    return [int(number) for number in batch]


def wanted() -> list[list[int]]:
    return [[i * i for i in range(begin, begin + 3)] for begin in range(0, 12, 3)]


def read_by(method: str | None) -> Any:
    """Return a dataset of squares that threads read in Python, or the native core."""
    return Made(square, 12) if method else penstock.Arrays(np.arange(12) ** 2)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("collate", [None, list])
def test_an_interrupt_at_any_line_of_a_pass_of_threads(workers: int, collate: Any) -> None:
    def make() -> Any:
        return penstock.DataLoader(Made(square, 12), 3, num_workers=workers, worker_method="thread", collate_fn=collate)

    assert "Python reads the dataset in" in make().explain()
    for where, got in interrupted_everywhere(make, step=3 if workers == 0 else 11):
        assert list(map(numbers, got)) == wanted(), where


@pytest.mark.parametrize("workers", [0, 2])
def test_an_interrupt_at_any_line_of_a_native_pass(workers: int) -> None:
    values = np.arange(12) ** 2
    for options in ({}, {"sampler": list(range(12))}):

        def make(options: Any = options) -> Any:
            return penstock.DataLoader(penstock.Arrays(values), 3, num_workers=workers, **options)

        assert "fill" in make().explain().splitlines()[0]
        for where, got in interrupted_everywhere(make, step=5):
            assert list(map(numbers, got)) == wanted(), where


def squares(whole: bool = False, make: Callable[[int], int] = square) -> Made:
    """Return a dataset of 12 numbers; whole batches are asked for where `whole`."""
    made = Made(make, 12)
    if whole:
        made.__getitems__ = lambda indices: [index * index for index in indices]  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"collate_fn": list}, {"sampler": list(range(12))}, {"on_error": "replace"}, {"batch_size": None}]
)
def test_an_interrupt_at_any_line_of_a_pass_in_the_callers_thread(options: dict[str, Any], whole: bool) -> None:
    options = {"batch_size": 3, **options}
    loaders: list[penstock.DataLoader[Any]] = []

    def make() -> Any:
        loaders.append(penstock.DataLoader(squares(whole), num_workers=0, **options))
        return loaders[-1]

    expected = list(map(numbers, wanted())) if options["batch_size"] else [[i * i] for i in range(12)]
    for where, got in interrupted_everywhere(make):
        assert [numbers(batch if options["batch_size"] else [batch]) for batch in got] == expected, where
        assert loaders[-1].stats().batches == len(expected) or "on_error" in options, where


def interrupting(values: Any, at: int, error: BaseException | None = None) -> Iterator[Any]:
    """Yield values, and raise KeyboardInterrupt (or another error) in the place of the one at this position."""
    for number, value in enumerate(values):
        if number == at:
            raise error or KeyboardInterrupt
        yield value


class Sampler:
    """A sampler whose iterator is a generator."""

    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        return self.make()


@pytest.mark.parametrize("method", [None, "thread"])
@pytest.mark.parametrize("place", ["getitem", "collate", "sampler"])
def test_an_interrupt_of_the_users_code_in_the_callers_thread(place: str, method: Any) -> None:
    interrupts = [place]

    def interrupted(here: str) -> None:
        if interrupts == [here]:
            interrupts.clear()
            raise KeyboardInterrupt

    def get(index: int) -> int:
        if index == 4:
            interrupted("getitem")
        return index * index

    def collate(samples: list[int]) -> list[int]:
        if samples[0] == 9:
            interrupted("collate")
        return samples

    sampler: Any = Sampler(lambda: interrupting(range(12), 5)) if place == "sampler" else None
    options: dict[str, Any] = {"num_workers": 0, "worker_method": method, "share_dataset": method is not None}
    batches = iter(penstock.DataLoader(squares(make=get), 3, sampler=sampler, collate_fn=collate, **options))
    assert next(batches) == wanted()[0]
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    if place == "sampler":  # a generator that was interrupted is at its end: what it would have given nobody knows
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"sampler was interrupted.*begin a new pass"):
                next(batches)
    else:
        assert list(batches) == wanted()[1:]


def test_an_interrupt_of_an_iterable_dataset_in_the_callers_thread() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return interrupting(range(5), 4)

    batches = iter(penstock.DataLoader(Stream(), 3, num_workers=0))
    assert numbers(next(batches)) == [0, 1, 2]
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    with pytest.raises(RuntimeError, match=r"iterable dataset was interrupted.*begin a new pass"):
        next(batches)


def test_an_interrupt_while_rows_of_unknown_shape_are_learnt(tmp_path: Path) -> None:
    for index in range(12):
        torch.save(torch.tensor([float(index * index)]), tmp_path / f"{index:02}.pt")
    folder = penstock.TensorFolder(tmp_path)
    for where, got in interrupted_everywhere(lambda: penstock.DataLoader(folder, 3, num_workers=1), step=7):
        assert list(map(numbers, got)) == wanted(), where


@pytest.mark.parametrize("workers", [0, 1])
def test_an_interrupt_at_any_line_of_batches_that_are_gathered(workers: int) -> None:
    plan_of_rows = plan(penstock.Arrays(np.arange(30) ** 2), batched=True, collate_fn=None, worker_init_fn=None)
    assert isinstance(plan_of_rows, NativePlan)
    held = Resident(torch.device("cpu")).hold(plan_of_rows)
    assert isinstance(held, ResidentPlan)
    rows = np.arange(30).reshape(10, 3)

    def make() -> Pass:
        resources = PassResources(workers, None, Buffers(pinned=False, keep=1))
        given = with_sample_numbers(iter(rows), 0, batched=True)
        return Pass(ResidentFiller(held, resources), PassInput(given, 10, 7, 0))

    for where, got in interrupted_everywhere(make, step=3):
        assert list(map(numbers, got)) == (rows**2).tolist(), where


@pytest.mark.parametrize("method", [None, "thread"])
def test_a_sampler_that_was_interrupted_is_not_taken_for_one_at_its_end(method: Any) -> None:
    sampler: Any = Sampler(lambda: interrupting([[0, 1, 2], []], 1))
    batches = iter(penstock.DataLoader(read_by(method), batch_sampler=sampler, num_workers=0, worker_method=method))
    assert numbers(next(batches)) == wanted()[0]
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    with pytest.raises(RuntimeError, match="the sampler was interrupted"):
        next(batches)


@pytest.mark.parametrize("method", [None, "thread"])
def test_an_error_of_the_sampler_in_the_last_refill_loses_no_batch(method: Any) -> None:
    given = [list(range(begin, begin + 3)) for begin in range(0, 12, 3)]
    sampler: Any = Sampler(lambda: interrupting([*given, []], 4, LookupError("no more")))
    batches = iter(penstock.DataLoader(read_by(method), batch_sampler=sampler, num_workers=1, worker_method=method))
    got, errors = [], 0
    for _ in range(5):
        try:
            got.append(numbers(next(batches)))
        except LookupError:
            errors += 1
    assert got == wanted() and errors == 1


# --- close() in another thread ----------------------------------------------------------------------------------------


def closed_while(batches: Any, inside: threading.Event, *, then: Callable[[], None]) -> BaseException | Any:
    """Return what next() came to in a thread whose pass was closed by this one meanwhile."""
    came: list[Any] = []

    def take() -> None:
        try:
            came.append(next(batches))
        except BaseException as error:
            came.append(error)

    taking = threading.Thread(target=take)
    taking.start()
    assert inside.wait(10)
    closing = threading.Thread(target=batches.close)
    closing.start()
    then()
    taking.join(10)
    closing.join(10)
    assert len(came) == 1
    return came[0]


@pytest.mark.parametrize("method", [None, "thread"])
def test_a_pass_that_is_closed_while_a_thread_is_in_next(method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """close() comes when next() has waited for its batch, and has not handed it out."""
    loader: Any = penstock.DataLoader(read_by(method), 3, num_workers=1, worker_method=method)
    batches: Any = iter(loader)
    inside, closed = threading.Event(), threading.Event()
    wait, close = batches.filler.ready, batches.close

    def waited(queue: Any) -> Any:
        found = wait(queue)
        inside.set()
        assert closed.wait(10)
        return found

    def closing() -> None:
        close()
        closed.set()

    monkeypatch.setattr(batches.filler, "ready", waited)
    monkeypatch.setattr(batches, "close", closing)
    came = closed_while(batches, inside, then=lambda: None)
    if isinstance(came, BaseException):
        assert isinstance(came, RuntimeError) and "closed" in str(came)
    else:
        assert numbers(came) == wanted()[0]
    with pytest.raises(StopIteration):
        next(batches)


@pytest.mark.parametrize("persistent", [False, True])
def test_behind_an_interrupt_a_pass_of_worker_processes_is_whole_or_says_so(persistent: bool) -> None:
    made = penstock.DataLoader(Made(square, 12), 3, num_workers=1, persistent_workers=persistent)
    for at in range(0, 400, 17):
        interrupting = Interrupting(at)
        batches = iter(made)
        got: list[Any] = []
        with contextlib.suppress(KeyboardInterrupt), tracing(interrupting):
            for batch in batches:
                got.append(batch)  # noqa: PERF402 - list.extend would lose what it has at an error
        said = ""
        try:
            got.extend(batches)
        except RuntimeError as error:
            said = str(error).split(" (")[0]
        assert said in ("", "This iterator was interrupted")
        assert list(map(numbers, got)) == (wanted()[: len(got)] if said else wanted()), interrupting.where
        del batches
        assert list(map(numbers, made)) == wanted(), interrupting.where
    del made
    for child in multiprocessing.active_children():  # of a pass that was interrupted while it ended its workers
        child.kill()
        child.join()


INTERRUPTED = """
import os, signal, sys
import torch, penstock

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        if index == 100:
            os.killpg(0, signal.SIGINT)  # as a terminal sends it: to the workers, too
        return torch.full((4000,), float(index))

os.setpgid(0, 0)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it runs in the background
loader = penstock.DataLoader(Slow(), 4, num_workers=2, persistent_workers=sys.argv[1] == "True")
batches = iter(loader)
got, errors = [], []
for _ in range(2):  # the signal may find the program in next() or in its own loop, before or after the workers
    try:
        for batch in batches:
            got.append(int(batch[0, 0]))
    except (KeyboardInterrupt, RuntimeError) as error:
        errors.append(str(error))
        if got and int(batch[0, 0]) not in got:  # the signal came into the loop's own line
            got.append(int(batch[0, 0]))
print(got == list(range(0, 4 * len(got), 4)), "interrupted" in errors[-1] or "worker" in errors[-1])
Slow.__getitem__ = lambda self, index: torch.full((4000,), float(index))
print([int(batch[0, 0]) for batch in loader] == list(range(0, 400, 4)))
"""


@pytest.mark.parametrize("persistent", [False, True])
def test_ctrl_c_in_a_terminal_hangs_no_pass_of_worker_processes(persistent: bool) -> None:
    done = run(INTERRUPTED, str(persistent))
    assert done.stdout.split() == ["True", "True", "True"], done.stdout + done.stderr
