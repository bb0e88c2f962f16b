"""A cluster of two machines that are played by namespaces: batches cross a network, and a machine vanishes from it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import ROOT, wait_until
from tests.cluster.vanishing import BATCHES
from tests.frameworks.launching import descendants
from tests.two_machines import ADDRESSES, Machines, two_machines

pytest.importorskip("ray", reason="ray is not installed: pip install 'penstock[ray]'")
pytestmark = pytest.mark.timeout(300)  # actors start slowly on a machine that is shared

PORT = 6379  # each machine has its own
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@pytest.fixture
def machines() -> Iterator[Machines]:
    with two_machines() as made:
        folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # names of sockets are short
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus", "1"]
        options: dict[str, Any] = {"env": ENVIRONMENT, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        nodes: list[Any] = []
        try:
            for number, address in enumerate(ADDRESSES):
                own = [f"--node-ip-address={address}", '--resources={"filler": 1}', "--object-store-memory=100000000"]
                where = ["--head", "--port", str(PORT), "--include-dashboard", "false", "--temp-dir", folder]
                if number:
                    where = ["--address", f"{ADDRESSES[0]}:{PORT}"]
                    answers = f"import socket; socket.create_connection(('{ADDRESSES[0]}', {PORT}), 1)"
                    assert wait_until(lambda code=answers: runs(made, code), 100)
                nodes.append(made.start(number, *ray, *own, *where, start_new_session=True, **options))
            yield made
        finally:
            for node in nodes:
                for pid in (*descendants(node.pid), node.pid):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                node.wait()
            shutil.rmtree(folder, ignore_errors=True)


def runs(machines: Machines, code: str) -> bool:
    try:
        machines.run(1, sys.executable, "-c", code)
    except OSError:
        return False
    return True


def test_a_machine_that_vanishes(machines: Machines, tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).with_name("vanishing.py")), f"{ADDRESSES[0]}:{PORT}", str(tmp_path)]
    trainer = machines.start(0, *command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    try:
        assert wait_until(lambda: (tmp_path / "begun").exists() or trainer.poll() is not None, 150)
        assert trainer.poll() is None, trainer.communicate()[1]
        machines.pull_the_cable()
        (tmp_path / "vanished").touch()
        _, said = trainer.communicate(timeout=100)
    finally:
        trainer.kill()
        trainer.wait()
    assert trainer.returncode == 0, said
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["hosts"] == sorted(ADDRESSES), "a filler on each machine"
    assert found["firsts"] == [8.0 * number for number in range(BATCHES)]
    assert "1 filler lost; " in found["explained"]
