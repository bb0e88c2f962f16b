"""``penstock watch``: what the loaders of a running process do, seen from another terminal."""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.cli.terminal import add_verb, positive, say, shown, table, width, write_lines
from penstock.errors import InvalidOption
from penstock.insight.live_files import Job, jobs, live_folder
from penstock.system.cache_folder import why_nowhere
from penstock.system.words import duration

try:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text
except ImportError:
    Console = Live = Text = None  # type: ignore[assignment,misc]

#: Seconds between two pictures.
_EVERY = 0.5

_HOW = (
    "no process of this user reads from a Penstock loader now. Start one, python train.py with penstock.DataLoader in "
    "it, or penstock run train.py, and watch it from any terminal a second after its first batch"
)


def add_parser(verbs: Any) -> None:
    description = (
        "Shows what the loaders of a running process do: batches and samples a second, the share of the time that the "
        "loop waits, the stages of the workers, and how long no batch has come. Without PID: of the only process, "
        "or a table of all. On a terminal the view lasts until the process ends or Ctrl-C; elsewhere, or with "
        "--once, it is printed once. Exit code 1: there is no such process."
    )
    verb = add_verb(verbs, "watch", _run, description=description)
    verb.add_argument("pid", nargs="?", type=positive, metavar="PID", help="ID of the process")
    verb.add_argument("--once", action="store_true", help="print the state now, and exit")


def _run(arguments: argparse.Namespace) -> int:
    found = jobs()
    if arguments.pid is not None:
        found = [job for job in found if job.name.pid == arguments.pid]
        if not found:
            why = f"there is no process {arguments.pid}"
            if os.path.exists(f"/proc/{arguments.pid}"):
                why = (
                    f"process {arguments.pid} has no live recording of this user's: it has not yet run a loop over a "
                    "Penstock loader for a second, has ended its loops, or could not write the recording"
                )
            say(f"penstock watch: {why}")
            return 1
    if not found:
        say(f"penstock watch: {_HOW if live_folder() else f'{why_nowhere()}, where programs write what is watched'}")
        return 1
    if len(found) > 1:
        write_lines([*_table_of(found), "", "penstock watch PID shows one of them."])
        return 0
    if arguments.once or width() is None:
        write_lines([line for line, _ in job_lines(found[0])])
        return 0
    with contextlib.suppress(KeyboardInterrupt):
        _follow(found[0])
    return 0


def _follow(job: Job) -> None:
    """Show a job until it ends; its last lines stay. Raises InvalidOption: rich is not installed."""
    if Live is None:
        raise InvalidOption('the live view needs rich: pip install "penstock-loader[cli]", or use --once')
    with Live(console=Console(highlight=False), auto_refresh=False, vertical_overflow="crop") as view:
        ended = False
        while not ended:
            now = [one for one in jobs() if one.name == job.name]
            ended = not now
            job = now[0] if now else job
            text = Text(no_wrap=True, overflow="ellipsis")  # without rich's markup
            for line, style in job_lines(job, ended=ended):
                text.append(f"{line}\n", style=style)
            view.update(text, refresh=True)
            if not ended:
                time.sleep(_EVERY)
    say(f"penstock watch: the live recording of process {job.name.pid} ({shown(job.program)}) has ended")


def job_lines(job: Job, *, ended: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the lines of the view of a job, which cannot disturb a terminal, each with its style as rich has it."""
    now = time.time()
    state = "ended" if ended else f"running for {duration(now - job.began)}"
    rank = f", rank {shown(job.rank)}" if job.rank else ""
    yield f"{shown(job.program)}  (process {job.name.pid}{rank} on {shown(job.host)}, {state})", "bold"
    quiet = now - job.written
    if not ended and job.patience and quiet > job.patience:
        yield f"no batch for {duration(quiet)}", "red"
    elif not ended and quiet > 10 * job.every:
        yield f"what follows is {duration(quiet)} old", "dim"
    for line in job.lines:
        warns = line.startswith("! ")
        yield shown(f"  {line[2:]}" if warns else line), "red" if warns else ""


def _table_of(found: Sequence[Job]) -> list[str]:
    rows = [("PID", "RANK", "FOR", "WAITING", "SAMPLES/S", "PROGRAM", "DATASET")]
    for job in found:
        waiting, rate, dataset = map(shown, job.summary)
        facts = (str(job.name.pid), shown(job.rank) or "-", duration(time.time() - job.began), waiting, rate)
        rows.append((*facts, shown(job.program), dataset))
    return table(rows)
