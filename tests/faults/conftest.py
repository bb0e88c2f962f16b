"""How often each row's cases run, and the record of a full run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.faults import scoreboard

Count = Callable[[int, int], int]
_reports: list[pytest.TestReport] = []


def is_full(config: pytest.Config) -> bool:
    return bool(config.getoption("--faults") == "full")


@pytest.fixture
def full(request: pytest.FixtureRequest) -> bool:
    """Return whether all cases of the row run."""
    return is_full(request.config)


@pytest.fixture
def only_full(full: bool) -> Callable[[bool], None]:
    """Return what skips a case that the short form leaves out; called with whether it is one."""

    def skip(is_left_out: bool = True) -> None:
        if is_left_out and not full:
            pytest.skip("make faults runs this case")

    return skip


@pytest.fixture
def tries(full: bool, record_property: Callable[[str, object], None]) -> Count:
    """Return what gives how many cases a test runs, (short, full), and counts them for the table."""

    def count(short: int, whole: int) -> int:
        number = whole if full else short
        record_property("cases", number)
        return number

    return count


@pytest.fixture
def cases(record_property: Callable[[str, object], None]) -> Callable[[int], None]:
    """Return what counts the cases that a test has run, where it finds their number itself."""
    return lambda number: record_property("cases", number)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if "tests/faults/" in report.nodeid:
        _reports.append(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the table where all cases of some rows have run: in the process that saw all reports."""
    if is_full(session.config) and not hasattr(session.config, "workerinput"):
        scoreboard.write_results(_reports)
