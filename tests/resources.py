"""What a process holds: threads, descriptors, children; and processes that run a script."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from typing import Any


def native_threads() -> int:
    """Return how many threads this process has, those that Python does not know too."""
    return len(os.listdir("/proc/self/task"))


def collect() -> None:
    """Collect all garbage: gc.collect() itself does nothing while another thread collects."""
    done = False

    def note(phase: str, info: dict[str, int]) -> None:
        nonlocal done
        done |= phase == "stop" and info["generation"] == 2 and threading.get_ident() == caller

    caller = threading.get_ident()
    gc.callbacks.append(note)
    try:
        gc.collect()
        while not done:
            time.sleep(0.001)  # until the other thread's collection is over
            gc.collect()
    finally:
        gc.callbacks.remove(note)


def descriptors() -> int:
    """Return how many descriptors this process has, when nothing waits for the garbage collector."""
    collect()
    return len(os.listdir("/proc/self/fd"))


def open_files() -> set[tuple[str, str]]:
    """Return each descriptor of this process and what it leads to, when nothing waits for the garbage collector.

    What an earlier test has left may be closed at any time: a count of them may hide a file that stays open.
    """
    collect()
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


def held() -> tuple[int, int, int, int]:
    """Return how many descriptors, Python's threads, threads of any kind and children this process has."""
    return descriptors(), threading.active_count(), native_threads(), len(multiprocessing.active_children())


def run_script(script: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own, in which warnings are errors."""
    command = [sys.executable, "-W", "error", "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, **options)
