"""What is wrong with the bytes of a .pt or .npy file: cut off, or no longer those that were written."""

from __future__ import annotations

import io
import math
import os
import pickletools
import struct
import zipfile
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

import penstock._native as _native
from penstock.system.words import counted

_ZIP = b"PK\x03\x04"
_NPY = b"\x93NUMPY"
_END = b"PK\x05\x06"
_DESCRIPTOR = b"PK\x07\x08"
_LOCAL = struct.Struct("<4s5H3L2H")
#: Bytes of a zip archive's end record, and with the longest comment behind it.
_END_BYTES = 22
_LONGEST_END = _END_BYTES + 0xFFFF
_CHUNK = 1 << 20
#: Bytes of an element of each class of storage, such as torch.FloatStorage.
_ITEMS = {"Double": 8, "Float": 4, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1}
_ITEMS |= {"Bool": 1, "ComplexDouble": 16, "ComplexFloat": 8, "Untyped": 1}
#: Bytes at the start of a file that are searched for its data.pkl.
_HEAD = 2 << 20


def length_of(file: BinaryIO) -> int:
    """Return how many bytes an open file has, or a file object over memory."""
    return len(file.getbuffer()) if isinstance(file, io.BytesIO) else os.fstat(file.fileno()).st_size


def changed(file: BinaryIO) -> str | None:
    """Return which record of a torch.save archive has another CRC-32 than the file says; None: there is none.

    None as well for what is no zip archive, and for records without a CRC-32, which torch.save writes as 0
    (torch.serialization.set_crc32_options(False), skip_data()). The file's position is moved.
    """
    file.seek(0)
    if file.read(4) != _ZIP:
        return None
    try:
        with zipfile.ZipFile(file) as archive:
            for record in archive.infolist():
                name = record.filename.partition("/")[2]
                if record.CRC and (name == "data.pkl" or name.startswith("data/")):
                    found = _crc(file, archive, record)
                    if found is not None and found != record.CRC:
                        return (
                            f"the CRC-32 of {name} is {found:08x}, the file says {record.CRC:08x}: its content has "
                            "changed since it was written"
                        )
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError, struct.error):
        return None  # what torch.load has read and zipfile cannot is no proof of damage
    return None


def _crc(file: BinaryIO, archive: zipfile.ZipFile, record: zipfile.ZipInfo) -> int | None:
    """Return the CRC-32 of a record's contents; None: the record's data descriptor confirms it."""
    if record.compress_type != zipfile.ZIP_STORED:
        with archive.open(record) as contents:
            contents._expected_crc = None  # type: ignore[attr-defined]  # the caller compares it
            return _crc_of(iter(lambda: contents.read(_CHUNK), b""))
    file.seek(record.header_offset)
    header = _LOCAL.unpack(file.read(_LOCAL.size))
    file.seek(header[9] + header[10], os.SEEK_CUR)
    found = _crc_of(_chunks(file, record.file_size))
    descriptor = file.read(8)
    # Where the descriptor confirms the contents, the directory is wrong and not they.
    return None if descriptor == _DESCRIPTOR + found.to_bytes(4, "little") else found


def _crc_of(chunks: Iterator[bytes]) -> int:
    crc = 0
    for chunk in chunks:
        crc = _native.crc32(chunk, crc)
    return crc


def _chunks(file: BinaryIO, size: int) -> Iterator[bytes]:
    while size > 0:
        chunk = file.read(min(size, _CHUNK))
        if not chunk:
            raise EOFError
        size -= len(chunk)
        yield chunk


def truncated(file: BinaryIO, error: Exception) -> str | None:
    """Return how many bytes a truncated .pt or .npy file has and, if that is known, needs; None: the file is whole.

    error: what torch.load or numpy.load raised, which decides for a file whose length is not known.
    """
    size = length_of(file)
    file.seek(0)
    head = file.read(_HEAD)
    if not head:
        return None
    cut_off = f"it is truncated, it has {counted(size, 'byte')}"
    if head.startswith(_NPY) or _NPY.startswith(head):
        needed = _npy_bytes(file)
        if needed is None and "EOF" not in str(error) and not isinstance(error, EOFError) and not _NPY.startswith(head):
            return None
        if needed is not None and size >= needed:
            return None
        return cut_off if needed is None else f"{cut_off} of {needed:,}"
    if head.startswith(_ZIP) or _ZIP.startswith(head):
        file.seek(max(0, size - _LONGEST_END))
        tail = file.read()
        end = tail.rfind(_END)
        if end >= 0 and len(tail) - end >= _END_BYTES:
            return None
        least = _archive_bytes(head)
        more = f" and needs more than {least:,}" if least is not None and least >= size else ""
        return f"{cut_off}{more}, and the directory at the end of a zip archive is missing"
    if head.startswith(b"\x80") and (isinstance(error, EOFError) or "EOF" in str(error) or _pickle_ends(file)):
        return cut_off
    return None


def foreign(file: BinaryIO) -> str | None:
    """Return how a file begins that is in none of the formats of torch.save and numpy.save; None: it is in one."""
    file.seek(0)
    head = file.read(16)
    if head.startswith((_ZIP, _NPY, b"\x80")):
        return None
    return f"it is neither a file of torch.save nor of numpy.save, it begins with {head!r}"


def _npy_bytes(file: BinaryIO) -> int | None:
    """Return how long a .npy file must be by its header; None: the header cannot be read."""
    file.seek(0)
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    except Exception:  # numpy raises whatever a damaged header leads it to
        return None
    elements: int = math.prod(shape) * dtype.itemsize
    return file.tell() + elements


def _pickle_ends(file: BinaryIO) -> bool:
    """Return whether a file of torch before 1.6 ends within one of the five pickles that it begins with."""
    file.seek(0)
    try:
        for _ in range(5):
            for _ in pickletools.genops(file):
                pass
    except Exception:  # whatever pickletools raises, at the end or elsewhere
        return not file.read(1)
    return False


def _archive_bytes(head: bytes) -> int | None:
    """Return how long an archive of torch.save must be at least, by its data.pkl and where its storage begins."""
    try:
        record = 0
        while head[record : record + 4] == _ZIP:  # data.pkl comes first, and a descriptor behind each record
            fields = _LOCAL.unpack_from(head, record)
            name = head[record + _LOCAL.size :][: fields[9]].partition(b"/")[2]
            begin = record + _LOCAL.size + int(fields[9] + fields[10])
            if name == b"data.pkl":
                pickle = head[begin:]
            if name.startswith(b"data/"):
                return begin + _storage_bytes(pickle)
            record = head.index(_DESCRIPTOR, begin) + 16
    except Exception:  # a file that was cut off before its storage, or is no archive of torch.save
        return None
    return None


def _storage_bytes(pickle: bytes) -> int:
    """Return the size of the storage that a pickle of one tensor refers to."""
    item, count = 0, 0
    for opcode, argument, _ in pickletools.genops(pickle):
        if opcode.name == "GLOBAL" and str(argument).endswith("Storage"):
            item = _ITEMS[str(argument).rpartition(" ")[2].removesuffix("Storage")]
        elif isinstance(argument, int) and "PUT" not in opcode.name and "GET" not in opcode.name:
            count = argument
        elif opcode.name == "BINPERSID":
            return item * count
    raise ValueError("no storage in the pickle")
