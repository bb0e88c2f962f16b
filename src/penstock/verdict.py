"""Why a loop waits for its batches, and what would help: findings from what a loader's passes have shown.

The model is that of a pipeline. The loop works for `work` seconds a step while workers make the next batch, which takes
them, together, `busy` seconds, of which they run on a CPU for `cpu`. A step takes as long as the slowest of

- the loop's own work,
- the workers: busy / workers,
- the CPUs: the CPU time of the whole process / CPUs,
- Python's lock, which one thread holds at a time: cpu, where threads run Python,

plus what a batch costs beside its samples, which is what the measured step has beyond that. Without workers the loop
makes each batch itself, and a step takes work + busy. A prediction is the same model with one of its numbers changed.
"""

from __future__ import annotations

import enum
import logging
import math
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.loop_times import LoopTimes
from penstock.observe import StageTime
from penstock.system.words import counted

#: A loop that waits for less than this share of its time is not held up by its batches.
WAITING = 0.05
#: Nothing is said of fewer steps, or of a shorter time in seconds.
LEAST_STEPS, LEAST_SECONDS = 10, 1.0
#: The CPUs, or Python's lock, are the limit where they are taken for this share of a step.
SATURATED = 0.85
#: A change that would make the loop faster by less is not worth a word.
WORTH = 1.05
#: Batches that are waited for this many times as long as the median one, and at least so many seconds, stand out.
OUTLYING, OUTLYING_SECONDS = 8, 1e-3
#: They are few: at most this share of the batches; and most of the wait is for them.
FEW, MOST = 0.05, 0.5
#: What batches are made larger by where the cost of each batch, beside its samples, is the limit.
LARGER = 8
#: What a cache is given to try it out: files that do not fit are read as before.
ROOM = "1GiB"
#: Workers that are advised at the most, where there are no more CPUs: each process takes memory.
MOST_WORKERS = 16
#: A thread that could run takes up to so many times its CPU time where other processes take the CPUs.
CROWDED = 4
#: CPUs that are advised at the most: so many times those that there are.
MOST_CPUS = 4


class Workers(enum.StrEnum):
    """Who makes the batches of a loader."""

    CALLER = "the caller's thread"
    NATIVE = "native threads"
    THREADS = "threads"
    PROCESSES = "worker processes"


class Cause(enum.StrEnum):
    """What holds a loop up."""

    COMPUTE = "compute"
    READ = "read"
    DECODE = "decode"
    TRANSFORM = "transform"
    COPY = "copy"
    PYTHON = "python"
    LOCK = "lock"
    CPUS = "cpus"
    OVERHEAD = "overhead"
    OUTLIERS = "outliers"


#: The stages of Stats.stages by what they are for. A reader's time is not a worker's.
_STAGES = {
    "open": Cause.READ,
    "read": Cause.READ,
    "check": Cause.READ,
    "wait": Cause.READ,
    "decode": Cause.DECODE,
    "resize": Cause.TRANSFORM,
    "convert": Cause.TRANSFORM,
    "write": Cause.COPY,
    "gather": Cause.COPY,
    "collate": Cause.COPY,
    "getitem": Cause.PYTHON,
    "iterate": Cause.PYTHON,
}


@dataclass(frozen=True)
class Measured:
    """What a loader's passes have shown, in seconds a step of the loop where nothing else is said."""

    steps: int
    wait: float
    work: float
    workers: int
    kind: Workers
    cpus: float
    """CPUs that the process may use: its affinity and its cgroup's quota."""
    batch_size: float
    """Samples a batch."""
    busy: Mapping[Cause, float]
    """Of all workers together, by what they did."""
    cpu: Mapping[Cause, float]
    """Of these, on a CPU."""
    other_cpu: float = 0.0
    """CPU time of the process beside that: of the loop and what it calls."""
    foreign_cpus: float = 0.0
    """CPUs that other processes of the machine took meanwhile."""
    host_cpus: int = 0
    """CPUs of its affinity, of which a cgroup's quota leaves fewer; 0: as many as `cpus`."""
    read_bytes: float = 0.0
    outlying_batches: float = 0.0
    """The share of the batches that were waited for much longer than the median one."""
    outlying_wait: float = 0.0
    longest_wait: float = 0.0
    """For one batch, in seconds."""
    device_idle: float = 0.0
    """What the device that batches go to had nothing to do in, by its own clock; of the wait."""
    cacheable: bool = False
    """A cache= could keep the files, and there is none."""

    @property
    def step(self) -> float:
        """Seconds a step."""
        return self.wait + self.work

    @property
    def total_busy(self) -> float:
        """Seconds of all workers."""
        return sum(self.busy.values())

    @property
    def total_cpu(self) -> float:
        """Seconds of all workers on a CPU."""
        return sum(self.cpu.values())

    @property
    def limits(self) -> dict[str, float]:
        """What a step takes at least, by what sets the limit."""
        if self.kind is Workers.CALLER:
            return {"work": self.work + self.total_busy}
        found = {
            "work": self.work,
            "workers": self.total_busy / max(1, self.workers),
            "cpus": (self.total_cpu + self.other_cpu) / self.cpus,
        }
        if self.locked:
            found["lock"] = self.total_cpu
        return found

    @property
    def modelled(self) -> float:
        """What a step takes by the model, in seconds, without the cost of a batch beside its samples."""
        return max(self.limits.values())

    @property
    def overhead(self) -> float:
        """What a batch costs beside its samples: the part of a step that the model does not explain."""
        return max(0.0, self.step - self.modelled)

    @property
    def locked(self) -> bool:
        """Whether threads that run Python do together what one could: one at a time holds Python's lock."""
        if self.kind is not Workers.THREADS or self.workers < 2:
            return False
        running = self.total_cpu / self.step if self.step else 0.0
        return SATURATED <= running <= 2 - SATURATED and self.cpus >= 2

    def gain(self, **changed: object) -> float:
        """Return how many times as fast the loop would be by the model, with these fields changed."""
        other = replace(self, **changed)  # type: ignore[arg-type]
        after = other.modelled + self.overhead
        return self.step / after if after > 0 else 1.0


@dataclass(frozen=True)
class Finding:
    """One thing that holds a loop up, and what would help."""

    cause: Cause
    evidence: str
    """What was measured, as a sentence."""
    change: str
    """What to do, as words that may begin "... would give about 1.5x"; empty: nothing that a loader has."""
    gain: float
    """How many times as fast the loop would be, by the model: 1.0 where no change helps."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The DataLoader's arguments that make the change; empty: no argument does."""


def measured(
    loop: LoopTimes,
    stages: Mapping[str, StageTime],
    *,
    samples: int,
    workers: int,
    kind: Workers,
    cpus: float,
    host_cpus: int = 0,
    cacheable: bool = False,
) -> Measured | None:
    """Return what passes have shown, or None: they were too short to tell.

    Args:
        loop, stages: of the loader's Stats.
        samples: in all batches.
        workers: of the loader; 0: the caller's thread.
        kind: who they are.
        cpus, host_cpus, cacheable: as in Measured.
    """
    steps = sum(loop.waits)
    if steps < LEAST_STEPS or loop.steady_waited + loop.worked < LEAST_SECONDS:
        return None
    in_workers = sum(time.cpu_seconds for time in stages.values())
    own = loop.cpu_seconds + (in_workers if kind is Workers.PROCESSES and workers else 0.0)
    whole = loop.steady_waited + loop.worked
    foreign = max(0.0, loop.machine_cpu_seconds - own) / whole
    contended = foreign + own / whole > SATURATED * max(cpus, host_cpus)
    busy: dict[Cause, float] = {}
    cpu: dict[Cause, float] = {}
    share = 1 / max(1, loop.batches)  # workers made the first batch of each pass too
    for stage, time in stages.items():
        if (cause := _STAGES.get(stage)) is None:
            continue
        # What Python does not run for it waits for: files, another machine; but also Python's lock, or a CPU.
        asleep = cause is Cause.PYTHON and kind is not Workers.THREADS
        ran = time.cpu_seconds * (CROWDED if contended else 1)
        blocked = max(0.0, time.seconds - ran) if asleep else 0.0
        _add(busy, cause, (time.seconds - blocked) * share)
        _add(cpu, cause, time.cpu_seconds * share)
        _add(busy, Cause.READ, blocked * share)
    outlying, outlying_wait = outliers(loop)
    return Measured(
        steps=steps,
        wait=loop.steady_waited / steps,
        work=loop.worked / steps,
        workers=workers,
        kind=Workers.CALLER if workers == 0 else kind,
        cpus=max(cpus, 0.01),
        batch_size=samples / max(1, loop.batches),
        busy=busy,
        cpu=cpu,
        other_cpu=max(0.0, loop.cpu_seconds / steps - (0 if kind is Workers.PROCESSES else sum(cpu.values()))),
        foreign_cpus=foreign,
        host_cpus=host_cpus,
        read_bytes=sum(time.bytes for time in stages.values()) * share,
        outlying_batches=outlying / steps,
        outlying_wait=outlying_wait / steps,
        longest_wait=loop.longest_wait,
        device_idle=loop.device_idle / steps,
        cacheable=cacheable,
    )


def _add(totals: dict[Cause, float], cause: Cause, seconds: float) -> None:
    if seconds > 0:
        totals[cause] = totals.get(cause, 0.0) + seconds


def outliers(loop: LoopTimes) -> tuple[int, float]:
    """Return how many batches were waited for much longer than the median one, and for how long together.

    Waits are known by classes, each twice as long as the one before: a class counts with three quarters of its upper
    bound, all classes together with what was waited.
    """
    steps = sum(loop.waits)
    lengths = [0.75 * 2**number * 1e-6 for number in range(len(loop.waits))]
    median = _class_of(loop.waits, steps // 2)
    bound = max(OUTLYING * lengths[median], OUTLYING_SECONDS)
    counts = [(count, length) for count, length in zip(loop.waits, lengths, strict=True) if count]
    whole = sum(count * length for count, length in counts)
    beyond = [(count, length) for count, length in counts if length > bound]
    wait = sum(count * length for count, length in beyond)
    return sum(count for count, _ in beyond), loop.steady_waited * wait / whole if whole else 0.0


def _class_of(counts: tuple[int, ...], number: int) -> int:
    """Return the class of the wait with a number, counted from the shortest one."""
    seen = 0
    for position, count in enumerate(counts):
        seen += count
        if seen > number:
            return position
    return len(counts) - 1


def findings(found: Measured) -> list[Finding]:
    """Return what holds a loop up, what would help most first."""
    if found.wait < WAITING * found.step:
        evidence = f"The loop worked for {time_text(found.work)} of the {time_text(found.step)} that a step takes."
        return [Finding(Cause.COMPUTE, evidence, "", 1.0)]
    made = [*_outliers(found), *_overhead(found), *_lock(found), *_cpus(found), *_workers(found), *_reads(found)]
    return sorted(made, key=lambda finding: -finding.gain)


def _largest(busy: Mapping[Cause, float], *but: Cause) -> Cause:
    return max((cause for cause in busy if cause not in but), key=lambda cause: busy[cause], default=Cause.OVERHEAD)


def _outliers(found: Measured) -> Iterator[Finding]:
    """Yield the finding of a few batches that most of the wait is for."""
    if found.outlying_batches > FEW or found.outlying_wait < MOST * found.wait or not found.workers:
        return
    depth = min(64, math.ceil(found.longest_wait / max(found.work, 1e-6) / found.workers) + 2)
    gain = found.step / max(found.step - found.outlying_wait, found.modelled)
    if gain >= WORTH:
        evidence = (
            f"{found.outlying_wait / found.wait:.0%} of the wait was for {found.outlying_batches:.1%} of the batches, "
            f"up to {time_text(found.longest_wait)} for one: a few samples take much longer than the others."
        )
        change = f"prefetch_factor={depth}, so that others are ready,"
        yield Finding(Cause.OUTLIERS, evidence, change, gain, {"prefetch_factor": depth})


def _overhead(found: Measured) -> Iterator[Finding]:
    """Yield the finding that the cost of each batch, beside its samples, is the limit."""
    if found.overhead - found.outlying_wait < MOST * found.wait:
        return
    gain = found.step / (found.modelled + found.overhead / LARGER)
    if gain >= WORTH:
        evidence = (
            f"A batch of {found.batch_size:.3g} samples costs {time_text(found.overhead)} beside the work on its "
            f"samples, which takes {time_text(found.modelled)} of the {time_text(found.step)} a step."
        )
        size = max(1, round(found.batch_size)) * LARGER
        yield Finding(Cause.OVERHEAD, evidence, f"batch_size={size}", gain, {"batch_size": size})


def _lock(found: Measured) -> Iterator[Finding]:
    """Yield the finding that threads hinder each other by Python's lock."""
    if not found.locked:
        return
    gain = found.gain(kind=Workers.PROCESSES, busy=found.cpu)  # what threads waited for the lock falls away
    if gain >= WORTH:
        evidence = (
            f"{found.workers} threads ran for {time_text(found.total_cpu)} a step together, as one could in "
            f"{time_text(found.step)}: Python's lock lets one of them run at a time."
        )
        yield Finding(Cause.LOCK, evidence, 'worker_method="process"', gain, {"worker_method": "process"})


def _cpus(found: Measured) -> Iterator[Finding]:
    """Yield the finding that the CPUs are the limit."""
    running = found.total_cpu + found.other_cpu
    left = SATURATED * (found.cpus - found.foreign_cpus)
    if running < left * found.step or found.kind is Workers.CALLER or found.locked:
        return
    quota = found.host_cpus > found.cpus
    wanted = found.cpus + 1
    most = found.host_cpus if quota else MOST_CPUS * found.cpus
    while wanted < most and _with_cpus(found, wanted) < _with_cpus(found, wanted + 1) / 1.02:
        wanted += 1
    if (gain := _with_cpus(found, wanted)) < WORTH:
        return
    largest = _largest(found.cpu)
    evidence = (
        f"The process ran for {time_text(running)} a step, {running / found.step:.3g} of {found.cpus:.3g} CPUs, most "
        f"of it for {largest}."
    )
    if found.foreign_cpus > 0.1:
        evidence += f" Other processes took {found.foreign_cpus:.2g} CPUs."
    more = math.ceil(wanted - found.cpus)
    if quota:
        evidence += f" Its cgroup leaves it {found.cpus:.3g} of {found.host_cpus} CPUs."
        yield Finding(Cause.CPUS, evidence, f"a CPU limit of {found.cpus + more:.3g} CPUs", gain)
    else:
        yield Finding(largest, evidence, counted(more, "more core"), gain)


def _with_cpus(found: Measured, cpus: float) -> float:
    return found.gain(cpus=cpus, workers=max(found.workers, math.ceil(cpus)))


def _workers(found: Measured) -> Iterator[Finding]:
    """Yield the finding that there are fewer workers than could work, on CPUs or at files."""
    if found.locked:
        return
    kind = Workers.PROCESSES if found.kind is Workers.CALLER else found.kind
    best = best_workers(found)
    gain = found.gain(workers=best, kind=kind)
    if gain < WORTH or (best == found.workers and found.kind is kind):
        return
    who = f"{counted(found.workers, 'worker')} " if found.workers else "the loop itself "
    evidence = (
        f"The batches kept {who}busy for {time_text(found.total_busy)} a step, of which {time_text(found.total_cpu)} on "
        f"a CPU; {found.cpus:.3g} CPUs may be used."
    )
    yield Finding(_largest(found.busy), evidence, f"num_workers={best}", gain, {"num_workers": best})


def best_workers(found: Measured) -> int:
    """Return the fewest workers that make the loop about as fast as any number would, by the model."""
    kind = Workers.PROCESSES if found.kind is Workers.CALLER else found.kind
    best = max(1, found.workers)
    for workers in range(best, max(MOST_WORKERS, math.ceil(found.cpus)) + 1):
        if found.gain(workers=workers, kind=kind) > 1.02 * found.gain(workers=best, kind=kind):
            best = workers
    return best


def _reads(found: Measured) -> Iterator[Finding]:
    """Yield the finding that files are what workers wait for."""
    if not found.cacheable or Cause.READ not in found.busy:
        return
    without = {cause: seconds for cause, seconds in found.busy.items() if cause is not Cause.READ}
    cpu = {cause: seconds for cause, seconds in found.cpu.items() if cause is not Cause.READ}
    gain = found.gain(busy=without, cpu=cpu)
    if gain >= WORTH:
        reading = found.busy[Cause.READ]
        rate = f", {found.read_bytes / reading / 1e6:.3g} MB/s for a worker" if found.read_bytes else ""
        evidence = f"Workers spent {time_text(reading)} a step at files{rate}."
        change = "cache= with room for the files, from the second epoch on,"
        yield Finding(Cause.READ, evidence, change, gain, {"cache": ROOM})


def verdict(found: Measured) -> str:
    """Return the one sentence, or two: how much the loop waited, what for, and what would help."""
    share = found.wait / found.step
    idle = f", the device idle for {time_text(found.device_idle)} of it" if found.device_idle > 0 else ""
    text = f"The consumer waited {share:.0%} of the time ({time_text(found.wait)} a step{idle})"
    if share < WAITING:
        return f"{text}: its own work, {time_text(found.work)} a step, is what takes the time."
    parts = dict(found.busy)
    lanes = max(1, found.workers)
    if found.overhead > 0:
        parts[Cause.OVERHEAD] = found.overhead * lanes
    whole = sum(parts.values())
    shown = sorted(((seconds, cause) for cause, seconds in parts.items() if seconds >= 0.05 * whole), reverse=True)
    if shown:
        text += (
            ": "
            + ", ".join(f"{cause} {time_text(found.wait * seconds / whole)}" for seconds, cause in shown)
            + " of it"
        )
    useful = [finding for finding in findings(found) if finding.change and finding.gain >= WORTH][:2]
    if not useful:
        return f"{text}."
    first, *others = (f"{finding.change} would give about {finding.gain:.1f}x" for finding in useful)
    first = first if "=" in first.split()[0] else first[0].upper() + first[1:]  # an argument has its own case
    return f"{text}. {first}{''.join(f', {other}' for other in others)}."


def log_at_end(loader: object, measure: Callable[[], Measured | None]) -> None:
    """Log the verdict of a loader, once, when it is gone or the process ends, where its loop waited.

    Of the ranks of a machine the first one does so; processes that are forked off meanwhile do not.

    Args:
        loader: is not held.
        measure: returns what its passes have shown, and does not hold the loader.
    """
    if os.environ.get("LOCAL_RANK", "0").strip() in ("", "0"):
        weakref.finalize(loader, _log_verdict, measure, os.getpid())


def _log_verdict(measure: Callable[[], Measured | None], pid: int) -> None:
    if os.getpid() == pid and (found := measure()) is not None and found.wait >= WAITING * found.step:
        logging.getLogger("penstock").warning("%s", verdict(found))


def time_text(seconds: float) -> str:
    """Return a duration with a unit: "71 ms", "3.2 s", "85 us"."""
    for factor, unit in ((1, "s"), (1e-3, "ms")):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
