"""Programs on a native core that is built with a sanitizer (tools/sanitize.sh)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REPORTS = re.compile(r"ERROR: AddressSanitizer|WARNING: ThreadSanitizer|runtime error:")


def run(sanitizer: str, *arguments: object, options: str = "") -> str:
    """Run Python with these arguments, assert that nothing is reported, and return what it writes to stdout.

    options: of AddressSanitizer.
    """
    for tool in ("c++", "cmake", "ninja", "flock"):
        if shutil.which(tool, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") is None:
            pytest.skip(f"{tool} is not installed")
    command = ["tools/sanitize.sh", os.path.relpath(sys.prefix, ROOT), sanitizer, *map(str, arguments)]
    environment = {**os.environ, "ASAN_OPTIONS": options}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    said = done.stdout[-6000:] + done.stderr[-6000:]
    assert done.returncode == 0 and not REPORTS.search(done.stdout + done.stderr), (done.returncode, said)
    return done.stdout
