"""``penstock watch``: what the loaders of a running process do, seen from another terminal."""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from penstock.cli.arguments import add_verb
from penstock.cli.terminal import say, shown, table, width, write_lines
from penstock.errors import InvalidOption
from penstock.insight.jobs import Job, LiveLoader, jobs
from penstock.system.words import compact, counted, duration, size_of

try:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text
except ImportError:
    Console = Live = Text = None  # type: ignore[assignment,misc]

#: Seconds between two pictures.
_EVERY = 0.5
#: Columns where stdout is not a terminal.
_WIDTH = 100
#: Stages that have a bar: those that took most. And what a share of waiting looks like.
_MOST_STAGES, _SPARKS = 8, "▁▂▃▄▅▆▇█"

_HOW = (
    "no process of this user goes through penstock loaders now. One that does can be watched a second after its first "
    "batch, from any terminal: python train.py, with penstock.DataLoader in it, or penstock run train.py"
)


def add_parser(verbs: Any) -> None:
    """Add this verb to the command line."""
    description = (
        "Shows what the loaders of a running process do: batches and samples a second, the share of the time that the "
        "loop waits, the stages of the workers, and how long no batch has come. Without PID: of the only process there "
        "is, or a table of all. On a terminal the view goes on until the process ends or Ctrl-C; elsewhere, or with "
        "--once, it is printed once. Exit code 1: there is no such process."
    )
    verb = add_verb(verbs, "watch", _run, "show what the loaders of a running process do", description)
    verb.add_argument("pid", nargs="?", type=int, metavar="PID", help="of the process")
    verb.add_argument("--once", action="store_true", help="print what there is now, and end")


def _run(arguments: argparse.Namespace) -> int:
    found = jobs()
    if arguments.pid is not None:
        found = [job for job in found if job.name.pid == arguments.pid]
        if not found:
            say(f"penstock watch: {_missing(arguments.pid)}")
            return 1
    if not found:
        say(f"penstock watch: {_HOW}")
        return 1
    if len(found) > 1:
        write_lines([*_table_of(found), "", "penstock watch PID shows one of them."])
        return 0
    if arguments.once or width() is None:
        write_lines([line.text for line in job_lines(found[0])])
        return 0
    with contextlib.suppress(KeyboardInterrupt):
        _follow(found[0])
    return 0


def _missing(pid: int) -> str:
    if not os.path.exists(f"/proc/{pid}"):
        return f"there is no process {pid}"
    return (
        f"process {pid} has no live recording of this user's: it has gone through no penstock loader for a second yet, "
        "has ended its loops, or could not write the recording"
    )


def _follow(job: Job) -> None:
    """Show a job until it ends; its last lines stay. Raises InvalidOption: rich is not installed."""
    if Live is None:
        raise InvalidOption("the live view needs rich: pip install 'penstock[cli]', or use penstock watch --once")
    with Live(console=Console(highlight=False), auto_refresh=False, vertical_overflow="crop") as view:
        ended = False
        while not ended:
            now = [one for one in jobs() if one.name == job.name]
            ended = not now
            job = now[0] if now else job
            text = Text(no_wrap=True, overflow="ellipsis")  # without rich's markup
            for line in job_lines(job, ended=ended):
                text.append(f"{line.text}\n", style=line.style)
            view.update(text, refresh=True)
            if not ended:
                time.sleep(_EVERY)
    say(f"penstock watch: the live recording of process {job.name.pid} ({shown(job.program)}) has ended")


# --- the view ---------------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """A line of the view, whose text cannot disturb a terminal."""

    text: str
    style: str = ""
    """As rich has it."""


def job_lines(job: Job, *, ended: bool = False) -> Iterator[Line]:
    """Yield the view of a job."""
    now, columns = time.time(), width() or _WIDTH
    state = "ended" if ended else f"running for {duration(now - job.began)}"
    rank = f", rank {shown(job.rank)}" if job.rank else ""
    yield Line(f"{shown(job.program)}  (process {job.name.pid}{rank} on {shown(job.host)}, {state})", "bold")
    if not ended and (quiet := now - job.written) > 10 * job.every:
        yield Line(f"what follows is {duration(quiet)} old", "dim")
    for loader in job.loaders:
        yield Line("")
        yield from _loader_lines(loader, None if ended else loader.still(now, job.every), columns)


def _loader_lines(loader: LiveLoader, still: float | None, columns: int) -> Iterator[Line]:
    size = "batches by batch_sampler" if loader.batch_size is None else f"batches of {loader.batch_size:,}"
    workers = counted(loader.workers, "worker") if loader.workers else "no workers"
    head = f"loader {loader.number}: {shown(loader.dataset)}, {size}, {workers}, read by {shown(loader.read_by)}"
    yield Line(head, "bold")
    if still is not None:
        yield Line(f"  no batch for {duration(still)}", "red")
    batches, samples = loader.rates()
    done = f"{counted(loader.now.batches, 'batch', 'batches')} in {counted(loader.passes, 'pass', 'passes')}"
    yield Line(f"  {'rate':<9} {compact(batches)} batches/s, {compact(samples)} samples/s; {done}")
    share = loader.wait_share()
    style = "red" if share > 0.05 else "green"
    yield Line(f"  {'waiting':<9} {share:4.0%} of the time  {_sparkline(loader, columns)}".rstrip(), style)
    if loader.failed:
        yield Line(f"  {'errors':<9} {loader.failed:,} came in the place of a batch", "red")
    yield from _stage_lines(loader, columns)
    if loader.deepest:
        yield Line(f"  {'reading':<9} {loader.now.depth} readers at work, {loader.deepest} at the most")
    for name, (hits, held, taken, limit) in loader.cache.items():
        share = hits / max(loader.now.samples, 1)
        kept = f"{held:,} samples kept, {size_of(taken)} of {size_of(limit)}"
        yield Line(f"  {'cache':<9} {shown(name)}: {hits:,} samples came from it ({share:.0%}); {kept}")
    for name, (answered, left) in loader.calls.items():
        yield Line(f"  {'calls':<9} {shown(name)}: {answered:,} natively, {left:,} by the original")


def _stage_lines(loader: LiveLoader, columns: int) -> Iterator[Line]:
    total = sum(seconds for seconds, _ in loader.stages.values())
    most = sorted(loader.stages.items(), key=lambda item: -item[1][0])[:_MOST_STAGES]
    room = max(4, min(32, columns - 48))
    for place, (name, (seconds, samples)) in enumerate(most):
        share = seconds / total if total else 0.0
        bar = "█" * round(room * share)
        each = f"{compact(seconds / samples * 1e3)} ms a sample" if samples else ""
        yield Line(
            f"  {'' if place else 'stages':<9} {shown(name)[:12]:<12} {share:4.0%}  {bar:<{room}} {each}".rstrip()
        )


def _sparkline(loader: LiveLoader, columns: int) -> str:
    shares = loader.wait_shares()[-max(8, min(60, columns - 32)) :]
    return "".join(" " if one is None else _SPARKS[min(len(_SPARKS) - 1, int(one * len(_SPARKS)))] for one in shares)


def _table_of(found: Sequence[Job]) -> list[str]:
    """Return the lines of a table of jobs."""
    rows = [("PID", "RANK", "FOR", "WAITING", "SAMPLES/S", "PROGRAM", "DATASET")]
    for job in found:
        busiest = max(job.loaders, key=lambda loader: loader.got or 0.0, default=None)
        waiting = rate = dataset = "-"
        if busiest is not None:
            waiting, rate, dataset = f"{busiest.wait_share():.0%}", compact(busiest.rates()[1]), shown(busiest.dataset)
        facts = (str(job.name.pid), shown(job.rank) or "-", duration(time.time() - job.began), waiting, rate)
        rows.append((*facts, shown(job.program), dataset))
    return table(rows)
