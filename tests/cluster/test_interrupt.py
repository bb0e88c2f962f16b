"""Ctrl-C in a program whose batches or shards are made on a Ray cluster; a node that does not answer any more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.cluster.cluster_samples import ENDLESS
from tests.cluster.conftest import Nodes, ray_processes, wait_until

pytest.importorskip("ray", reason="ray is not installed: pip install 'penstock[ray]'")
pytestmark = pytest.mark.timeout(300)  # actors start slowly on a machine that is shared

#: Ray gives up a node that does not answer within some seconds, and later by its own settings.
RAY_SETTINGS = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 3,
}


def actors() -> dict[str, str]:
    """Return the state of each filler and packer that the cluster has had, by its ID."""
    from ray._private.state import actors as known  # noqa: PLC0415

    ours = ("FillerActor", "Packer")
    return {name: one["State"] for name, one in known().items() if one["ActorClassName"].endswith(ours)}


def at_work() -> set[str]:
    return {name for name, state in actors().items() if state != "DEAD"}


def started(nodes: Nodes, folder: Path, what: str) -> subprocess.Popen[str]:
    assert not at_work()
    command = [sys.executable, str(Path(__file__).with_name("interrupted.py")), nodes.address, what, str(folder)]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True)
    begun = at_work if what == "start" else (folder / "told").exists
    assert wait_until(lambda: begun() or process.poll() is not None, 100)
    assert process.poll() is None, process.communicate()[1]
    return process


def test_a_trainer_that_is_killed_leaves_no_actor(nodes: Nodes, tmp_path: Path) -> None:
    process = started(nodes, tmp_path, "load")
    process.kill()
    process.communicate()
    assert wait_until(lambda: not at_work(), 10), actors()


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


def test_a_node_that_stands_still(nodes: Nodes) -> None:
    method = penstock.Ray(cpus=2, resources={"filler": 5})
    loader: Any = penstock.DataLoader(ENDLESS, 4, num_workers=2, worker_method=method)
    batches: Any = iter(loader)
    found = list(islice(batches, 10))
    places = [one.facts for one in batches.filler._crew.at_work]
    assert len({facts.node for facts in places}) == 2
    stopped = nodes.stop("two")
    try:
        assert {facts.pid for facts in places} & stopped, "its filler stands still"
        found += islice(batches, 30)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGKILL)
    assert [batch.tolist() for batch in found] == [list(range(at, at + 4)) for at in range(0, 160, 4)]
    assert "1 filler lost; " in loader.explain()
    batches.close()
    nodes.kill("two")
    assert wait_until(lambda: not stopped & ray_processes())
