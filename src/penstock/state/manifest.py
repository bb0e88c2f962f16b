"""The manifest: the file that keeps bad samples between runs.

It is a text file of JSON lines, UTF-8, one object a bad sample with the keys of BadSample. Any number of threads,
processes and ranks may write it: each change is made under an advisory lock (flock) on the file itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import get_type_hints

from penstock.errors import InvalidOption
from penstock.showing import said
from penstock.system.locks import NO_LOCKS, lock_file, unlock_file
from penstock.system.output_files import write_whole
from penstock.system.warn_user import warn_user

#: Characters of an error's message that are kept.
MESSAGE = 1000

# A lock is held for one read and one write. Who waits longer meets a stopped process or a dead file server.
LOCK_SECONDS = 60.0

_HEAD_BYTES = 1 << 16


@dataclass(frozen=True)
class BadSample:
    """A sample that could not be read: one line of the manifest."""

    id: str
    """The ID, or the path or index where the dataset has no IDs."""
    path: str | None
    """The file; None when the sample lies in memory, or its file is not known."""
    error: str
    """The error's type and the first line of its message: "TypeName: message"."""
    size: int | None
    """Bytes of the file when the error was met; None without a file."""
    time: str
    """When the error was met, UTC, ISO 8601 to the second."""
    index: int | None = None
    """Position in the dataset of the run that met it."""

    @classmethod
    def of(
        cls, id: str, path: str | os.PathLike[str] | None, error: BaseException, index: int | None = None
    ) -> BadSample:
        """Return the entry for an error met now. The path is made absolute; a long message is cut, names never."""
        place = None if path is None else os.fspath(path) if "://" in os.fspath(path) else os.path.abspath(path)
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        return cls(id, place, describe(error), file_size(place), now, index)

    def line(self) -> bytes:
        """Return the line of the manifest, with its newline. Bytes of a name that are not UTF-8 become \\udcXX."""
        return json.dumps(asdict(self), ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


_KINDS = get_type_hints(BadSample)


def describe(error: BaseException) -> str:
    message = next((line.strip() for line in said(error).splitlines() if line.strip()), "")
    message = message if len(message) <= MESSAGE else f"{message[:MESSAGE]}…"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def file_size(path: str | None) -> int | None:
    """Return the bytes of a file; None: it cannot be asked."""
    try:
        return None if path is None else os.stat(path).st_size
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return None


def _parse(line: bytes) -> BadSample | str | None:
    """Return the entry of a line, None for a blank one, else what is wrong with the line."""
    if not line.strip():
        return None
    try:
        values = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return "no JSON"
    if not isinstance(values, dict):
        return "no JSON object"
    values.setdefault("index", None)
    for key, kind in _KINDS.items():
        if key not in values:
            return f"no {key!r}"
        if not isinstance(values[key], kind) or isinstance(values[key], bool):
            return f"{key!r} is of type {type(values[key]).__name__}"
    return BadSample(**{key: values[key] for key in _KINDS})


class Manifest:
    """A file of bad samples that many threads and processes may read and write at once.

    A line that is not an entry is skipped with a warning that names it, and stays in the file.

    Attributes:
        path: the file, absolute, ``~`` expanded; it may not exist yet.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(os.path.expanduser(path))

    def read(self) -> dict[str, BadSample]:
        """Return the entries by ID; of two with one ID the later. A file that does not exist has none.

        Raises InvalidOption (a folder, or another kind of file), OSError.
        """
        entries: dict[str, BadSample] = {}
        damaged: list[tuple[int, str]] = []
        try:
            with self._locked(os.O_RDONLY, fcntl.LOCK_SH) as descriptor, open(descriptor, "rb", closefd=False) as file:
                self._check_content(descriptor)
                for number, line in enumerate(file, 1):
                    if isinstance(found := _parse(line), BadSample):
                        entries[found.id] = found
                    elif found is not None:
                        damaged.append((number, found))
        except FileNotFoundError:
            return {}
        if damaged:
            listed = ", ".join(f"line {number} ({why})" for number, why in damaged[:5])
            more = f" and {len(damaged) - 5:,} more" if len(damaged) > 5 else ""
            warn_user(
                f"the manifest {self.path!r} has damaged lines, which are skipped and stay: {listed}{more}; "
                "mend them, or take them out",
                RuntimeWarning,
            )
        return entries

    def add(self, bad: BadSample) -> None:
        """Append an entry; the file is left as it was when the line cannot be written whole. Raises OSError."""
        with self._locked(os.O_RDWR | os.O_APPEND | os.O_CREAT, fcntl.LOCK_EX) as descriptor:
            size = os.fstat(descriptor).st_size
            ended = size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
            append_line(descriptor, bad.line() if ended else b"\n" + bad.line())

    def remove(self, ids: Iterable[str]) -> int:
        """Take the entries with these IDs out, all in one step; return how many. Raises OSError.

        All other lines stay, damaged ones too. The folder of the file must be writable.
        """
        unwanted = frozenset(ids)
        removed: set[str] = set()
        try:
            with self._locked(os.O_RDWR, fcntl.LOCK_EX) as descriptor, open(descriptor, "rb", closefd=False) as file:
                kept = []
                for line in file:
                    if isinstance(found := _parse(line), BadSample) and found.id in unwanted:
                        removed.add(found.id)
                    else:
                        kept.append(line)
                if removed:
                    write_whole(self.path, b"".join(kept))
        except FileNotFoundError:
            return 0
        return len(removed)

    def check(self) -> None:
        """Make the file, empty, if there is none, and try its lock. Raises InvalidOption where it cannot be used."""
        try:
            with self._locked(os.O_RDWR | os.O_APPEND | os.O_CREAT, fcntl.LOCK_EX) as descriptor:
                self._check_content(descriptor)
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
            if error.errno in NO_LOCKS:
                why = f"its file system has no file locks ({why})"
            raise InvalidOption(
                f"the manifest {self.path!r} cannot be written: {why}; name a file that this user may write"
            ) from error

    @contextlib.contextmanager
    def _locked(self, flags: int, operation: int) -> Iterator[int]:
        """Open the file, yield its locked descriptor, unlock and close it."""
        while True:
            # O_NONBLOCK: a named pipe would wait here for its other end.
            descriptor = os.open(os.path.realpath(self.path), flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise InvalidOption(f"{self.path!r} is not a regular file; a manifest is a file of JSON lines")
                try:
                    # Without locks reading does no harm.
                    lock_file(descriptor, self.path, operation, LOCK_SECONDS, required=operation == fcntl.LOCK_EX)
                    # Between open and lock remove() may have put another file in its place.
                    if self._is_current(descriptor):
                        yield descriptor
                        return
                finally:
                    unlock_file(descriptor)
            finally:
                os.close(descriptor)

    def _is_current(self, descriptor: int) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.stat(self.path), os.fstat(descriptor))
        return False

    def _check_content(self, descriptor: int) -> None:
        """Raise InvalidOption for a file of another kind: it must be neither read as a manifest nor written to."""
        head = os.pread(descriptor, _HEAD_BYTES, 0).removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n\0")
        if b'"id"' not in head and not b'{"id"'.startswith(head):
            raise InvalidOption(f"{self.path!r} is not a manifest of bad samples: it does not begin with an entry")


def append_line(descriptor: int, line: bytes) -> None:
    """Append a line to an open file, which is left as it was where that fails. Raises OSError."""
    size = os.fstat(descriptor).st_size
    try:
        while line:
            line = line[os.write(descriptor, line) :]
    except BaseException:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, size)
        raise
