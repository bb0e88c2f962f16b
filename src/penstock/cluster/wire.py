"""Messages between a trainer and its fillers: a pickle, and behind it the memory of its tensors and arrays.

A message is a number (u64), the bytes of the pickle (u64), how many buffers follow (u32) and for each its bytes (i64,
negative where it is a tensor's), then the pickle, then the buffers, all big-endian. Tensors are received where the
receiver says: a batch crosses the network once, into its batch memory. Both ends of a connection prove that they know a
secret before anything is unpickled.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import io
import os
import pickle
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch

from penstock.errors import ClusterError

_HEAD = struct.Struct("!QQI")
_SIZE = struct.Struct("!q")
#: Pieces of one sendmsg; Linux takes 1,024.
_PIECES = 512
#: Buffers of a message, and bytes of its pickle, at the most: what is more is no message of ours.
_MOST_BUFFERS, _MOST_BYTES = 1 << 20, 1 << 40
_SECRET_BYTES = 32
#: Seconds that a trainer waits for a filler's proof.
_MEETING = 10.0
#: Who may be connected at once to a filler that waits for its trainer: others are hung up on, the oldest first.
_MOST_STRANGERS = 64
#: A machine that has vanished is noticed within so many seconds: by probes while nothing is sent, else by what it does
#: not acknowledge. The kernel answers probes, so that a filler may be in a long sample.
_VANISHED = 3
#: What is under way between two processes of one machine: it is copied twice, and stays in a core's cache meanwhile.
_LOCAL_BYTES = 1 << 20
#: How much larger than a tensor the memory around its elements may be to be sent as it is.
_SPREAD = 4


class Memory(NamedTuple):
    """Memory that a tensor is received into."""

    tensor: torch.Tensor
    """Of uint8, alone on its storage, which begins with it."""
    view: Any
    """The same bytes, writable."""


Allocate = Callable[[int], Memory]


class Message(NamedTuple):
    """What came over a connection."""

    number: int
    value: Any
    error: Exception | None
    """Why the value could not be unpickled here."""
    size: int
    """Bytes of the message."""


def new_secret() -> bytes:
    """Return a secret for the connections of one trainer."""
    return os.urandom(_SECRET_BYTES)


# --- values as pieces of memory ---------------------------------------------------------------------------------------


@functools.cache
def _pickler() -> Any:
    from ray import cloudpickle  # noqa: PLC0415

    class BatchPickler(cloudpickle.CloudPickler):  # type: ignore[misc]
        """Pickles by value what no module holds; leaves the memory of tensors and arrays out."""

        def __init__(self, file: Any, buffers: list[pickle.PickleBuffer], tensors: set[int]) -> None:
            self._tensors = tensors
            # No method of this object: a cycle would keep the batch that it has pickled until the garbage is collected.
            super().__init__(file, protocol=5, buffer_callback=buffers.append)

        def reducer_override(self, obj: Any) -> Any:
            if type(obj) is torch.Tensor and (memory := _memory_of(obj)) is not None:
                buffer = pickle.PickleBuffer(memory)
                self._tensors.add(id(buffer))
                return _tensor_on, (buffer, obj.dtype, tuple(obj.shape), obj.stride())
            return super().reducer_override(obj)

    return BatchPickler


def _memory_of(tensor: torch.Tensor) -> Any:
    """Return the bytes from a plain tensor's first element to its last; None: torch pickles it in its own way."""
    if tensor.layout is not torch.strided or not tensor.is_cpu or tensor.requires_grad or tensor.is_nested:
        return None
    if tensor.is_conj() or tensor.is_neg() or tensor.is_quantized or tensor.__dict__ or not tensor.numel():
        return None
    if tensor.dtype is torch.complex32:
        return None
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if extent > _SPREAD * tensor.numel():
        return None
    size, begin = tensor.element_size(), tensor.storage_offset()
    whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    return whole[begin * size : (begin + extent) * size].numpy()


def _tensor_on(memory: Any, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor on received memory."""
    if not isinstance(memory, torch.Tensor):  # unpickled without a connection
        memory = torch.from_numpy(np.array(memory, dtype=np.uint8))
    return torch.empty(0, dtype=dtype).set_(memory.untyped_storage(), 0, shape, stride)


def pieces_of(number: int, value: Any) -> list[Any]:
    """Return a message as pieces of memory, of which only the pickle is a copy. Raises what pickling raises."""
    buffers: list[pickle.PickleBuffer] = []
    tensors: set[int] = set()  # those of the buffers that are a tensor's, by id()
    file = io.BytesIO()
    _pickler()(file, buffers, tensors).dump(value)
    pickled = file.getbuffer()
    raw = [buffer.raw() for buffer in buffers]
    sizes = [-view.nbytes if id(one) in tensors else view.nbytes for one, view in zip(buffers, raw, strict=True)]
    head = _HEAD.pack(number, pickled.nbytes, len(raw)) + b"".join(map(_SIZE.pack, sizes))
    return [head, pickled, *raw]


def whole(value: Any) -> bytes:
    """Return a value as one pickle, with what no module holds by value. Raises what pickling raises."""
    from ray import cloudpickle  # noqa: PLC0415

    pickled: bytes = cloudpickle.dumps(value, protocol=5)
    return pickled


# --- connections ------------------------------------------------------------------------------------------------------


def send(connection: socket.socket, pieces: Sequence[Any]) -> None:
    """Send a message. Raises OSError."""
    views = deque(view for piece in pieces if (view := memoryview(piece)).nbytes)
    while views:
        sent = connection.sendmsg(list(islice(views, _PIECES)))
        while views and sent >= views[0].nbytes:
            sent -= views.popleft().nbytes
        if sent:
            views[0] = views[0].cast("B")[sent:]


def receive(connection: socket.socket, allocate: Allocate) -> Message:
    """Wait for a message; allocate: gives memory for each tensor.

    Raises EOFError where the other end is gone, OSError, MemoryError, ClusterError.
    """
    number, length, count = _HEAD.unpack(_received(connection, _HEAD.size))
    if count > _MOST_BUFFERS or length > _MOST_BYTES:
        raise ClusterError("a filler sent what is no message of Penstock's: another program answers at its port")
    sizes = [_SIZE.unpack(part)[0] for part in _parts(_received(connection, count * _SIZE.size))]
    if any(abs(size) > _MOST_BYTES for size in sizes):
        raise ClusterError("a filler sent what is no message of Penstock's: another program answers at its port")
    pickled = _received(connection, length)
    buffers: list[Any] = []
    for size in sizes:
        if size < 0:
            memory = allocate(-size)
            _fill(connection, memoryview(memory.view))
            buffers.append(memory.tensor)
        else:
            buffers.append(np.frombuffer(_received(connection, size), np.uint8))
    total = length + sum(map(abs, sizes))
    try:
        return Message(number, pickle.loads(pickled, buffers=buffers), None, total)
    except Exception as error:
        return Message(number, None, error, total)


def _parts(sizes: bytearray) -> list[bytes]:
    return [bytes(sizes[begin : begin + _SIZE.size]) for begin in range(0, len(sizes), _SIZE.size)]


def _received(connection: socket.socket, size: int) -> bytearray:
    held = bytearray(size)
    _fill(connection, memoryview(held))
    return held


def _fill(connection: socket.socket, view: memoryview) -> None:
    while view.nbytes:
        count = connection.recv_into(view, view.nbytes, socket.MSG_WAITALL)
        if not count:
            raise EOFError("the other end of the connection is gone")
        view = view[count:]


def in_new_memory(size: int) -> Memory:
    """Return memory of torch's allocator."""
    tensor = torch.empty(size, dtype=torch.uint8)
    return Memory(tensor, tensor.numpy())


class Listener:
    """Waits for one connection: by TCP, or on the same machine by a Unix socket, which costs less CPU time.

    Args:
        host: the address of this machine that TCP listens at.
    """

    def __init__(self, host: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._tcp = socket.create_server((host, 0), family=family)
        self.port: int = self._tcp.getsockname()[1]
        self.local = f"\0penstock-{os.urandom(16).hex()}"  # an abstract name, which no file has
        self._local = socket.socket(socket.AF_UNIX)
        self._local.bind(self.local)
        self._local.listen()

    def accept(self, secret: bytes, timeout: float) -> socket.socket:
        """Wait for the first who proves to know the secret, whoever else connects; nobody can connect after that.

        Raises TimeoutError, OSError.
        """
        deadline = time.monotonic() + timeout
        self._tcp.setblocking(False)
        self._local.setblocking(False)
        strangers: dict[socket.socket, Iterator[None]] = {}  # and the meetings with them, the oldest first
        try:
            while (left := deadline - time.monotonic()) > 0:
                for one in select.select([self._tcp, self._local, *strangers], [], [], left)[0]:
                    if one in (self._tcp, self._local):
                        with suppress(BlockingIOError, ConnectionAbortedError):  # who connected is gone again
                            stranger, _ = one.accept()
                            strangers[stranger] = _meeting(stranger, secret, b"filler", b"trainer")
                            stranger.setblocking(False)
                            _proves(stranger, strangers)
                    elif _proves(one, strangers):
                        del strangers[one]
                        return one
                for oldest in list(strangers)[:-_MOST_STRANGERS]:
                    del strangers[oldest]
                    oldest.close()
        finally:
            for one in (self._tcp, self._local, *strangers):
                one.close()
        raise TimeoutError(f"the trainer did not connect in {timeout:g} s")


def _proves(stranger: socket.socket, strangers: dict[socket.socket, Iterator[None]]) -> bool:
    """Take what a stranger said; return whether that completes its proof. Hang up on it where it is none."""
    try:
        next(strangers[stranger])
    except StopIteration:
        return True
    except (OSError, EOFError, ClusterError):
        del strangers[stranger]
        stranger.close()
    return False


def connect(host: str, port: int, local: str, secret: bytes) -> socket.socket:
    """Return a connection to a Listener that knows the secret. Raises OSError, EOFError, ClusterError.

    local: the name of its Unix socket, where it is on this machine; else empty.
    """
    if local:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(_MEETING)
        try:
            connection.connect(local)
        except OSError:  # this is a container of its own
            connection.close()
        else:
            return _met(connection, secret)
    connection = _met(socket.create_connection((host, port), _MEETING), secret)
    # Not at the filler's end, whose batches wait while the trainer does not read.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _VANISHED * 1000)
    return connection


def _met(connection: socket.socket, secret: bytes) -> socket.socket:
    """Return a trainer's connection to a filler, when both have proved that they know the secret."""
    try:
        for _ in _meeting(connection, secret, b"trainer", b"filler"):
            pass
    except BaseException:
        connection.close()
        raise
    return connection


def _meeting(connection: socket.socket, secret: bytes, own: bytes, other: bytes) -> Iterator[None]:
    """Prove to the other end, and have it prove, who knows the secret. Yields before each read, which may wait."""
    mine = os.urandom(_SECRET_BYTES)
    connection.sendall(mine)  # so little that a new connection always takes it
    theirs = yield from _coming(connection, _SECRET_BYTES)
    connection.sendall(hmac.digest(secret, own + mine + theirs, "sha256"))
    proof = yield from _coming(connection, hashlib.sha256().digest_size)
    if not hmac.compare_digest(proof, hmac.digest(secret, other + theirs + mine, "sha256")):
        raise ClusterError("the other end of a connection does not know the secret of this loader: it is refused")
    connection.settimeout(None)
    _notice_loss(connection)


def _coming(connection: socket.socket, size: int) -> Generator[None, None, bytes]:
    came = b""
    while len(came) < size:
        yield
        part = connection.recv(size - len(came))
        if not part:
            raise EOFError("the other end of the connection is gone")
        came += part
    return came


def _notice_loss(connection: socket.socket) -> None:
    if connection.family == socket.AF_UNIX:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connection.setsockopt(socket.SOL_SOCKET, option, _LOCAL_BYTES)
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _VANISHED - 1)


def hang_up(connection: socket.socket) -> None:
    """End a connection; a thread that waits at it goes on, and closes it."""
    with suppress(OSError):  # it has ended
        connection.shutdown(socket.SHUT_RDWR)
