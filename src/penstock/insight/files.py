"""Files that a user names for output: written as a whole, over what they hold."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from typing import BinaryIO

from penstock.storage.durable import write_durably


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file, which then holds either these bytes or what it held before; a pipe or device is written to.

    A symbolic link is followed. A new file has the mode that the process's umask leaves; another one keeps its mode.
    Raises OSError, which names the file.
    """
    name = os.fspath(path)
    real = os.path.realpath(name)
    try:
        _replace(real, data)
    except OSError as error:  # of the temporary file beside it, of which the user knows nothing
        raise OSError(error.errno, error.strerror, name) from error


def _replace(path: str, data: bytes) -> None:
    def write(file: BinaryIO) -> None:
        file.write(data)

    before: os.stat_result | None = None
    if os.path.lexists(path):
        before = os.stat(path)
        if stat.S_ISDIR(before.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        # What may not be written is not replaced either.
        with open(path, "r+b" if stat.S_ISREG(before.st_mode) else "wb") as file:
            if not stat.S_ISREG(before.st_mode):
                file.write(data)
                return
    temporary = f"{path}.{secrets.token_hex(4)}.tmp"
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
    if before is not None:
        os.chmod(temporary, stat.S_IMODE(before.st_mode))
    write_durably(path, temporary, write)
