"""Worker processes that import a main script which starts workers when it is imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import python_processes

UNGUARDED = """
import sys
import penstock
from penstock.errors import WorkerDied
{before}
try:
    print(list(penstock.DataLoader(list(range(8)), num_workers=1, multiprocessing_context={method!r})))
except WorkerDied as error:
    print("message:", error)
"""


def _run(tmp_path: Path, method: str, before: str = "") -> str:
    script = tmp_path / "train.py"
    script.write_text(UNGUARDED.format(method=method, before=before), encoding="utf-8")
    return python_processes.run_file(script).stdout


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_script_without_a_guard_is_told_of_it(tmp_path: Path, method: str) -> None:
    text = _run(tmp_path, method)
    advice = text.splitlines()[-1]
    assert f"With the start method {method!r} each worker imports the main script" in advice
    assert 'if __name__ == "__main__":' in advice and "exit()" not in text


def test_a_worker_that_exits_otherwise_is_not(tmp_path: Path) -> None:
    text = _run(tmp_path, "spawn", "if __name__ != '__main__': sys.exit(3)")
    assert "__main__" not in text and "look for exit()" in text
