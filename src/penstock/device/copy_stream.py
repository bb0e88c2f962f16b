"""Copies to an accelerator, on a stream of their own beside the one that computes; and how long that one idles."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch

#: Waits whose end the device has not reached yet; of more, the oldest is not counted.
MOST_PENDING = 64
#: One wait in so many is measured, and counts for all: two events and their query take longer than a small copy.
EACH = 16


class CopyStream:
    """Copies to one device, of any kind that torch has streams for, while its other streams compute.

    One thread sends, any thread may receive. Host memory: copies that do not block are made from page-locked memory
    only, which torch's caching host allocator keeps until the copy is done. Device memory: tensors are allocated on
    this stream; `record_stream` tells the caching allocator which stream they were handed to.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.Stream(device=device)

    def current(self) -> AbstractContextManager[Any]:
        """Return what makes the device the current one, for the calling thread: page-locked memory is a device's."""
        return torch.get_device_module(self.device).device(self.device.index)  # type: ignore[no-any-return]

    def working(self) -> AbstractContextManager[Any]:
        """Return what makes this copy stream the current one, for the calling thread."""
        return self._stream

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor on the device; called while working. The copy may be under way still."""
        return _pinned(tensor).to(self.device, non_blocking=True)

    def pin(self, value: Any) -> Any:
        """Return a value that moves itself, with what it holds in memory that is copied from without waiting."""
        pin = getattr(value, "pin_memory", None)  # as torch's loader has it for types of the user's
        return pin() if callable(pin) else value

    def mark(self) -> Any:
        """Return a mark behind all that was begun so far; called while working."""
        return self._stream.record_event()

    def timed_event(self) -> Any:
        """Return an event of CUDA behind all that the calling thread's current stream was given; None: no CUDA."""
        if self.device.type != "cuda":
            return None
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def receive(self, mark: Any, tensors: Iterable[torch.Tensor]) -> None:
        """Hand tensors over to the calling thread's current stream.

        What is begun there from now on finds all that was begun before the mark done. The tensors' memory is not used
        again for this copy stream before what that stream was given until then is done.
        """
        current = torch.accelerator.current_stream(self.device)
        current.wait_event(mark)
        for tensor in tensors:
            if tensor.device == self.device:
                tensor.record_stream(current)


def copy_stream_to(device: torch.device) -> CopyStream | None:
    """Return a copy stream to a device; None for the CPU and MPS, which plain copies reach."""
    return None if device.type in ("cpu", "mps") else CopyStream(device)


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in page-locked memory, where it can be there."""
    if not tensor.is_cpu or tensor.requires_grad or tensor.layout is not torch.strided or tensor.is_pinned():
        return tensor
    if any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)):
        tensor = tensor.contiguous()  # an expanded tensor's elements cannot be written one by one
    return tensor.pin_memory()


class IdleMeter:
    """Measures between two events around a wait, on the stream that the loop computes on: of one wait in EACH.

    The device comes to the first event when it has done what the loop had begun before the wait, and to the second one
    when the batch is there: in between it is idle. Both are read when the device has come to them; nothing is waited
    for. The first EACH waits of a pass are all measured. One thread at a time calls the methods.

    Args:
        record: returns an event behind all that was begun so far; None: the device has no times.
        count: is called with the seconds of waits.
    """

    def __init__(self, record: Callable[[], Any], count: Callable[[float], None]) -> None:
        self._record, self._count = record, count
        self._begun: tuple[Any, int] | None = None
        self._pending: deque[tuple[Any, Any, int]] = deque(maxlen=MOST_PENDING)

    def begin(self, number: int) -> None:
        """Take note of the beginning of a wait for the batch of that number."""
        # The multiplier spreads the waits that are measured evenly over loops of any period (Knuth, TAOCP 3, 6.4).
        measured = number < EACH or (number * 0x9E3779B1 & 0xFFFFFFFF) < (1 << 32) // EACH
        event = self._record() if measured else None
        self._begun = None if event is None else (event, 1 if number < EACH else EACH)

    def end(self) -> None:
        """Take note of the end of the wait; count those that the device has gone through."""
        if self._begun is None or (ended := self._record()) is None:
            return
        begun, waits = self._begun
        self._pending.append((begun, ended, waits))
        while self._pending and self._pending[0][1].query():
            first, last, waits = self._pending.popleft()
            self._count(max(0.0, first.elapsed_time(last) / 1e3) * waits)
