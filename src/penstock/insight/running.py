"""A program run in a child process, of the same interpreter and by the same command as this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from penstock.insight.comparison import parsed


@dataclass(frozen=True)
class Ended:
    """How a child process ended."""

    code: int
    """Its exit code, as a shell has it: 128 and the number of the signal that ended it."""
    figures: Mapping[str, Any]
    """What it wrote (RunReport.as_json, parsed); empty: it wrote nothing."""
    bytes_read: int
    """What it and its children read from disks, not from the page cache."""


def own_command() -> list[str]:
    """Return the words that started this command, up to its own arguments: the interpreter, its options, the script."""
    own = sys.argv[1:]
    if own[:1] == ["run"] and sys.orig_argv[-len(own) :] == own:
        return [sys.executable, *sys.orig_argv[1 : -len(own)]]
    return [sys.executable, "-m", "penstock"]


def run_child(command: Sequence[str], figures: str) -> Ended:
    """Run a command in a child process, and return how it ended. It must be called by the main thread.

    An interrupt from the terminal is the child's, which gets it too. SIGTERM is passed on.

    Args:
        command: its words.
        figures: the file that the child writes its figures to.
    """
    child: subprocess.Popen[bytes] | None = None

    def wait_on(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM and child is not None:
            os.kill(child.pid, number)

    before = {number: signal.signal(number, wait_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        child = subprocess.Popen(command)
        _, status, used = os.wait4(child.pid, 0)
        code = child.returncode = os.waitstatus_to_exitcode(status)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    found: Mapping[str, Any]
    try:
        with open(figures, encoding="utf-8") as file:
            found = parsed(file.read())
    except (OSError, ValueError):
        found = {}
    return Ended(128 - code if code < 0 else code, found, 512 * used.ru_inblock)
