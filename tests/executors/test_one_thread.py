"""Passes in worker processes tell what one thread would need for the same, and explain() advises threads by it."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch.utils.data as tud

import penstock
from penstock.explain import FEWEST_BATCHES, THREAD_BATCH_SECONDS, one_thread
from penstock.observe import ProcessTimes, StageTime

STAGES = {"getitem": StageTime(1.0, 1000), "collate": StageTime(0.5, 1000), "iterate": StageTime(9.0, 1000)}
AUTO = "worker_method='auto' would measure"


def test_the_seconds_are_those_of_one_thread_in_turn_with_the_loop() -> None:
    found = one_thread(ProcessTimes(loader=6.0, loop=0.5, batches=100, samples=1000), STAGES, 1000)
    assert found == pytest.approx((6.5, 1.5 + 0.5 + 100 * THREAD_BATCH_SECONDS))


def test_too_little_is_known() -> None:
    assert one_thread(ProcessTimes(6.0, 0.5, FEWEST_BATCHES - 1, 1000), STAGES, 1000) is None
    assert one_thread(ProcessTimes(6.0, 0.5, 100, 1000), STAGES, 1001) is None, "one was read in another way"


class Holding(list[int]):
    """Unchanged a lock, which threads cannot copy."""

    def __init__(self) -> None:
        super().__init__(range(8))
        self.lock = threading.Lock()


def advice_of(loader: Any) -> str:
    return str([line for line in loader.explain().splitlines() if line.startswith("advice")][-1])


def test_passes_are_timed() -> None:
    loader: Any = penstock.DataLoader(list(range(100)), 2, num_workers=2)  # type: ignore[arg-type]
    times = loader._executors.counters.meter.processes
    for epochs in (1, 2):
        began_with = times.loader
        for _ in loader:
            pass
        assert (times.batches, times.samples) == (50 * epochs, 100 * epochs)
        assert times.loader > began_with and times.loop > 0
    assert loader.stats().wait_seconds <= times.loader


@pytest.mark.parametrize(
    ("seconds", "options", "factor"),
    [
        (1e6, {}, True),
        (1e6, {"persistent_workers": True}, True),
        (0.0, {}, False),
        (1e6, {"seed": 1}, False),  # its draws follow the sample in worker processes alone
    ],
)
def test_threads_are_advised_by_their_factor(seconds: float, options: dict[str, Any], factor: bool) -> None:
    loader: Any = penstock.DataLoader(list(range(100)), 2, num_workers=2, **options)  # type: ignore[arg-type]
    assert AUTO in advice_of(loader)
    list(loader)
    times = loader._executors.counters.meter.processes
    times.loader, times.loop = seconds, 0.0
    text = advice_of(loader)
    assert (AUTO in text) != factor
    if factor:
        assert text.startswith("advice   worker_method='thread' would be at least about ")
        assert " times as fast: passes in worker processes took 1e+06 s, of which one thread would need " in text
        assert text.endswith("penstock.testing.assert_same_as_torch(dataset) checks the dataset in threads")


def test_threads_are_not_advised_where_they_cannot_copy_the_dataset() -> None:
    loader: Any = penstock.DataLoader(Holding(), 1, num_workers=1)  # type: ignore[arg-type]
    list(loader)
    loader._executors.counters.meter.processes = ProcessTimes(1e6, 0.0, FEWEST_BATCHES, 8)
    assert AUTO in advice_of(loader)


def test_other_workers_are_not_advised_so() -> None:
    for options in ({"worker_method": "thread"}, {"worker_method": "process"}):
        loader: Any = penstock.DataLoader(tud.Subset(list(range(8)), range(8)), num_workers=2, **options)  # type: ignore[arg-type]
        list(loader)
        loader._executors.counters.meter.processes = ProcessTimes(1e6, 0.0, FEWEST_BATCHES, 8)
        assert "times as fast" not in loader.explain()
