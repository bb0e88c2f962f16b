"""A file that a recording is written to: checked before the run, written in one step after it."""

from __future__ import annotations

import contextlib
import gzip
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from penstock.errors import InvalidOption


class OutputFile:
    """A file of this name. What is written is private to the user (mode 0600) where the file is new.

    Args:
        path: of the file; gzip compresses it where its name ends in .gz. "{rank}" in it is torchrun's RANK, or 0.
        option: the name of the option that gave it, for messages.

    Raises:
        InvalidOption: it is a folder, or lies in a folder that does not exist or cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], option: str) -> None:
        text = os.fspath(path)
        if not isinstance(text, str):
            raise InvalidOption(f"{option}: the name of a file is a str or a Path, not {type(text).__name__}")
        rank = os.environ.get("RANK", "").strip()
        text = text.replace("{rank}", rank if rank.isdecimal() else "0")
        if not text or text.endswith(os.sep) or os.path.isdir(text):
            raise InvalidOption(f"{option}={text!r}: it is a folder, or empty: name a file")
        self.path = os.path.realpath(text)  # of a symbolic link the file behind it; a program may change its folder
        folder = os.path.dirname(self.path)
        if not os.path.isdir(folder):
            raise InvalidOption(f"{option}={text!r}: there is no folder {folder}")
        if not os.access(folder if self._new() else self.path, os.W_OK):
            raise InvalidOption(f"{option}={text!r}: this user may not write there")

    def _new(self) -> bool:
        """Return whether a file takes this name, or the place of another file: not of a device or a pipe."""
        try:
            return stat.S_ISREG(os.stat(self.path).st_mode)
        except OSError:
            return True

    @contextmanager
    def opened(self) -> Iterator[IO[bytes]]:
        """Open the file, which gets its name when all is written; where that fails, nothing is left. Raises OSError."""
        if not self._new():
            with open(self.path, "wb") as file, self._compressed(file) as inner:
                yield inner
            return
        folder, name = os.path.split(self.path)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{name[:100]}.", suffix=".tmp", dir=folder)
        try:
            with os.fdopen(descriptor, "wb") as file, self._compressed(file) as inner:
                yield inner
            os.replace(temporary, self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    @contextmanager
    def _compressed(self, file: IO[bytes]) -> Iterator[IO[bytes]]:
        if not self.path.endswith(".gz"):
            yield file
            return
        with gzip.GzipFile(fileobj=file, mode="wb", mtime=0, filename="") as packed:
            yield packed  # type: ignore[misc]
