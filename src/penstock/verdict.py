"""Why a loop waits for its batches, and what would help: findings from what a loader's passes have shown."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.loop_model import SATURATED, Cause, Measured, Workers
from penstock.system.words import counted, duration

#: The page that says what the words of a verdict mean.
PAGE = "docs/waiting.md"
#: A loop that waits for less than this share of its time is not held up by its batches.
WAITING = 0.05
#: A change that would make the loop faster by less is not worth a word.
WORTH = 1.1
#: How many times as fast threads must be at least: code may do in a thread what shows in no measurement.
WORTH_THREADS = 1.3
#: Seconds of work on its samples up to which a batch may be made sooner by the loop than brought to it.
LIGHT_BATCH = 5e-4
#: Batches that stand out are few: at most this share of the batches; and most of the wait is for them.
FEW, MOST = 0.05, 0.5
#: What a cache is given to try it out: files that do not fit are read as before.
ROOM = "1GiB"
#: Workers that are advised at the most, where there are no more CPUs: each process takes memory.
MOST_WORKERS = 8
#: CPUs that are advised at the most: so many times those that there are.
MOST_CPUS = 4
#: A loop that took more seconds, waited a larger share of them, and could be so many times as fast is warned of.
WARN_SECONDS, WARN_WAITING, WARN_GAIN = 60.0, 1 / 3, 1.5


@dataclass(frozen=True, eq=False)
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


def findings(found: Measured) -> list[Finding]:
    """Return what holds a loop up, what would help most first."""
    if found.wait - found.wait_queued < WAITING * found.step:
        evidence = f"The loop worked for {duration(found.work)} of the {duration(found.step)} that a step takes."
        return [Finding(Cause.COMPUTE, evidence + _shared(found), "", 1.0)]
    made: list[Finding] = []
    if found.kind is not Workers.FILLERS:
        more = [*_fewer(found)] or [*_overhead(found), *_lock(found), *_cpus(found), *_workers(found)]
        made += [*_outliers(found), *more, *_threads(found), *_reads(found)]
    if not made:
        evidence = f"The loop waited for {duration(found.wait)} of the {duration(found.step)} that a step takes."
        return [Finding(_largest({**found.busy, Cause.OVERHEAD: found.overhead * found.workers}), evidence, "", 1.0)]
    return sorted(made, key=lambda finding: -finding.gain)


def _largest(busy: Mapping[Cause, float]) -> Cause:
    return max(busy, key=lambda cause: busy[cause], default=Cause.OVERHEAD)


def _straggles(found: Measured) -> bool:
    """Return whether most of the wait, but for that for a CPU for the loop itself, is for a few batches."""
    few = found.workers > 0 and found.outlying_batches <= FEW
    return few and found.outlying_wait >= MOST * (found.wait - found.wait_queued) > 0


def _outliers(found: Measured) -> Iterator[Finding]:
    """Yield the finding of a few batches that most of the wait is for."""
    if not _straggles(found):
        return
    depth = min(64, math.ceil(found.longest_wait / max(found.work, 1e-6) / found.workers) + 2)
    gain = found.step / max(found.step - found.outlying_wait, found.modelled)
    if gain >= WORTH:
        evidence = (
            f"{found.outlying_wait / found.wait:.0%} of the wait was for {found.outlying_batches:.1%} of the batches, "
            f"up to {duration(found.longest_wait)} for one: a few samples take much longer than the others."
        )
        change = f"prefetch_factor={depth}, so that others are ready,"
        yield Finding(Cause.OUTLIERS, evidence, change, gain, {"prefetch_factor": depth})


def _overhead(found: Measured) -> Iterator[Finding]:
    """Yield the finding that the cost of each batch, beside its samples, is the limit. Larger ones train otherwise."""
    outlying = found.outlying_wait if _straggles(found) else 0.0
    if found.overhead - outlying >= MOST * (found.wait - found.wait_queued):
        evidence = (
            f"A batch of {found.batch_size:.3g} samples costs {duration(found.overhead)} beside the work on its "
            f"samples, which takes {duration(found.modelled)} of the {duration(found.step)} a step."
        )
        yield Finding(Cause.OVERHEAD, evidence, "", 1.0)


def _fewest(numbers: Iterable[int], gain: Callable[[int], float]) -> tuple[int, float]:
    """Return the fewest that make a loop about as fast as any number would, and how many times as fast. 0: none."""
    best, most = 0, 1.0
    for number in numbers:
        if (more := gain(number)) > 1.02 * most:
            best, most = number, more
    return best, most


def _lock(found: Measured) -> Iterator[Finding]:
    """Yield the finding that threads hinder each other by Python's lock."""
    if not found.locked:
        return
    gain = found.gain(kind=Workers.PROCESSES, busy=found.cpu)  # what threads waited for the lock falls away
    if gain >= WORTH:
        evidence = (
            f"{found.workers} threads ran for {duration(found.total_cpu)} a step together, as one could in "
            f"{duration(found.step)}: Python's lock lets one of them run at a time."
        )
        options = {"worker_method": "process", "share_dataset": False}  # processes share nothing
        yield Finding(Cause.LOCK, evidence, 'worker_method="process"', gain, options)


def _cpus(found: Measured) -> Iterator[Finding]:
    """Yield the finding that the CPUs are the limit."""
    running = found.total_cpu + found.other_cpu
    wanted = running + (found.queued if found.total_cpu > MOST * found.total_busy else 0.0)  # by those that mostly run
    if wanted < SATURATED * found.cpus * found.step or found.kind is Workers.CALLER or found.locked:
        return
    quota = found.host_cpus > found.cpus
    most = found.host_cpus if quota else MOST_CPUS * found.cpus

    def with_more(cores: int) -> float:
        cpus = found.cpus + cores
        return found.gain(cpus=cpus, workers=max(found.workers, math.ceil(cpus)))

    more, gain = _fewest(range(1, math.ceil(most - found.cpus) + 1), with_more)
    if gain < WORTH:
        return
    largest = _largest(found.cpu)
    evidence = (
        f"The process ran for {duration(running)} a step, {running / found.step:.3g} of {found.cpus:.3g} CPUs, most "
        f"of it for {found.named(largest)}, and its workers waited {duration(found.queued)} for "
        f"{found.named(Cause.QUEUE)}."
    )
    if quota:
        evidence += f" Its cgroup leaves it {found.cpus:.3g} of {found.host_cpus} CPUs."
        yield Finding(Cause.QUEUE, evidence, f"a CPU limit of {found.cpus + more:.3g} CPUs", gain)
    else:
        yield Finding(largest, evidence, counted(more, "more core"), gain)


def _fewer(found: Measured) -> Iterator[Finding]:
    """Yield the finding that the loop would make a batch in less time than worker processes bring it in."""
    if found.kind is not Workers.PROCESSES or not 0 < found.total_busy <= LIGHT_BATCH or "__iter__" in found.code:
        return
    if (gain := found.step / replace(found, kind=Workers.CALLER, workers=0).modelled) >= WORTH:
        who = counted(found.workers, "worker process", "worker processes")
        evidence = f"The work on a batch takes {duration(found.total_busy)}; {who} bring one in {duration(found.step)}."
        yield Finding(Cause.OVERHEAD, evidence, "num_workers=0", gain, {"num_workers": 0})


def _threads(found: Measured) -> Iterator[Finding]:
    """Yield the finding that threads, which copy into kept memory in half the time of making samples, would help."""
    if not found.answered or found.kind not in (Workers.CALLER, Workers.PROCESSES):
        return
    making, copying = found.busy.get(Cause.PYTHON, 0.0), found.busy.get(Cause.COPY, 0.0)
    copy = {Cause.COPY: min(copying, making / 2)}
    gain = found.gain(kind=Workers.THREADS, workers=1, busy={**found.busy, **copy}, cpu={**found.cpu, **copy})
    if gain >= WORTH_THREADS:
        times = f"take {duration(making)} by calls that the native core answers, and {duration(copying)} to be copied"
        options = {"worker_method": "thread", "num_workers": found.workers or 2}
        change = 'worker_method="thread"' + ("" if found.workers else " with num_workers=2")
        yield Finding(Cause.COPY, f"The samples of a batch {times}.", change, gain, options)


def _workers(found: Measured) -> Iterator[Finding]:
    """Yield the finding that there are fewer workers than could work, on CPUs or at files."""
    if found.locked or (found.kind is Workers.PROCESSES and found.total_busy <= LIGHT_BATCH):
        return
    numbers = range(found.workers + 1, max(MOST_WORKERS, math.ceil(found.cpus)) + 1)
    kind = Workers.PROCESSES if found.kind is Workers.CALLER else found.kind
    best, _ = _fewest(numbers, lambda workers: found.gain(workers=workers, kind=kind, foreign_cpus=0.0))
    if not best or (gain := found.gain(workers=best, kind=kind)) < WORTH:
        return
    who = f"{counted(found.workers, 'worker')} " if found.workers else "the loop itself "
    largest = _largest(found.busy)
    evidence = (
        f"The batches kept {who}busy for {duration(found.total_busy)} a step, most of it with {found.named(largest)}, "
        f"{duration(found.total_cpu)} on a CPU; {found.cpus:.3g} CPUs may be used."
    )
    yield Finding(largest, evidence, f"num_workers={best}", gain, {"num_workers": best})


def _reads(found: Measured) -> Iterator[Finding]:
    """Yield the finding that files are what workers wait for."""
    if not found.cacheable or Cause.READ not in found.busy:
        return
    gain = found.gain(busy={**found.busy, Cause.READ: 0.0}, cpu={**found.cpu, Cause.READ: 0.0})
    if gain >= WORTH:
        reading = found.busy[Cause.READ]
        rate = f", {found.read_bytes / reading / 1e6:.3g} MB/s for a worker" if found.read_bytes else ""
        evidence = f"Workers spent {duration(reading)} a step at files{rate}."
        change = "cache= with room for the files, from the second epoch on,"
        yield Finding(Cause.READ, evidence, change, gain, {"cache": ROOM})


def verdict(found: Measured) -> str:
    """Return the one sentence, or two: how much the loop waited, what for, and what would help."""
    share = found.wait / found.step
    idle = f", the device idle for {duration(found.device_idle)} of it" if found.device_idle > 0 else ""
    text = f"Your loop waited {share:.0%} of the time ({duration(found.wait)} a step{idle})"
    if share < WAITING:
        return f"{text}: its own work, {duration(found.work)} a step, is what takes the time.{_shared(found)}"
    parts, each = dict(found.busy), max(1, found.workers)
    parts[Cause.OVERHEAD] = found.overhead * each
    parts[Cause.QUEUE] = found.queued + found.wait_queued * each
    whole, largest = sum(parts.values()), _largest(found.busy)
    shown = [(time, cause) for cause, time in parts.items() if time >= 0.05 * whole or cause is largest]
    if whole > 0:
        words = (f"{found.named(cause)} {duration(found.wait * time / whole)}" for time, cause in sorted(shown)[::-1])
        text += f": {', '.join(words)} of it"
    useful = [finding for finding in findings(found) if finding.change and finding.gain >= WORTH][:2]
    text += f".{_shared(found)}"
    if not useful:
        return text
    first, *others = (f"{finding.change} would give about {finding.gain:.1f}x" for finding in useful)
    first = first if "=" in first.split()[0] else first[0].upper() + first[1:]  # an argument has its own case
    return f"{text} {first}{''.join(f', {other}' for other in others)}."


def _shared(found: Measured) -> str:
    """Return a sentence on the CPUs that workers took from a loop whose own work needs them; empty: they did not."""
    taken = found.total_cpu / (found.cpus * found.step)
    used = taken + (found.other_cpu / found.step + found.foreign_cpus) / found.cpus
    if min(found.work, 2 * found.other_cpu) < found.wait or taken < 0.1 or used < SATURATED or not found.workers:
        return ""
    return f" Its workers took {taken:.0%} of the CPUs, which that work needs too."


def log_verdict(found: Measured) -> None:
    """Log the verdict of a loader that is gone, where its loop waited: as INFO.

    It is a WARNING, once a process, where a long loop waited much and something would help. Of the ranks of a machine
    the first one logs.
    """
    global _warned
    if found.wait >= WAITING * found.step and os.environ.get("LOCAL_RANK", "0").strip() in ("", "0"):
        warns = not _warned and is_grave(found)
        _warned = _warned or warns
        logging.getLogger("penstock").log(logging.WARNING if warns else logging.INFO, "%s", verdict(found))


_warned = False


def is_grave(found: Measured) -> bool:
    """Return whether a loop was long, waited for much of it, and would be much faster by something that is known."""
    if found.steps * found.step <= WARN_SECONDS or found.wait <= WARN_WAITING * found.step:
        return False
    return any(finding.change and finding.gain >= WARN_GAIN for finding in findings(found))
