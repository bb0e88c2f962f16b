"""What all tests share: nothing is written into the user's own folders."""

from __future__ import annotations

import gc
import multiprocessing
import sys
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from tests import crash_reports, huge_pages
from tests.resources import collect


@pytest.fixture(scope="session", autouse=True)
def _own_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _short_waits() -> Iterator[None]:
    """Have torch wait 1 s, not 5, for each worker of an iterator that the garbage collector finds: none of them ends.

    The traceback of an error holds the iterator that raised it, so that only the collector finds it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 1.0)
        yield


@pytest.fixture(scope="module", autouse=True)
def _small_heap() -> None:
    """Keep what was made before a module's tests out of their collections and forks, which take long otherwise."""
    collect()
    assert not _open_leases(), "a pass of an earlier module is not closed, and cannot be collected"
    huge_pages.tidy()
    gc.freeze()


def _open_leases() -> list[str]:
    """Return which functions of other packages are replaced for a pass."""
    held = [("hooks.calls", "ANSWERED"), ("carriers.worker_thread", "WORKER_INFO"), ("recipe.drawing", "SEEDING")]
    modules = [(sys.modules.get(f"penstock.{module}"), name) for module, name in held]
    return [name for module, name in modules if module is not None and getattr(module, name)._leases]


@pytest.fixture(autouse=True)
def _no_light_classes() -> None:
    """Let no class of dataset be known for light samples: those of tests/data.py make samples of all kinds."""
    if (here := sys.modules.get("penstock.carriers.here")) is not None:
        here._light.clear()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of tests/faults."""
    parser.addoption("--faults", choices=("short", "full"), default="short", help="how many cases tests/faults runs")


def pytest_configure(config: pytest.Config) -> None:
    """Fork worker processes on every Python: tests/forkserver.py is the other way, the default from 3.14 on."""
    if sys.version_info >= (3, 14):
        multiprocessing.set_start_method("fork", force=True)
        config.addinivalue_line("filterwarnings", "ignore:This process .* is multi-threaded:DeprecationWarning")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Have the stacks of a worker that crashes reported."""
    crash_reports.begin(session.config)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collect no garbage while tests are collected: almost all of it is kept."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Have the stacks of a test that hangs reported."""
    crash_reports.begin_test()
    try:
        return (yield)
    finally:
        crash_reports.end_test()


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, report: pytest.TestReport) -> None:
    """Report the stacks of a worker that crashed."""
    crash_reports.complete(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let Python free at its end what `_small_heap` has kept."""
    crash_reports.end(session.config)
    gc.unfreeze()
