"""A Ray cluster of this machine: a head without CPUs, where the trainer is, and nodes that tests add and kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.launching import descendants

ROOT = Path(__file__).parents[2]
#: Bytes of each node's object store.
STORE = 100 << 20


def ray_processes() -> set[int]:
    """Return the processes of Ray on this machine that belong to this process."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
                mine = f"PENSTOCK_TEST_CLUSTER={os.getpid()}".encode() in (entry / "environ").read_bytes()
            except OSError:  # it is gone, or another user's
                continue
            if mine and (b"ray" in command.split(b"\0")[0] or b"ray::" in command or b"/ray/" in command):
                found.add(int(entry.name))
    return found


def wait_until(holds: Any, seconds: float = 30.0) -> bool:
    """Return whether something holds within some time; what happens in other processes gives no event."""
    deadline = time.monotonic() + seconds
    while not (held := holds()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(held)


class Nodes:
    """A cluster to whose nodes tests send their actors by a resource of the node's name."""

    def __init__(self, cluster: Any, *names: str) -> None:
        self._cluster = cluster
        self._nodes: dict[str, Any] = {}
        self.add(*names)

    def add(self, *names: str) -> None:
        options = {"num_cpus": 8, "object_store_memory": STORE, "include_dashboard": False}
        for name in [name for name in names if name not in self._nodes]:
            self._nodes[name] = self._cluster.add_node(resources={name: 8, "filler": 8}, **options)

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def stop(self, name: str) -> set[int]:
        """Let the raylet of a node and its workers stand still, so that they do not answer; return them."""
        raylet = self._nodes[name].all_processes["raylet"][0].process.pid
        stopped = {raylet, *descendants(raylet)}
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        return stopped

    def kill(self, name: str) -> None:
        self._cluster.remove_node(self._nodes.pop(name), allow_graceful=False)


def actors() -> dict[str, str]:
    """Return the state of each filler and packer that the cluster has had, by its ID."""
    from ray._private.state import actors as known  # noqa: PLC0415

    ours = ("BatchActor", "Packer")
    return {name: one["State"] for name, one in known().items() if one["ActorClassName"].endswith(ours)}


def at_work() -> set[str]:
    return {name for name, state in actors().items() if state != "DEAD"}


def started(nodes: Nodes, folder: Path, what: str) -> subprocess.Popen[str]:
    """Return a program of interrupted.py, once it is at what it does."""
    assert not at_work()
    command = [sys.executable, str(Path(__file__).with_name("interrupted.py")), nodes.address, what, str(folder)]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True)
    begun = at_work if what == "start" else (folder / "told").exists
    assert wait_until(lambda: begun() or process.poll() is not None, 100)
    assert process.poll() is None, process.communicate()[1]
    return process


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cluster.crew._OTHERS", 60.0)


@pytest.fixture(scope="module")
def nodes(request: pytest.FixtureRequest) -> Iterator[Nodes]:
    """Return a cluster with the nodes "one" and "two"; none of its processes outlives the tests of a module.

    RAY_SETTINGS of the module are those of the cluster's head.
    """
    settings: dict[str, Any] = getattr(request.module, "RAY_SETTINGS", {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_TEST_CLUSTER", str(os.getpid()))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        ray = pytest.importorskip("ray", reason='ray is not installed: pip install "penstock-loader[ray]"')
        head = {"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False, "_system_config": settings}
        cluster = pytest.importorskip("ray.cluster_utils").Cluster(initialize_head=True, head_node_args=head)
        try:
            ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
            yield Nodes(cluster, "one", "two")
        finally:
            ray.shutdown()
            cluster.shutdown()
        assert wait_until(lambda: not ray_processes()), ray_processes()
