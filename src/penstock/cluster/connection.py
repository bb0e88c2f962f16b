"""The connection to a Ray cluster, what its nodes are sent, and whether they are fit for what they are to do."""

from __future__ import annotations

import functools
import io
import os
import pickle
import platform
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import PIL
import torch

import penstock
from penstock.cluster.option import Ray
from penstock.errors import ClusterError, ClusterUnreachable, InvalidOption
from penstock.system.words import size_of

#: Seconds in which the port of a cluster must answer.
_ANSWER = 5.0
#: What an HTTP/2 server, as Ray's is, answers with its settings, of type 4: the client's preface with empty settings.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4" + bytes(5)


@dataclass(frozen=True)
class Facts:
    """What an actor says of itself when it starts."""

    versions: Mapping[str, str]
    """Of what both ends must have alike."""
    node: str
    """The ID of its Ray node, the beginning of it."""
    host: str
    """The IP address of the node."""
    pid: int
    missing: tuple[str, ...] = ()
    """Files that the node does not see as the trainer does, each with what it sees."""

    @property
    def place(self) -> str:
        return f"node {self.node} ({self.host})"


def versions() -> dict[str, str]:
    """Return the versions that must be alike on all nodes: they exchange pickles, and make the same bytes."""
    return {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "torch": str(torch.__version__),
        "Pillow": PIL.__version__,
        "penstock": penstock.__version__,
    }


def connected(cluster: Ray) -> Any:
    """Return Ray's module, connected to a cluster. Raises InvalidOption without Ray, and ClusterUnreachable."""
    try:
        import ray  # noqa: PLC0415
    except ImportError as error:
        raise InvalidOption(
            'this needs Ray, which is not installed: pip install "penstock-loader[ray]", on every node of the cluster'
        ) from error
    if ray.is_initialized():
        return ray
    address, what = cluster.address or os.environ.get("RAY_ADDRESS") or "auto", "no Ray cluster runs on this machine"
    try:
        address = _of_this_machine() if address == "auto" else address
        what = f"no Ray cluster answers at {address}"
        host, _, port = address.rpartition(":")
        if host and port.isdecimal():  # Ray itself tries for minutes
            with socket.create_connection((host, int(port)), _ANSWER) as stream:
                if os.environ.get("RAY_USE_TLS", "0").lower() in ("0", "", "false"):
                    stream.sendall(_PREFACE)
                    if stream.recv(9, socket.MSG_WAITALL)[3:4] != b"\4":
                        raise ConnectionError("the server at this port is not Ray")
        ray.init(address=address, configure_logging=False)
    except (OSError, RuntimeError, ValueError, SystemExit) as error:  # SystemExit by Ray
        said = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ClusterUnreachable(
            f"{what} ({said}): start one by `ray start --head` here, and by `ray start "
            "--address=HOST:6379` on the other nodes, or give Ray(address=)"
        ) from error
    return ray


def _of_this_machine() -> str:
    """Return the address that Ray would take for "auto", which may be of a cluster that is gone; else "auto"."""
    try:
        from ray._private.services import get_ray_address_from_environment  # noqa: PLC0415
    except ImportError:  # of another version of Ray
        return "auto"
    return str(get_ray_address_from_environment("auto", None))


def here(files: Sequence[tuple[str, int]]) -> Facts:
    """Return what an actor says of itself. files: with their sizes as the process that asks sees them."""
    import ray  # noqa: PLC0415

    node = ray.get_runtime_context().get_node_id()[:8]
    return Facts(versions(), node, ray.util.get_node_ip_address(), os.getpid(), unseen(files))


def check(found: Facts, who: str) -> None:
    """Raise ClusterError where an actor cannot do its part: other versions, or files that its node does not see."""
    wanted = versions()
    differing = [name for name in wanted if found.versions.get(name) != wanted[name]]
    if differing:
        said = "; ".join(f"{name} {found.versions.get(name, 'none')}, and here {wanted[name]}" for name in differing)
        raise ClusterError(
            f"{who} on {found.place} has other versions than this process: {said}. Install the same on every node"
        )
    if found.missing:
        more = f", and {len(found.missing) - 1} more of the files that were checked" if len(found.missing) > 1 else ""
        raise ClusterError(
            f"{who} on {found.place} does not see the files of this process: {found.missing[0]}{more}. Give a dataset "
            "on a file system that all nodes share, under one path, or shards in an object store"
        )


def files_of(paths: Iterable[str | None]) -> list[tuple[str, int]]:
    """Return the absolute paths of files, and their sizes here, of those that are there."""
    found = []
    for path in dict.fromkeys(path for path in paths if path is not None):
        try:
            found.append((os.path.abspath(path), os.stat(path).st_size))
        except (OSError, ValueError):  # the error of its sample says so
            continue
    return found


def unseen(files: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    """Return those of these files that this machine does not see so, each with what it sees."""
    found = []
    for path, size in files:
        try:
            seen = os.stat(path).st_size
        except OSError as error:
            found.append(f"{path} ({error.strerror})")
            continue
        if seen != size:
            found.append(f"{path} (of {size_of(seen)}, not {size_of(size)})")
    return tuple(found)


def no_place(ray: Any, cluster: Ray, what: str) -> ClusterError:
    """Return the error of actors that the cluster did not start in time."""
    has = {name: amount for name, amount in ray.available_resources().items() if not name.startswith("node:")}
    free = ", ".join(f"{name} {amount:g}" for name, amount in sorted(has.items()) if "memory" not in name)
    return ClusterError(
        f"no {what} could start in {cluster.start_timeout:g} s: each needs {cluster.demand()}, and the cluster has "
        f"{free or 'nothing'} free. Ask for less by Ray(cpus=, resources=), or add nodes"
    )


# --- what nodes are sent ----------------------------------------------------------------------------------------------


def pickled(value: Any, dataset: Any) -> bytes:
    """Return what nodes are sent. Raises ClusterError where the user's dataset, or another part, cannot be pickled."""
    try:
        return whole(value)
    except Exception as error:
        raise ClusterError(
            f"{type(dataset).__qualname__}, or what is given with it, cannot be pickled ({type(error).__name__}: "
            f"{error}), and a cluster's nodes get a pickle of it: open files and locks where they are first used, in "
            "__getitem__, or leave them out of the pickle by a __getstate__ method"
        ) from error


def stored(ray: Any, value: Any) -> Any:
    """Return Ray's reference to what all nodes are sent: it crosses the network once a node. Raises ClusterError."""
    try:
        return ray.put(value)
    except (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError) as error:
        size = getattr(value, "nbytes", None) or len(value)
        raise ClusterError(
            f"the pickle for the nodes has {size_of(size)}, and the object store of Ray on this node is full: leave "
            "arrays in files, or start Ray with a larger --object-store-memory"
        ) from error


def whole(value: Any) -> bytes:
    """Return a value as one pickle, with what no module holds by value. Raises what pickling raises."""
    from ray import cloudpickle  # noqa: PLC0415

    pickled: bytes = cloudpickle.dumps(value, protocol=5)
    return pickled


# --- batches: pickles, with the memory of tensors and arrays beside them ----------------------------------------------
#
# Ray keeps arrays in the shared memory of its object store: the one copy there is made where a batch is sent, and the
# one out of it, into batch memory, where it is taken.


class Memory(NamedTuple):
    """Memory that a tensor is received into."""

    tensor: torch.Tensor
    """Of uint8, the only one on its storage, which begins with it."""
    view: Any
    """The same bytes, writable."""


Allocate = Callable[[int], Memory]


class Pieces(NamedTuple):
    """A value as it is sent."""

    pickled: bytes
    buffers: list[np.ndarray]
    """Of uint8: the memory of tensors and arrays."""
    tensors: list[bool]
    """Whether each is a tensor's."""

    @property
    def size(self) -> int:
        return len(self.pickled) + sum(buffer.nbytes for buffer in self.buffers)


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
            if type(obj) is torch.Tensor and _is_plain(obj):
                memory: Any = obj.reshape(-1).view(torch.uint8).numpy()
                buffer = pickle.PickleBuffer(memory)
                self._tensors.add(id(buffer))
                return _tensor_on, (buffer, obj.dtype, tuple(obj.shape))
            return super().reducer_override(obj)

    return BatchPickler


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is its elements in order; torch pickles others in its own way, with copies."""
    if tensor.layout is not torch.strided or not tensor.is_cpu or tensor.requires_grad or tensor.is_nested:
        return False
    if tensor.is_conj() or tensor.is_neg() or tensor.is_quantized or tensor.__dict__ or not tensor.numel():
        return False
    return tensor.is_contiguous() and tensor.dtype is not torch.complex32


def _tensor_on(memory: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    empty: Any = torch.empty(0, dtype=dtype)
    made: torch.Tensor = empty.set_(memory.untyped_storage(), 0, shape)
    return made


def pieces_of(value: Any) -> Pieces:
    """Return a value as pieces, of which only the pickle is a copy. Raises what pickling raises."""
    buffers: list[pickle.PickleBuffer] = []
    tensors: set[int] = set()  # those of the buffers that are a tensor's, by id()
    file = io.BytesIO()
    _pickler()(file, buffers, tensors).dump(value)
    views = [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]
    return Pieces(file.getvalue(), views, [id(buffer) in tensors for buffer in buffers])


def value_of(pieces: Pieces, allocate: Allocate) -> Any:
    """Return the value of pieces, copied; allocate: gives memory for each tensor. Raises what unpickling raises."""
    held: list[Any] = []
    for buffer, is_tensor in zip(pieces.buffers, pieces.tensors, strict=True):
        if is_tensor:
            memory = allocate(buffer.nbytes)
            np.frombuffer(memory.view, np.uint8)[:] = buffer
            held.append(memory.tensor)
        else:
            held.append(bytearray(buffer))
    return pickle.loads(pieces.pickled, buffers=held)
