"""Row 21: batch memory: random programs of loaders, with pinning stood in for, forks and kept batches among them.

No difference from torch's loader, and no batch that changes after it was handed out.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.timeout(3600)
def test_torchs_loader_is_the_oracle(full: bool, cases: Callable[[int], None], tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    how = ["--minutes", "15"] if full else ["--cases", "30"]
    command = [sys.executable, "-m", "tests.differential", *how, "--quick", "--jobs", "2", "--into", str(tmp_path)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    found = re.search(r"(\d[\d,]*) cases", done.stdout)
    assert found is not None, done.stdout
    cases(int(found[1].replace(",", "")))
