"""Which file system a path lies on."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

TABLE = "/proc/self/mountinfo"

#: File systems in memory: nothing of them is ever read from a disk.
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
#: File systems whose bytes come over a network.
REMOTE = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "ceph", "glusterfs", "gpfs", "beegfs", "afs", "wekafs")


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted file system."""

    point: str
    """The folder that it is mounted at."""
    kind: str
    """Its type, as the kernel names it: "ext4", "overlay", "nfs4", "fuse.sshfs"."""
    source: str
    """What is mounted: a device, or a server's folder."""
    device: str
    """Numbers of the device: "MAJOR:MINOR"."""

    @property
    def in_memory(self) -> bool:
        """Whether its files lie in memory."""
        return self.kind in IN_MEMORY

    @property
    def remote(self) -> bool:
        """Whether its files come over a network."""
        return self.kind in REMOTE


def mount_of(path: str, table: str = TABLE) -> Mount | None:
    """Return the mount that a path lies on; None where the system does not say. Source: proc_pid_mountinfo(5)."""
    try:
        with open(table, encoding="utf-8", errors="surrogateescape") as file:
            lines = [line.split() for line in file]
    except OSError:
        return None
    resolved, found = os.path.realpath(path), None
    for words in lines:
        if "-" not in words[6:] or len(words) < 10:
            continue
        kind, source = words[words.index("-", 6) + 1 :][:2]
        point = _unescaped(words[4])
        # A later mount covers an earlier one at the same point.
        if _below(resolved, point) and (found is None or len(point) >= len(found.point)):
            found = Mount(point, kind, _unescaped(source), words[2])
    return found


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _unescaped(word: str) -> str:
    """Return a word of the table: it has spaces, tabs, line ends and backslashes as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), word)
