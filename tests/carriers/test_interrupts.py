"""Ctrl-C in any line, and close() in another thread: no batch is lost without a word, and the loader is usable."""

from __future__ import annotations

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
from penstock.device.resident import ResidentCarrier, ResidentPlan, hold
from penstock.memory.buffers import Buffers
from penstock.order.batches import with_sample_numbers
from penstock.passes.iterator import Pass
from penstock.passes.values import PassInput, PassResources
from penstock.plan import NativePlan, plan
from penstock.recipe.patches import this_thread
from tests.accelerator import PromptStream
from tests.data import Made
from tests.same import outcomes

#: What may be interrupted: the code of passes, not the interpreter's or torch's between its lines.
FILES = tuple(
    str(Path(penstock.__file__).parent / name)
    for name in (
        "carriers/here.py", "passes/iterator.py", "carriers/native.py", "carriers/threads.py", "passes/carrier.py",
        "observe.py", "carriers/thread_crew.py", "workers/native_crew.py", "device/resident.py", "state/progress.py",
        "carriers/processes.py", "carriers/pipes.py", "carriers/worker_processes.py",
    )
)  # fmt: skip
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
        whole = source(frame).startswith(WHOLE)
        if event == "line" and self.where is None and not whole:
            self.left -= 1
            if self.left < 0:
                self.where = (frame.f_code.co_name, frame.f_lineno)
                raise KeyboardInterrupt
        return self


WHOLE = ("with ", "return batch", "answering.native, counting.sink = before")
if sys.version_info >= (3, 12):  # what a trace function raises in a comprehension passes by the `finally` around it
    WHOLE += ("samples = [",)


def source(frame: FrameType) -> str:
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()


#: Ends of passes, where an interrupt ends the pass.
SPARED = ("close", "__init__", "_hold", "_stop", "end_crew")


def interrupted(batches: Any, at: int) -> tuple[Any, list[Any], bool]:
    """Interrupt a pass at a line, and return where that was, what was got of the pass, and whether next() behind it
    said that the pass was interrupted: it may come where nothing was begun.
    """
    interrupting, before, got = Interrupting(at), sys.gettrace(), list[Any]()
    sys.settrace(interrupting)
    try:
        for batch in batches:
            got.append(batch)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    try:
        got.extend(batches)
    except RuntimeError as error:
        assert str(error).startswith("This iterator was interrupted (Ctrl-C)")
        return interrupting.where, got, True
    return interrupting.where, got, False


def interrupted_everywhere(make: Callable[[], Any], step: int = 1) -> Iterator[tuple[Any, list[Any], bool]]:
    for at in range(0, 100_000, step):
        batches = iter(make())
        where, got, said = interrupted(batches, at)
        if said:
            with pytest.raises(RuntimeError, match=r"was interrupted \(Ctrl-C\).*Make a new iterator"):
                next(batches)
        if hasattr(batches, "_shutdown_workers"):  # torch's iterators have it where they have workers
            batches._shutdown_workers()
        assert not this_thread.native, "the loop's own calls are its own"
        if where is None:
            assert at > 20
            return
        yield where, got, said


def square(index: int) -> int:
    return index * index


def numbers(batch: Any) -> list[int]:
    if isinstance(batch, list) and isinstance(batch[0], torch.Tensor):
        batch = batch[0]
    return [int(number) for number in batch]


def wanted() -> list[list[int]]:
    return [[i * i for i in range(begin, begin + 3)] for begin in range(0, 12, 3)]


def read_by(method: str | None) -> Any:
    return Made(square, 12) if method else penstock.Arrays(np.arange(12) ** 2)


def of(dataset: Any, workers: int, **options: Any) -> Callable[[], Any]:
    return lambda: penstock.DataLoader(dataset, 3, num_workers=workers, **options)


def gathered() -> Pass:
    rows = np.arange(12).reshape(4, 3)
    plan_of_rows = plan(penstock.Arrays(np.arange(12) ** 2), batched=True, collate_fn=None, worker_init_fn=None)
    assert isinstance(plan_of_rows, NativePlan)
    held = hold(plan_of_rows, torch.device("cpu"))
    assert isinstance(held, ResidentPlan)
    resources = PassResources(1, None, Buffers(pinned=False, keep=1))
    carrier = ResidentCarrier(held, resources, PromptStream(), penstock.Feed("cpu"))
    return Pass(carrier, PassInput(with_sample_numbers(iter(rows), 0, batched=True), 4, 7, 0))


PASSES: dict[str, tuple[Callable[[], Any], int]] = {
    "caller": (of(Made(square, 12), 0), 1),
    "caller, own collate_fn": (of(Made(square, 12), 0, collate_fn=list), 1),
    "caller, a sampler": (of(Made(square, 12), 0, sampler=list(range(12))), 1),
    "caller, bad samples replaced": (of(Made(square, 12), 0, on_error="replace"), 3),
    "threads": (of(Made(square, 12), 1, worker_method="thread"), 11),
    "threads, own collate_fn": (of(Made(square, 12), 1, worker_method="thread", collate_fn=list), 11),
    "native": (of(penstock.Arrays(np.arange(12) ** 2), 2), 5),
    "native, in the caller's thread": (of(penstock.Arrays(np.arange(12) ** 2), 0), 5),
    "gathered": (gathered, 3),
}


@pytest.mark.parametrize("name", PASSES)
def test_an_interrupt_at_any_line_of_a_pass(name: str) -> None:
    make, step = PASSES[name]
    for where, got, said in interrupted_everywhere(make, step):
        assert list(map(numbers, got)) == (wanted()[: len(got)] if said else wanted()), where
    assert list(map(numbers, make())) == wanted()


@pytest.mark.parametrize(("method", "workers"), [(None, 0), ("thread", 0), ("thread", 1)])
def test_a_loader_is_usable_behind_an_interrupt(method: Any, workers: int) -> None:
    """Its next pass is whole, with persistent workers as well, and its state says where the one before was."""
    interrupts = [KeyboardInterrupt()]

    def get(index: int) -> int:
        if index == 4 and interrupts:
            raise interrupts.pop()
        return index * index

    options: dict[str, Any] = {"persistent_workers": bool(workers), "share_dataset": method is not None}
    made = penstock.DataLoader(Made(get, 12), 3, num_workers=workers, worker_method=method, seed=0, **options)
    batches = iter(made)
    assert numbers(next(batches)) == wanted()[0]
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    state = made.state_dict()
    assert list(map(numbers, made)) == wanted()
    made.load_state_dict(state)
    assert list(map(numbers, made)) == wanted()[1:]


def interrupting(values: Any, at: int, error: BaseException | None = None) -> Iterator[Any]:
    for number, value in enumerate(values):
        if number == at:
            raise error or KeyboardInterrupt
        yield value


class Generated(IterableDataset[Any]):
    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        return self.make()


def assert_interrupted_behind(loader: Any, first: list[int]) -> None:
    batches = iter(loader)
    assert numbers(next(batches)) == first
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    with pytest.raises(RuntimeError, match="was interrupted"):
        next(batches)


def test_an_interrupt_of_an_iterable_dataset_in_the_callers_thread() -> None:
    dataset = Generated(lambda: interrupting(range(5), 4))
    assert_interrupted_behind(penstock.DataLoader(dataset, 3, num_workers=0), [0, 1, 2])


@pytest.mark.parametrize("method", [None, "thread"])
def test_a_sampler_that_was_interrupted_is_not_taken_for_one_at_its_end(method: Any) -> None:
    sampler: Any = Generated(lambda: interrupting([[0, 1, 2], []], 1))
    loader = penstock.DataLoader(read_by(method), batch_sampler=sampler, num_workers=0, worker_method=method)
    assert_interrupted_behind(loader, wanted()[0])


@pytest.mark.parametrize("method", [None, "thread"])
def test_an_error_of_the_sampler_in_the_last_refill_loses_no_batch(method: Any) -> None:
    given = [list(range(begin, begin + 3)) for begin in range(0, 12, 3)]
    sampler: Any = Generated(lambda: interrupting([*given, []], 4, LookupError("no more")))
    found = outcomes(penstock.DataLoader(read_by(method), batch_sampler=sampler, num_workers=1, worker_method=method))
    assert [numbers(one) for one in found if not isinstance(one, tuple)] == wanted()
    assert [one for one in found if isinstance(one, tuple)] == [("LookupError", "no more")]


@pytest.mark.parametrize("method", [None, "thread"])
def test_a_pass_that_is_closed_while_a_thread_is_in_next(method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """close() comes when next() has waited for its batch, and has not handed it out."""
    loader: Any = penstock.DataLoader(read_by(method), 3, num_workers=1, worker_method=method)
    batches: Any = iter(loader)
    inside, closed = threading.Event(), threading.Event()
    wait = batches.carrier.ready
    came: list[Any] = []

    def waited(queue: Any) -> Any:
        found = wait(queue)
        inside.set()
        assert closed.wait(10)
        return found

    def take() -> None:
        try:
            came.append(numbers(next(batches)))
        except RuntimeError as error:
            came.append("closed" in str(error))

    monkeypatch.setattr(batches.carrier, "ready", waited)
    taking = threading.Thread(target=take)
    taking.start()
    assert inside.wait(10)
    batches.close()
    closed.set()
    taking.join(10)
    assert came in ([True], [wanted()[0]])
    with pytest.raises(StopIteration):
        next(batches)


@pytest.mark.parametrize("persistent", [False, True])
def test_behind_an_interrupt_a_pass_of_worker_processes_is_whole_or_says_so(persistent: bool) -> None:
    made = penstock.DataLoader(Made(square, 12), 3, num_workers=1, persistent_workers=persistent)
    for at in range(0, 400, 17):
        where, got, said = interrupted(iter(made), at)
        assert list(map(numbers, got)) == (wanted()[: len(got)] if said else wanted()), where
        assert list(map(numbers, made)) == wanted(), where
    del made
    for child in multiprocessing.active_children():  # of a pass that was interrupted while it ended its workers
        child.kill()
        child.join()
