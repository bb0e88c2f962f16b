"""engine="ray" packs into an object store: packers on two nodes send the shards, and one of them is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.cluster.cluster_samples import Slow, as_is
from tests.cluster.conftest import Nodes
from tests.s3_server import S3, serve

pytest.importorskip("ray", reason='ray is not installed: pip install "penstock-loader[ray]"')
pytestmark = pytest.mark.timeout(300)  # actors start slowly on a machine that is shared

#: One packer on each node.
SPREAD = penstock.Ray(cpus=2, resources={"filler": 5})


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    with serve() as served:
        yield served


@pytest.fixture(scope="module")
def s3(server: S3, nodes: Nodes) -> S3:
    return server


def test_packing_when_a_packer_is_killed(s3: S3, tmp_path: Path) -> None:
    gate, waits = tmp_path / "gate", tmp_path / "waits"

    def follow(now: Any) -> None:
        if waits.exists() and not gate.exists():
            os.kill(int(waits.read_text()), signal.SIGKILL)
            gate.touch()

    options: dict[str, Any] = {"to_bytes": as_is, "shard_size": 4000}
    try:
        made = penstock.pack(Slow(gate), f"{s3.url}/ray", engine=SPREAD, workers=2, on_progress=follow, **options)
    finally:
        gate.touch()
    assert waits.exists(), "a packer has waited, and was killed"
    assert made.shards > 4
    penstock.pack(Slow(gate), tmp_path / "threads", **options)
    files = {path.name: path.read_bytes() for path in (tmp_path / "threads").iterdir()}
    assert s3.objects("ray") == files
    tars = [name for name in files if name.endswith(".tar")]
    assert all(s3.requests["PUT", name] == 1 for name in tars), "no finished shard was sent again"


def test_nodes_that_the_store_refuses(s3: S3, tmp_path: Path) -> None:
    def refuse(method: str, path: str) -> tuple[str, str] | None:
        return ("403 Forbidden", "AccessDenied") if method == "PUT" and path.endswith("000003.tar") else None

    (tmp_path / "gate").touch()
    s3.refuse = refuse
    options: dict[str, Any] = {"to_bytes": as_is, "shard_size": 4000, "engine": SPREAD, "workers": 1}
    words = r"s3://packed/refused/data-000003\.tar: the store refuses"
    try:
        with pytest.raises(penstock.AccessRefused, match=words) as e:
            penstock.pack(Slow(tmp_path / "gate"), f"{s3.url}/refused", **options)
    finally:
        s3.refuse = lambda method, path: None
    assert any(" on node " in note for note in e.value.__notes__)
    assert "dataset.json" not in s3.objects("refused")
