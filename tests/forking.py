"""Checks that run in a forked child of the test's process."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable

_SECONDS = 60


def begin_in_child(check: Callable[[], None]) -> int:
    """Run check() in a forked child, and return the child's number; the traceback of an error is printed.

    A child that hangs is ended by SIGALRM.
    """
    child = os.fork()
    if child == 0:  # what pytest holds must not run here
        code = 1
        signal.alarm(_SECONDS)
        try:
            check()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def assert_ended_well(child: int) -> None:
    """Assert that a child's check raised nothing."""
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def assert_in_child(check: Callable[[], None]) -> None:
    """Run check() in a forked child, and assert that it raised nothing there."""
    assert_ended_well(begin_in_child(check))
