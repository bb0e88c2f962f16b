"""Row 19: races and memory errors of the native core: five minutes of start, end, failure, abort and fork at random.

Under ThreadSanitizer, under AddressSanitizer with UndefinedBehaviorSanitizer, and once under Valgrind: nothing is
reported, and nothing of our own code is suppressed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import python_processes
from tests.faults import sanitized

#: Of the full form, for each sanitizer; each core takes two to three minutes to build.
SECONDS = 150


def loaders_in(out: str) -> int:
    found = re.search(r"^([\d,]+) loaders", out, re.MULTILINE)
    assert found is not None, out
    return int(found[1].replace(",", ""))


def is_ours(report: str) -> bool:
    """Return whether the native core did what Valgrind reports, or had the C library do it."""
    frames = [line for line in report.splitlines() if re.search(r" (at|by) 0x", line) and "vgpreload" not in line]
    return bool(frames) and "_native" in frames[0]


def test_without_a_sanitizer(full: bool, cases: Callable[[int], None]) -> None:
    done = python_processes.run_main("tests.faults.native_stress", f"--seconds={20 if full else 2.5}", "--seed=19")
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    cases(loaders_in(done.stdout))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("sanitizer", ["thread", "address"])
def test_sanitizers(sanitizer: str, only_full: Any, cases: Callable[[int], None]) -> None:
    only_full()
    arguments = ("-m", "tests.faults.native_stress", f"--seconds={SECONDS}", "--seed=19")
    cases(loaders_in(sanitized.run(sanitizer, *arguments)))


@pytest.mark.timeout(1800)
def test_valgrind(only_full: Any, cases: Callable[[int], None], tmp_path: Path) -> None:
    only_full()
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    log = tmp_path / "log"
    command = ["valgrind", "-q", f"--log-file={log}", "--error-limit=no", "--leak-check=no", "--trace-children=no"]
    stress = [sys.executable, "-m", "tests.faults.native_stress", "--seconds=60", "--seed=19"]
    environment = {**os.environ, "PYTHONMALLOC": "malloc", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *stress], cwd=sanitized.ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    ours = [report for report in log.read_text(errors="replace").split("== \n") if is_ours(report)]
    assert not ours, "\n".join(ours[:3])
    cases(loaders_in(done.stdout))
