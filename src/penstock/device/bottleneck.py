"""Whether a training loop waits for decoding on the CPU: decode="auto" decides by it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from penstock.system.cpus import usable_cpus

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
