"""Files that a user names for output: written as a whole, over what they hold; those of recordings checked before."""

from __future__ import annotations

import contextlib
import gzip
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from penstock.errors import InvalidOption
from penstock.system.launched import rank_here


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file, which then holds either these bytes or what it held before; a pipe or device is written to.

    A symbolic link is followed. A new file has the mode that the process's umask leaves; another one keeps its mode.
    Raises OSError, which names the file.
    """
    name = os.fspath(path)
    try:
        with _opened(os.path.realpath(name), private=False) as file:
            file.write(data)
    except OSError as error:  # of the temporary file beside it, of which the user knows nothing
        raise OSError(error.errno, error.strerror, name) from error


class OutputFile:
    """A file that an option names. What is written is private to the user (mode 0600).

    gzip compresses it where its name ends in .gz. "{rank}" in the name is torchrun's RANK, or 0. Raises InvalidOption:
    it is a folder, or lies in a folder that does not exist or cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], option: str) -> None:
        text = os.fspath(path)
        if not isinstance(text, str):
            raise InvalidOption(f"{option}: the name of a file is a str or a Path, not {type(text).__name__}")
        text = text.replace("{rank}", str(rank_here()))
        if not text or text.endswith(os.sep) or os.path.isdir(text):
            raise InvalidOption(f"{option}={text!r}: it is a folder, or empty: name a file")
        special = (mode := _mode_of(text)) is not None and not stat.S_ISREG(mode)  # "/dev/stdout" may be a pipe
        # Of a symbolic link the file behind it; a program may change its folder.
        self.path = os.path.abspath(text) if special else os.path.realpath(text)
        folder = os.path.dirname(self.path)
        if not os.path.isdir(folder):
            raise InvalidOption(f"{option}={text!r}: there is no folder {folder}; make it, or name a file elsewhere")
        if not os.access(folder if _mode_of(self.path) is None else self.path, os.W_OK):
            raise InvalidOption(f"{option}={text!r}: this user may not write there; name a file elsewhere")

    @contextmanager
    def opened(self) -> Iterator[IO[bytes]]:
        """Open the file, which gets its name when all is written; where that fails, nothing is left. Raises OSError."""
        with _opened(self.path, private=True) as file:
            if not self.path.endswith(".gz"):
                yield file
                return
            with gzip.GzipFile(fileobj=file, mode="wb", mtime=0, filename="") as packed:
                yield packed  # type: ignore[misc]


def output_files(**named: str | os.PathLike[str] | None) -> dict[str, OutputFile]:
    """Return the files that options name, by the options. Raises InvalidOption: see OutputFile; or two are the same."""
    files = {option: OutputFile(path, option) for option, path in named.items() if path is not None}
    if len({file.path for file in files.values()}) < len(files):
        raise InvalidOption(f"two of {', '.join(files)} name the same file: give each its own")
    return files


def _mode_of(path: str) -> int | None:
    """Return the mode of what has this name; None: nothing has."""
    try:
        return os.stat(path).st_mode
    except OSError:
        return None


@contextmanager
def _opened(path: str, *, private: bool) -> Iterator[IO[bytes]]:
    """Open a file that takes its name, from what has it before, when all is written."""
    mode = _mode_of(path)
    if mode is not None:
        # What may not be written is not replaced either.
        with open(path, "r+b" if stat.S_ISREG(mode) else "wb") as file:
            if not stat.S_ISREG(mode):
                yield file
                return
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name[:100]}.{secrets.token_hex(4)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(temporary, flags, 0o600 if private else 0o666), "wb") as file:
            if mode is not None and not private:
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            yield file
            file.flush()
            os.fsync(file.fileno())  # a crash must not leave an empty file in its place
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
