"""An accelerator that is none: cuda:0 in name, the CPU in fact, for what a loader does with its device."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch

from penstock.device import resident
from penstock.device.copy_stream import CopyStream
from penstock.device.decoders import decoded_by_pillow
from penstock.device.decoding import DecodingCarrier
from penstock.device.feed import Feed

CPU = torch.device("cpu")
DEVICE = torch.device("cuda", 0)
GARBAGE = -99


class LateStream(CopyStream):
    """A device that begins a copy only when somebody waits for it: what is read too early is garbage."""

    device = DEVICE

    def __init__(self) -> None:
        self.waiting: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.handed_over: list[list[torch.Tensor]] = []
        self.lock = threading.Lock()

    def current(self) -> Any:
        return contextlib.nullcontext()

    def working(self) -> Any:
        return contextlib.nullcontext()

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        there = torch.full_like(tensor, GARBAGE) if tensor.dtype != torch.bool else torch.zeros_like(tensor)
        with self.lock:
            self.waiting.append((there, tensor))
        return there

    def pin(self, value: Any) -> Any:
        return value

    def mark(self) -> int:
        with self.lock:
            return len(self.waiting)

    def timed_event(self) -> None:
        return None

    def receive(self, mark: int, tensors: Iterable[torch.Tensor]) -> None:
        with self.lock:
            for there, tensor in self.waiting[:mark]:
                if tensor.numel() and there.dtype != torch.bool:
                    assert (there == GARBAGE).all() or torch.equal(there, tensor)
                there.copy_(tensor)
        self.handed_over.append(list(tensors))


class PromptStream(LateStream):
    """A device that copies at once: for what is done to a batch after its copy."""

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()


class OnHost:
    """A decoder in the place of a GPU's: Pillow's pixels."""

    name = "Pillow, in place of a GPU"

    def decode(self, encoded: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        return [decoded_by_pillow(data.numpy().tobytes()) for data in encoded]


def replaced_by_late_streams(monkeypatch: pytest.MonkeyPatch) -> list[LateStream]:
    """Make cuda:0 a LateStream, of which each pass makes a new one, and return those that are made."""
    streams: list[LateStream] = []

    def copy_stream_to(device: torch.device) -> LateStream:
        streams.append(LateStream())
        return streams[-1]

    monkeypatch.setattr(Feed, "resolve", lambda self: DEVICE)
    for module in ("penstock.device.feeding", "penstock.device.target"):
        monkeypatch.setattr(f"{module}.copy_stream_to", copy_stream_to)
    for module in ("carriers.choice", "explain"):
        monkeypatch.setattr(f"penstock.{module}.can_pin", lambda settings, *, sends: False)
    return streams


def replaced_by_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make of cuda:0 a device that copies at once, holds arrays, and decodes JPEG files with Pillow."""
    replaced_by_late_streams(monkeypatch)

    def decoding(plan: Any, means: Any, decoder: Any, device: Any, stream: Any, **named: Any) -> DecodingCarrier:
        return DecodingCarrier(plan, means, decoder, torch.device("cpu"), stream, **named)

    monkeypatch.setattr("penstock.device.decoding.DecodingCarrier", decoding)
    monkeypatch.setattr("penstock.device.target.decoder_for", lambda device: OnHost())
    monkeypatch.setattr("penstock.device.target.copy_stream_to", lambda device: PromptStream())
    for name in ("hold", "explain"):
        there = getattr(resident, name)
        monkeypatch.setattr(resident, name, lambda plan, device, there=there: there(plan, CPU))
