"""A power failure after each system call of a recorded program: what the disk may hold then.

The model is POSIX's: what a file holds is on the disk once that file is synced, a name once its folder is. What was not
synced may be there or not; of the combinations those are made that programs meet: nothing of it, all names without
their data, all names with zeros for data, all data without names.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.faults import injection

#: The calls that change files; a call that is none of these, such as mmap to write, is seen by the check at the end.
CALLS = "openat,creat,write,writev,pwrite64,pwritev,rename,renameat,renameat2,unlink,unlinkat,rmdir,mkdir,mkdirat"
CALLS += ",ftruncate,fallocate,fsync,fdatasync,syncfs,link,linkat,symlink,symlinkat,copy_file_range,sendfile,lseek"
_LINE = re.compile(r"(?P<begun>[\d.]+) (?P<name>\w+)\((?P<given>.*)\) += (?P<result>-?\d+)(?P<rest>.*)")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_PATH_OF = re.compile(r"\d+<((?:\\x[0-9a-f]{2})*)>")


class Call(NamedTuple):
    """A system call that changed something below the folder that is watched."""

    begun: float
    name: str
    arguments: str
    result: int
    opened: str


def _decoded(text: str) -> str:
    return bytes.fromhex(text.replace("\\x", "")).decode("utf-8", "surrogateescape")


def record(work: Callable[[], Any], folder: Path, into: Path) -> list[Call]:
    """Run some work in a forked child, and return the calls that changed files below a folder, in their order.

    Skips the test where strace is missing or may not trace.
    """
    into.mkdir()
    options = ["-ff", "-y", "-xx", "-s", "10000000", "-ttt", "-e", f"trace={CALLS}", "-o", str(into / "call")]
    assert injection.traced(work, options) == 0
    mark = "".join(f"\\x{byte:02x}" for byte in str(folder).encode())
    calls = []
    for file in into.iterdir():
        for line in file.read_text().splitlines():
            found = _LINE.match(line)
            if found is not None and mark in line and int(found["result"]) >= 0:
                opened = _PATH_OF.search(found["result"] + found["rest"])
                calls.append(
                    Call(
                        float(found["begun"]),
                        found["name"],
                        found["given"],
                        int(found["result"]),
                        _decoded(opened[1]) if opened else "",
                    )
                )
    return sorted(calls)


@dataclass(eq=False)
class File:
    """A file or folder: what it holds now, and what of it is on the disk."""

    folder: bool = False
    now: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    names: dict[str, File] = field(default_factory=dict)
    synced_names: dict[str, File] = field(default_factory=dict)
    at: int = 0
    """Where the next write goes; a file that is open twice at once is not modelled."""


class Disk:
    """A folder, all of which is on the disk at first.

    Args:
        root: as the calls name it.
        held: a copy of it from before the calls.
    """

    def __init__(self, root: Path, held: Path) -> None:
        self.root = root
        self.top = _read(held)

    def _find(self, path: str) -> tuple[File, str] | None:
        """Return the folder that holds a path, and its name in it; None: it is not below the root."""
        if not path.startswith(f"{self.root}/"):
            return None
        *above, name = path.removeprefix(f"{self.root}/").split("/")
        at = self.top
        for part in above:
            at = at.names[part]
        return at, name

    def _file(self, path: str) -> File | None:
        if path == str(self.root):
            return self.top
        place = self._find(path)
        return None if place is None else place[0].names.get(place[1])

    def apply(self, call: Call) -> None:
        """Do what a call did."""
        texts = [bytes.fromhex(found.replace("\\x", "")) for found in _TEXT.findall(call.arguments)]
        first = _PATH_OF.match(call.arguments)
        file = None if first is None else self._file(_decoded(first[1]).removesuffix(" (deleted)"))
        paths = self._paths(call, [text.decode("utf-8", "surrogateescape") for text in texts])
        if call.name in ("openat", "creat"):
            self._open(call, call.opened or paths[0])  # a name in /proc/self/fd may be given
        elif call.name in ("write", "pwrite64"):
            if file is not None:
                position = int(call.arguments.rsplit(", ", 1)[1]) if call.name == "pwrite64" else file.at
                data = texts[0][: call.result]
                assert len(data) == call.result
                file.now.extend(bytes(max(0, position - len(file.now))))
                file.now[position : position + len(data)] = data
                if call.name == "write":
                    file.at = position + len(data)
        elif call.name == "lseek":
            if file is not None:
                file.at = call.result
        elif call.name in ("ftruncate", "fallocate"):
            if file is not None:
                numbers = [int(part) for part in re.findall(r", (\d+)", call.arguments)]
                size = numbers[-1] if call.name == "ftruncate" else max(len(file.now), sum(numbers[-2:]))
                file.now = file.now[:size] + bytes(max(0, size - len(file.now)))
        elif call.name in ("fsync", "fdatasync"):
            if file is not None:
                file.synced, file.synced_names = bytes(file.now), dict(file.names)
        elif call.name in ("rename", "renameat", "renameat2"):
            (source, old), (target, new) = self._place(paths[0]), self._place(paths[1])
            target.names[new] = source.names.pop(old)
        elif call.name in ("unlink", "unlinkat", "rmdir"):
            holder, name = self._place(paths[0])
            del holder.names[name]
        elif call.name in ("mkdir", "mkdirat"):
            holder, name = self._place(paths[0])
            holder.names[name] = File(folder=True)
        elif call.name in ("link", "linkat"):
            holder, name = self._place(paths[1])
            linked = self._file(paths[0])
            assert linked is not None
            holder.names[name] = linked
        else:
            raise NotImplementedError(f"{call.name} below {self.root}")

    def _place(self, path: str) -> tuple[File, str]:
        place = self._find(path)
        assert place is not None, f"{path} is not below {self.root}"
        return place

    @staticmethod
    def _paths(call: Call, texts: list[str]) -> list[str]:
        """Return the paths that a call names, those relative to a folder's descriptor too."""
        above = re.findall(r'(?:\d+|AT_FDCWD)<((?:\\x[0-9a-f]{2})*)>, "', call.arguments)
        return [
            text if text.startswith("/") or not above else f"{_decoded(above[min(number, len(above) - 1)])}/{text}"
            for number, text in enumerate(texts)
        ]

    def _open(self, call: Call, path: str) -> None:
        place = self._find(path)
        if place is None or "O_DIRECTORY" in call.arguments or "O_RDONLY" in call.arguments:
            return
        assert "O_TMPFILE" not in call.arguments
        holder, name = place
        file = holder.names.setdefault(name, File())
        file.at = len(file.now) if "O_APPEND" in call.arguments else 0
        if "O_TRUNC" in call.arguments:
            file.now = bytearray()

    def left(self, into: Path, *, names: bool, data: str) -> None:
        """Write what may be on the disk.

        Args:
            into: a folder, which is made.
            names: the names that were not synced are there.
            data: of files that were not synced "now" all of it, "synced" none, "zeros" its size.
        """
        _write(self.top, into, names=names, data=data)


def _read(path: Path) -> File:
    if not path.is_dir():
        data = path.read_bytes()
        return File(now=bytearray(data), synced=data)
    held = {one.name: _read(one) for one in path.iterdir()}
    return File(folder=True, names=held, synced_names=dict(held))


def _write(file: File, path: Path, *, names: bool, data: str) -> None:
    if file.folder:
        path.mkdir()
        for name, held in (file.names if names else file.synced_names).items():
            _write(held, path / name, names=names, data=data)
    elif data == "now":
        path.write_bytes(file.now)
    else:
        path.write_bytes(file.synced + bytes(max(0, len(file.now) - len(file.synced)) if data == "zeros" else 0))


#: What is kept of what was not synced: names, and data.
KEPT = [(False, "synced"), (True, "synced"), (True, "zeros"), (False, "now"), (True, "now")]


def states(disk: Disk, calls: list[Call], into: Path, every: int = 1) -> Iterator[tuple[str, Path, bool]]:
    """Yield what the disk may hold after each call: what it is, a folder with it, and whether the program had ended.

    Args:
        disk: as it was before the calls.
        calls: of `record`.
        into: a folder that does not exist; removed and made for each state.
        every: after each so many calls only, and after the last.
    """
    for number, call in enumerate(calls):
        disk.apply(call)
        ended = number == len(calls) - 1
        if number % every and not ended:
            continue
        for names, data in KEPT:
            shutil.rmtree(into, ignore_errors=True)
            disk.left(into, names=names, data=data)
            yield f"after call {number}, {call.name}: names {names}, data {data}", into, ended
