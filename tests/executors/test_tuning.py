"""Autotuning: the controller with simulated loops, and what it does to passes."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import pytest

from penstock.executors.filler import Knobs, Setting
from penstock.executors.tuning import Controller, State, span_between
from penstock.loop_times import LoopMeter

GIGABYTE = 1 << 30
USUAL = 8  # batches in flight


@dataclass
class Simulated:
    """A loop over batches that threads make: so many at a time, each a batch.

    Args:
        make: returns the seconds that a thread takes for a batch, of its number and of the threads at work.
        work: returns the seconds that the loop works on a batch, of the same.
        cpu: the share of the CPUs that is in use.
        cpus: of them there are so many, and as many threads.
        room: bytes of memory that are left.
    """

    make: Callable[[int, int], float]
    work: Callable[[int, int], float] = lambda number, threads: 0.0
    cpu: float = 1.0
    cpus: int = 4
    room: int = 100 * GIGABYTE
    batch_bytes: int = 1 << 20
    paced: bool = False

    def __post_init__(self) -> None:
        self.now = self._worked = 0.0
        self.meter = LoopMeter()
        self.controller = Controller(self.cpus, self.cpus, lambda: self.room, lambda: self.now)
        self.settings = [self.setting]
        self._numbers = count()
        self._free = [0.0]  # when each thread is
        self._taken: deque[float] = deque()  # when the loop took the latest batches
        self._asked = 0.0
        self._frozen_at: float | None = None

    @property
    def setting(self) -> Setting:
        return self.controller.setting

    @property
    def depth(self) -> int:
        return self.setting.in_flight or USUAL

    def step(self) -> None:
        """Take a batch and work on it."""
        number, threads = next(self._numbers), self.setting.threads
        while len(self._free) < threads:
            heapq.heappush(self._free, self.now)
        while len(self._free) > threads:
            self._free.remove(max(self._free))
        slot = self._taken[-self.depth] if len(self._taken) >= self.depth else 0.0
        begun = max(heapq.heappop(self._free), slot)
        cost = self.make(number, threads)
        heapq.heappush(self._free, begun + cost)
        took = max(self.now, begun + cost)
        waited, self.now = took - self.now, took
        self.meter.add(waited, None if number == 0 else self._worked)
        self._taken.append(took)
        if len(self._taken) > 100:
            self._taken.popleft()
        knobs = Knobs(self.cpus, self.depth, self.batch_bytes, self.paced)
        if self.now >= self._asked + 0.1:
            self._asked = self.now
            before = self.setting
            self.controller.look(self.meter.times(), self.now * self.cpus * self.cpu, knobs)
            if self.setting != before:
                self.settings.append(self.setting)
        self._worked = self.work(number, threads)
        self.now += self._worked

    def run(self, seconds: float) -> float:
        """Go on for so many seconds; return the batches a second."""
        begun, steps = self.now, 0
        while self.now < begun + seconds:
            self.step()
            steps += 1
        return steps / (self.now - begun)

    def until(self, state: State, seconds: float = 30.0) -> float:
        """Go on until the controller is in a state; return the seconds that took."""
        begun = self.now
        while self.controller.state is not state:
            self.step()
            assert self.now < begun + seconds, self.controller.tuning()
        return self.now - begun

    @property
    def reasons(self) -> list[str]:
        return [step.why for step in self.controller.tuning().steps]


def evenly(seconds: float) -> Callable[[int, int], float]:
    return lambda number, threads: seconds


def slower(number: int, threads: int) -> float:
    """Return what a loop needs for a batch whose threads take turns with the loop's own."""
    return 0.02 * (1 + 0.03 * (threads - 1))


def bursts(number: int, threads: int) -> float:
    return 0.25 if number % 24 == 23 else 0.01


def test_a_starved_loop_keeps_all_threads() -> None:
    loop = Simulated(evenly(0.04), evenly(0.001))
    assert loop.until(State.FROZEN) < 5
    assert loop.setting == Setting(4)
    best, tuned = 1 / 0.01, loop.run(10)
    assert tuned == pytest.approx(best, rel=0.01)
    assert "fewer batches a second than with 4 threads" in loop.reasons[0]
    assert loop.settings.count(Setting(2)) == 1, "what makes the loop much slower is tried for one window"


def test_a_loop_that_does_not_wait_and_leaves_cpus_free_is_left_alone() -> None:
    loop = Simulated(evenly(0.002), evenly(0.01), cpu=0.3)
    loop.run(60)
    assert loop.settings == [Setting(4)] and loop.reasons == []
    assert loop.controller.tuning().frozen


def test_threads_that_hinder_each_other_become_fewer() -> None:
    best = Simulated(lambda number, threads: 0.002 * (1 + 0.6 * (threads - 1)) * threads, cpus=8)
    best.until(State.FROZEN)
    assert best.setting.threads == 1
    assert best.run(5) == pytest.approx(1 / 0.002, rel=0.05)


def test_threads_with_a_pace_of_their_own_are_not_made_fewer_for_that() -> None:
    loop = Simulated(lambda number, threads: 0.002 * threads * threads, cpus=8, paced=True)
    loop.run(30)
    assert loop.settings == [Setting(8)]


def test_cores_are_left_to_a_loop_that_keeps_all_busy() -> None:
    loop = Simulated(evenly(0.01), slower)
    assert loop.until(State.FROZEN) < 10
    assert loop.setting.threads == 2
    assert loop.run(5) == pytest.approx(1 / 0.0206, rel=0.01)
    assert "the CPUs were 100% busy; with 2 threads it took 6% more batches a second than with 4" in loop.reasons[0]


def test_no_core_is_left_where_the_loop_would_wait() -> None:
    loop = Simulated(evenly(0.07), lambda number, threads: 0.02)
    loop.run(30)
    rates = [loop.run(5) for _ in range(3)]
    assert loop.setting.threads == 4 and loop.controller.tuning().frozen
    assert min(rates) == pytest.approx(50, rel=0.02)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("starved", [True, False])
def test_noise_changes_nothing(seed: int, starved: bool) -> None:
    drawn = random.Random(seed)
    making = 0.04 if starved else 0.005

    def noisy(seconds: float) -> Callable[[int, int], float]:
        return lambda number, threads: seconds * drawn.uniform(0.5, 1.5)

    loop = Simulated(noisy(making), noisy(0.009), cpu=1.0 if starved else 0.5)
    loop.run(60)
    assert loop.setting.threads == 4 and loop.controller.tuning().frozen
    assert len(loop.reasons) < 8


def test_a_store_that_takes_its_time_gets_all_threads() -> None:
    """More or fewer threads bring nothing: readers wait for the store."""
    loop = Simulated(lambda number, threads: 0.01 * threads, evenly(0.001), cpu=0.1)
    loop.run(30)
    assert loop.setting == Setting(4)


def test_bursts_get_more_batches_in_flight() -> None:
    loop = Simulated(bursts, evenly(0.01), cpu=0.5)
    fixed = Simulated(bursts, evenly(0.01), cpu=0.5, batch_bytes=0)
    assert loop.until(State.FROZEN) < 30
    assert loop.depth > USUAL and loop.setting.threads == 4
    assert loop.run(20) > 1.1 * fixed.run(50)
    assert fixed.depth == USUAL
    assert "half of it for one batch in" in loop.reasons[0] and "16 batches in flight" in loop.reasons[0]


def test_depth_stays_within_its_part_of_the_memory() -> None:
    loop = Simulated(bursts, evenly(0.01), cpu=0.5, room=8 * 10 * GIGABYTE, batch_bytes=GIGABYTE)
    loop.run(60)
    assert max(setting.in_flight or USUAL for setting in loop.settings) == 10
    loop = Simulated(bursts, evenly(0.01), cpu=0.5, room=8 * 8 * GIGABYTE, batch_bytes=GIGABYTE)
    loop.run(60)
    assert loop.depth == USUAL


def test_a_loop_that_changes_much_is_tuned_anew() -> None:
    making = [0.01]

    loop = Simulated(lambda number, threads: making[0], slower)
    loop.until(State.FROZEN)
    assert loop.setting.threads == 2
    making[0] = 0.07  # the images are larger now
    loop.run(120)
    assert loop.setting.threads == 4
    assert loop.run(60) == pytest.approx(1 / 0.0218, rel=0.02)
    assert "the loop has changed: it takes" in str(loop.reasons)


def test_a_loop_that_works_longer_is_tuned_anew() -> None:
    working = [0.001]
    loop = Simulated(evenly(0.01), lambda number, threads: working[0] * (1 + 0.03 * (threads - 1)))
    loop.until(State.FROZEN)
    assert loop.setting.threads == 4
    working[0] = 0.02
    loop.run(15)
    assert loop.setting.threads == 2
    assert "the loop has changed: it takes 89% fewer batches a second than before, and waits 0%" in str(loop.reasons)


def test_a_loop_that_changes_to_and_fro_is_tried_less_and_less_often() -> None:
    def by_turns(number: int, threads: int) -> float:
        return 0.07 if number % 600 < 300 else 0.01

    loop = Simulated(by_turns, evenly(0.02))
    loop.run(1200)
    first = len(loop.settings)
    loop.run(1200)
    assert len(loop.settings) - first <= first / 2
    assert len(loop.reasons) <= 32


def test_a_loop_of_long_steps_is_tuned_too() -> None:
    loop = Simulated(evenly(6.0), evenly(0.1))
    loop.run(200)
    assert loop.controller.tuning().frozen and loop.setting.threads == 4


def test_one_thread_stays_one() -> None:
    for cpu in (1.0, 0.2):
        for making in (0.05, 0.001):
            loop = Simulated(evenly(making), evenly(0.01), cpu=cpu, cpus=1)
            loop.run(30)
            assert loop.settings == [Setting(1)] and loop.controller.tuning().frozen


def test_a_span_says_how_many_batches_are_waited_for_long() -> None:
    meter = LoopMeter()
    meter.add(9.0, None)  # the first batch of a pass
    begun = meter.times()
    for _ in range(99):
        meter.add(0.0001, 0.01)
    meter.add(1.0, 0.01)
    span = span_between(begun, meter.times())
    assert (span.batches, span.rare) == (100, 0.01)
    assert span.waited == pytest.approx(1.0099) and span.worked == pytest.approx(1.0)
    assert span_between(begun, begun).rare == 0
