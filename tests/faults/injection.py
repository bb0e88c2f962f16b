"""A fault in the n-th system call of some work: strace, which attaches to a forked child before the work begins."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.forking import begin_in_child, end_of


def _traced_by() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("TracerPid:")[2].split()[0])


def _trace_this_process(strace: str, options: list[str]) -> None:
    command = [strace, "-f", "-qq", *options, "-p", str(os.getpid())]
    tracer = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while not _traced_by():
        if tracer.poll() is not None:
            os._exit(77)
        time.sleep(0.001)


def run(work: Callable[[], Any], inject: str, paths: Iterable[object] = ()) -> int:
    """Run some work in a forked child, into whose system calls faults are put; return how it ended.

    Args:
        work: an error that it raises is printed, and the child then ends with 1.
        inject: as strace takes it: "fsync:signal=SIGKILL:when=3", "write:error=ENOSPC:when=2+".
        paths: only calls on these files count; without them all calls.

    Returns:
        0, 1, or of a child that a signal ended its negative number.
    """
    options = ["-o", "/dev/null", "-e", f"trace={inject.partition(':')[0]}", "-e", f"inject={inject}"]
    return traced(work, options + [option for path in paths for option in ("-P", str(path))])


def each_fault(
    work: Callable[[], Any],
    inject: str,
    ended: int,
    paths: Iterable[object] = (),
    step: Callable[[int], int] = lambda number: number + 1,
) -> Iterator[int]:
    """Yield the number of a call each time that a fault in it has ended some work; the work without one ends well.

    Args:
        work, paths: as of `run`.
        inject: without `when=`.
        ended: how a fault ends the work.
        step: returns the number of the next call.
    """
    number, paths = 1, list(paths)
    while (found := run(work, f"{inject}:when={number}", paths)) == ended:
        yield number
        number = step(number)
    assert found == 0


def traced(work: Callable[[], Any], options: list[str]) -> int:
    """Run some work in a forked child that strace follows, by these options; return how it ended, as `run` does."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")

    def follow() -> None:
        _trace_this_process(strace, options)
        work()

    ended = end_of(begin_in_child(follow, seconds=0))
    if ended == 77:
        pytest.skip("strace may not attach to a process")
    return ended
