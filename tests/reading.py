"""What tests of readers look at: the reader threads of this process, and how far ahead they read."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def threads_named(name: str) -> int:
    """Return how many threads of this name the native core has in this process."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        try:
            names.append((task / "comm").read_text().strip())
        except OSError:  # it has ended meanwhile
            continue
    return names.count(name)


def readers() -> int:
    """Return how many reader threads this process has."""
    return threads_named("penstock-read")


def assert_read_ahead(loader: Any) -> Any:
    """Assert that readers brought most files of a loader's pass, many at a time; returns what stats() says of them."""
    reading = loader.stats().reading
    assert reading.deepest >= 16, reading
    assert reading.ahead + reading.awaited > reading.direct, reading
    return reading
