"""The checks of the machine, on machines that are built for them: folders in place of /proc and /sys, and numbers."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest

from penstock.insight.check import Check, State, checked
from penstock.insight.dataset_files import dataset_files
from penstock.insight.machine import accelerator, examine, files, limits, memory, processors
from penstock.insight.machine.accelerator import Gpu, Link
from penstock.insight.machine.files import ReadRate
from penstock.insight.machine.limits import Planned
from penstock.insight.machine.memory import HostMemory
from penstock.insight.machine.processors import Pool, Processors
from penstock.sources import ImageFolder, TensorFolder
from penstock.system.cgroup import cgroup_quota
from penstock.system.mounts import Mount, mount_of
from tests.photos import noise_image
from tests.sample_datasets import Made, tensor_files

MIB, GIB = 1 << 20, 1 << 30
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
    stat = "usage_usec 12\nnr_periods 100\nnr_throttled 80\nthrottled_usec 9\n"
    place = group(tmp_path, {"job/cpu.max": "50000 100000\n", "job/cpu.stat": stat})
    found = processors.read_processors(*place)
    assert (found.quota, found.throttled) == (0.5, 0.8)
    assert cgroup_quota(*place) == 1  # a process cannot have fewer workers
    check = processors.check_processors(found)
    assert check.state is State.BAD
    assert "0.5 CPU usable" in check.found and "80%" in check.found and "--cpus=" in check.change


def test_quota_of_cgroup_v1(tmp_path: Path) -> None:
    files = {"cpu,cpuacct/x": "", "cpu/job/cpu.cfs_quota_us": "250000\n", "cpu/job/cpu.cfs_period_us": "100000\n"}
    place = group(tmp_path, files, "3:cpu,cpuacct:/job\n")
    assert processors.read_processors(*place).quota == 2.5
    assert cgroup_quota(*place) == 3


def test_cpus() -> None:
    assert state(processors.check_processors(Processors(8, 8))) is State.OK
    assert state(processors.check_processors(Processors(8, 8, quota=8.0, throttled=0.0))) is State.OK
    assert state(processors.check_processors(Processors(8, 8, quota=2.0))) is State.LOOK
    assert state(processors.check_processors(Processors(8, 2))) is State.LOOK
    assert state(processors.check_processors(Processors(1, 1))) is State.LOOK
    assert "4 CPUs usable" in processors.check_processors(Processors(64, 4)).found


def test_pools_of_threads() -> None:
    assert state(processors.check_openmp([Pool("openmp", 4)], 4, None)) is State.OK
    assert state(processors.check_openmp([], 4, None)) is State.OK
    check = processors.check_openmp([Pool("openmp", 64), Pool("openblas", 4)], 4, "64")
    assert check.state is State.LOOK and "OMP_NUM_THREADS=4" in check.change and "64" in check.found
    assert state(processors.check_openmp([Pool("openmp", 1)], 0.5, None)) is State.OK


def test_opencv_threads() -> None:
    assert state(processors.check_opencv(None, "fork")) is State.OK
    assert state(processors.check_opencv(0, "fork")) is State.OK
    assert state(processors.check_opencv(1, "fork")) is State.OK
    assert "setNumThreads(0)" in processors.check_opencv(8, "fork").change


def test_start_method_and_gil() -> None:
    assert state(processors.check_start_method("fork")) is State.OK
    assert state(processors.check_start_method("spawn")) is State.LOOK
    assert state(processors.check_gil(False, True)) is State.OK
    assert state(processors.check_gil(True, False)) is State.OK
    assert state(processors.check_gil(True, True)) is State.LOOK


# --- memory ----------------------------------------------------------------------------------------------------------


def test_memory_below_a_limit(tmp_path: Path) -> None:
    meminfo = "MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable: 8388608 kB\nSwapTotal: 2097152 kB\nSwapFree: 0 kB\n"
    (tmp_path / "meminfo").write_text(meminfo)
    limits_ = {"job/memory.current": "1000\n", "job/memory.max": f"{GIB}\n", "job/memory.events": "oom 3\noom_kill 2\n"}
    found = memory.read_memory(str(tmp_path / "meminfo"), *group(tmp_path, limits_))
    assert found == HostMemory(16 * GIB, GIB, 2 * GIB, 2 * GIB, GIB, 2)
    check = memory.check_memory(found)
    assert check.state is State.LOOK and "2 processes" in check.found and "1.0 GiB available" in check.found
    assert state(memory.check_swap(found)) is State.LOOK


def test_memory() -> None:
    assert state(memory.check_memory(HostMemory(16 * GIB, 8 * GIB))) is State.OK
    assert state(memory.check_memory(HostMemory(16 * GIB, GIB))) is State.LOOK
    assert state(memory.check_memory(HostMemory(16 * GIB, 100 * MIB))) is State.BAD
    assert state(memory.check_swap(HostMemory(16 * GIB, 8 * GIB))) is State.OK
    assert state(memory.check_swap(HostMemory(16 * GIB, 8 * GIB, 2 * GIB, MIB))) is State.OK


def test_page_cache() -> None:
    host = HostMemory(16 * GIB, 10 * GIB)
    assert state(memory.check_page_cache(host, 8 * GIB, exact=True)) is State.OK
    check = memory.check_page_cache(host, 140 * GIB, exact=False)
    assert check.state is State.LOOK and "about 140.0 GiB" in check.found


# --- limits ----------------------------------------------------------------------------------------------------------


def test_shared_memory_of_docker() -> None:
    space = (64 * MIB, 64 * MIB)
    check = limits.check_shared_memory(space, Planned(4, 2, 37 * MIB))
    assert check.state is State.BAD and "--shm-size" in check.change and "370 MiB" in check.found
    assert state(limits.check_shared_memory(space, limits.usual_plan(4))) is State.LOOK
    assert state(limits.check_shared_memory(space, Planned(4, 2, MIB))) is State.OK
    assert state(limits.check_shared_memory((8 * GIB, 8 * GIB), limits.usual_plan(4))) is State.OK
    assert state(limits.check_shared_memory(None, Planned(1, 2, 1))) is State.BAD
    assert limits.read_shared_memory("/no/such/folder") is None


@pytest.mark.parametrize(
    ("soft", "hard", "expected", "words"),
    [
        (256, 1 << 20, State.BAD, "ulimit -n 65536 "),
        (256, 4096, State.BAD, "ulimit -n 4096 "),
        (256, 256, State.BAD, "hard limit"),
        (800, -1, State.LOOK, "ulimit -n 65536 "),
        (1024, 4096, State.OK, ""),
        (-1, -1, State.OK, ""),
    ],
)
def test_open_files(soft: int, hard: int, expected: State, words: str) -> None:
    check = limits.check_open_files(soft, hard)
    assert state(check) is expected and words in check.change + " "


def test_locked_memory(tmp_path: Path) -> None:
    assert state(limits.check_locked_memory(64 << 10, False)) is State.OK
    assert state(limits.check_locked_memory(64 << 10, True)) is State.LOOK
    assert state(limits.check_locked_memory(-1, True)) is State.OK
    assert limits.read_locked_memory(str(tmp_path / "none"))[1] is False
    write(tmp_path, {"infiniband/mlx5_0": ""})
    assert limits.read_locked_memory(str(tmp_path / "infiniband"))[1] is True


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
        path: getattr(mount_of(path, table), "kind", None)
        for path in ("/", "/dev/shm/x", "/mnt/my data", "/mnt/my data/a/b", "/mnt/my data2", "/mnt/hidden/x")
    }
    assert list(kinds.values()) == ["overlay", "tmpfs", "nfs4", "nfs4", "overlay", "fuse.sshfs"]
    assert mount_of("/", str(tmp_path / "none")) is None
    assert mount_of("/") is not None  # of the machine that runs this test


@pytest.mark.parametrize(
    ("kind", "rotates", "expected"),
    [
        ("ext4", False, State.OK),
        ("ext4", None, State.OK),
        ("xfs", True, State.OK),
        ("nfs4", None, State.LOOK),
        ("fuse.sshfs", None, State.LOOK),
        ("overlay", None, State.OK),
        ("tmpfs", None, State.OK),
    ],
)
def test_file_systems(kind: str, rotates: bool | None, expected: State) -> None:
    check = files.check_file_system("/data", Mount("/", kind, "x", "0:1"), rotates)
    assert state(check) is expected and kind in check.found


def test_file_system_without_a_table() -> None:
    assert files.check_file_system("/data", None, None).state is State.UNKNOWN


def test_rotating_disk(tmp_path: Path) -> None:
    write(tmp_path, {"mountinfo": MOUNTS, "disk/queue/rotational": "1\n", "disk/part/x": "", "dev/x": ""})
    (tmp_path / "dev" / "0:43").symlink_to(tmp_path / "disk" / "part")
    assert files.read_mount("/x", str(tmp_path / "mountinfo"), str(tmp_path / "dev"))[1] is True
    assert files.read_mount("/dev/shm", str(tmp_path / "mountinfo"), str(tmp_path / "dev"))[1] is None


def rate(sequence: float, latency: float = 1e-4, cold: bool | None = True) -> ReadRate:
    return ReadRate(sequence, latency, cold, 64 * MIB)


def test_read_rates() -> None:
    disk = Mount("/", "ext4", "/dev/sda", "8:1")
    assert state(files.check_read_rate("/data", disk, rate(GIB))) is State.OK
    assert state(files.check_read_rate("/data", disk, rate(20 * MIB))) is State.LOOK
    assert state(files.check_read_rate("/data", disk, rate(GIB, 0.02))) is State.LOOK
    kept = files.check_read_rate("/data", disk, rate(9 * GIB, cold=False))
    assert kept.state is State.UNKNOWN and "no rate of the disk" in kept.found
    assert files.check_read_rate("/data", disk, rate(9 * GIB, cold=None)).state is State.UNKNOWN
    assert files.check_read_rate("/data", disk, None).state is State.UNKNOWN
    assert state(files.check_read_rate("/dev/shm", Mount("/dev/shm", "tmpfs", "x", "0:2"), None)) is State.OK


def test_a_measured_folder_holds_nothing_afterwards(tmp_path: Path) -> None:
    found = files.read_rate(str(tmp_path), most=2 * MIB)
    assert found is not None and found.sequence > 0 and found.latency > 0 and found.file_bytes == 2 * MIB
    assert os.listdir(tmp_path) == []


def test_a_slow_disk_takes_bounded_time(tmp_path: Path) -> None:
    """Each look at this clock takes half a second: after three of them no more is written, or read."""
    times = iter(range(10_000))
    found = files.read_rate(str(tmp_path), most=64 * MIB, clock=lambda: next(times) / 2)
    assert found is not None and found.file_bytes <= 3 * files.WRITTEN
    assert next(times) < 40


def test_no_space_for_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = os.statvfs(tmp_path)
    full = os.statvfs_result([space.f_bsize, space.f_frsize, space.f_blocks, 9, 9, *list(space)[5:]])
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    assert files.read_rate(str(tmp_path)) is None


def test_a_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    monkeypatch.setattr(files, "read_mount", lambda _: (Mount("/", "ext4", "x", "8:1"), None))
    checks = {check.name: check for check in examine._folder("/")}
    assert checks["cold reads"].state is State.UNKNOWN and "Permission denied" in checks["cold reads"].found


# --- GPUs -----------------------------------------------------------------------------------------------------------


def test_gpus(tmp_path: Path) -> None:
    assert state(accelerator.check_gpus([GPU], 1, "13.0")) is State.OK
    assert state(accelerator.check_gpus([], 0, None)) is State.OK
    assert "--gpus all" in accelerator.check_gpus([], 2, "13.0").change
    assert accelerator.check_gpus([], 2, None).state is State.BAD
    bus = {"a/vendor": "0x10de\n", "a/class": "0x030200\n", "b/vendor": "0x10de\n", "b/class": "0x040300\n", "c/x": ""}
    assert accelerator.read_installed(write(tmp_path, bus)) == 1


def link(tmp_path: Path, width: str, most: str = "16") -> Link | None:
    names = ("current_link_width", "max_link_width", "current_link_speed", "max_link_speed")
    values = (width, most, "2.5 GT/s PCIe\n", "16.0 GT/s PCIe\n")
    folder = {f"{GPU.address}/{name}": text for name, text in zip(names, values, strict=True)}
    return accelerator.read_link(str(GPU.address), write(tmp_path, folder))


@pytest.mark.parametrize(("width", "expected"), [("16", State.OK), ("8", State.LOOK), ("4", State.BAD)])
def test_links(width: str, expected: State, tmp_path: Path) -> None:
    check = accelerator.check_link(GPU, link(tmp_path, width))
    assert state(check) is expected and f"x{width} of x16" in check.found


def test_links_that_nobody_knows(tmp_path: Path) -> None:
    assert link(tmp_path, "Unknown") is None
    assert link(tmp_path, "0") is None
    assert accelerator.read_link("0000:00:00.0", str(tmp_path)) is None
    assert accelerator.check_link(GPU, None).state is State.UNKNOWN


def test_copies() -> None:
    wide = Link(16, 16, 16.0, 16.0)
    assert 31e9 < wide.rate < 32e9  # what is said of PCIe 4.0 x16
    assert state(accelerator.check_pinned(GPU, 25e9, wide)) is State.OK
    assert state(accelerator.check_pinned(GPU, 6e9, wide)) is State.LOOK
    assert state(accelerator.check_pinned(GPU, 6e9, None)) is State.OK


def test_numa_nodes(tmp_path: Path) -> None:
    nodes = {"n/node0/cpulist": "0-3,8\n", "n/node1/cpulist": "4-7,9-11\n", f"d/{GPU.address}/numa_node": "1\n"}
    write(tmp_path, nodes)
    node = accelerator.read_node(str(GPU.address), str(tmp_path / "d"), str(tmp_path / "n"))
    assert node == (1, frozenset({4, 5, 6, 7, 9, 10, 11}))
    check = accelerator.check_node(GPU, node, frozenset({0, 1, 2}))
    assert check.state is State.LOOK and "--cpunodebind=1" in check.change
    assert state(accelerator.check_node(GPU, node, frozenset({3, 4}))) is State.OK
    write(tmp_path, {f"d/{GPU.address}/numa_node": "-1\n"})
    unknown = accelerator.read_node(str(GPU.address), str(tmp_path / "d"), str(tmp_path / "n"))
    assert unknown is None and state(accelerator.check_node(GPU, unknown, frozenset({0}))) is State.OK


# --- all of them -----------------------------------------------------------------------------------------------------


def test_a_check_that_fails_is_unknown() -> None:
    def fail() -> None:
        raise io.UnsupportedOperation("no such file here")

    check = checked("disk", lambda _: Check("disk", State.OK, ""), fail)
    assert (check.name, check.state) == ("disk", State.UNKNOWN)
    assert "UnsupportedOperation: no such file here" in check.found


def test_the_whole_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(files, "MOST", MIB)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    names = [check.name for check in examine.examine()]
    assert names[:3] == ["CPUs", "OpenMP threads", "OpenCV threads"]
    assert {"memory", "/dev/shm", "open files", "locked memory", "file system", "cold reads", "GPU", "GIL"} <= set(
        names
    )
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
    names = [check.name for check in examine.examine(examine.DatasetFiles(None, 5 * MIB))]
    assert "page cache" in names and "GPU" not in names and "cold reads" not in names


def test_bytes_of_many_files_are_those_of_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tensor_files(tmp_path / "data", 10)
    monkeypatch.setattr("penstock.insight.dataset_files.LOOKED_AT", 3)
    found = dataset_files(TensorFolder(folder))
    assert not found.exact and found.bytes == sum(file.stat().st_size for file in folder.iterdir())
