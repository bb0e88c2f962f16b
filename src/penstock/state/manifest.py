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
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import BinaryIO, get_type_hints

from penstock.errors import InvalidOption
from penstock.system.file_lock import NO_LOCKS, lock_file, unlock_file
from penstock.system.warn_user import warn_user

# A written line ends below this many bytes; only names that are longer by themselves pass it.
LINE_BYTES = 4096

# A longer line is damaged: two names of 4096 bytes (PATH_MAX) in which each byte is escaped, and the rest.
MAX_LINE_BYTES = 1 << 16

# A lock is held for one read and one write. Who waits longer meets a stopped process or a dead file server.
LOCK_SECONDS = 60.0

_TAIL_BYTES = 4096


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
        place = None if path is None else os.path.abspath(path)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        bad = cls(id, place, _describe(error), _size(place), now, index)
        least = len(type(error).__name__)
        while (excess := len(bad.line()) - LINE_BYTES + 1) > 0 and len(bad.error) > least + 1:
            kept = max(least, len(bad.error) - excess // 6 - 2)  # a character takes at most 6 bytes
            bad = replace(bad, error=bad.error[:kept] + "…")
        return bad

    def line(self) -> bytes:
        """Return the line of the manifest, with its newline. Bytes of a name that are no UTF-8 become \\udcXX."""
        return json.dumps(asdict(self), ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


_KINDS = get_type_hints(BadSample)


def _describe(error: BaseException) -> str:
    try:
        lines = str(error).splitlines()
    except Exception:  # an exception of the user's whose __str__ fails
        lines = []
    message = next((line.strip() for line in lines if line.strip()), "")
    return f"{type(error).__name__}: {message[:LINE_BYTES]}" if message else type(error).__name__


def _size(path: str | None) -> int | None:
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


def _lines(file: BinaryIO, number: int = 1) -> Iterator[tuple[int, bytes, BadSample | str | None]]:
    """Yield number and bytes of each line, and its entry or what is wrong with it; None: a blank line.

    A line that is too long comes in pieces, all but the first as blank lines of its number.
    """
    begins = True
    while raw := file.readline(MAX_LINE_BYTES):
        ends = raw.endswith(b"\n")
        if not begins:
            yield number, raw, None
        elif len(raw) == MAX_LINE_BYTES and not ends:
            yield number, raw, f"longer than {MAX_LINE_BYTES:,} bytes"
        else:
            yield number, raw, _parse(raw)
        begins, number = ends, number + ends


@dataclass
class _Seen:
    """How far a manifest was read. Only the thread that holds the file's lock changes it."""

    ids: set[str] = field(default_factory=set)
    inode: tuple[int, int] = (-1, -1)
    offset: int = 0  # bytes; the end of a line
    tail: bytes = b""  # what stood before it: another tail means that the file was edited
    lines: int = 0  # up to there
    ended: bool = True  # whether the file ended with a newline


class Manifest:
    """A file of bad samples that many threads and processes may read and write at once.

    A line that is no entry is skipped with a warning that names it, and stays in the file.

    Attributes:
        path: the file, absolute, ``~`` expanded; it may not exist yet.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(os.path.expanduser(path))
        self._seen = _Seen()
        self._warned: set[int] = set()

    def read(self) -> dict[str, BadSample]:
        """Return the entries by ID; of two with one ID the later. A file that does not exist has none.

        Raises InvalidOption (a folder, or another kind of file), OSError.
        """
        entries: dict[str, BadSample] = {}
        damaged: list[tuple[int, str]] = []
        try:
            with self._locked(os.O_RDONLY, fcntl.LOCK_SH) as descriptor, open(descriptor, "rb", closefd=False) as file:
                self._check_content(descriptor)
                for number, _, found in _lines(file):
                    if isinstance(found, BadSample):
                        entries[found.id] = found
                    elif found is not None:
                        damaged.append((number, found))
        except FileNotFoundError:
            return {}
        self._warn(damaged)
        return entries

    def add(self, bad: BadSample) -> bool:
        """Append an entry unless its ID stands there; return whether it was appended. Raises OSError.

        The file is left as it was when the line cannot be written whole.
        """
        with self._locked(os.O_RDWR | os.O_APPEND | os.O_CREAT, fcntl.LOCK_EX) as descriptor:
            damaged = self._catch_up(descriptor)
            fresh = bad.id not in self._seen.ids
            if fresh:
                _append(descriptor, bad.line() if self._seen.ended else b"\n" + bad.line())
        self._warn(damaged)
        return fresh

    def remove(self, ids: Iterable[str]) -> int:
        """Take the entries with these IDs out, all in one step; return how many. Raises OSError.

        All other lines stay, damaged ones too. The folder of the file must be writable.
        """
        unwanted = frozenset(ids)
        removed: set[str] = set()
        try:
            with self._locked(os.O_RDWR, fcntl.LOCK_EX) as descriptor, open(descriptor, "rb", closefd=False) as file:
                kept = []
                for _, raw, found in _lines(file):
                    if isinstance(found, BadSample) and found.id in unwanted:
                        removed.add(found.id)
                    else:
                        kept.append(raw)
                if removed:
                    _replace_file(os.path.realpath(self.path), kept, os.fstat(descriptor))
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
                    raise InvalidOption(f"{self.path!r} is no regular file; a manifest is a file of JSON lines")
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
        head = os.pread(descriptor, MAX_LINE_BYTES, 0).removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n\0")
        if b'"id"' not in head and not b'{"id"'.startswith(head):
            raise InvalidOption(f"{self.path!r} is no manifest of bad samples: its beginning holds no entry")

    def _catch_up(self, descriptor: int) -> list[tuple[int, str]]:
        """Read what was appended since the last time, all if the file is another one; return the damaged lines."""
        seen, status = self._seen, os.fstat(descriptor)
        inode, start = (status.st_dev, status.st_ino), seen.offset - len(seen.tail)
        if seen.inode != inode or os.pread(descriptor, len(seen.tail), start) != seen.tail:
            seen = self._seen = _Seen(inode=inode)
        seen.ended = True
        damaged = []
        with open(descriptor, "rb", closefd=False) as file:
            file.seek(seen.offset)
            for number, raw, found in _lines(file, seen.lines + 1):
                if isinstance(found, BadSample):
                    seen.ids.add(found.id)
                elif found is not None:
                    damaged.append((number, found))
                seen.ended = raw.endswith(b"\n")
                if seen.ended:
                    seen.lines, seen.offset = number, file.tell()
        start = max(0, seen.offset - _TAIL_BYTES)
        seen.tail = os.pread(descriptor, seen.offset - start, start)
        return damaged

    def _warn(self, damaged: list[tuple[int, str]]) -> None:
        """Warn, once a line, of the lines that are no entries."""
        fresh = [(number, why) for number, why in damaged if number not in self._warned]
        self._warned.update(number for number, _ in fresh)
        if not fresh:
            return
        listed = ", ".join(f"line {number} ({why})" for number, why in fresh[:5])
        more = f" and {len(fresh) - 5:,} more" if len(fresh) > 5 else ""
        warn_user(
            f"the manifest {self.path!r} has damaged lines, which are skipped and stay: {listed}{more}; "
            "mend them, or take them out",
            RuntimeWarning,
        )

    def __repr__(self) -> str:
        return f"Manifest({self.path!r}, {len(self._seen.ids):,} IDs seen)"


def _append(descriptor: int, line: bytes) -> None:
    size = os.fstat(descriptor).st_size
    try:
        while line:
            line = line[os.write(descriptor, line) :]
    except BaseException:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, size)
        raise


def _replace_file(path: str, lines: list[bytes], like: os.stat_result) -> None:
    """Put a new file in the place of another in one step, with its mode and, where that is allowed, its owner."""
    folder, name = os.path.split(path)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{name[:100]}.", suffix=".tmp", dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(lines)
            with contextlib.suppress(PermissionError):
                os.fchown(file.fileno(), like.st_uid, like.st_gid)
            os.fchmod(file.fileno(), stat.S_IMODE(like.st_mode))
            file.flush()
            os.fsync(file.fileno())  # a crash must not leave an empty file in its place
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
