"""However an iterator ends, its threads, descriptors and processes end with it; batches outlive it."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.carriers_under_test import EXECUTORS, Executor
from tests.data import Made, tensor_files
from tests.resources import held, run_script
from tests.values import flat
from tests.waiting import wait_until

SIZE, BATCH = 80, 4


def of(*names: str) -> pytest.MarkDecorator:
    """Parametrise `executor`; `make sanitize` runs the native ones."""
    marks: Any = {name: [pytest.mark.native] if "native" in name else [] for name in names}
    return pytest.mark.parametrize(
        "executor", [pytest.param(EXECUTORS[name], id=name, marks=marks[name]) for name in names]
    )


NATIVE = ("native, caller", "native, 1", "native, 2", "native, persistent", "native, fed")
THREADS = ("threads, caller", "threads, 2", "threads, persistent", "caller, fed")
PROCESSES = ("processes, 2", "processes, persistent", "processes, fed")
ANY = of(*NATIVE, "caller", *THREADS, *PROCESSES)
#: Each pass has an iterator, and an iterator a close().
CLOSED = of("native, caller", "native, 2", "native, fed", "caller, fed", "threads, caller", "threads, 2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tensor_files(tmp_path_factory.mktemp("tensors"), SIZE, (1,))


@pytest.fixture
def make(folder: Path) -> Callable[[Executor], Any]:
    def make_loader(executor: Executor) -> Any:
        dataset: Any = penstock.TensorFolder(folder) if executor.native else Made(float, SIZE)
        return penstock.DataLoader(dataset, BATCH, **executor.options)

    return make_loader


def workers_since(before: tuple[int, int, int, int], executor: Executor) -> int:
    now = held()
    if executor.native:
        return now[2] - before[2] - (now[1] - before[1])  # all threads but Python's
    return now[3] - before[3] if executor.torchs else now[1] - before[1] - ("device" in executor.options)


@ANY
@pytest.mark.parametrize("end", ["exhausted", "left", "in a cycle", "shut down"])
def test_nothing_is_left_behind(make: Any, executor: Executor, end: str) -> None:
    loader = make(executor)
    flat(loader)
    if executor.options.get("persistent_workers"):
        loader = make(executor)
    before, iterator = held(), iter(loader)
    batch = next(iterator)
    if "device" not in executor.options:
        assert workers_since(before, executor) == executor.options["num_workers"]
    if end == "exhausted":
        assert len(list(iterator)) == SIZE // BATCH - 1
    elif end == "in a cycle":
        iterator.itself = iterator
    elif end == "shut down":
        getattr(iterator, "close", getattr(iterator, "_shutdown_workers", gc.collect))()
    persistent = executor.options.get("persistent_workers") and end != "shut down"
    if end in ("exhausted", "shut down") and not persistent:  # while the iterator and the loader are there
        wait_until(lambda: all(now <= then for now, then in zip(held()[1:], before[1:], strict=True)))
    del iterator, loader
    gc.collect()
    assert flat([batch]) == [0, 1, 2, 3]
    del batch  # a descriptor, of memory that a process shares
    wait_until(lambda: all(now <= then for now, then in zip(held(), before, strict=True)))


@CLOSED
def test_an_iterator_can_be_closed_twice(make: Any, executor: Executor) -> None:
    iterator = iter(make(executor))
    next(iterator)
    assert ": open, " in repr(iterator)
    iterator.close()
    iterator.close()
    shown, workers = repr(iterator), executor.options["num_workers"]
    assert ": closed, " in shown
    if "device" not in executor.options:
        assert (f"{workers} threads" in shown or workers == 0) and "0 batches in flight" in shown
    assert list(iterator) == list(iterator) == []


@of("native, caller", "native, 2", "native, fed", "caller", "threads, caller", "threads, 2", "processes, 2")
def test_several_iterators_at_once(make: Any, executor: Executor) -> None:
    loader = make(executor)
    first, second = iter(loader), iter(loader)
    assert flat([next(first)]) == [0, 1, 2, 3]
    for number, (a, b) in enumerate(zip(first, second, strict=False)):
        assert (int(a[0]), int(b[0])) == (BATCH * number + BATCH, BATCH * number)
    with pytest.raises(StopIteration):
        next(first)


@ANY
def test_an_iterator_and_its_batches_outlive_their_loader(make: Any, executor: Executor) -> None:
    iterator = iter(make(executor))
    gc.collect()
    batches = list(iterator)
    with pytest.raises(StopIteration):
        next(iterator)
    del iterator
    gc.collect()
    assert flat(batches) == list(range(SIZE))


def test_processes_end_amid_passes_of_every_kind(folder: Path, tmp_path: Path) -> None:
    """A process that ends, and a child that has inherited the iterators and ends."""
    script = """
import os, sys, warnings
import penstock
from tests.data import Made
from tests.carriers_under_test import EXECUTORS
warnings.filterwarnings("ignore", "This DataLoader will create|num_workers=8")
iterators = []
for executor in sorted(EXECUTORS.values(), key=lambda executor: bool(executor.torchs)):
    if executor.torchs and not os.path.exists("child"):  # multiprocessing's children are for no other child to end
        if os.fork() == 0:
            open("child", "x").close()
            sys.exit(0)
        assert os.wait()[1] == 0
    dataset = penstock.TensorFolder(sys.argv[1]) if executor.native else Made(float, 80)
    iterators.append(iter(penstock.DataLoader(dataset, 4, **executor.options)))
    next(iterators[-1])
print(len(iterators), os.path.exists("child"))
"""
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    done = run_script(script, str(folder), cwd=tmp_path, env={**os.environ, "PYTHONPATH": path})
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{len(EXECUTORS)} True\n", "")
