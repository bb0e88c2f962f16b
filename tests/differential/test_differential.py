"""Fixed cases of the differential tester: Penstock's loader and torch's give the same, whatever is done with them."""

from __future__ import annotations

import pytest

from tests import python_processes

CASES, GROUP = 300, 30
_RUN = """
import sys
from tests.differential.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("first", range(0, CASES, GROUP))
def test_cases(first: int) -> None:
    ended = python_processes.run(_RUN, f"--seed={first}", f"--cases={GROUP}", "--jobs=1", "--quick")
    assert ended.returncode == 0, ended.stdout + ended.stderr
