"""The checks of the machine, on machines that are built for them: folders in place of /proc and /sys, and numbers."""

from __future__ import annotations

import io
import os
import resource
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.insight import machine as host
from penstock.insight.machine import (
    Check,
    DatasetFiles,
    HostMemory,
    Processors,
    State,
    checked,
    dataset_files,
    examine,
)
from penstock.sources import ImageFolder, TensorFolder
from penstock.system.cgroup import cgroup_quota
from tests.photos import noise_image
from tests.sample_datasets import Made, tensor_files

MIB, GIB, NONE = 1 << 20, 1 << 30, resource.RLIM_INFINITY
GPU = "0: H100 with 80.0 GiB"


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
    assert cgroup_quota(*place) == 1  # a process cannot have fewer workers
    check = host.check_processors(found)
    assert check.state is State.BAD
    assert "0.5 CPU usable" in check.found and "--cpus=" in check.change


def test_quota_of_cgroup_v1(tmp_path: Path) -> None:
    files = {"cpu,cpuacct/x": "", "cpu/job/cpu.cfs_quota_us": "250000\n", "cpu/job/cpu.cfs_period_us": "100000\n"}
    place = group(tmp_path, files, "3:cpu,cpuacct:/job\n")
    assert host.read_processors(*place).quota == 2.5
    assert cgroup_quota(*place) == 3


def test_cpus() -> None:
    assert state(host.check_processors(Processors(8, 8))) is State.OK
    assert state(host.check_processors(Processors(8, 8, quota=8.0))) is State.OK
    assert state(host.check_processors(Processors(8, 8, quota=2.0))) is State.LOOK
    assert state(host.check_processors(Processors(8, 2))) is State.LOOK
    assert state(host.check_processors(Processors(1, 1))) is State.LOOK
    assert "4 CPUs usable" in host.check_processors(Processors(64, 4)).found


def test_threads_of_torch() -> None:
    assert state(host.check_openmp(4, 4)) is State.OK
    check = host.check_openmp(64, 4)
    assert check.state is State.LOOK and "OMP_NUM_THREADS=4" in check.change and "64" in check.found
    assert state(host.check_openmp(1, 0.5)) is State.OK


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


def test_shared_memory_of_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    space = SimpleNamespace(f_frsize=1 << 20, f_blocks=64, f_bavail=64)
    assert state(host.check_shared_memory("/no/such/folder", 1, 2)) is State.BAD
    monkeypatch.setattr(os, "statvfs", lambda _: space)
    check = host.check_shared_memory("/dev/shm", 4, 2)
    assert check.state is State.LOOK and "--shm-size" in check.change and "4 worker processes" in check.found
    space.f_blocks = space.f_bavail = 8192
    assert state(host.check_shared_memory("/dev/shm", 4, 2)) is State.OK


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
def test_open_files(soft: int, hard: int, expected: State, words: str) -> None:
    check = host.check_open_files(soft, hard)
    assert state(check) is expected and words in check.change + " "


# --- files ----------------------------------------------------------------------------------------------------------

MOUNTS = r"""
/dev/sda1 / ext4 rw,relatime 0 0
tmpfs /dev/shm tmpfs rw 0 0
server:/export /mnt/my\040data nfs4 rw 0 0
/dev/sdb /mnt/hidden ext4 rw 0 0
server: /mnt/hidden fuse.sshfs rw 0 0
overlay / overlay rw 0 0
"""


@pytest.mark.parametrize(
    ("folder", "kind", "expected"),
    [
        ("/", "overlay, mounted at /", State.OK),
        ("/dev/shm/x", "tmpfs, mounted at /dev/shm", State.OK),
        ("/mnt/my data", "nfs4", State.LOOK),
        ("/mnt/my data/a/b", "nfs4", State.LOOK),
        ("/mnt/my data2", "overlay", State.OK),
        ("/mnt/hidden/x", "fuse.sshfs", State.LOOK),
    ],
)
def test_file_systems(folder: str, kind: str, expected: State, tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text(MOUNTS.lstrip())
    check = host.check_file_system(folder, str(tmp_path / "mounts"))
    assert state(check) is expected and f"{folder} lies on {kind}" in check.found


# --- GPUs -----------------------------------------------------------------------------------------------------------


def test_gpus() -> None:
    assert state(host.check_gpus([GPU], 1, "13.0")) is State.OK
    assert state(host.check_gpus([], 0, None)) is State.OK
    assert "--gpus all" in host.check_gpus([], 2, "13.0").change
    assert host.check_gpus([], 2, None).state is State.BAD


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
