"""The checks of the machine, on machines that are built for them: folders in place of /proc and /sys, and numbers."""

from __future__ import annotations

import io
import os
import resource
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from penstock.insight import machine as host
from penstock.insight.machine import Check, DatasetFiles, State, checked, dataset_files, examine
from penstock.sources import ImageFolder, Images, TensorFolder
from tests.data import Made, photo_files, tensor_files
from tests.insight.penstock_processes import written

MIB, GIB, NONE = 1 << 20, 1 << 30, resource.RLIM_INFINITY


CASES: dict[str, tuple[Check, State, str]] = {
    "all CPUs": (host.check_processors(8, 8, None), State.OK, "8 CPUs usable"),
    "a wide quota": (host.check_processors(8, 8, 8.0), State.OK, "8 CPUs usable"),
    "a narrow quota": (host.check_processors(8, 8, 2.0), State.LOOK, "2 CPUs usable"),
    "half a CPU": (host.check_processors(8, 8, 0.5), State.BAD, "0.5 CPU usable: the machine has 8, "),
    "a quota to raise": (host.check_processors(8, 8, 0.5), State.BAD, "docker run --cpus="),
    "a mask": (host.check_processors(64, 4, None), State.LOOK, "4 CPUs usable"),
    "one CPU": (host.check_processors(1, 1, None), State.LOOK, "1 CPU usable"),
    "memory": (host.check_memory(16 * GIB, 8 * GIB), State.OK, "8.0 GiB available of 16.0 GiB"),
    "little memory": (host.check_memory(16 * GIB, GIB), State.LOOK, "few workers"),
    "no memory": (host.check_memory(16 * GIB, 100 * MIB), State.BAD, "workers are killed"),
    "files that fit": (host.check_page_cache(10 * GIB, 8 * GIB), State.OK, "the dataset's 8.0 GiB"),
    "many files": (host.check_page_cache(10 * GIB, 140 * GIB), State.LOOK, "the dataset's 140.0 GiB"),
    "no /dev/shm": (host.check_shared_memory("/no/such/folder", 1, 2), State.BAD, "Mount a tmpfs"),
    "few open files": (host.check_open_files(256, 1 << 20), State.BAD, "ulimit -n 65536 "),
    "a low limit": (host.check_open_files(256, 4096), State.BAD, "ulimit -n 4096 "),
    "a lower limit": (host.check_open_files(256, 256), State.BAD, "hard limit"),
    "some open files": (host.check_open_files(800, NONE), State.LOOK, "ulimit -n 65536 "),
    "enough open files": (host.check_open_files(1024, 4096), State.OK, "1,024"),
    "any open files": (host.check_open_files(NONE, NONE), State.OK, "any number"),
}


@pytest.mark.parametrize("name", CASES)
def test_how_a_property_stands(name: str) -> None:
    check, state, words = CASES[name]
    assert check.state is state and words in f"{check.found} {check.change} "
    assert check.found and bool(check.change) == (state is not State.OK)


def test_memory_below_a_limit(tmp_path: Path) -> None:
    limits = {"job/memory.current": "1000\n", "job/memory.max": f"{GIB}\n", "job/memory.events": "oom 3\noom_kill 2\n"}
    written(tmp_path / "cgroup", limits)
    table = "MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable: 8388608 kB\n"
    written(tmp_path, {"meminfo": table, "membership": "0::/job\n"})
    found = host.read_memory(*(str(tmp_path / name) for name in ("meminfo", "membership", "cgroup")))
    check = host.check_memory(*found)
    assert (found, check.state) == ((16 * GIB, GIB, GIB, 2), State.LOOK)
    assert "2 processes" in check.found and "1.0 GiB available" in check.found


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


def test_a_check_that_fails_is_unknown() -> None:
    def fail() -> Check:
        raise io.UnsupportedOperation("no such file here")

    check = checked("disk", fail)
    assert (check.name, check.state) == ("disk", State.UNKNOWN)
    assert "UnsupportedOperation: no such file here" in check.found


def test_the_whole_machine() -> None:
    names = [check.name for check in examine()]
    assert names[:3] == ["CPUs", "memory", "/dev/shm"]
    assert "open files" in names and "page cache" not in names


def test_all_missing_files_are_counted(tmp_path: Path) -> None:
    images = photo_files(tmp_path, 6, (8, 9), ("png",))
    paths = sorted(images.rglob("*.png"))
    for dataset in (ImageFolder(images), Images(paths, range(6)), torch.utils.data.DataLoader(ImageFolder(images))):
        assert dataset_files(dataset).checks == ()
    subset = torch.utils.data.Subset(Images([*paths, tmp_path / "x.png", tmp_path / "y.png"]), [7, 6, 6, 0])
    (check,) = dataset_files(subset).checks
    assert check.state is State.BAD and check in examine(dataset_files(subset))
    assert check.found == f"2 of 3 files are missing, the first: {tmp_path / 'y.png'}"
    for path in paths:
        path.unlink()
    assert dataset_files(Images(paths)).checks[0].found.startswith("6 of 6 files are missing")


def test_splits_are_no_classes(tmp_path: Path) -> None:
    for split in ("train", "val"):
        photo_files(tmp_path / split, 3, (8, 9), ("png",))
    (check,) = dataset_files(ImageFolder(tmp_path)).checks
    assert (check.name, check.found) == ("classes", "2 classes: train, val")
    assert check.change.endswith(f"such as {tmp_path / 'train'}.")
    assert dataset_files(ImageFolder(tmp_path / "train")).checks == ()


def test_what_concerns_a_dataset(tmp_path: Path) -> None:
    folder, images = tensor_files(tmp_path / "data", 10), photo_files(tmp_path / "images", 2, (8, 9), ("png",))
    size = sum(file.stat().st_size for file in folder.iterdir())
    assert dataset_files(TensorFolder(folder)) == DatasetFiles(str(folder), size)
    assert dataset_files(ImageFolder(images)).folder == str(images)
    assert dataset_files(Made()).folder is None
    names = [check.name for check in examine(DatasetFiles(None, 5 * MIB))]
    assert "page cache" in names
