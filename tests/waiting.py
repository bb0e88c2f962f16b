"""Waiting for what other threads and processes do."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import TypeVar

SECONDS = 30.0
Found = TypeVar("Found")


def wait_until(condition: Callable[[], Found]) -> Found:
    """Return what condition() returns once it is true; fail after SECONDS, with the stacks of all threads."""
    deadline = time.monotonic() + SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come to pass\n" + "\n".join(_stacks())
        time.sleep(0.001)  # between looks at what another process does, which tells nobody
    return found


def _stacks() -> list[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames().items()
    return [f"{names.get(one)}:\n{''.join(traceback.format_stack(frame))}" for one, frame in frames]


def run_in_threads(number: int, work: Callable[[int], object]) -> None:
    """Call work(0), work(1) and so on, each in a thread of its own; raise what the first of them raised."""
    errors: list[BaseException] = []

    def run(one: int) -> None:
        try:
            work(one)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(one,)) for one in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * SECONDS)
    for error in errors:
        raise error
    assert not any(thread.is_alive() for thread in threads)
