"""Row 24: a filler of a Ray cluster that is killed, cut off or slow, its node lost, the driver killed; unknown clients.

The same bytes, or one named error; nothing is left after 10 s. Without Ray, forked processes replace its actors;
with it, a cluster's nodes and two machines (namespaces) run it too. Penstock itself listens on no port.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import penstock
import tests.cluster.conftest as ray_cluster
from penstock.cluster import connection
from tests.cluster import ray_machines, vanishing
from tests.cluster.cluster_samples import ENDLESS, Signals, Slow, as_is, ending_at_5
from tests.cluster.conftest import Nodes, actors, at_work, ray_processes, started, wait_until
from tests.cluster.stand_in import RayOfProcesses
from tests.data import Made, tensor_files
from tests.faults.conftest import Count
from tests.packing.packed import contents
from tests.same import assert_same
from tests.two_machines import ADDRESSES, Machines
from tests.values import listed, loaded, taken

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]
nodes, machines, _patience = ray_cluster.nodes, ray_machines.machines, ray_cluster._patience

#: Ray gives up a node that does not answer within some seconds, and later by its own settings.
RAY_SETTINGS = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 3,
}
#: One filler on each node.
SPREAD = penstock.Ray(cpus=2, resources={"filler": 5}, start_timeout=300)  # beside other tests a start may take minutes
OPTIONS: dict[str, Any] = {"batch_size": 2, "shuffle": True, "seed": 5, "num_workers": 2}


@pytest.fixture(params=["processes", "ray"])
def cluster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[penstock.Ray]:
    """Return a cluster, whose actors are forked processes, or those of Ray."""
    if request.param == "ray":
        request.getfixturevalue("nodes").add("one", "two")
        yield SPREAD
        return
    connection._pickler.cache_clear()
    monkeypatch.setitem(sys.modules, "ray", RayOfProcesses())
    yield penstock.Ray()
    connection._pickler.cache_clear()


def fillers(batches: Any) -> list[Any]:
    return [one.facts for one in batches.carrier._crew.at_work]


def gone(places: list[Any]) -> bool:
    return not any(Path(f"/proc/{facts.pid}").exists() for facts in places)


def dataset_of(kind: str, folder: Path) -> Any:
    """Return a dataset that is read natively, or by Python, with draws from the global generators."""
    return penstock.TensorFolder(tensor_files(folder / "tensors", 40)) if kind == "native" else Signals(40)


def wanted(dataset: Any) -> list[Any]:
    """Return the batches of local workers."""
    return list(penstock.DataLoader(dataset, **OPTIONS))


@pytest.mark.parametrize("kind", ["native", "python"])
@pytest.mark.parametrize(
    ("cluster", "how"), [("processes", "kill"), ("processes", "cut"), ("ray", "kill")], indirect=["cluster"]
)
def test_lost_fillers(how: str, kind: str, cluster: penstock.Ray, tmp_path: Path, tries: Count) -> None:
    """Two fillers are killed, or their connections cut, at random moments of a pass."""
    dataset, chance = dataset_of(kind, tmp_path), random.Random(24)
    local, explained = wanted(dataset), ""
    for _ in range(tries(1, 3) if cluster is SPREAD else tries(2, 30)):
        loader: Any = penstock.DataLoader(dataset, worker_method=cluster, **OPTIONS)
        batches, found, lost = iter(loader), list[Any](), sorted(chance.sample(range(15), 2))
        places = fillers(batches)
        for number in range(len(loader)):
            if number in lost and (members := batches.carrier._crew.at_work):
                victim = chance.choice(members)
                places = [*places, *fillers(batches)]
                os.kill(victim.facts.pid, signal.SIGKILL) if how == "kill" else victim.actor.cut()
            found.append(next(batches))
        assert_same(found, local)
        explained += loader.explain()
        places = [*places, *fillers(batches)]
        batches.close()
        assert wait_until(lambda places=places: gone(places), 10)
    assert "lost; " in explained


def test_slow_fillers(cluster: penstock.Ray, tmp_path: Path) -> None:
    """One that stands still for a while changes nothing; all of them are an error by `timeout=`."""
    dataset = dataset_of("native", tmp_path)
    batches: Any = iter(penstock.DataLoader(dataset, worker_method=cluster, **OPTIONS))
    places, found = fillers(batches), taken(batches, 3)
    os.kill(places[0].pid, signal.SIGSTOP)
    timer = threading.Timer(0.5, os.kill, (places[0].pid, signal.SIGCONT))
    timer.start()
    found += batches
    timer.join()
    assert_same(found, wanted(dataset))
    batches.close()
    batches = iter(penstock.DataLoader(ENDLESS, 2, num_workers=2, worker_method=cluster, timeout=1))
    places += fillers(batches)
    taken(batches, 3)
    for facts in fillers(batches):
        os.kill(facts.pid, signal.SIGSTOP)
    with pytest.raises(penstock.WorkerStuck, match="no batch came from 2 fillers of a Ray cluster"):
        taken(batches, 100)
    batches.close()
    assert wait_until(lambda: gone(places), 10)


def test_a_sample_that_ends_its_fillers(cluster: penstock.Ray) -> None:
    loader: Any = penstock.DataLoader(Made(ending_at_5, 8), 2, num_workers=2, worker_method=cluster)
    batches = iter(loader)
    assert listed(taken(batches, 2)) == [[0, 1], [2, 3]]
    with pytest.raises(penstock.WorkerDied, match=r"3 fillers ended .* the same batch, of samples \[4, 5\]"):
        next(batches)
    assert next(batches).tolist() == [6, 7]
    places = fillers(batches)
    batches.close()
    assert wait_until(lambda: gone(places), 10)


def test_a_packer_is_killed(cluster: penstock.Ray, tmp_path: Path) -> None:
    gate, seen = tmp_path / "gate", list[Any]()

    def follow(now: Any) -> None:
        seen.append(now)
        waits = tmp_path / "waits"
        if waits.exists() and (pid := waits.read_text()) and not gate.exists():
            os.kill(int(pid), signal.SIGKILL)
            gate.touch()

    options: dict[str, Any] = {"to_bytes": as_is, "shard_size": 4000}
    try:
        made = penstock.pack(Slow(gate), tmp_path / "ray", engine=cluster, workers=2, on_progress=follow, **options)
        assert gate.exists() and made.shards > 4
    finally:
        gate.touch()
    penstock.pack(Slow(gate), tmp_path / "threads", **options)
    assert contents(tmp_path / "ray") == contents(tmp_path / "threads")
    assert (seen[-1].samples, seen[-1].of) == (40, 40)


def listening(pids: set[int]) -> set[int]:
    """Return the TCP ports that processes listen at."""
    links = set()
    for entry in (entry for pid in pids for entry in Path(f"/proc/{pid}/fd").glob("*")):
        with suppress(OSError):  # it is closed by now
            links.add(os.readlink(entry))
    tables = [table for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")) if table.exists()]
    rows = [line.split() for table in tables for line in table.read_text().splitlines()[1:]]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in links}


@pytest.mark.parametrize("cluster", ["processes"], indirect=True)
def test_no_port_is_opened(cluster: penstock.Ray) -> None:
    before = listening({os.getpid()})
    batches: Any = iter(penstock.DataLoader(ENDLESS, 2, num_workers=2, worker_method=cluster))
    taken(batches, 3)
    assert not listening({os.getpid(), *(facts.pid for facts in fillers(batches))}) - before
    batches.close()


def test_strangers_at_the_ports(nodes: Nodes, tmp_path: Path) -> None:
    """Noise and requests at each port that the processes of Ray listen at, before and within a pass."""
    nodes.add("one", "two")
    dataset, chance = dataset_of("native", tmp_path), random.Random(24)
    batches: Any = iter(penstock.DataLoader(dataset, worker_method=SPREAD, **OPTIONS))
    ports, hosts = listening(ray_processes()), {"127.0.0.1", fillers(batches)[0].host}
    assert len(ports) > 4
    found, strangers = taken(batches, 3), list[socket.socket]()
    for host, port in itertools.product(hosts, ports):
        for noise in (b"", b"GET / HTTP/1.1\r\n\r\n", chance.randbytes(5000)):
            with suppress(OSError):
                strangers.append(socket.create_connection((host, port), 5))
                strangers[-1].sendall(noise)
    found += batches
    for stranger in strangers:
        stranger.close()
    assert_same(found, wanted(dataset))


@pytest.mark.parametrize("says", [None, b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["nothing", "closes", "http"])
def test_a_stranger_at_the_address(says: bytes | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What answers at the address is not Ray: an error in the seconds of an answer. Ray itself tries for minutes."""
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    monkeypatch.setattr(connection, "_ANSWER", 1.0)
    held = list[socket.socket]()

    def answer(server: socket.socket) -> None:
        held.append(server.accept()[0])
        if says is not None:
            held[0].sendall(says)
            held[0].close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        stranger = threading.Thread(target=answer, args=(server,))
        stranger.start()
        begun = time.monotonic()
        with pytest.raises(penstock.ClusterUnreachable, match=f"no Ray cluster answers at {address}"):
            connection.connected(penstock.Ray(address))
        assert time.monotonic() - begun < 2
        stranger.join()
        held[0].close()


def test_a_node_that_is_killed(nodes: Nodes, tmp_path: Path) -> None:
    nodes.add("one", "two")
    dataset = dataset_of("native", tmp_path)
    ours: Any = penstock.DataLoader(dataset, worker_method=SPREAD, **OPTIONS)
    batches = iter(ours)
    found = taken(batches, 5)
    assert "2 fillers at work: 1 on node" in ours.explain()
    places, state = fillers(batches), ours.state_dict()
    assert len({facts.node for facts in places}) == 2
    nodes.kill("two")
    assert wait_until(lambda: sum(Path(f"/proc/{facts.pid}").exists() for facts in places) == 1)
    found += batches
    assert_same(found, wanted(dataset))
    stats = ours.stats()
    assert "1 filler lost; " in ours.explain() and (stats.batches, stats.samples) == (20, 40)
    assert wait_until(lambda: gone(places), 10)
    assert_same(found[5:], list(loaded(penstock.DataLoader(dataset, **OPTIONS), state)))


def test_a_node_that_stands_still(nodes: Nodes) -> None:
    nodes.add("one", "two")
    loader: Any = penstock.DataLoader(ENDLESS, 4, num_workers=2, worker_method=SPREAD)
    batches: Any = iter(loader)
    found, places = list(islice(batches, 10)), fillers(batches)
    assert len({facts.node for facts in places}) == 2
    stopped = nodes.stop("two")
    try:
        assert {facts.pid for facts in places} & stopped, "its filler stands still"
        found += islice(batches, 30)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGKILL)
    assert listed(found) == [list(range(at, at + 4)) for at in range(0, 160, 4)]
    assert "1 filler lost; " in loader.explain()
    batches.close()
    nodes.kill("two")
    assert wait_until(lambda: not stopped & ray_processes(), 10)


def test_a_killed_driver(nodes: Nodes, tmp_path: Path) -> None:
    nodes.add("one", "two")
    process = started(nodes, tmp_path, "load")
    process.kill()
    process.communicate()
    assert wait_until(lambda: not at_work(), 10), actors()


def test_a_machine_that_vanishes(machines: Machines, tmp_path: Path) -> None:
    command = [sys.executable, vanishing.__file__, f"{ADDRESSES[0]}:{ray_machines.PORT}", str(tmp_path)]
    trainer = machines.start(0, *command, env=ray_machines.ENVIRONMENT, stderr=subprocess.PIPE, text=True)
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
    assert found["firsts"] == [8.0 * number for number in range(vanishing.BATCHES)]
    assert "1 filler lost; " in found["explained"]
