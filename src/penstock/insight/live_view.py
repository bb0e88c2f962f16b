"""What `penstock watch` shows of a job, as lines of plain text: rates, the share of waiting, stages as bars."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from penstock.insight.jobs import Job, LiveLoader
from penstock.showing import shown
from penstock.system.words import compact, counted, size_of

#: Stages that have a bar: those that took most.
_MOST_STAGES = 8
_BLOCKS, _SPARKS = "█", "▁▂▃▄▅▆▇█"
_ASCII_BLOCK, _ASCII_SPARKS = "#", ".:-=+*%#"


class Tone(Enum):
    """How a line is to be taken."""

    PLAIN = "plain"
    HEADING = "heading"
    GOOD = "good"
    BAD = "bad"
    FAINT = "faint"


class Line(NamedTuple):
    """A line of the view, whose text cannot disturb a terminal."""

    text: str
    tone: Tone = Tone.PLAIN


def job_lines(job: Job, *, ended: bool, width: int, plain: bool) -> Iterator[Line]:
    """Yield the view of a job. plain: in ASCII letters alone."""
    now = time.time()
    state = "ended" if ended else f"running for {_duration(now - job.began)}"
    rank = f", rank {shown(job.rank)}" if job.rank else ""
    yield Line(f"{shown(job.program)}  (process {job.name.pid}{rank} on {shown(job.host)}, {state})", Tone.HEADING)
    if not ended and (quiet := now - job.written) > 10 * job.every:
        yield Line(f"what follows is {_duration(quiet)} old", Tone.FAINT)
    for loader in job.loaders:
        yield Line("")
        yield from _loader_lines(loader, None if ended else loader.still(now, job.every), width, plain=plain)


def _loader_lines(loader: LiveLoader, still: float | None, width: int, *, plain: bool) -> Iterator[Line]:
    size = "batches by batch_sampler" if loader.batch_size is None else f"batches of {loader.batch_size:,}"
    workers = counted(loader.workers, "worker") if loader.workers else "no workers"
    head = f"loader {loader.number}: {shown(loader.dataset)}, {size}, {workers}, read by {shown(loader.read_by)}"
    yield Line(head, Tone.HEADING)
    if still is not None:
        yield Line(f"  no batch for {_duration(still)}", Tone.BAD)
    batches, samples = loader.rates()
    done = f"{counted(loader.now.batches, 'batch', 'batches')} in {counted(loader.passes, 'pass', 'passes')}"
    yield Line(f"  {'rate':<9} {compact(batches)} batches/s, {compact(samples)} samples/s; {done}")
    share = loader.wait_share()
    tone = Tone.BAD if share > 0.05 else Tone.GOOD
    yield Line(f"  {'waiting':<9} {share:4.0%} of the time  {_sparkline(loader, width, plain=plain)}".rstrip(), tone)
    if loader.failed:
        yield Line(f"  {'errors':<9} {loader.failed:,} came in the place of a batch", Tone.BAD)
    yield from _stage_lines(loader, width, plain=plain)
    if loader.deepest:
        yield Line(f"  {'reading':<9} {loader.now.depth} readers at work, {loader.deepest} at the most")
    for name, (hits, held, taken, limit) in loader.cache.items():
        share = hits / max(loader.now.samples, 1)
        kept = f"{held:,} samples kept, {size_of(taken)} of {size_of(limit)}"
        yield Line(f"  {'cache':<9} {shown(name)}: {hits:,} samples came from it ({share:.0%}); {kept}")
    for name, (answered, left) in loader.calls.items():
        yield Line(f"  {'calls':<9} {shown(name)}: {answered:,} natively, {left:,} by the original")


def _stage_lines(loader: LiveLoader, width: int, *, plain: bool) -> Iterator[Line]:
    total = sum(seconds for seconds, _ in loader.stages.values())
    most = sorted(loader.stages.items(), key=lambda item: -item[1][0])[:_MOST_STAGES]
    room = max(4, min(32, width - 48))
    for place, (name, (seconds, samples)) in enumerate(most):
        share = seconds / total if total else 0.0
        bar = (_ASCII_BLOCK if plain else _BLOCKS) * round(room * share)
        each = f"{compact(seconds / samples * 1e3)} ms a sample" if samples else ""
        yield Line(
            f"  {'' if place else 'stages':<9} {shown(name)[:12]:<12} {share:4.0%}  {bar:<{room}} {each}".rstrip()
        )


def _sparkline(loader: LiveLoader, width: int, *, plain: bool) -> str:
    marks = _ASCII_SPARKS if plain else _SPARKS
    shares = loader.wait_shares()[-max(8, min(60, width - 32)) :]
    return "".join(" " if one is None else marks[min(len(marks) - 1, int(one * len(marks)))] for one in shares)


def table_of(found: Sequence[Job]) -> list[str]:
    """Return the lines of a table of jobs."""
    rows = [("PID", "RANK", "FOR", "WAITING", "SAMPLES/S", "PROGRAM", "DATASET")]
    for job in found:
        busiest = max(job.loaders, key=lambda loader: loader.got or 0.0, default=None)
        waiting = rate = dataset = "-"
        if busiest is not None:
            waiting, rate, dataset = f"{busiest.wait_share():.0%}", compact(busiest.rates()[1]), shown(busiest.dataset)
        facts = (str(job.name.pid), shown(job.rank) or "-", _duration(time.time() - job.began), waiting, rate)
        rows.append((*facts, shown(job.program), dataset))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _duration(seconds: float) -> str:
    seconds = max(0.0, seconds)
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
