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
from tests.photos import noise_image
from tests.sample_datasets import Made, tensor_files

MIB, GIB, NONE = 1 << 20, 1 << 30, resource.RLIM_INFINITY


def write(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return str(root)


MUCH = HostMemory(16 * GIB, 10 * GIB)
CASES: dict[str, tuple[Check, State, str]] = {
    "all CPUs": (host.check_processors(Processors(8, 8)), State.OK, "8 CPUs usable"),
    "a wide quota": (host.check_processors(Processors(8, 8, quota=8.0)), State.OK, "8 CPUs usable"),
    "a narrow quota": (host.check_processors(Processors(8, 8, quota=2.0)), State.LOOK, "2 CPUs usable"),
    "a mask": (host.check_processors(Processors(64, 4)), State.LOOK, "4 CPUs usable"),
    "one CPU": (host.check_processors(Processors(1, 1)), State.LOOK, "1 CPU usable"),
    "a thread a CPU": (host.check_openmp(4, 4), State.OK, "torch uses 4"),
    "many threads": (host.check_openmp(64, 4), State.LOOK, "OMP_NUM_THREADS=4"),
    "one thread": (host.check_openmp(1, 0.5), State.OK, "torch uses 1"),
    "memory": (host.check_memory(HostMemory(16 * GIB, 8 * GIB)), State.OK, "8.0 GiB available of 16.0 GiB"),
    "little memory": (host.check_memory(HostMemory(16 * GIB, GIB)), State.LOOK, "few workers"),
    "no memory": (host.check_memory(HostMemory(16 * GIB, 100 * MIB)), State.BAD, "workers are killed"),
    "files that fit": (host.check_page_cache(MUCH, 8 * GIB, exact=True), State.OK, "the dataset's 8.0 GiB"),
    "many files": (host.check_page_cache(MUCH, 140 * GIB, exact=False), State.LOOK, "about 140.0 GiB"),
    "no /dev/shm": (host.check_shared_memory("/no/such/folder", 1, 2), State.BAD, "Mount a tmpfs"),
    "few open files": (host.check_open_files(256, 1 << 20), State.BAD, "ulimit -n 65536 "),
    "a low limit": (host.check_open_files(256, 4096), State.BAD, "ulimit -n 4096 "),
    "a lower limit": (host.check_open_files(256, 256), State.BAD, "hard limit"),
    "some open files": (host.check_open_files(800, NONE), State.LOOK, "ulimit -n 65536 "),
    "enough open files": (host.check_open_files(1024, 4096), State.OK, "1,024"),
    "any open files": (host.check_open_files(NONE, NONE), State.OK, "any number"),
    "a GPU": (host.check_gpus(["0: H100 with 80.0 GiB"], 1, "13.0"), State.OK, "1 GPU (0: H100"),
    "no GPU": (host.check_gpus([], 0, None), State.OK, "none"),
    "hidden GPUs": (host.check_gpus([], 2, "13.0"), State.BAD, "--gpus all"),
    "a torch without CUDA": (host.check_gpus([], 2, None), State.BAD, "Install a torch with CUDA"),
}


@pytest.mark.parametrize("name", CASES)
def test_how_a_property_stands(name: str) -> None:
    check, state, words = CASES[name]
    assert check.state is state and words in f"{check.found} {check.change} "
    assert check.found and bool(check.change) == (state is not State.OK)


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


def test_memory_below_a_limit(tmp_path: Path) -> None:
    meminfo = "MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable: 8388608 kB\n"
    (tmp_path / "meminfo").write_text(meminfo)
    limits_ = {"job/memory.current": "1000\n", "job/memory.max": f"{GIB}\n", "job/memory.events": "oom 3\noom_kill 2\n"}
    found = host.read_memory(str(tmp_path / "meminfo"), *group(tmp_path, limits_))
    assert found == HostMemory(16 * GIB, GIB, GIB, 2)
    check = host.check_memory(found)
    assert check.state is State.LOOK and "2 processes" in check.found and "1.0 GiB available" in check.found


def test_shared_memory_of_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    space = SimpleNamespace(f_frsize=1 << 20, f_blocks=64, f_bavail=64)
    monkeypatch.setattr(os, "statvfs", lambda _: space)
    check = host.check_shared_memory("/dev/shm", 4, 2)
    assert check.state is State.LOOK and "--shm-size" in check.change and "4 worker processes" in check.found
    space.f_blocks = space.f_bavail = 8192
    assert host.check_shared_memory("/dev/shm", 4, 2).state is State.OK


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
    assert check.state is expected and f"{folder} lies on {kind}" in check.found


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
