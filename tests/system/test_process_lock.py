"""A ProcessLock is a lock, and free in a forked child."""

from __future__ import annotations

import threading

import pytest

from penstock.system.locks import ProcessLock
from tests.forking import assert_in_child
from tests.waiting import run_in_threads


def test_one_thread_at_a_time() -> None:
    lock, inside, most = ProcessLock(), [0], [0]

    def work(thread: int) -> None:
        for _ in range(200):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1

    run_in_threads(4, work)
    assert most == [1]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("by_another_thread", [True, False])
def test_a_child_that_was_forked_off_while_the_lock_was_held(by_another_thread: bool) -> None:
    lock, held, over = ProcessLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            over.wait(30)

    def take() -> None:
        with lock:
            pass

    if not by_another_thread:
        with lock:
            assert_in_child(take)
    else:
        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(30)
        assert_in_child(take)
        over.set()
        thread.join()
    take()
