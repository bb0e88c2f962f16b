"""The memory of another process of this machine, read without a copy in between: Linux's process_vm_readv.

A process may read another one's memory that could also trace it: of the same user, and where Yama is at work as the
other one allows. Who offers memory does so by the address of a random text, and who would read it shows that it can.
"""

from __future__ import annotations

import ctypes
import os
import select
import socket
import struct
from typing import Any

_TEXT_BYTES = 32
_OFFER = struct.Struct(f"!Q{_TEXT_BYTES}s")
_YES, _NO = b"\1", b"\0"
_PR_SET_PTRACER = 0x59616D61
_CREDENTIALS = struct.Struct("iII")


class _Piece(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t))


try:
    _libc: Any = ctypes.CDLL(None, use_errno=True)
    _readv: Any = _libc.process_vm_readv
    _readv.argtypes = (
        ctypes.c_int, ctypes.POINTER(_Piece), ctypes.c_ulong, ctypes.POINTER(_Piece), ctypes.c_ulong, ctypes.c_ulong,
    )  # fmt: skip
    _readv.restype = ctypes.c_ssize_t
except (OSError, AttributeError):  # another C library than Linux's
    _readv = None


class Neighbour:
    """A process of this machine whose memory this process may read. Threads may share it.

    Args:
        pid: of the process.
        connection: to it, which ends when it ends.
    """

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self._pid, self._connection = pid, connection

    def read(self, address: int, to: int, size: int) -> None:
        """Copy bytes of the other process to an address of this one, which holds them.

        Raises:
            EOFError: the other process has ended: what was copied may be another one's.
            OSError: the memory cannot be read.
        """
        done = 0
        while done < size:
            mine, theirs = _Piece(to + done, size - done), _Piece(address + done, size - done)
            count = _readv(self._pid, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)
            if count <= 0:
                code = ctypes.get_errno()
                raise OSError(code, f"the memory of process {self._pid} cannot be read: {os.strerror(code)}")
            done += count
        ended = select.poll()
        ended.register(self._connection, select.POLLRDHUP)
        if ended.poll(0):
            raise EOFError("the other end of the connection is gone")


def offer(connection: socket.socket) -> bool:
    """Offer this process's memory to the one at the other end of a Unix socket; return whether it can read it.

    Raises OSError, EOFError.
    """
    if _readv is not None and (pid := _peer(connection)):
        _libc.prctl(_PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)  # fails without Yama, where nothing need be allowed
    text = os.urandom(_TEXT_BYTES)
    held = ctypes.create_string_buffer(text, _TEXT_BYTES)
    connection.sendall(_OFFER.pack(ctypes.addressof(held), text))
    answer = connection.recv(1)
    if not answer:
        raise EOFError("the other end of the connection is gone")
    return answer == _YES


def accept(connection: socket.socket) -> Neighbour | None:
    """Take an offer; return the process, None: its memory cannot be read. Raises OSError, EOFError."""
    said = connection.recv(_OFFER.size, socket.MSG_WAITALL)
    if len(said) < _OFFER.size:
        raise EOFError("the other end of the connection is gone")
    address, text = _OFFER.unpack(said)
    found = Neighbour(pid, connection) if _readv is not None and (pid := _peer(connection)) else None
    if found is not None:
        held = ctypes.create_string_buffer(_TEXT_BYTES)
        try:
            found.read(address, ctypes.addressof(held), _TEXT_BYTES)
        except OSError:  # not allowed, or the process is one of another container
            found = None
        if held.raw != text:
            found = None
    connection.sendall(_NO if found is None else _YES)
    return found


def _peer(connection: socket.socket) -> int:
    """Return the process at the other end, as this one's container numbers it; 0: it is not seen from here."""
    said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(said)[0])
