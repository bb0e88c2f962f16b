"""A plugin of pytest: the tests run with the start method `forkserver`, Python's default from 3.14 on.

    python -m pytest -p tests.forkserver tests/carriers

The fork server has imported what each worker would take seconds to import.
"""

from __future__ import annotations

import multiprocessing

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Set the start method, before any test."""
    multiprocessing.set_start_method("forkserver", force=True)
    multiprocessing.set_forkserver_preload(["penstock.carriers.processes", "penstock.loader", "tests.data"])
