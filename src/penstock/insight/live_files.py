"""The folder of live recordings: one small JSON file for each process of this user that goes through penstock loaders.

The folder is `penstock/live` in the user's cache folder, for this user only (mode 0700, files 0600): another user's
folder, one that others may write into and symbolic links are refused. A file's name holds the machine, the process's
number and when the process started, so that processes of several machines, or containers, may share the folder, and
one that has died is not taken for another one that has its number now. A file is read as one that anybody may have
written: each value is checked.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from penstock.errors import PenstockError
from penstock.system.cache_folder import folder_of
from penstock.system.private_folder import files_in, open_own_file, private_folder

#: Of the format of the files.
FORMAT = 4
#: Bytes of a file that is read, at the most.
MOST_BYTES = 1 << 20

_FILE = re.compile(r"([0-9a-f]{16})-([0-9]{1,10})-([0-9]{1,20})\.(json|tmp)")
#: Files of other machines, whose processes cannot be looked at, go when they are so old, in seconds.
_FORGOTTEN = 7 * 24 * 3600.0


class ProcessName(NamedTuple):
    """Which process a live recording is of."""

    machine: str
    """Of this start of the system, and of the processes that see each other's numbers (16 hexadecimal digits)."""
    pid: int
    started: int
    """When the process started, in ticks since the system did: field 22 of /proc/PID/stat, see proc(5)."""

    @property
    def file(self) -> str:
        return f"{self.machine}-{self.pid}-{self.started}.json"

    def alive(self) -> bool | None:
        """Return whether the process still runs; None: it is, or was, of another machine."""
        return started_at(self.pid) == self.started if self.machine == machine() else None


def live_folder() -> Path | None:
    """Return the folder, which may not exist yet; None: there is no cache folder."""
    return folder_of("live")


@lru_cache(maxsize=1)
def machine() -> str:
    """Return what tells this start of the system, and this PID namespace, from others."""
    boot = namespace = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    with contextlib.suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid")
    return hashlib.blake2b(f"{os.uname().nodename}\n{boot}\n{namespace}".encode(), digest_size=8).hexdigest()


def started_at(pid: int) -> int | None:
    """Return when a process started, in ticks since the system did; None: it does not run."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # the name before the bracket may hold anything
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def this_process() -> ProcessName:
    pid = os.getpid()
    return ProcessName(machine(), pid, started_at(pid) or 0)


def program_name() -> str:
    """Return the name of the script, without its arguments, which may hold what is nobody's business."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is not None and isinstance(main.name, str):
        return f"-m {main.name.removesuffix('.__main__')}"
    return os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"


def write(path: Path, name: ProcessName, data: bytes) -> None:
    """Write the file of a process in one step. Raises OSError, UnsafeCache."""
    temporary = name.file.removesuffix("json") + "tmp"
    with private_folder(path) as folder:
        try:
            file = open_own_file(os.O_WRONLY | os.O_CREAT | os.O_TRUNC, temporary, folder)
            assert file is not None
            with os.fdopen(file, "wb") as opened:
                opened.write(data)
            os.replace(temporary, name.file, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise


def remove(path: Path, name: ProcessName) -> None:
    """Remove the file of a process; does nothing where that cannot be."""
    for ending in ("json", "tmp"):
        with contextlib.suppress(OSError):
            (path / (name.file.removesuffix("json") + ending)).unlink()


def remove_stale(path: Path) -> None:
    """Remove the files of processes that have died. Raises OSError, UnsafeCache."""
    with private_folder(path) as folder:
        for file, status in files_in(folder, _FILE):
            alive = _name_of(file).alive()
            if alive is False or (alive is None and time.time() - status.st_mtime > _FORGOTTEN):
                with contextlib.suppress(OSError):
                    os.unlink(file, dir_fd=folder)


def read_all(path: Path) -> list[tuple[ProcessName, bytes]]:
    """Return the files of all processes. Raises OSError, UnsafeCache: not where the folder does not exist."""
    if not path.exists():
        return []
    found = []
    with private_folder(path) as folder:
        for file in sorted(name for name, _ in files_in(folder, _FILE) if name.endswith(".json")):
            with contextlib.suppress(OSError):
                descriptor = open_own_file(os.O_RDONLY, file, folder)
                if descriptor is not None:
                    with os.fdopen(descriptor, "rb") as opened:
                        found.append((_name_of(file), opened.read(MOST_BYTES + 1)))
    return found


def _name_of(file: str) -> ProcessName:
    machine, pid, started = file.partition(".")[0].split("-")
    return ProcessName(machine, int(pid), int(started))


# --- jobs ------------------------------------------------------------------------------------------------------------


class Job(NamedTuple):
    """A process that goes through penstock loaders."""

    name: ProcessName
    host: str
    program: str
    rank: str
    """Of torchrun; empty where it did not start the process."""
    began: float
    written: float
    """When its latest batch came, about, by time.time()."""
    every: float
    """Seconds between two writings of its recording."""
    patience: float
    """Seconds without a batch after which its loop stands still; 0: no pass is open."""
    summary: tuple[str, ...]
    """Of its latest loader: the share of waiting, samples a second, the dataset."""
    lines: tuple[str, ...]
    """What the process says of its loaders; "! " before one that is a warning."""

    @property
    def ended(self) -> bool:
        """Whether the process is gone; of another machine's it is not known, and one that is silent for long counts."""
        alive = self.name.alive()
        return time.time() - self.written > max(600.0, 10 * self.every) if alive is None else not alive


def jobs(folder: Path | None = None) -> list[Job]:
    """Return the jobs that are running, oldest first. folder: of the recordings; None: this user's.

    Files that cannot be read are left out. Raises UnsafeCache, OSError: the folder cannot be used.
    """
    found = []
    folder = folder or live_folder()
    for name, data in [] if folder is None else read_all(folder):
        with contextlib.suppress(PenstockError):
            found.append(job_of(name, data))
    return sorted((job for job in found if not job.ended), key=lambda job: (job.began, job.name))


def job_of(name: ProcessName, data: bytes) -> Job:
    """Return a job by its file. Raises PenstockError: the file is not a live recording."""
    try:
        said = json.loads(data[: MOST_BYTES + 1])
        if len(data) > MOST_BYTES or said["format"] != FORMAT:
            raise ValueError("it is too large, or has another format")
        found: list[Any] = [_text(said[field]) for field in ("host", "program", "rank")]
        found += [_number(said[field]) for field in ("began", "written", "every", "patience")]
        return Job(name, *found, *(tuple(map(_text, said[field])) for field in ("summary", "lines")))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise PenstockError(f"{name.file} is not a live recording: {error}") from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(f"{value!r} is not a finite number")
    return value
