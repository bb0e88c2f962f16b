"""Checks that run in a forked child of the test's process."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable


def assert_in_child(check: Callable[[], None]) -> None:
    """Run check() in a forked child, and assert that it raised nothing there; its traceback is printed."""
    child = os.fork()
    if child == 0:  # what pytest holds must not run here
        code = 1
        try:
            check()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
