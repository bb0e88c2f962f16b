"""What a cluster is told and sent: options, versions, files, pickles, messages; none of this needs a running one."""

from __future__ import annotations

import importlib.util
import socket
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penstock
from penstock.cluster.connection import (
    Facts,
    Memory,
    check,
    connected,
    files_of,
    pickled,
    pieces_of,
    unseen,
    value_of,
    versions,
)
from penstock.cluster.option import Ray, ray_of
from tests.data import Made, Stream, rows
from tests.same import assert_same
from tests.samples import SAMPLES

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason='ray is not installed: pip install "penstock-loader[ray]"'
)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"cpus": 0}, "cpus=0"), ({"cpus": True}, "cpus=True"), ({"address": "ray://head:10001"}, "HOST:PORT"),
    ({"resources": {"filler": -1}}, "resources="), ({"resources": {1: 1}}, "resources="),
    ({"bytes_in_flight": "much"}, "a number with a unit"), ({"bytes_in_flight": 0}, "1 byte or more"),
    ({"start_timeout": 0}, "start_timeout=0"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "says"), WRONG)
def test_wrong_options_of_a_cluster(options: dict[str, Any], says: str) -> None:
    with pytest.raises(penstock.InvalidOption, match=says):
        Ray(**options)


def test_what_ray_is_asked_for() -> None:
    cluster = Ray(cpus=2.5, resources={"filler": 1}, bytes_in_flight="1MiB")
    assert (cluster.threads, cluster.limit, cluster.demand()) == (2, 1 << 20, "CPU 2.5, filler 1")
    assert cluster.placement()["max_restarts"] == 0
    assert (ray_of("ray"), ray_of("thread")) == (Ray(), None) and ray_of(cluster) is cluster


@pytest.mark.parametrize("method", ["ray", Ray()])
@pytest.mark.parametrize(
    ("dataset", "workers", "says"),
    [(rows(), None, "num_workers="), (rows(), 0, "num_workers="), (Stream(), 2, "map-style dataset: a Stream")],
)
def test_loaders_that_no_filler_can_work_for(dataset: Any, workers: int | None, says: str, method: Any) -> None:
    with pytest.raises(penstock.InvalidOption, match=says):
        penstock.DataLoader(dataset, num_workers=workers, worker_method=method)


def test_explain_says_what_will_be_asked_of_ray() -> None:
    native: Any = penstock.DataLoader(rows(), 4, num_workers=3, worker_method=Ray(cpus=2))
    asked = (
        "3 fillers will be requested from Ray when a pass begins; each takes CPU 2; at most 512 MiB of batches in "
        "flight"
    )
    first = "plan     3 fillers of a Ray cluster fill batches of 4 in place, in order"
    assert native.explain().splitlines()[:2] == [first, f"ray      {asked}"]
    own: Any = penstock.DataLoader(Made(), 4, num_workers=1, worker_method="ray")
    assert own.explain().startswith("plan     Python reads the dataset in 1 filler of a Ray cluster\nray      1 filler")


def test_an_engine_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(penstock.InvalidOption, match="engine='spark': it must be 'ray'"):
        penstock.pack(rows(), tmp_path / "out", engine="spark")  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def begin(work: str, folder: Path) -> None:
    if work == "pack":
        penstock.pack(rows(), folder / "out", engine="ray")
    else:
        iter(penstock.DataLoader(rows(), num_workers=1, worker_method="ray"))


@pytest.mark.parametrize("work", ["load", "pack"])
def test_ray_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, work: str) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(penstock.InvalidOption, match=r'pip install "penstock-loader\[ray\]"'):
        begin(work, tmp_path)


@needs_ray
@pytest.mark.parametrize("work", ["load", "pack"])
def test_no_cluster_answers(work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setenv("RAY_ADDRESS", address)  # nobody listens there any more
    with pytest.raises(penstock.ClusterUnreachable, match=f"no Ray cluster answers at {address}") as caught:
        begin(work, tmp_path)
    assert isinstance(caught.value, ConnectionError)
    with pytest.raises(penstock.ClusterUnreachable):
        connected(Ray(address))


def refused(versions: dict[str, str], *missing: Any) -> str:
    with pytest.raises(penstock.ClusterError, match=r"^filler 3 on node abc \(10\.0\.0\.9\) ") as caught:
        check(Facts(versions, "abc", "10.0.0.9", 1, *missing), "filler 3")
    return str(caught.value).partition(") ")[2]


def test_versions_that_differ_are_named() -> None:
    said = refused({**versions(), "torch": "1.0", "Python": "3.9"})
    assert said.startswith("has other versions than this process: Python 3")
    assert f"torch 1.0, and here {torch.__version__}" in said
    check(Facts(versions(), "abc", "10.0.0.9", 1), "filler 3")


def test_files_that_a_node_does_not_see_are_named(tmp_path: Path) -> None:
    for name in ("gone", "cut", "whole"):
        (tmp_path / name).write_bytes(b"content")
    files = files_of([str(tmp_path / name) for name in ("gone", "cut", "whole", "never", "gone")] + [None])
    assert len(files) == 3
    (tmp_path / "gone").unlink()
    (tmp_path / "cut").write_bytes(b"c")
    missing = unseen(files)
    assert len(missing) == 2
    said = refused(versions(), missing)
    assert f"does not see the files of this process: {tmp_path}/gone (No such file" in said and "and 1 more" in said


@needs_ray
def test_what_cannot_be_pickled_is_said() -> None:
    dataset: Any = Made()
    dataset.lock = threading.Lock()
    with pytest.raises(penstock.ClusterError, match=r"^Made, or what .* cannot be pickled \(TypeError: .*lock"):
        pickled((dataset, 1), dataset)


def in_new_memory(size: int) -> Memory:
    tensor = torch.empty(size, dtype=torch.uint8)
    return Memory(tensor, tensor.numpy())


def sent(value: Any) -> Any:
    return value_of(pieces_of(value), in_new_memory)


@needs_ray
@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in SAMPLES.items()])
def test_samples_arrive_as_they_were(make: Callable[[int], Any]) -> None:
    values = [make(i) for i in range(2)]
    assert_same(sent(values), values)


STRIDED = torch.arange(120.0).view(2, 3, 4, 5)


TENSORS = {
    "channels last": STRIDED.to(memory_format=torch.channels_last),
    "expanded": STRIDED.expand(7, 2, 3, 4, 5),
    "a part": STRIDED[:, 1:, ::2],
    "a thin part": torch.zeros(1000)[::100],
    "empty": torch.zeros(0, 3),
    "bfloat16": torch.zeros(2, dtype=torch.bfloat16),
    "0-d": torch.tensor(3),
    "sparse": torch.zeros(3).to_sparse(),
}


@needs_ray
@pytest.mark.parametrize("name", TENSORS)
def test_tensors_keep_their_strides(name: str) -> None:
    tensor, found = TENSORS[name], sent(TENSORS[name])
    assert (found.layout, found.dtype) == (tensor.layout, tensor.dtype)
    assert_same(*((found, tensor) if tensor.layout is torch.strided else (found.to_dense(), tensor.to_dense())))


@needs_ray
def test_tensors_are_received_where_the_receiver_says() -> None:
    mine: list[Memory] = []

    def allocate(size: int) -> Memory:
        mine.append(in_new_memory(size))
        return mine[-1]

    value = value_of(pieces_of({"x": torch.arange(6.0), "y": np.arange(3)}), allocate)
    assert [len(memory.tensor) for memory in mine] == [24]
    assert value["x"].data_ptr() == mine[0].tensor.data_ptr()
    value["y"][0] = 5  # it can be written to


@needs_ray
def test_what_was_sent_is_not_kept() -> None:
    tensor = torch.zeros(1000)
    alive, pieces = weakref.ref(tensor), pieces_of([tensor])
    del tensor, pieces
    assert alive() is None, "batch memory would not be used again before the garbage is collected"
