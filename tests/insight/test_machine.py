"""The checks of the machine, on machines that are built for them: folders in place of /proc and /sys, and numbers."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from penstock.insight import machine as host
from penstock.insight.check import Check, State, checked
from penstock.insight.machine import DatasetFiles, Gpu, HostMemory, Processors, dataset_files, examine
from penstock.sources import ImageFolder, TensorFolder
from tests.photos import noise_image
from tests.sample_datasets import Made, tensor_files

MIB, GIB, NONE = 1 << 20, 1 << 30, float("inf")
GPU = Gpu(0, "H100", 80 * GIB, "0000:3b:00.0")


def write(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return str(root)


def state(check: Check) -> State:
    assert check.found
    assert check.change or check.state is not State.BAD
    return check.state


# --- CPUs ----------------------------------------------------------------------------------------------------------


def group(tmp_path: Path, files: dict[str, str], membership: str = "0::/job\n") -> tuple[str, str]:
    write(tmp_path / "cgroup", files)
    (tmp_path / "membership").write_text(membership)
    return str(tmp_path / "membership"), str(tmp_path / "cgroup")


def test_quota_of_half_a_cpu(tmp_path: Path) -> None:
    place = group(tmp_path, {"job/cpu.max": "50000 100000\n"})
    found = host.read_processors(*place)
    assert found.quota == 0.5
    check = host.check_processors(found)
    assert check.state is State.BAD
    assert "0.5 CPU usable" in check.found and "--cpus=" in check.change


def test_quota_of_cgroup_v1(tmp_path: Path) -> None:
    files = {"cpu,cpuacct/x": "", "cpu/job/cpu.cfs_quota_us": "250000\n", "cpu/job/cpu.cfs_period_us": "100000\n"}
    place = group(tmp_path, files, "3:cpu,cpuacct:/job\n")
    assert host.read_processors(*place).quota == 2.5


def test_cpus() -> None:
    assert state(host.check_processors(Processors(8, 8))) is State.OK
    assert state(host.check_processors(Processors(8, 8, quota=8.0))) is State.OK
    assert state(host.check_processors(Processors(8, 8, quota=2.0))) is State.LOOK
    assert state(host.check_processors(Processors(8, 2))) is State.LOOK
    assert state(host.check_processors(Processors(1, 1))) is State.LOOK
    assert "4 CPUs usable" in host.check_processors(Processors(64, 4)).found


def test_pools_of_threads() -> None:
    assert state(host.check_openmp([("openmp", 4)], 4)) is State.OK
    assert state(host.check_openmp([], 4)) is State.OK
    check = host.check_openmp([("openmp", 64), ("openblas", 4)], 4)
    assert check.state is State.LOOK and "OMP_NUM_THREADS=4" in check.change and "64" in check.found
    assert state(host.check_openmp([("openmp", 1)], 0.5)) is State.OK


# --- memory ----------------------------------------------------------------------------------------------------------


def test_memory_below_a_limit(tmp_path: Path) -> None:
    meminfo = "MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable: 8388608 kB\n"
    (tmp_path / "meminfo").write_text(meminfo)
    limits_ = {"job/memory.current": "1000\n", "job/memory.max": f"{GIB}\n", "job/memory.events": "oom 3\noom_kill 2\n"}
    found = host.read_memory(str(tmp_path / "meminfo"), *group(tmp_path, limits_))
    assert found == HostMemory(16 * GIB, GIB, GIB, 2)
    check = host.check_memory(found)
    assert check.state is State.LOOK and "2 processes" in check.found and "1.0 GiB available" in check.found


def test_memory() -> None:
    assert state(host.check_memory(HostMemory(16 * GIB, 8 * GIB))) is State.OK
    assert state(host.check_memory(HostMemory(16 * GIB, GIB))) is State.LOOK
    assert state(host.check_memory(HostMemory(16 * GIB, 100 * MIB))) is State.BAD


def test_page_cache() -> None:
    whole = HostMemory(16 * GIB, 10 * GIB)
    assert state(host.check_page_cache(whole, 8 * GIB, exact=True)) is State.OK
    check = host.check_page_cache(whole, 140 * GIB, exact=False)
    assert check.state is State.LOOK and "about 140.0 GiB" in check.found


# --- limits ----------------------------------------------------------------------------------------------------------


def test_shared_memory_of_docker() -> None:
    check = host.check_shared_memory((64 * MIB, 64 * MIB), 4, 2)
    assert check.state is State.LOOK and "--shm-size" in check.change and "4 worker processes" in check.found
    assert state(host.check_shared_memory((8 * GIB, 8 * GIB), 4, 2)) is State.OK
    assert state(host.check_shared_memory(None, 1, 2)) is State.BAD
    assert host.read_space("/no/such/folder") is None


@pytest.mark.parametrize(
    ("soft", "hard", "expected", "words"),
    [
        (256, 1 << 20, State.BAD, "ulimit -n 65536 "),
        (256, 4096, State.BAD, "ulimit -n 4096 "),
        (256, 256, State.BAD, "hard limit"),
        (800, NONE, State.LOOK, "ulimit -n 65536 "),
        (1024, 4096, State.OK, ""),
        (NONE, NONE, State.OK, ""),
    ],
)
def test_open_files(soft: float, hard: float, expected: State, words: str) -> None:
    check = host.check_open_files(soft, hard)
    assert state(check) is expected and words in check.change + " "


# --- files ----------------------------------------------------------------------------------------------------------

MOUNTS = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:21 / /dev/shm rw - tmpfs tmpfs rw
24 22 0:40 / /mnt/my\040data rw shared:2 master:1 - nfs4 server:/export rw
25 22 0:41 / /mnt/hidden rw - ext4 /dev/sdb rw
26 22 0:42 / /mnt/hidden rw - fuse.sshfs server: rw
27 22 0:43 / / rw - overlay overlay rw
broken line
"""


def test_mounts(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    table = str(tmp_path / "mountinfo")
    kinds = {
        path: host.mount_of(path, table)[0]
        for path in ("/", "/dev/shm/x", "/mnt/my data", "/mnt/my data/a/b", "/mnt/my data2", "/mnt/hidden/x")
    }
    assert list(kinds.values()) == ["overlay", "tmpfs", "nfs4", "nfs4", "overlay", "fuse.sshfs"]
    assert host.mount_of("/", str(tmp_path / "none")) == ("", "")
    assert host.mount_of("/")[1]  # of the machine that runs this test


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("ext4", State.OK),
        ("nfs4", State.LOOK),
        ("fuse.sshfs", State.LOOK),
        ("overlay", State.OK),
        ("tmpfs", State.OK),
    ],
)
def test_file_systems(kind: str, expected: State, tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text(f"22 1 8:1 / / rw - {kind} x rw\n")
    check = host.check_file_system("/data", str(tmp_path / "mountinfo"))
    assert state(check) is expected and kind in check.found


def test_file_system_without_a_table(tmp_path: Path) -> None:
    assert host.check_file_system("/data", str(tmp_path / "none")).state is State.UNKNOWN


# --- GPUs -----------------------------------------------------------------------------------------------------------


def test_gpus() -> None:
    assert state(host.check_gpus([GPU], 1, "13.0")) is State.OK
    assert state(host.check_gpus([], 0, None)) is State.OK
    assert "--gpus all" in host.check_gpus([], 2, "13.0").change
    assert host.check_gpus([], 2, None).state is State.BAD


def test_numa_nodes(tmp_path: Path) -> None:
    nodes = {"n/node0/cpulist": "0-3,8\n", "n/node1/cpulist": "4-7,9-11\n", f"d/{GPU.address}/numa_node": "1\n"}
    write(tmp_path, nodes)
    places = (str(tmp_path / "d"), str(tmp_path / "n"))
    assert host.read_node(GPU, *places) == (1, {4, 5, 6, 7, 9, 10, 11})
    check = host.check_node(GPU, *places, {0, 1, 2})
    assert check.state is State.LOOK and "--cpunodebind=1" in check.change
    assert state(host.check_node(GPU, *places, {3, 4})) is State.OK
    write(tmp_path, {f"d/{GPU.address}/numa_node": "-1\n"})
    assert host.read_node(GPU, *places) is None and state(host.check_node(GPU, *places, {0})) is State.OK


# --- all of them -----------------------------------------------------------------------------------------------------


def test_a_check_that_fails_is_unknown() -> None:
    def fail() -> Check:
        raise io.UnsupportedOperation("no such file here")

    check = checked("disk", fail)
    assert (check.name, check.state) == ("disk", State.UNKNOWN)
    assert "UnsupportedOperation: no such file here" in check.found


def test_the_whole_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    names = [check.name for check in examine()]
    assert names[:3] == ["CPUs", "OpenMP threads", "memory"]
    assert {"/dev/shm", "open files", "file system", "GPU"} <= set(names)
    assert "page cache" not in names
    assert os.listdir(tmp_path) == []


def test_what_concerns_a_dataset(tmp_path: Path) -> None:
    folder = tensor_files(tmp_path / "data", 5)
    found = dataset_files(TensorFolder(folder))
    size = sum(file.stat().st_size for file in folder.iterdir())
    assert (found.folder, found.bytes, found.exact) == (str(folder), size, True)
    images = tmp_path / "images"
    for kind in ("cat", "dog"):
        (images / kind).mkdir(parents=True)
        noise_image(1, 8, 8).save(images / kind / "1.png")
    assert dataset_files(ImageFolder(images)).folder == str(images)
    assert dataset_files(Made()).folder is None
    names = [check.name for check in examine(DatasetFiles(None, 5 * MIB))]
    assert "page cache" in names and "GPU" not in names


def test_bytes_of_many_files_are_those_of_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tensor_files(tmp_path / "data", 10)
    monkeypatch.setattr("penstock.insight.machine.LOOKED_AT", 3)
    found = dataset_files(TensorFolder(folder))
    assert not found.exact and found.bytes == sum(file.stat().st_size for file in folder.iterdir())
