"""1,000 nodes in a model: the trainer's own scheduler, driven by simulated fillers, links and loop.

What is real: penstock.cluster.dispatch, which decides who makes which batch and how many are in flight, and its time,
by the clock. What is simulated: the fillers, which take a time drawn around a measured one; the trainer's network,
which carries one batch after the other; the loop, which takes batches in order; and nodes that are lost.
"""

from __future__ import annotations

import heapq
import random
import sys
import time
from dataclasses import dataclass

from penstock.cluster.dispatch import Dispatcher, Window


@dataclass(frozen=True)
class Simulated:
    """What is simulated. Seconds and bytes."""

    fillers: int = 1000
    batches: int = 20_000
    batch_bytes: int = 38_535_168
    """64 float32 images of 3 x 224 x 224."""
    filling: float = 0.1
    """Of a batch in a filler, on average; each takes 0.5 to 1.5 of it."""
    latency: float = 0.0005
    """Of a request, and of its answer."""
    network: float = 12.5e9
    """Bytes a second that the trainer receives: 100 Gbit/s."""
    step: float = 0.004
    """Of the loop, a batch."""
    limit: int = 128 << 30
    """Bytes in flight."""
    loss_every: int = 2000
    """Batches from one lost filler to the next; it comes back after `back` seconds."""
    back: float = 5.0
    seed: int = 1


@dataclass(frozen=True)
class Outcome:
    """What became of a simulated pass."""

    scheduler: float
    """Seconds of the scheduler's own work a batch, by the clock of this machine."""
    seconds: float
    """Simulated, of the pass."""
    again: int
    """Batches that were asked for again."""
    most_bytes: int
    """In flight at a time."""
    made: int
    """Batches that came, each once."""


def simulate(model: Simulated) -> Outcome:
    """Return what becomes of a pass."""
    run = _Run(model)
    run.go()
    return Outcome(run.scheduler / model.batches, run.now, run.again, run.most, len(run.came))


class _Run:
    def __init__(self, model: Simulated) -> None:
        self.model, self.draw = model, random.Random(model.seed)
        self.dispatcher, self.window = Dispatcher(), Window(model.limit)
        self.events: list[tuple[float, int, str, int, int]] = []
        self.now = self.scheduler = self.link_free = 0.0
        self.busy_until: dict[int, float] = {}
        self.alive: set[int] = set()
        self.came: set[int] = set()
        self.handed = self.asked = self.again = self.most = self.events_made = 0
        self.names = iter(range(sys.maxsize))
        self.loop_free = 0.0

    def go(self) -> None:
        for _ in range(self.model.fillers):
            self.join()
        while self.handed < self.model.batches:
            self.fill_up()
            if not self.events:
                raise RuntimeError("the pass hangs")
            self.now, _, kind, filler, number = heapq.heappop(self.events)
            if kind == "filled":
                self.link_free = max(self.link_free, self.now) + self.model.batch_bytes / self.model.network
                self.later(self.link_free + self.model.latency, "came", filler, number)
            elif kind == "came":
                self.arrive(filler, number)
            elif kind == "joins":
                self.join()
            self.hand_out()

    def timed(self, began: float) -> None:
        self.scheduler += time.perf_counter() - began

    def later(self, when: float, kind: str, filler: int = 0, number: int = 0) -> None:
        self.events_made += 1
        heapq.heappush(self.events, (when, self.events_made, kind, filler, number))

    def join(self) -> None:
        name = next(self.names)
        self.alive.add(name)
        self.busy_until[name] = self.now
        began = time.perf_counter()
        self.dispatcher.join(name)
        self.timed(began)

    def fill_up(self) -> None:
        """Ask for as many batches as have room, and send what is assigned."""
        model = self.model
        began = time.perf_counter()
        while self.asked < model.batches and self.window.room(self.dispatcher.fillers):
            self.dispatcher.ask(self.asked)
            self.window.asked()
            self.asked += 1
        sent = list(self.dispatcher.assign())
        self.timed(began)
        self.most = max(self.most, self.window.bytes)
        for filler, number in sent:
            assert isinstance(filler, int)
            begin = max(self.now + model.latency, self.busy_until[filler])
            filled = self.busy_until[filler] = begin + model.filling * self.draw.uniform(0.5, 1.5)
            self.later(filled, "filled", filler, number)

    def arrive(self, filler: int, number: int) -> None:
        model = self.model
        if filler not in self.alive:
            return
        began = time.perf_counter()
        wanted = self.dispatcher.done(filler, number)
        if wanted:
            self.window.came(number, model.batch_bytes)
        self.timed(began)
        assert wanted and number not in self.came
        self.came.add(number)
        if len(self.came) % model.loss_every == 0:
            self.lose(filler)

    def hand_out(self) -> None:
        """Have the loop take the next batch in order, once it has done its step."""
        if self.handed not in self.came or self.loop_free > self.now:
            return
        began = time.perf_counter()
        self.window.gone(self.handed)
        self.timed(began)
        self.handed += 1
        self.loop_free = self.now + self.model.step
        self.later(self.loop_free, "loop")

    def lose(self, filler: int) -> None:
        self.alive.discard(filler)
        began = time.perf_counter()
        self.again += len(self.dispatcher.leave(filler))
        self.timed(began)
        self.later(self.now + self.model.back, "joins")
