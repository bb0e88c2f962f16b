"""How many of the native pool's threads take samples: set at any time."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import penstock._native as _native
from tests.forking import assert_in_child
from tests.native_pool import SECONDS, pool_of, submit, table_of
from tests.native_testing import SlowTable
from tests.reading import threads_named
from tests.sample_datasets import tensor_files
from tests.waiting import wait_until

pytestmark = pytest.mark.native

FILES = 24
FLOATS = _native.Spec("float32", [2])
ROWS, ROW = 4096, _native.Spec("int64", [8])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tensor_files(tmp_path_factory.mktemp("files"), FILES, (2,), "{}")


@pytest.fixture
def table(folder: Path) -> SlowTable:
    return SlowTable(table_of(folder, *map(str, range(FILES))), 0)


def of_files(table: SlowTable, threads: int) -> _native.Pool:
    return pool_of(_native.TensorFileFiller(table), threads=threads)


def of_rows(threads: int) -> _native.Pool:
    rows = np.repeat(np.arange(ROWS, dtype=np.int64), 8).view(np.uint8).reshape(ROWS, 64)
    return pool_of(_native.GatherFiller(rows, ROW), threads=threads)


def numbers(memory: list[np.ndarray], dtype: type, columns: int) -> np.ndarray:
    """Return the rows of a batch of one field."""
    return memory[0].view(dtype).reshape(-1, columns)


def test_the_number_is_one_at_least_and_all_at_the_most() -> None:
    pool = of_rows(3)
    assert pool.active == 3
    for given, active in ((0, 1), (2, 2), (100, 3), (1, 1)):
        pool.set_active(given)
        assert pool.active == active
    pool.close()
    pool.set_active(2)  # nothing happens
    for given in (0, 1, 5):
        without = of_rows(0)
        without.set_active(given)
        assert without.active == 0


@pytest.mark.parametrize("active", [1, 2, 4])
def test_no_more_threads_take_samples(table: SlowTable, active: int) -> None:
    pool = of_files(table, 4)
    pool.set_active(active)
    table.shut()
    number, memory = submit(pool, np.arange(FILES), FLOATS)
    wait_until(lambda: table.waiting() == active)
    table.release()
    assert pool.wait(number, SECONDS) == "done" and pool.retire(number) == []
    assert table.deepest() == active
    assert numbers(memory, np.float32, 2)[:, 0].tolist() == list(range(FILES))
    pool.close()


def test_threads_leave_a_batch_in_the_middle_and_come_back(table: SlowTable) -> None:
    pool = of_files(table, 4)
    table.shut()
    number, memory = submit(pool, np.arange(FILES), FLOATS)
    wait_until(lambda: table.waiting() == 4)
    pool.set_active(1)  # three go on with the sample that they have
    table.set_delay(0.001)
    table.release()
    assert pool.wait(number, SECONDS) == "done" and pool.retire(number) == []
    assert sum(table.opened()) == FILES
    table.shut()
    following, _ = submit(pool, np.arange(FILES), FLOATS)
    wait_until(lambda: table.waiting() == 1)
    pool.set_active(4)  # parked threads see the batch that they had left, or that came meanwhile
    wait_until(lambda: table.waiting() == 4)
    table.release()
    assert pool.wait(following, SECONDS) == "done"
    assert numbers(memory, np.float32, 2)[:, 1].tolist() == list(range(FILES))
    pool.close()


@pytest.mark.parametrize("samples", [7, 600])
def test_the_number_changes_while_batches_are_filled(samples: int) -> None:
    pool = of_rows(4)
    random = np.random.default_rng(0)
    done = threading.Event()

    def change() -> None:
        turns = np.random.default_rng(1)
        while not done.is_set():
            pool.set_active(int(turns.integers(0, 6)))

    changing = threading.Thread(target=change)
    changing.start()
    try:
        for _ in range(100):
            wanted = [random.integers(0, ROWS, samples) for _ in range(4)]
            submitted = [submit(pool, one, ROW) for one in wanted]
            for one, (number, memory) in zip(wanted, submitted, strict=True):
                assert pool.wait(number, SECONDS) == "done" and pool.retire(number) == []
                assert (numbers(memory, np.int64, 8) == one[:, None]).all()
    finally:
        done.set()
        changing.join()
        pool.close()


def test_parked_threads_end_with_the_pool(table: SlowTable) -> None:
    before = threads_named("penstock")
    pool = of_files(table, 4)
    pool.set_active(1)
    number, _ = submit(pool, np.arange(FILES), FLOATS)  # the others see that they are to park
    assert pool.wait(number, SECONDS) == "done"
    assert threads_named("penstock") == before + 4
    pool.close()
    wait_until(lambda: threads_named("penstock") == before)


def test_a_caller_fills_a_batch_beside_one_thread() -> None:
    pool = of_rows(4)
    pool.set_active(1)
    number, memory = submit(pool, np.arange(ROWS), ROW)
    pool.run_here(number)
    assert pool.wait(number, SECONDS) == "done"
    assert (numbers(memory, np.int64, 8)[:, 3] == np.arange(ROWS)).all()
    pool.close()


def test_in_a_forked_child() -> None:
    pool = of_rows(2)
    pool.set_active(1)

    def check() -> None:
        with pytest.raises(RuntimeError, match="started in another process"):
            pool.set_active(2)
        assert pool.active == 1
        mine = of_rows(2)
        mine.set_active(1)
        number, _ = submit(mine, np.arange(64), ROW)
        assert mine.wait(number, SECONDS) == "done"
        mine.close()

    assert_in_child(check)
    pool.close()
