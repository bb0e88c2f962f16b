"""Tar archives of plain files: headers written deterministically, and members found in archives of others.

Format: POSIX.1-2001 ustar, with pax extended headers for names and sizes that ustar cannot hold; GNU long names are
read too. The headers are the standard library's (tarfile).
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from typing import NamedTuple

from penstock.errors import CorruptShards, OutsideRoot

BLOCK = 512

#: What ends an archive: two blocks of zeros.
END = bytes(2 * BLOCK)

#: How files of gzip, bzip2, xz and zstd begin.
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zX", b"\x28\xb5\x2f\xfd")

_SIZE = slice(124, 136)
_CHECKSUM = slice(148, 156)
_MOST = 1 << 33  # the least size that the eleven octal digits of ustar do not hold


def _info(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = size
    info.mode = 0o644
    return info  # owner, group and time are 0: the same files give the same archive on every machine


_EMPTY = _info("", 0).tobuf(tarfile.PAX_FORMAT)
_REST = sum(_EMPTY) - sum(_EMPTY[_SIZE]) - sum(_EMPTY[_CHECKSUM]) + 8 * ord(" ")


def header(name: str, size: int) -> bytes:
    """Return the header of a member: one block, or several where a pax header precedes it."""
    if len(name) >= 100 or size >= _MOST or not name.isascii():
        return _info(name, size).tobuf(tarfile.PAX_FORMAT, errors="surrogateescape")
    raw, digits = name.encode("ascii"), b"%011o\0" % size
    checksum = b"%06o\0 " % (_REST + sum(raw) + sum(digits))
    return b"".join(
        (raw, _EMPTY[len(raw) : _SIZE.start], digits, _EMPTY[_SIZE.stop : _CHECKSUM.start], checksum, _EMPTY[156:])
    )


def padding(size: int) -> int:
    """Return how many zero bytes follow a member of a size."""
    return -size % BLOCK


def member_bytes(name: str, size: int) -> int:
    """Return how many bytes a member takes: header, data and padding."""
    short = len(name) < 100 and size < _MOST and name.isascii()
    return (BLOCK if short else len(header(name, size))) + size + padding(size)


class TarMember(NamedTuple):
    """A regular file in an archive."""

    name: str
    offset: int
    """Of its first byte, in the archive."""
    length: int


def members(path: str) -> Iterator[TarMember]:
    """Yield the regular files of an archive, in order; folders are passed over.

    Raises CorruptShards for what is not a plain tar archive or is cut off, OutsideRoot for a member that leaves the
    folder that the archive would be unpacked to, a link or a device among them.
    """
    size = os.stat(path).st_size
    with open(path, "rb") as file:
        if file.read(4).startswith(_COMPRESSED):
            raise CorruptShards(
                f"{path} is compressed: a sample in it cannot be read without all bytes before it. Unpack it to a "
                "plain .tar and index that"
            )
        file.seek(0)
        end = 0
        try:
            with tarfile.open(fileobj=file, mode="r:") as archive:
                while (info := archive.next()) is not None:
                    archive.members.clear()  # type: ignore[attr-defined]  # it would keep them all
                    end = info.offset_data + info.size
                    if end > size:
                        raise CorruptShards(f"{path} is cut off: {info.name!r} ends at {end:,}, the file at {size:,}")
                    if not info.isdir():
                        check_member(info, path)
                        yield TarMember(info.name.removeprefix("./"), info.offset_data, info.size)
        except tarfile.TarError as error:
            raise CorruptShards(f"{path} is not a plain tar archive, or is damaged: {error}") from error
        file.seek(end + padding(end))
        if file.read(BLOCK) != bytes(BLOCK):  # tarfile takes a damaged header for the end
            raise CorruptShards(
                f"{path} is cut off or damaged at byte {end + padding(end):,}: a tar archive ends in blocks of zeros"
            )


def check_member(info: tarfile.TarInfo, path: str) -> None:
    """Raise OutsideRoot for a member of an archive that is not a file inside the folder that it is unpacked to."""
    parts = info.name.split("/")
    if not info.isreg() or info.issparse():
        kind = "symbolic link" if info.issym() else "hard link" if info.islnk() else "special file"
        why = f"it is a {kind}, not a file"
    elif info.name.startswith("/") or ".." in parts or not parts[-1] or "\0" in info.name:
        why = "its name leads out of the folder that the archive is unpacked to"
    else:
        return
    raise OutsideRoot(
        f"member {info.name!r} of {path} is refused: {why}. Make the archive again without it, from a source that you "
        "trust",
        sample_id=info.name,
        path=path,
    )
