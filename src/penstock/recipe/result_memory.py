"""Where the tensors lie that transforms make: in torch's memory, or where the code that calls a thread wants them.

A worker process has them written into the shared memory of the batch that they are for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

Room = Callable[[Sequence[int], torch.dtype], torch.Tensor | None]
"""Returns uninitialised memory for a tensor of a shape and dtype; None: torch is to have it."""


class _ThreadState(threading.local):
    room: Room | None = None


_this_thread = _ThreadState()


@contextmanager
def placed(room: Room) -> Iterator[None]:
    """Have the tensors that transforms make in this thread lie where `room` says."""
    before, _this_thread.room = _this_thread.room, room
    try:
        yield
    finally:
        _this_thread.room = before


def empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return uninitialised memory on the CPU for what a transform makes."""
    room = _this_thread.room
    tensor = None if room is None else room(shape, dtype)
    return torch.empty(tuple(shape), dtype=dtype, device="cpu") if tensor is None else tensor
