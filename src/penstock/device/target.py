"""The device of a loader: what it does of the plan (keeping data, decoding, arithmetic), and how batches come to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from penstock.device import resident
from penstock.device.arithmetic import Arithmetic
from penstock.device.copy_stream import CopyStream, copy_stream_to
from penstock.device.decoders import Decoder, decoder_for
from penstock.device.decoding import DecodingExecutor, refusal
from penstock.device.feed import Feed
from penstock.errors import InvalidOption
from penstock.executors.job import Executor
from penstock.observe import Delivery, Observer
from penstock.plan import NativePlan, Plan
from penstock.system.cpus import usable_cpus
from penstock.system.modes import outside_inference

#: A loop that waits for batches for this share of a pass, or more, is held up by them.
WAITING = 0.1
#: CPUs are saturated when the process takes this share of their time, or more.
SATURATED = 0.75
#: Nothing is concluded from a pass of fewer seconds.
SHORTEST = 2.0


@dataclass(frozen=True)
class Verdict:
    """What a measured pass says."""

    gpu: bool
    """Decoding on the CPU is the bottleneck: the GPU should do it."""
    why: str
    """The figures, for explain()."""
    settled: bool = True
    """False: nothing can be concluded, and the next pass should be measured."""


def judge(seconds: float, waited: float, cpu_seconds: float, cpus: int) -> Verdict:
    """Return whether the pass was held up by decoding on the CPU.

    Args:
        seconds: that the pass took.
        waited: seconds of them that the loop waited for batches.
        cpu_seconds: CPU time that this process took meanwhile, in all of its threads.
        cpus: how many CPUs it may use.
    """
    if seconds < SHORTEST:
        return Verdict(False, f"the CPU: a pass of {seconds:.1f} s is too short to measure", settled=False)
    waiting, busy = waited / seconds, cpu_seconds / (seconds * cpus)
    figures = f"the loop waited {waiting:.0%} of the time for batches, with {cpus} CPUs {min(busy, 1.0):.0%} busy"
    if waiting < WAITING:
        return Verdict(False, f"the CPU, which keeps up: {figures}")
    if busy < SATURATED:
        return Verdict(False, f"the CPU, which does not hold batches up (files may): {figures}")
    return Verdict(True, f"the GPU, for the CPU was the bottleneck: {figures}")


class Meter:
    """Measures one pass, from when it is made.

    Args:
        cpus: how many this process may use; None: it is asked of the system.
        clock, cpu_clock: give seconds.
    """

    def __init__(
        self,
        cpus: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._cpus = usable_cpus() if cpus is None else cpus
        self._clock, self._cpu_clock = clock, cpu_clock
        self._began, self._cpu_began = clock(), cpu_clock()

    def judge(self, waited: float) -> Verdict:
        """Return what the pass until now says, of which the loop waited so many seconds for batches."""
        return judge(self._clock() - self._began, waited, self._cpu_clock() - self._cpu_began, self._cpus)


class Target(Observer):
    """The device of a loader, and what is found out about it for all passes. Not picklable.

    Args:
        device: where batches go, resolved.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._decoder: Decoder | InvalidOption | None = None  # found, or why there is none
        self._verdict: Verdict | None = None  # of decode="auto"
        self._meter: Meter | None = None
        self._waited = 0.0
        self._arithmetic: Arithmetic | None = None

    @property
    def sends(self) -> bool:
        """Whether batches are copied to it on a stream of their own."""
        return self.device.type not in ("cpu", "mps")

    def copy_stream(self) -> CopyStream | None:
        """Return a new copy stream to the device; None where plain copies reach it."""
        return copy_stream_to(self.device)

    def current(self, stream: CopyStream | None) -> AbstractContextManager[Any]:
        """Return what makes the device the current one, where there is a copy stream to it."""
        return nullcontext() if stream is None else stream.current()

    @outside_inference()  # what stays on the device outlives the mode
    def prepare(self, feed: Feed, plan: Plan, stream: CopyStream | None) -> Executor | None:
        """Return what makes the batches of the pass that begins on the device; None: the host makes them.

        Raises:
            InvalidOption: decode="gpu", and nothing is installed that can.
        """
        if stream is None or not isinstance(plan, NativePlan):
            return None
        if feed.cache is not None:
            held = resident.hold(plan, self.device)
            if isinstance(held, resident.ResidentPlan):
                return resident.ResidentExecutor(held, stream)
        decoder = self._decoding(feed, plan)
        if decoder is None:
            undecided = feed.decode == "auto" and (self._verdict is None or not self._verdict.settled)
            self._meter, self._waited = Meter() if undecided else None, 0.0
            return None
        return DecodingExecutor(decoder, self.device, stream)

    def delivered(self, delivery: Delivery) -> None:
        """Count what the loop waited for a batch of this pass."""
        self._waited += delivery.waited

    def ended(self) -> None:
        """Take note that the pass was gone through to its end."""
        if self._meter is not None:
            self._verdict, self._meter = self._meter.judge(self._waited), None

    def arithmetic(self, plan: Plan) -> Arithmetic | None:
        """Return what is left to the device of what the plan's recipe does, or None."""
        table = plan.table if isinstance(plan, NativePlan) else None
        if table is None:
            return None
        if self._arithmetic is None or not self._arithmetic.made_from(table):
            self._arithmetic = Arithmetic(table)
        return self._arithmetic

    def explain(self, feed: Feed, plan: Plan) -> Iterator[str]:
        """Yield what the device does of what the Feed asks, and why not the rest, for explain()."""
        if feed.cache is not None:
            if not self.sends:
                yield "cache    the data stays in host memory: there is no accelerator"
            elif not isinstance(plan, NativePlan):
                yield "cache    the data stays on the host: Python reads it"
            else:
                yield resident.explain(plan, self.device)
        if feed.decode == "cpu":
            return
        why = refusal(plan)
        if not self.sends:
            yield "decode   on the CPU: there is no accelerator"
        elif why is not None:
            yield f"decode   on the CPU: {why.why}; on the device with {why.remedy}"
        elif (decoder := self._decoding(feed, plan)) is not None:
            done = "crop, resize and flip there too, close to Pillow's pixels"
            yield f"decode   on the device, by {decoder.name}; {done}"
        elif isinstance(self._decoder, InvalidOption):
            yield f"decode   on the CPU: {self._decoder}"
        else:
            yield f"decode   {'on the CPU, until a pass was measured' if self._verdict is None else self._verdict.why}"

    def _decoding(self, feed: Feed, plan: Plan) -> Decoder | None:
        """Return what decodes the plan's images on the device, or None. Raises InvalidOption."""
        wanted = feed.decode == "gpu" or (feed.decode == "auto" and self._verdict is not None and self._verdict.gpu)
        if not wanted or refusal(plan) is not None:
            return None
        if self._decoder is None:
            try:
                self._decoder = decoder_for(self.device)
            except InvalidOption as error:
                self._decoder = error
        if not isinstance(self._decoder, InvalidOption):
            return self._decoder
        if feed.decode == "gpu":
            raise self._decoder
        return None
