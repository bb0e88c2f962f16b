"""Ctrl-C in a program whose batches or shards are made on a Ray cluster."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.cluster.conftest import Nodes, actors, at_work, started, wait_until

pytest.importorskip("ray", reason='ray is not installed: pip install "penstock-loader[ray]"')
pytestmark = pytest.mark.timeout(300)  # actors start slowly on a machine that is shared


@pytest.mark.parametrize("what", ["start", "load", "catch", "pack"])
def test_an_interrupt_leaves_no_actor(nodes: Nodes, tmp_path: Path, what: str) -> None:
    process = started(nodes, tmp_path, what)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    if what == "catch":
        assert process.returncode == 7, said
    else:
        assert process.returncode in (-signal.SIGINT, 1), said  # 1 where Ray's own code ran in the end
        assert said.splitlines()[-1].startswith("KeyboardInterrupt"), said
    assert wait_until(lambda: not at_work()), actors()
    if what == "pack":
        assert not (tmp_path / "out" / "dataset.json").exists()
