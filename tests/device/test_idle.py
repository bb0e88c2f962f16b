"""The time in which a device is idle while its loop waits, with a device whose clock the tests move."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import penstock
from penstock.device.copy_stream import IdleMeter
from tests.accelerator import PromptStream, replaced_by_late_streams


@dataclasses.dataclass
class Event:
    """An event that a device comes to when a test says so."""

    time: float | None

    def query(self) -> bool:
        return self.time is not None

    def elapsed_time(self, end_event: Any) -> float:
        assert self.time is not None
        return float(end_event.time - self.time)


def test_waits_are_counted_when_the_device_has_gone_through_them(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Event] = []

    class SlowStream(PromptStream):
        def timed_event(self) -> Any:
            events.append(Event(None))
            return events[-1]

    replaced_by_late_streams(monkeypatch)
    monkeypatch.setattr("penstock.device.target.copy_stream_to", lambda device: SlowStream())
    loader = penstock.DataLoader(TensorDataset(torch.arange(24.0)), 4, num_workers=0, device="cuda")
    batches = iter(loader)
    next(batches), next(batches), next(batches)
    assert loader.stats().loop.device_idle == 0
    for event, time in zip(events, (10.0, 12.0, 30.0, 30.0, 45.0, 45.5), strict=True):
        event.time = time  # in milliseconds
    next(batches)
    assert loader.stats().loop.device_idle == pytest.approx(2.5e-3)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_knows_its_devices_idle_time(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))

    class TimedStream(PromptStream):
        def timed_event(self) -> Any:
            return Event(float(next(clock)))  # each is a millisecond behind the one before

    replaced_by_late_streams(monkeypatch)
    monkeypatch.setattr("penstock.device.target.copy_stream_to", lambda device: TimedStream())
    loader = penstock.DataLoader(TensorDataset(torch.arange(24.0)), 4, num_workers=workers, device="cuda")
    for _ in range(2):
        assert len(list(loader)) == 6
    assert loader.stats().loop.device_idle == pytest.approx(12e-3)


def test_some_waits_stand_for_all() -> None:
    """Of a long pass one wait in 16 is measured: a tenth of the events, and the sum of all waits."""
    clock, counted = iter(range(10_000)), list[float]()
    meter = IdleMeter(lambda: Event(float(next(clock))), counted.append)
    for number in range(1_600):
        meter.begin(number)
        meter.end()
    assert sum(counted) == pytest.approx(1.6, rel=0.05)
    assert 200 < next(clock) < 260
