"""What is said of a program: a line on the terminal while it runs, and in the end a sentence for each loop, or JSON."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TextIO

from penstock.insight.program_loaders import LoaderFacts
from penstock.insight.recording import Loop
from penstock.loop_model import SATURATED
from penstock.showing import StatusLine
from penstock.system.limits import host_cpus, usable_cpus
from penstock.system.words import counted, duration
from penstock.verdict import WAITING

#: The most loops of which a sentence is said.
_SAID = 10
#: Seconds that a batch takes, from which on worker processes are worth what they cost.
_WORTH_WORKERS = 1e-3
#: Seconds between two times that the line on the terminal is written.
EVERY = 0.2


@dataclass(frozen=True)
class RunReport:
    """What a program that has ended did."""

    seconds: float
    """From the program's first line to its end, in seconds."""
    loops: Sequence[Loop]
    without_batches: Sequence[LoaderFacts] = ()
    """The loaders that gave no batch."""

    def lines(self, *, whole: bool = True) -> list[str]:
        """Return the lines that are printed. whole: the program was not cut short, and the last one says what helps."""
        if not self.loops:
            none = [f"no batch came from {loader}" for loader in self.without_batches[:_SAID]] or [
                "no loop over a DataLoader was seen"
            ]
            return [f"{line}, in {duration(self.seconds)}" for line in none]
        lines = [plain_sentence(one) for one in self.loops[:_SAID]]
        if (more := len(self.loops) - _SAID) > 0:
            lines.append(f"and {counted(more, 'loader')} more, for which it waited less")
        return [*lines, *[*filter(None, map(import_line, self.loops))][:whole]]

    def as_json(self) -> str:
        """Return the figures: {"seconds": ..., "loops": [...]}, and in each loop its numbers and its loader's."""
        loops = []
        for one in self.loops:
            counts = {"loaders": one.loaders, "passes": one.passes, "samples": one.samples, "method": one.loader.method}
            steady = {"steady_waited": one.times.steady_waited, "wait_share": one.times.wait_share}
            loops.append({**asdict(one.loader), **counts, **asdict(one.times), **steady})
        return json.dumps({"seconds": self.seconds, "loops": loops}, indent=1) + "\n"


def waits(loop: Loop) -> bool:
    """Return whether a loop waits for its batches, by more than a little."""
    return loop.times.waited >= WAITING * max(loop.times.waited + loop.times.worked, 1e-9)


def import_line(loop: Loop) -> str:
    """Return what changing the import line would give for a loop over torch's loader that waits; empty: not known."""
    if not (loop.instead and waits(loop)):
        return ""
    at = f" at {loop.loader.place}" if loop.loader.place else ""
    return (
        f'with "from penstock import DataLoader" as the import line, {loop.instead} for the loop over '
        f"{loop.loader.dataset}{at}: penstock run --compare measures what that gives"
    )


def advice(loop: Loop) -> str:
    """Return what to do about a loop: measured changes, else what may be tried."""
    if loop.stats is not None and loop.stats.verdict:
        return loop.stats.verdict
    if not loop.times.batches:
        return "no batch came."
    if not waits(loop):
        return "nothing: the loop does not wait for its batches."
    if loop.loader.penstock and loop.read_by != "Python":
        return "run it for some seconds more: it was too short to tell what would help."
    times, do = loop.times, []
    if not loop.loader.workers and times.waited > _WORTH_WORKERS * times.batches:
        do.append(f"give num_workers={usable_cpus()}: the loop itself reads the samples now")
    if not loop.loader.penstock:
        compare = (
            'try "from penstock import DataLoader" as the import line: penstock run --compare measures what it gives'
        )
        do.append(import_line(loop) or compare)
    return f"{'; '.join(do) or 'run it for some seconds more: it was too short to tell what would help'}."


def _taken(loop: Loop, seconds: float) -> str:
    """Return what others than the program's own process took of the CPUs that the loop's work needs; empty: little."""
    times, cpus = loop.times, host_cpus()
    others = (times.machine_cpu_seconds - times.cpu_seconds) / seconds
    crowded = times.machine_cpu_seconds >= SATURATED * cpus * seconds and others >= 0.1 * cpus
    if not (loop.loader.workers and crowded and times.cpu_seconds > times.worked / 2 > times.waited / 2):
        return ""
    return (
        f"; its workers and other programs took {min(others, cpus):.2g} of your {cpus} CPUs, which its work needs too"
    )


def plain_sentence(loop: Loop) -> str:
    """Return a sentence of the loop's times: first that of the batches but for the first one of each pass."""
    if loop.stats is not None and loop.loaders == 1 and loop.stats.verdict:
        return f"{loop.loader}: {loop.stats.verdict}"
    times, who = loop.times, "A background thread" if loop.background else "Your loop"
    if not times.batches:
        return f"no batch came from {loop.loader}"
    seconds = max(times.waited + times.worked, 1e-9)
    amount = f"{counted(times.batches, 'batch', 'batches')} in {counted(loop.passes, 'pass', 'passes')}"
    amount += f", {times.batches / seconds:,.1f} batches/s"
    if loop.samples:
        amount += f", {loop.samples / seconds:,.0f} samples/s"
    if not (steps := sum(times.waits)):
        waited = f"{who} took {amount}, and waited {duration(times.waited)}, the start of the workers included,"
        return f"{waited} for {loop.loader}"
    share = f"{100 * times.wait_share:.0f} % of the time ({duration(times.steady_waited / steps)} a step)"
    starts = times.first_waited / seconds
    more = ": the loader keeps up" if times.waited < WAITING * seconds else ""
    text = f"{who} waited {share} for {loop.loader}{more}; {amount}{_taken(loop, seconds)}"
    if starts < WAITING:
        return text
    first = duration(times.first_waited / max(1, times.batches - steps))
    workers = ", with the start of the workers" if loop.loader.workers else ""
    return f"{text}; the first batch of a pass took {first}{workers}: {100 * starts:.0f} % of all"


# --- the line on the terminal -----------------------------------------------------------------------------------


class LiveLine:
    """Shows the rates of the loops, a few times a second, by the thread that has called next().

    Any thread may call any method.
    """

    def __init__(self, terminal: TextIO) -> None:
        self._line = StatusLine(terminal)
        self._lock = threading.Lock()
        self._next = 0.0
        self._shown = False

    def __call__(self, loop: Loop) -> None:
        """Show a loop of which a batch has come, where the line is due. It never waits for another thread."""
        now = time.monotonic()
        if now < self._next or not self._lock.acquire(blocking=False):
            return
        try:
            self._next, self._shown = now + EVERY, True
            times, samples = loop.times, loop.samples
            seconds = max(times.waited + times.worked, 1e-9)
            parts = [f"{loop.loader.dataset}: {times.batches:,} batches", f"{times.batches / seconds:,.1f}/s"]
            if samples:
                parts.append(f"{samples / seconds:,.0f} samples/s")
            self._line.write(", ".join([*parts, f"waited {100 * times.wait_share:.0f} % of the time"]))
        finally:
            self._lock.release()

    def clear(self) -> None:
        """Take the line off the terminal; the next batch brings it back."""
        with self._lock:
            if self._shown:
                self._line.write()
            self._shown = False

    def end(self) -> None:
        """Take the line off the terminal for good."""
        self.clear()
        self._line.end()
