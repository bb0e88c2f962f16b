"""Waiting for what other threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

SECONDS = 30.0
Found = TypeVar("Found")


def wait_until(condition: Callable[[], Found]) -> Found:
    """Return what condition() returns once it is true; fail after SECONDS."""
    deadline = time.monotonic() + SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.001)  # between looks at what another process does, which tells nobody
    return found
