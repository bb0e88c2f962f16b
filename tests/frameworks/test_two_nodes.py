"""torchrun on two nodes: two agents on this machine, with cache folders of their own, or on two namespaces of it."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.data import photo_files, tensor_files
from tests.frameworks.launching import PATIENCE_SECONDS, TRIES, descendants, environment, found_in, needs_gloo
from tests.two_machines import ADDRESSES, Machines, two_machines

SCRIPT = Path(__file__).parent / "run_nodes.py"
NODES, RANKS = 2, 2
WORLD = NODES * RANKS

pytestmark = [
    pytest.mark.timeout(600),  # see launching.run
    needs_gloo,
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with photos and packed shards, that nobody has changed for a while."""
    root = photo_files(tmp_path / "photos", 22, (8, 9))
    old = time.time_ns() - 3_600_000_000_000
    for one in (root, *root.iterdir()):
        os.utime(one, ns=(old, old))
    names = [f"{number:02}" for number in range(64)]
    tensors = penstock.TensorFolder(tensor_files(tmp_path / "tensors", 64), names, {n: int(n) for n in names})
    penstock.pack(tensors, tmp_path / "packed", shard_size=8000)
    return tmp_path


def launch(node: int, folder: Path, addresses: tuple[str, ...], port: int, machines: Machines | None) -> Any:
    """Start the agent of a node."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", str(NODES), "--nproc-per-node", str(RANKS),
        "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{addresses[0]}:{port}", "--rdzv-id", "two-nodes",
        "--rdzv-conf", f"is_host={int(node == 0)}", "--local-addr", addresses[node], str(SCRIPT), str(folder),
    ]  # fmt: skip
    (folder / f"node-{node}").mkdir(exist_ok=True)
    variables = {
        **environment(),
        "XDG_CACHE_HOME": str(folder / f"node-{node}"),
        "GLOO_SOCKET_IFNAME": "lo" if machines is None else "cable",
        "RES_OPTIONS": "timeout:1 attempts:1",  # nobody answers there who an address is
    }
    with (folder / f"said-{node}").open("w") as said:
        options: dict[str, Any] = {"env": variables, "stdout": said, "stderr": said, "start_new_session": True}
        if machines is None:
            return subprocess.Popen(command, **options)
        return machines.start(node, *command, **options)


def run(folder: Path, addresses: tuple[str, ...], machines: Machines | None) -> list[dict[str, Any]]:
    """Return what the ranks wrote."""
    for _ in range(TRIES):  # see launching.run
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        agents = [launch(node, folder, addresses, port, machines) for node in range(NODES)]
        try:
            codes = [agent.wait(2 * PATIENCE_SECONDS) for agent in agents]
        except subprocess.TimeoutExpired:
            codes = [-1]
        finally:
            for agent in agents:
                for pid in (*descendants(agent.pid), agent.pid):
                    with subprocess.Popen(["kill", "-9", str(pid)], stderr=subprocess.DEVNULL):
                        pass
                agent.wait()
        said = "".join((folder / f"said-{node}").read_text() for node in range(NODES))
        if -1 not in codes and "Timeout (0:0" not in said:
            break
    assert codes == [0, 0], said
    return found_in(folder, "rank", WORLD)


def check(found: list[dict[str, Any]], folder: Path) -> None:
    nodes = [[one for one in found if one["group"] == node] for node in range(NODES)]
    assert [len(node) for node in nodes] == [RANKS, RANKS]
    alone: Any = penstock.DataLoader(penstock.ImageFolder(folder / "photos"), 3 * WORLD, shuffle=True, seed=4)
    for step in range(len(alone)):
        together = [name for one in found for name in one["photos"][step]]
        assert together[: len(alone.ids(0, step))] == alone.ids(0, step) or set(together) == set(alone.ids(0, step))
    shards = penstock.Shards((folder / "packed").as_uri(), cache_folder=folder / "own")
    whole = penstock.DataLoader(shards, 4 * WORLD, shuffle=True, seed=4)
    for step, (_, labels) in enumerate(whole):
        assert [label for one in found for label in one["labels"][step]] == labels.tolist()
    for node in nodes:
        assert sum(one["scans"] for one in node) == 1, "one rank of the node has listed the tree"
        samples = {name for one in node for batch in one["photos"] for name in batch}
        assert max(one["cached"][0] for one in node) == len(samples), "one cache holds what both ranks have read"
        # And none of it was read again; the first batch comes from it twice, to learn its shape.
        assert all(one["cached"][1] == len(samples) and one["hits"] >= one["samples"] for one in node)
        fetched = [re.search(r"(\d+) shards? fetched so far", one["explained"]) for one in node]
        labels = [label for one in node for batch in one["labels"] for label in batch]
        needed = set(shards.index.rows(labels)["shard"].tolist())  # a sample's label is its number
        assert sum(int(one[1]) for one in fetched if one) == len(needed), "each shard came once, whichever rank asked"


def test_two_agents(folder: Path) -> None:
    check(run(folder, ("127.0.0.1", "127.0.0.1"), None), folder)


def test_two_machines(folder: Path) -> None:
    with two_machines() as machines:
        found = run(folder, ADDRESSES, machines)
    check(found, folder)
    assert {(one["group"], one["host"]) for one in found} == {(0, "machine-0"), (1, "machine-1")}
