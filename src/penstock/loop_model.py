"""A loop over batches as a pipeline: what its parts take, and what a step of it takes at least.

The loop works for `work` seconds a step while workers make the next batch, which takes
them, together, `busy` seconds, of which they run on a CPU for `cpu`. A step takes as long as the slowest of

- the loop's own work,
- the workers: (busy + what they waited for a CPU) / workers,
- the CPUs: the CPU time of the whole process / CPUs that others leave to it,
- Python's lock, which one thread holds at a time: cpu, where threads run Python,

plus what a batch costs beside its samples, which is what the measured step has beyond that. Without workers the loop
makes each batch itself, and a step takes work + busy. A prediction is the same model with one of its numbers changed,
and without the wait for a CPU: other programs that take the CPUs now hinder a loop in the same way after the change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock.loop_times import LoopTimes
from penstock.observe import StageTime
from penstock.system.versions import StrEnum

#: Nothing is said of fewer steps, or of a shorter time in seconds.
LEAST_STEPS, LEAST_SECONDS = 10, 1.0
#: The CPUs, or Python's lock, are the limit where they are taken for this share of a step.
SATURATED = 0.85
#: Threads of which so many run at once, though more could, hinder each other by Python's lock.
LOCKED = 0.25, 1.25
#: Batches that are waited for this many times as long as the median one, and at least so many seconds, stand out.
OUTLYING, OUTLYING_SECONDS = 8, 1e-3
#: Where the loop's thread waits for a CPU for this share of its time, one wait for a CPU can take so many seconds.
QUEUEING, QUEUEING_SECONDS = 0.05, 0.05
#: What the way of a batch from a worker process takes, in seconds.
TRANSFER_SECONDS = 2e-4
#: A dataset's own code that sleeps waits for files where storage gives it at least so many bytes a sample.
STORED = 512


class Workers(StrEnum):
    """What makes the batches of a loader."""

    CALLER = "the caller's thread"
    NATIVE = "native threads"
    THREADS = "threads"
    PROCESSES = "worker processes"
    FILLERS = "fillers of a cluster"


class Cause(StrEnum):
    """What holds a loop up."""

    COMPUTE = "compute"
    READ = "read"
    DECODE = "decode"
    TRANSFORM = "transform"
    COPY = "copy"
    PYTHON = "python"
    BLOCKED = "blocked"
    LOCK = "lock"
    QUEUE = "a free CPU"
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
    queued: float = 0.0
    """Of all workers together, in the run queue: they could run, and no CPU was free."""
    loop_queued: float = 0.0
    """The same of the loop's thread, but for the samples that it makes."""
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
    code: str = ""
    """The dataset's own method that makes the samples; empty: Penstock does."""
    answered: bool = False
    """The native core answers all costly calls of that method, and threads may call it too."""

    def named(self, cause: Cause) -> str:
        """Return a cause, with the method whose time it is."""
        if cause is Cause.QUEUE and self.foreign_cpus > 0.1:
            there = max(self.cpus, self.host_cpus)
            return f"{cause} (other programs use {min(self.foreign_cpus, there):.2g} of your {there:.3g} CPUs)"
        own = self.code and cause in (Cause.PYTHON, Cause.BLOCKED, Cause.READ)
        return f"{cause} in {self.code}" if own else str(cause)

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

    def _takes(self, queued: float) -> float:
        """Return what a step takes by the model. queued: seconds that its workers wait for a CPU."""
        if self.kind is Workers.FILLERS:  # what they have at once, and the network, is not modelled
            return self.step
        cpus = (self.total_cpu + self.other_cpu) / self.free_cpus
        if self.kind is Workers.CALLER:
            return max(self.work + self.total_busy + queued, cpus)
        if self.locked and not queued:
            return max(self.work, cpus, self.total_cpu)
        return max(self.work, (self.total_busy + queued) / max(1, self.workers), cpus)

    @property
    def modelled(self) -> float:
        """What a step takes by the model, in seconds, without a wait for a CPU and the cost of a batch."""
        return self._takes(0.0)

    @property
    def overhead(self) -> float:
        """What a batch costs beside its samples: the part of a step that the model does not explain."""
        return max(0.0, self.step - self.wait_queued - self._takes(self.queued))

    @property
    def wait_queued(self) -> float:
        """What of `loop_queued` was a wait for a batch: its share of the time, or half, as of a loop that sleeps."""
        return min(self.wait, self.loop_queued * max(0.5, self.wait / self.step)) if self.step else 0.0

    @property
    def free_cpus(self) -> float:
        """CPUs that this process gets beside others: what they leave, its workers' share, or at least what it had."""
        running = 1 if self.locked else max(1, self.workers)
        share = self.cpus * running / (running + self.foreign_cpus)
        had = (self.total_cpu + self.other_cpu) / self.step if self.step else 0.0
        return min(self.cpus, max(0.01, had, share, max(self.cpus, self.host_cpus) - self.foreign_cpus))

    @property
    def locked(self) -> bool:
        """Whether threads that run Python do together what one could: one at a time holds Python's lock."""
        if self.kind is not Workers.THREADS or self.workers < 2 or self.cpus < 2 or not self.total_busy:
            return False
        at_once = self.workers * self.total_cpu / self.total_busy  # of threads that sleep: next to none
        return self.total_cpu + self.queued >= SATURATED * self.step and LOCKED[0] <= at_once <= LOCKED[1]

    def gain(self, **changed: object) -> float:
        """Return how many times as fast the loop would be by the model, with these fields changed."""
        other = replace(self, **changed)  # type: ignore[arg-type]
        brought = other.kind is Workers.PROCESSES and self.kind is not other.kind
        after = other.modelled + self.overhead + TRANSFER_SECONDS * brought
        return min(self.step, self.modelled + self.overhead) / after if after > 0 else 1.0


def tells(loop: LoopTimes) -> bool:
    """Return whether passes were long enough to tell anything."""
    return sum(loop.waits) >= LEAST_STEPS and loop.steady_waited + loop.worked >= LEAST_SECONDS


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
    code: str = "",
) -> Measured | None:
    """Return what passes have shown, or None: they were too short to tell.

    Args:
        loop, stages: of the loader's Stats.
        samples: in all batches.
        workers: of the loader; 0: the caller's thread.
        kind: who they are.
        cpus, host_cpus, cacheable, code: as in Measured.
    """
    if not tells(loop):
        return None
    steps = sum(loop.waits)
    in_workers = sum(time.cpu_seconds for time in stages.values())
    sending = loop.batches * TRANSFER_SECONDS / 2  # which no stage counts
    own = loop.cpu_seconds + (in_workers + sending if kind is Workers.PROCESSES and workers else 0.0)
    whole = loop.steady_waited + loop.worked
    foreign = max(0.0, loop.machine_cpu_seconds - own) / whole
    kind = Workers.CALLER if workers == 0 else kind
    elsewhere = kind is Workers.FILLERS  # where the stages ran, and on whose CPUs
    busy, cpu, queued = dict.fromkeys(Cause, 0.0), dict.fromkeys(Cause, 0.0), 0.0
    share = 1 / max(1, loop.batches)  # workers made the first batch of each pass too
    # A native stage is too short to be split exactly: all together wait for files, or for a CPU.
    native = [time for stage, time in stages.items() if _STAGES.get(stage, Cause.PYTHON) is not Cause.PYTHON]
    starved = sum(2 * time.queued_seconds + time.cpu_seconds - time.seconds for time in native) > 0
    clocked = kind is Workers.CALLER and loop.cpu_seconds > 0  # light samples are, while others may have the CPU
    ran = min(1.0, loop.cpu_seconds / steps / max(in_workers * share, 1e-9)) if clocked else 1.0
    for stage, time in stages.items():
        if (cause := _STAGES.get(stage)) is None:
            continue
        on_cpu = time.cpu_seconds * ran
        off = max(0.0, time.seconds - on_cpu)
        ready = min(time.queued_seconds + time.cpu_seconds - on_cpu, off)
        if starved and cause is not Cause.PYTHON:
            ready = off
        # Python's own code that neither runs nor could is blocked, but for threads, which wait for Python's lock too.
        asleep = cause is Cause.PYTHON and kind is not Workers.THREADS
        blocked = off - ready if asleep else 0.0
        busy[cause] += (time.seconds - ready - blocked) * share
        busy[Cause.READ if time.bytes >= STORED * time.samples else Cause.BLOCKED] += blocked * share
        cpu[cause] += 0.0 if elsewhere else on_cpu * share
        queued += ready * share
    outlying, outlying_wait = outliers(loop)
    return Measured(
        steps=steps,
        wait=loop.steady_waited / steps,
        work=loop.worked / steps,
        workers=workers,
        kind=kind,
        cpus=max(cpus, 0.01),
        batch_size=samples / max(1, loop.batches),
        busy={cause: seconds for cause, seconds in busy.items() if seconds > 0},
        cpu={cause: seconds for cause, seconds in cpu.items() if seconds > 0},
        queued=queued,
        loop_queued=max(0.0, loop.queued_seconds / steps - (0.0 if workers else queued)),
        other_cpu=max(0.0, loop.cpu_seconds / steps - (0 if kind is Workers.PROCESSES else sum(cpu.values()))),
        foreign_cpus=foreign,
        host_cpus=host_cpus,
        read_bytes=sum(time.bytes for time in stages.values()) * share,
        outlying_batches=outlying / steps,
        outlying_wait=outlying_wait / steps,
        longest_wait=loop.longest_wait,
        device_idle=loop.device_idle / steps,
        cacheable=cacheable,
        code=code,
    )


def outliers(loop: LoopTimes) -> tuple[int, float]:
    """Return how many batches were waited for much longer than the median one, and for how long together.

    A wait that a busy machine's run queue explains does not stand out. Waits are known by classes, each twice as long
    as the one before: a class counts with three quarters of its upper bound, all classes together with what was waited.
    """
    lengths = [0.75 * 2**number * 1e-6 for number in range(len(loop.waits))]
    queueing = loop.queued_seconds > QUEUEING * (loop.steady_waited + loop.worked)
    bound = max(OUTLYING * 0.75 * loop.wait_quantile(0.5), QUEUEING_SECONDS if queueing else OUTLYING_SECONDS)
    counts = [(count, length) for count, length in zip(loop.waits, lengths, strict=True) if count]
    whole = sum(count * length for count, length in counts)
    beyond = [(count, length) for count, length in counts if length > bound]
    wait = sum(count * length for count, length in beyond)
    return sum(count for count, _ in beyond), loop.steady_waited * wait / whole if whole else 0.0
