"""``penstock run SCRIPT``: a user's program as it is, with the time measured that its loops wait for their batches."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import json
import os
import sys
import tempfile
import time
from typing import Any, TextIO

import penstock
from penstock.cli.arguments import positive
from penstock.cli.terminal import say, say_last, shown
from penstock.errors import PenstockError
from penstock.insight import comparison, recording_options
from penstock.insight.live_line import LiveLine
from penstock.insight.loops import Loops
from penstock.insight.program import NoSuchProgram, Program, run
from penstock.insight.run_report import RunReport, plain_sentence
from penstock.insight.running import Ended, own_command, run_child
from penstock.system.launched import rank_here
from penstock.system.words import size_of

#: Bytes that the first of two runs reads from disks more than the second, from which on that is said.
_COLD = 16 << 20

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
    recording_options.add_options(parser)
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
    loops = Loops(live, arguments.steps)
    try:
        end_recording = recording_options.begin(arguments)
    except (PenstockError, OSError) as error:
        return _refuse(str(error))
    with contextlib.ExitStack() as stack:
        stack.callback(loops.start())
        if arguments.replace:
            stack.enter_context(penstock.install())
        undo = stack.pop_all()
    began, process = time.perf_counter(), os.getpid()

    def report() -> None:
        if os.getpid() != process:  # a fork of the program's, which ends as it does
            return
        if live is not None:
            live.end()
        found = RunReport(time.perf_counter() - began, loops.records(), loops.barren())
        lines = end_recording()
        if arguments.json is not None:
            lines += _write_json(arguments.json, found)
        if rank_here() == 0:
            with contextlib.suppress(Exception):  # what the program has replaced it by
                sys.stdout.flush()
            say_last(stream, [f"penstock: {shown(line)}" for line in [*found.lines(plain_sentence), *lines]])

    atexit.register(report)
    try:
        run(program)
    except NoSuchProgram as error:
        atexit.unregister(report)
        undo.close()
        return _refuse(str(error))
    finally:
        if live is not None:
            live.clear()
    return 0


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
    replaced = ["--replace", "--after-only", *recording_options.words_of(arguments)]
    runs: list[Ended] = []
    with tempfile.TemporaryDirectory(prefix="penstock-run-") as folder:
        for words, more in (("torch's loader", []), ("Penstock's in its place", replaced)):
            say(f"penstock: run {len(runs) + 1} of 2, with {words}")
            path = os.path.join(folder, str(len(runs)))
            ended = run_child([*own_command(), "run", *options, *more, "--json", path, *program.words], path)
            if ended.code or not ended.figures:
                why = f"ended with exit code {ended.code}" if ended.code else "ended by os._exit() and left no figures"
                say(f"penstock: nothing is compared, as this run {why}")
                return ended.code
            runs.append(ended)
    before, after = runs
    figures = {"before": before.figures, "after": after.figures}
    lines = [*comparison.table(before.figures, after.figures), *_remarks(before, after)]
    if arguments.json is not None:
        lines += _write(arguments.json, json.dumps(figures, indent=1) + "\n")
    for line in lines:
        say(f"penstock: {shown(line)}")
    return 0


def _remarks(before: Ended, after: Ended) -> list[str]:
    """Return what is to be known about the comparison."""
    if before.bytes_read - after.bytes_read < _COLD:
        return []
    first, second = size_of(before.bytes_read), size_of(after.bytes_read)
    return [
        f"the first run read {first} from disks, the second {second}: the rest was in the page cache by then; a "
        "comparison that is run once more has it in both"
    ]
