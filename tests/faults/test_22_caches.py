"""Row 22: cache tiers and index files: `kill -9` at every write, power loss after any system call, several processes at
once, a disk that is full, flipped bytes, files that are cut off, grown, exchanged or gone, also while they are read.

Never wrong data, never a signal: damaged data is read from its source again.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import os
import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.faults import caches, injection, power_loss
from tests.faults.caches import Cache
from tests.faults.conftest import Count
from tests.forking import assert_ended_well, assert_in_child, begin_in_child, end_of
from tests.packing.packed import flip_bit

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
Cases = Callable[[int], None]
#: The calls that write, by the kind of cache that makes them.
CALLS = {
    "files": ["ftruncate", "pwrite64", "write"],
    "pixels": ["pwrite64", "write"],
    "shards": ["fallocate", "pwrite64", "fsync", "renameat"],
    "states": ["ftruncate", "pwrite64"],
    "names": ["write", "rename"],
}

Damage = Callable[[Path, random.Random], object]


def flip(path: Path, chance: random.Random) -> None:
    flip_bit(path, chance.randrange(path.stat().st_size))


def exchange(path: Path, chance: random.Random) -> None:
    others = [other for other in path.parent.iterdir() if other != path and other.stat().st_size]
    path.write_bytes(chance.choice(others).read_bytes() if others else b"")


def forget_half(path: Path, chance: random.Random) -> None:
    data = path.read_bytes()
    at = chance.randrange(len(data))
    path.write_bytes(data[:at] + bytes(len(data) - at))


DAMAGES: dict[str, Damage] = {
    "one bit": flip,
    "cut off": lambda path, chance: os.truncate(path, chance.randrange(path.stat().st_size)),
    "empty": lambda path, chance: os.truncate(path, 0),
    "grown": lambda path, chance: path.write_bytes(path.read_bytes() + chance.randbytes(1 + chance.randrange(5000))),
    "noise": lambda path, chance: path.write_bytes(chance.randbytes(path.stat().st_size)),
    "zeros": lambda path, chance: path.write_bytes(bytes(path.stat().st_size)),
    "zeros from somewhere on": forget_half,
    "another file": exchange,
    "gone": lambda path, chance: path.unlink(),
}


@pytest.fixture(params=caches.KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def cache(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cache]:
    with caches.made(kind, tmp_path / "data", monkeypatch) as cache:
        yield cache


def read_right(cache: Cache, home: Path) -> None:
    """Assert that two passes are right, of which the first keeps what was damaged anew."""
    for _ in range(2):
        assert cache.read(home) == cache.wanted


def check(cache: Cache, home: Path) -> None:
    """Assert that passes are right, and that a folder of shards then holds whole ones only, and not over its limit."""
    read_right(cache, home)
    assert not list(home.rglob("*.part"))
    assert sum(path.stat().st_size for path in home.rglob("*.shard")) <= caches.LIMIT


@pytest.mark.timeout(900)
def test_killed_at_every_write(kind: str, cache: Cache, tmp_path: Path, full: bool, cases: Cases) -> None:
    killed = 0
    for call in CALLS[kind] if full else CALLS[kind][-1:]:
        home, before = tmp_path / call, killed
        step = (lambda number: number + 1) if full else (lambda number: 3 * number + 1)
        for _ in injection.each_fault(partial(cache.read, home), f"{call}:signal=SIGKILL", -9, step=step):
            check(cache, home)
            shutil.rmtree(home)
            killed += 1
        assert killed > before
    cases(killed)


@pytest.mark.timeout(900)
def test_power_loss(cache: Cache, tmp_path: Path, full: bool, cases: Cases) -> None:
    home, number = tmp_path / "home", 0
    home.mkdir()
    shutil.copytree(home, tmp_path / "began")
    calls = power_loss.record(partial(cache.read, home), home, tmp_path / "log")
    assert len(calls) > 5
    disk = power_loss.Disk(home, tmp_path / "began")
    for what, state, _ in power_loss.states(disk, calls, tmp_path / "state", every=1 if full else len(calls) // 4):
        for path in state.rglob("*"):
            path.chmod(0o700 if path.is_dir() else 0o600)
        try:
            check(cache, state)
        except Exception as error:
            raise AssertionError(what) from error
        number += 1
    cases(number)


def test_several_processes(cache: Cache, tmp_path: Path, tries: Count) -> None:
    for number in range(tries(1, 20)):
        home = tmp_path / f"home{number}"
        children = [begin_in_child(partial(read_right, cache, home)) for _ in range(3)]
        for child in children:
            assert_ended_well(child)
        check(cache, home)


def filled(cache: Cache, home: Path) -> list[Path]:
    """Fill a cache, and return its files that hold something."""
    check(cache, home)
    return sorted(path for path in home.rglob("*") if path.is_file() and path.stat().st_size)


@pytest.mark.timeout(900)
def test_damaged_files(cache: Cache, tmp_path: Path, tries: Count) -> None:
    chance, home = random.Random(22), tmp_path / "home"
    files = filled(cache, home)
    shutil.copytree(home, tmp_path / "whole")
    for number in range(tries(9, 360)):
        path, what = chance.choice(files), list(DAMAGES)[number % len(DAMAGES)]
        DAMAGES[what](path, chance)
        try:
            check(cache, home)
        except Exception as error:
            raise AssertionError(f"{path.name}: {what}") from error
        shutil.rmtree(home)
        shutil.copytree(tmp_path / "whole", home)


@pytest.mark.parametrize("what", ["cut off", "empty", "noise", "zeros", "gone"])
def test_damage_while_they_are_read(what: str, cache: Cache, tmp_path: Path) -> None:
    home = tmp_path / "home"
    files = [path for path in filled(cache, home) if ".npy-" not in path.name]  # of an index, which is checked once

    def read() -> None:
        os.environ["XDG_CACHE_HOME"] = str(home)
        batches, chance = iter(cache.open(home)), random.Random(22)
        first = caches.digest(next(batches))
        for path in files:
            with contextlib.suppress(FileNotFoundError):  # a shard that made way for others
                DAMAGES[what](path, chance)
        assert [first, *map(caches.digest, batches)] == cache.wanted
        check(cache, home)

    assert_in_child(read)


def mount_small(folder: Path) -> bool:
    """Have this process see a file system of 256 KiB in a folder; False: it may not."""
    user, group, libc = os.geteuid(), os.getegid(), ctypes.CDLL(None)
    if libc.unshare(0x10000000 | 0x20000):  # CLONE_NEWUSER, CLONE_NEWNS
        return False
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    return not libc.mount(b"tmpfs", bytes(folder), b"tmpfs", 0, b"size=256k")


@pytest.mark.parametrize("pages", range(12))
def test_a_full_disk(pages: int, cache: Cache, tmp_path: Path, only_full: Any) -> None:
    """Full before the cache is opened, while it is made, or behind its first samples: a page more each time."""
    only_full(pages % 4)
    disk = tmp_path / "disk"
    disk.mkdir()

    def read() -> None:
        if not mount_small(disk):
            os._exit(77)
        disk.chmod(0o700)
        with (disk / "filler").open("wb", buffering=0) as file:
            while os.statvfs(disk).f_bavail > pages:
                file.write(b"x" * 4096)
        for _ in range(2):
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                try:
                    assert cache.read(disk / "home") == cache.wanted
                except OSError as error:  # shards of a store are read from here only
                    assert error.errno == errno.ENOSPC and str(disk) in str(error), repr(error)
            assert len(warned) <= 1, [str(one.message) for one in warned]
        gc.collect()  # a pass that ended by an error holds its shards
        (disk / "filler").unlink()
        check(cache, disk / "home")

    ended = end_of(begin_in_child(read))
    if ended == 77:
        pytest.skip("a small file system takes a mount")
    assert ended == 0
