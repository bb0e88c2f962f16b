"""``penstock run SCRIPT``: a user's program unchanged, with the time measured that its loops wait for their batches."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import sys
import time
from typing import Any, TextIO

import penstock
from penstock.cli.arguments import positive
from penstock.cli.run_twice import run_twice
from penstock.cli.terminal import say, say_last, shown
from penstock.errors import PenstockError
from penstock.insight.program import NoSuchProgram, Program, run
from penstock.insight.recording import Recording, recorded
from penstock.insight.run_report import LiveLine, RunReport
from penstock.system.launched import rank_here

_DESCRIPTION = """
Runs a program in this process as "python SCRIPT" or "python -m MODULE" does, and says on stderr how long its loops
waited for the batches of each DataLoader, torch's and Penstock's. While it runs, a line on the terminal shows how fast
batches come. Options for Penstock stand before SCRIPT; all words behind it are the program's. The exit code is the
program's; 2: there is no such program. Under torchrun (torchrun --no-python penstock run SCRIPT) the report is that of
rank 0. torch is imported before the program begins: what it reads from the environment then, such as OMP_NUM_THREADS,
is to be set outside of the program.
"""


def add_parser(verbs: Any) -> None:
    """Add this verb to the command line."""
    parser = verbs.add_parser(
        "run",
        help="run a program, and say how long it waits for its data",
        description=_DESCRIPTION,
        usage="penstock run [options] (SCRIPT | -m MODULE) [args ...]",
        allow_abbrev=False,
    )
    parser.add_argument("-m", dest="is_module", action="store_true", help="run a module, as python -m does")
    parser.add_argument("--quiet", action="store_true", help="show no line while the program runs")
    parser.add_argument(
        "--json", metavar="FILE", help='write the figures to FILE; "{rank}" in it is the rank\'s number'
    )
    parser.add_argument(
        "--steps",
        type=positive,
        metavar="N",
        help="end the program, as sys.exit() in its main thread does, where it goes on behind N batches of one loader",
    )
    parser.add_argument(
        "--replace",
        action="store_true",
        help="run the program twice, each time in a new process: with torch's loader, then with Penstock's in its "
        "place (penstock.install()), and compare. What the program does (its checkpoints, its logs, what it reads from "
        "stdin) is done twice",
    )
    parser.add_argument(
        "--after-only",
        action="store_true",
        help="with --replace: run the program once, in this process, with Penstock's loader",
    )
    group = parser.add_argument_group("recordings")
    group.add_argument(
        "--trace",
        metavar="FILE",
        help="write what the loops and the workers did, slice by slice, for ui.perfetto.dev; compressed where FILE "
        "ends in .gz. '{rank}' in FILE is torchrun's RANK",
    )
    group.add_argument(
        "--report",
        metavar="FILE",
        help="write one HTML page: waiting and work over time, throughput, the share of each stage; '{rank}' as above",
    )
    parser.add_argument("script", metavar="SCRIPT", help="a file, a folder or zip file with a __main__.py, or a module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="args", help="of the program")
    parser.set_defaults(execute=_execute)


def _execute(arguments: argparse.Namespace) -> int:
    program = Program(arguments.script, tuple(arguments.arguments), arguments.is_module)
    if arguments.after_only and not arguments.replace:
        return _refuse("--after-only says how --replace is done, and needs it")
    if arguments.replace and not arguments.after_only:
        return _run_twice(arguments, program)
    return _run_here(arguments, program)


def _refuse(why: str) -> int:
    say(f"penstock run: {shown(why)}")
    return 2


# --- once, in this process ----------------------------------------------------------------------------------------


def _run_here(arguments: argparse.Namespace, program: Program) -> int:
    """Run a program; its report comes behind all that Python does at the end: its last line, its error, its threads."""
    stream = sys.stderr
    live = LiveLine(stream) if _shows_live(arguments, stream) else None
    files = _recorded(arguments)
    loops = Recording(detail=bool(files), torch=True, progress=live, steps=arguments.steps)
    recording = contextlib.ExitStack()
    try:
        recording.enter_context(recorded(loops, arguments.trace, arguments.report))
    except (PenstockError, OSError) as error:
        return _refuse(str(error))
    if arguments.replace:
        recording.enter_context(penstock.install())
    began, process = time.perf_counter(), os.getpid()

    def report() -> None:
        if os.getpid() != process:  # a fork of the program's, which ends as it does
            return
        if live is not None:
            live.end()
        seconds = time.perf_counter() - began
        recording.close()
        found = RunReport(seconds, loops.loops(), loops.without_batches())
        lines = [f"the {what} is in {path}" for what, path in files]
        if arguments.json is not None:
            lines += _write_json(arguments.json, found)
        if rank_here() == 0:
            with contextlib.suppress(Exception):  # what the program has replaced it by
                sys.stdout.flush()
            say_last(stream, [f"penstock: {shown(line)}" for line in [*found.lines(), *lines]])

    atexit.register(report)
    try:
        run(program)
    except NoSuchProgram as error:
        atexit.unregister(report)
        recording.close()
        return _refuse(str(error))
    finally:
        if live is not None:
            live.clear()
    return 0


def _recorded(arguments: argparse.Namespace) -> list[tuple[str, str]]:
    """Return the files that are asked for, with the names of their options."""
    named = (("trace", arguments.trace), ("report", arguments.report))
    return [(what, path) for what, path in named if path is not None]


def _shows_live(arguments: argparse.Namespace, stream: TextIO | None) -> bool:
    if arguments.quiet or stream is None or os.environ.get("TERM", "dumb") == "dumb":
        return False
    return stream.isatty() and rank_here("LOCAL_RANK") == 0


def _write_json(path: str, report: RunReport) -> list[str]:
    """Write the figures of this rank to its file, of rank 0 to a file for all; return a line where that fails."""
    if "{rank}" not in path and rank_here():
        return []
    return _write(path.replace("{rank}", str(rank_here())), report.as_json())


def _write(path: str, text: str) -> list[str]:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        return [f"{path}: {error.strerror}"]
    return []


# --- twice, in two processes --------------------------------------------------------------------------------------


def _run_twice(arguments: argparse.Namespace, program: Program) -> int:
    if int(os.environ.get("WORLD_SIZE", "1") or 1) > 1:
        return _refuse("--replace runs a program twice, which the ranks of one job cannot do: give --after-only too")
    options = ["--quiet"] if arguments.quiet else []
    if arguments.steps is not None:
        options += ["--steps", str(arguments.steps)]
    files = [word for what, path in _recorded(arguments) for word in (f"--{what}", path)]
    code, lines, figures = run_twice(options, ["--replace", "--after-only", *files], program.words)
    if lines and arguments.json is not None:
        lines += _write(arguments.json, figures)
    for line in lines:
        say(f"penstock: {shown(line)}")
    return code
