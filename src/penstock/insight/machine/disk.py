"""Checks of a folder: the kind of its file system, and how fast it gives bytes that are not in memory."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import BinaryIO, NamedTuple

from penstock.insight.check import Check, State, judged
from penstock.system.words import size_of

#: The kernel's table of mounts; file systems in memory, and those whose bytes come over a network.
TABLE = "/proc/self/mountinfo"
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
REMOTE = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "ceph", "glusterfs", "gpfs", "beegfs", "afs", "wekafs")
#: The most bytes of the file that is written and read, and the share of the free space that it may take.
MOST, SHARE = 64 << 20, 0.1
#: Seconds that writing, reading in sequence and reading small parts may take, each.
SECONDS = 1.0
#: Bytes of one write, of one read in sequence, and of one of a small part: about a photo or a tensor.
WRITTEN, IN_SEQUENCE, PART = 4 << 20, 1 << 20, 64 << 10
#: A disk below this rate in bytes a second, or above this latency in seconds, holds up most training loops.
SLOW, LATE = 100 << 20, 0.005


def mount_of(path: str, table: str = TABLE) -> tuple[str, str]:
    """Return (the file system's kind, the folder that it is mounted at) of a path: proc_pid_mountinfo(5).

    Both are empty where the system does not say.
    """
    try:
        with open(table, encoding="utf-8", errors="surrogateescape") as file:
            lines = [line.split() for line in file]
    except OSError:
        return "", ""
    resolved, kind, point = os.path.realpath(path), "", ""
    for words in lines:
        if "-" not in words[6:] or len(words) < 10:
            continue
        mounted = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), words[4])  # spaces are octal numbers
        below = resolved == mounted or resolved.startswith(mounted.rstrip("/") + "/")
        if below and len(mounted) >= len(point):  # a later mount covers an earlier one at the same point
            kind, point = words[words.index("-", 6) + 1], mounted
    return kind, point


def check_file_system(folder: str, table: str = TABLE) -> Check:
    """Check the kind of a folder's file system."""
    name, (kind, point) = "file system", mount_of(folder, table)
    if not kind:
        return Check(name, State.UNKNOWN, f"{folder}: /proc/self/mountinfo does not say what it lies on")
    words = f"{folder} lies on {kind}, mounted at {point}"
    if kind in REMOTE:
        change = (
            "Pack many small files into shards (penstock pack), keep them on a local disk (cache=FOLDER), or copy "
            "them: each file costs round trips over the network."
        )
        return judged(name, f"{words}: over a network", change)
    if kind.startswith("fuse") or kind in ("9p", "virtiofs", "vboxsf"):
        change = "Copy the files to a disk of this machine: each call passes through another program."
        return judged(name, f"{words}: through a program in user space or a host", change)
    more = ": in memory" if kind in IN_MEMORY else ": a container's own layers" if kind == "overlay" else ""
    return judged(name, words + more)


# --- cold reads ------------------------------------------------------------------------------------------------------


class ReadRate(NamedTuple):
    """How fast a folder gives bytes."""

    sequence: float
    """Bytes a second, of one reader that reads from the beginning to the end."""
    latency: float
    """Seconds until a part of 64 KiB is here, of one reader."""
    cold: bool
    """Whether the file system says that the bytes were not in the page cache."""
    file_bytes: int
    """Size of the file."""


def check_cold_reads(folder: str, table: str = TABLE) -> Check:
    """Measure how fast a folder's file system gives bytes that are not in memory."""
    name, (kind, _) = "cold reads", mount_of(folder, table)
    if kind in IN_MEMORY:
        return judged(name, f"{folder} lies in memory ({kind}): there is no disk to read")
    try:
        rate = read_rate(folder, MOST)
    except OSError as error:
        return Check(name, State.UNKNOWN, f"no file to measure with could be written to {folder}: {error}")
    if rate is None:
        words = f"{folder} has no space for a file of {size_of(PART * 16)} to measure with"
        return Check(name, State.UNKNOWN, words, "Free some space.")
    return check_rate(folder, rate)


def check_rate(folder: str, rate: ReadRate) -> Check:
    """Check the rate of cold reads in a folder."""
    words = (
        f"{size_of(int(rate.sequence))}/s in sequence, {rate.latency * 1e3:.2g} ms for 64 KiB, one reader, a new file "
        f"of {size_of(rate.file_bytes)} in {folder}"
    )
    if not rate.cold:
        words += ": the file system may have kept the file in memory, so that this may be no rate of the disk"
    if rate.sequence >= SLOW and rate.latency <= LATE:
        return Check("cold reads", State.OK if rate.cold else State.UNKNOWN, words)
    change = (
        "More readers help where latency is the limit (Penstock starts them by itself); packed shards (penstock pack) "
        "where there are many small files; a faster disk, or cache=FOLDER on one, where the rate is."
    )
    return judged("cold reads", words, change)


def read_rate(folder: str, most: int = MOST, clock: Callable[[], float] = time.perf_counter) -> ReadRate | None:
    """Return how fast a new file in a folder is read, after the page cache has dropped it; None: there is no space.

    The file has no name, or loses it at once, so that nothing of it stays. It takes at most a tenth of the free space,
    and writing and reading it takes some seconds at most. The disk's own cache, or a host's, may still hold it. Raises
    OSError. most: bytes of the file.
    """
    space = os.statvfs(folder)
    size = min(most, int(space.f_bavail * space.f_frsize * SHARE)) // PART * PART
    if size < PART * 16:
        return None
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        written = _write(file, size, clock)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        cold = _dropped(file.fileno(), written)
        half = written // 2 // PART * PART
        block = min(IN_SEQUENCE, half)
        reads, seconds = _read(file.fileno(), range(0, half - block + 1, block), block, clock)
        os.posix_fadvise(file.fileno(), half, written - half, os.POSIX_FADV_RANDOM)
        apart = [offset for first in range(7) for offset in range(half + first * PART, written, 7 * PART)]
        parts, longer = _read(file.fileno(), apart, PART, clock)
    return ReadRate(reads * block / seconds, longer / parts, cold, written)


def _write(file: BinaryIO, size: int, clock: Callable[[], float]) -> int:
    """Write up to so many bytes, and have the disk take them; return how many."""
    deadline, written, bytes_ = clock() + SECONDS, 0, min(WRITTEN, size)
    while written + bytes_ <= size and (not written or clock() < deadline):
        rest = memoryview(os.urandom(bytes_))  # of noise: a disk may compress, or store equal blocks once
        while rest:
            rest = rest[file.write(rest) :]
        os.fdatasync(file.fileno())
        written += bytes_
    return written


def _dropped(descriptor: int, size: int) -> bool:
    """Return whether the page cache holds nothing of a file, as far as its file system says so."""
    for offset in (0, size // 2 // PART * PART, size - PART):
        try:
            os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT)
        except BlockingIOError:
            continue
        except OSError:
            pass
        return False
    return True


def _read(descriptor: int, offsets: Iterable[int], size: int, clock: Callable[[], float]) -> tuple[int, float]:
    """Read so many bytes at each offset, as far as the time allows; return the number of reads, and their seconds."""
    begun, reads, buffer = clock(), 0, bytearray(size)
    for offset in offsets:
        if reads and clock() - begun >= SECONDS:
            break
        os.preadv(descriptor, [buffer], offset)
        reads += 1
    return reads, max(clock() - begun, 1e-9)
