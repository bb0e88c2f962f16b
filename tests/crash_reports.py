"""What a worker of pytest-xdist did when it crashed or hung: the report of the test has the stacks of its threads.

Faulthandler writes them into a file, a worker each, because what a dying process prints is easily lost among the lines
of the others. Processes that the worker forked hold the same file: those that hang write their stacks on a signal.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any, TextIO

import pytest

#: Seconds after which a test's stacks are written; the limit of a test is a little more (pyproject.toml).
LATE = 110
#: No test uses it.
_SIGNAL = signal.SIGRTMAX - 3
_stacks: TextIO | None = None


def _path(run: str, worker: str) -> Path:
    return Path(tempfile.gettempdir()) / f"penstock-tests-{os.getuid()}-{run}-{worker}.stacks"


def begin(config: pytest.Config) -> None:
    """Have this process's stacks written, where it is a worker."""
    global _stacks
    named = getattr(config, "workerinput", None)
    if named is not None:
        _stacks = _path(named["testrunuid"], named["workerid"]).open("a")  # for several processes
        faulthandler.enable(_stacks)
        faulthandler.register(_SIGNAL, _stacks)


def begin_test() -> None:
    """Forget what was written during another test."""
    if _stacks is not None:
        os.ftruncate(_stacks.fileno(), 0)
        faulthandler.dump_traceback_later(LATE, file=_stacks)


def end_test() -> None:
    """Write no stacks of a test that is over."""
    if _stacks is not None:
        faulthandler.cancel_dump_traceback_later()


def end(config: pytest.Config) -> None:
    """Remove the file of a worker that ends as it should."""
    if _stacks is not None:
        faulthandler.disable()
        with contextlib.suppress(OSError):
            os.unlink(_stacks.name)


def complete(report: pytest.TestReport) -> None:
    """Add the stacks to the report of a test whose worker crashed."""
    node: Any = report.node
    path = _path(node.workerinput["testrunuid"], node.gateway.id)
    with contextlib.suppress(OSError):
        for pid in _holders(path):
            with contextlib.suppress(OSError):
                os.kill(pid, _SIGNAL)
        time.sleep(0.5)  # until they have written
        report.longrepr = f"{report.longrepr}\n{path.read_text(errors='replace')}"
        path.unlink()


def _holders(path: Path) -> list[int]:
    """Return the processes that have a file open: forked by a worker that is gone, they hang."""
    found = []
    for folder in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):
            if any(os.readlink(link) == str(path) for link in folder.iterdir()):
                found.append(int(folder.parent.name))
    return found
