"""Pickles of what a trainer and its fillers send each other, with the memory of tensors and arrays beside them.

Ray keeps arrays in the shared memory of its object store: the one copy there is made where a batch is sent, and the one
out of it, into batch memory, where it is taken.
"""

from __future__ import annotations

import functools
import io
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch


class Memory(NamedTuple):
    """Memory that a tensor is received into."""

    tensor: torch.Tensor
    """Of uint8, alone on its storage, which begins with it."""
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
        """Return the bytes of all."""
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
    """Return a tensor on received memory."""
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


def whole(value: Any) -> bytes:
    """Return a value as one pickle, with what no module holds by value. Raises what pickling raises."""
    from ray import cloudpickle  # noqa: PLC0415

    pickled: bytes = cloudpickle.dumps(value, protocol=5)
    return pickled
