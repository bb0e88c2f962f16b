"""Checks that run in a forked child of the test's process."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable

_SECONDS = 60


def begin_in_child(check: Callable[[], object], *, seconds: int = _SECONDS) -> int:
    """Run check() in a forked child, and return the child's number; the traceback of an error is printed.

    seconds: after which a child that hangs is ended by SIGALRM; 0: it is left to itself.
    """
    child = os.fork()
    if child == 0:  # what pytest holds must not run here
        code = 1
        signal.alarm(seconds)
        try:
            check()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return child


def end_of(child: int) -> int:
    """Return how a child ended: 0, 1 for an error of its check, or its signal's number below 0."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def assert_ended_well(child: int) -> None:
    """Assert that a child's check raised nothing."""
    assert end_of(child) == 0


def assert_in_child(check: Callable[[], None]) -> None:
    """Run check() in a forked child, and assert that it raised nothing there."""
    assert_ended_well(begin_in_child(check))
