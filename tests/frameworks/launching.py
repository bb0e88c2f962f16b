"""Scripts that train with two processes, started as a user starts them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
#: A rank that waits in vain ends by itself after so long; see the scripts.
PATIENCE_SECONDS = 90
TRIES = 3


def run(*arguments: str, cwd: Path | None = None) -> str:
    """Run Python with these arguments and return what it writes.

    Forking a process whose C++ threads (gloo's, autograd's) come and go may leave the child waiting for a lock of the
    interpreter: CPython 3.11 takes it in the child before it makes it anew (_PyThreadState_DeleteExcept). torch's own
    loader meets it here about once in thirty runs. Such a run is tried again; one that fails otherwise is not.
    """
    for _ in range(TRIES):
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=cwd,
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * PATIENCE_SECONDS,
        )
        if "Timeout (0:0" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    return done.stdout
