"""A cluster of two machines that are played by namespaces: batches cross a network."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.cluster.conftest import ROOT, wait_until
from tests.frameworks.launching import descendants
from tests.two_machines import ADDRESSES, Machines, two_machines

PORT = 6379  # each machine has its own
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@pytest.fixture
def machines() -> Iterator[Machines]:
    """Give two machines with a node of Ray each."""
    pytest.importorskip("ray", reason='ray is not installed: pip install "penstock-loader[ray]"')
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
