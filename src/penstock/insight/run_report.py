"""What is said of a program when it has ended: one sentence for each line that made loaders, or the figures as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from penstock.insight.loops import LoaderFacts, LoopRecord
from penstock.system.words import counted

#: A loop that waits for less than this share of its time is not held up by its batches.
WAITING = 0.05
#: The most loops of which a sentence is said.
_SAID = 10

#: Says in one sentence how a loop waited, and why.
Sentence = Callable[[LoopRecord], str]


@dataclass(frozen=True)
class RunReport:
    """What a program that has ended did."""

    seconds: float
    """From the program's first line to its end, in seconds."""
    loops: Sequence[LoopRecord]
    barren: Sequence[LoaderFacts] = ()
    """The loaders that gave no batch."""

    def lines(self, sentence: Sentence) -> list[str]:
        """Return the lines that are printed."""
        if not self.loops:
            none = [f"no batch came from {loader}" for loader in self.barren[:_SAID]] or ["no DataLoader was used"]
            return [f"{line}, in {duration(self.seconds)}" for line in none]
        lines = [sentence(one) for one in self.loops[:_SAID]]
        if (more := len(self.loops) - _SAID) > 0:
            lines.append(f"and {counted(more, 'loader')} more, for which it waited less")
        return lines

    def as_json(self) -> str:
        """Return the figures: {"seconds": ..., "loops": [...]}, and in each loop the fields of LoopRecord."""
        loops = []
        for one in self.loops:
            counts = {"loaders": one.loaders, "passes": one.passes, "samples": one.samples, "method": one.loader.method}
            steady = {"steady_waited": one.times.steady_waited, "wait_share": one.times.wait_share}
            loops.append({**asdict(one.loader), **counts, **asdict(one.times), **steady})
        return json.dumps({"seconds": self.seconds, "loops": loops}, indent=1) + "\n"


def plain_sentence(record: LoopRecord) -> str:
    """Return a sentence of the loop's own times: first that of the batches but for the first one of each pass."""
    if record.stats is not None and record.stats.verdict:
        return f"{record.loader}: {record.stats.verdict}"
    times, who = record.times, "A background thread" if record.background else "The consumer"
    amount = ", ".join(
        [
            f"{counted(times.batches, 'batch', 'batches')} in {counted(record.passes, 'pass', 'passes')}",
            f"{record.batch_rate:,.1f} batches/s",
            *([f"{record.samples / record.seconds:,.0f} samples/s"] if record.samples and record.seconds else []),
        ]
    )
    if not (steps := sum(times.waits)):
        waited = f"{who} took {amount}, and waited {duration(times.waited)}, the start of the workers included,"
        return f"{waited} for {record.loader}"
    share = f"{100 * times.wait_share:.0f} % of the time ({duration(times.steady_waited / steps)} a step)"
    starts = times.first_waited / record.seconds
    more = ": the loader keeps up" if times.waited < WAITING * record.seconds else ""
    text = f"{who} waited {share} for {record.loader}{more}; {amount}"
    if starts < WAITING:
        return text
    first = duration(times.first_waited / max(1, times.batches - steps))
    workers = ", with the start of the workers" if record.loader.workers else ""
    return f"{text}; the first batch of a pass took {first}{workers}: {100 * starts:.0f} % of all"


def duration(seconds: float) -> str:
    """Return a time with a unit: "2 min 5 s", "12.3 s", "71 ms", "3.2 ms", "40 us"."""
    if seconds >= 100:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes:,} min {rest} s"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    if seconds >= 1e-3:
        return f"{1e3 * seconds:.{0 if seconds >= 1e-2 else 1}f} ms"
    return f"{1e6 * seconds:.0f} us"
