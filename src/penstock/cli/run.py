"""``penstock run SCRIPT``: a user's program unchanged, with the time measured that its loops wait for their batches.

With ``--replace`` or ``--compare`` it runs in two child processes, with torch's loader and Penstock's.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import html
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import penstock
from penstock.cli.terminal import add_verb, number, positive, say, say_last, shown, table
from penstock.errors import PenstockError
from penstock.insight.program import NoSuchProgram, Program, run
from penstock.insight.program_loaders import read_by_torch
from penstock.insight.recorded import recorded
from penstock.insight.recording import Recording
from penstock.insight.run_report import LiveLine, RunReport
from penstock.system.launched import rank_here
from penstock.system.output_files import OutputFile, output_files
from penstock.system.words import duration, near_path, size_of

#: What `--compare` runs of a program where nothing else is said: steps of a loop, or seconds.
STEPS, SECONDS = 200, 30
#: Options that name the file of a recording.
RECORDINGS = ("trace", "report")

_DESCRIPTION = """
Runs a program in this process as "python SCRIPT" or "python -m MODULE" does, and prints on stderr how long its loops
waited for the batches of each DataLoader, torch's and Penstock's. While it runs, a line on the terminal shows how fast
batches come. Penstock's options come before SCRIPT; all words after it are the program's. The exit code is the
program's; 2: there is no such program, or a named file cannot be written; 1, where the program's is 0: a
recording or a comparison saw no loop. Under torchrun (torchrun --no-python penstock run SCRIPT) the report is
that of rank 0. torch is imported before the program begins: set environment variables that it reads then,
such as OMP_NUM_THREADS, outside of the program.
"""


def add_parser(verbs: Any) -> None:
    parser = add_verb(verbs, "run", None, description=_DESCRIPTION)
    parser.usage = "penstock run [options] [--compare [N]] (SCRIPT | -m MODULE) [args ...]"
    parser.add_argument("-m", dest="is_module", action="store_true", help="run a module, as python -m does")
    parser.add_argument("--quiet", action="store_true", help="show no line while the program runs")
    parser.add_argument(
        "--json", metavar="FILE", help='write the figures to FILE; "{rank}" in it is the rank\'s number'
    )
    parser.add_argument(
        "--steps",
        type=positive,
        metavar="N",
        help="end the program, as sys.exit() in its main thread does, when it continues after N batches of one loader",
    )
    parser.add_argument("--seconds", type=number, metavar="S", help="the same after S seconds of one loop")
    parser.add_argument(
        "--replace",
        action="store_true",
        help="run the program twice, each time in a new process: with torch's loader, even if it imports Penstock's, "
        "then with Penstock's in its place (penstock.install()), and compare. What the program does (its checkpoints, "
        "its logs, what it reads from stdin) is done twice",
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help=f"as --replace, for the first N steps of a loop (default: {STEPS}, or {SECONDS} seconds of it)",
    )
    once = parser.add_mutually_exclusive_group()
    for option, whose in (("--before-only", "torch's"), ("--after-only", "Penstock's")):
        said = f"with --replace: run the program once, in this process, with {whose} loader"
        once.add_argument(option, action="store_true", help=said)
    group = parser.add_argument_group("recordings")
    group.add_argument(
        "--trace",
        metavar="FILE",
        help="write a trace of the loops and the workers for ui.perfetto.dev; compressed where FILE "
        "ends in .gz. '{rank}' in FILE is torchrun's RANK",
    )
    group.add_argument(
        "--report",
        metavar="FILE",
        help="write one HTML page: waiting and work over time, throughput, the share of each stage; '{rank}' as above",
    )
    parser.add_argument("script", metavar="SCRIPT", help="a file, a folder or zip file with a __main__.py, or a module")
    words = parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="args", help="arguments of the program")
    words.required = False
    parser.set_defaults(execute=lambda arguments: _execute(parser, arguments))


def _execute(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    if arguments.compare and arguments.script.isdecimal():  # --compare N
        parser.parse_args(["--steps", arguments.script, *arguments.arguments], arguments)
    program = Program(arguments.script, tuple(arguments.arguments), arguments.is_module)
    once = arguments.before_only or arguments.after_only
    if once and not arguments.replace:
        return _refuse(f"--{'before' if arguments.before_only else 'after'}-only needs --replace")
    if arguments.compare and arguments.replace:
        return _refuse("--compare and --replace exclude each other: --compare runs the first steps twice")
    if not arguments.is_module and not os.path.lexists(arguments.script):
        if arguments.script.startswith("-"):
            return _refuse(f"there is no option {arguments.script}")
        return _refuse(f"{arguments.script!r} cannot be read: No such file or directory{near_path(arguments.script)}")
    try:
        files = output_files(**{name: getattr(arguments, name) for name in (*RECORDINGS, "json")})
    except PenstockError as error:
        return _refuse(str(error))
    if arguments.compare or (arguments.replace and not once):
        return _run_twice(arguments, program, files)
    return _run_here(arguments, program, files)


def _refuse(why: str) -> int:
    say(f"penstock run: {shown(why)}")
    return 2


# --- once, in this process ----------------------------------------------------------------------------------------


def _run_here(arguments: argparse.Namespace, program: Program, files: Mapping[str, OutputFile]) -> int:
    """Run a program; its report comes behind all that Python does at the end: its last line, its error, its threads."""
    stream = sys.stderr
    live = None
    if not arguments.quiet and stream is not None and os.environ.get("TERM", "dumb") != "dumb":
        live = LiveLine(stream) if stream.isatty() and rank_here("LOCAL_RANK") == 0 else None
    wanted = [what for what in RECORDINGS if what in files]
    loops = Recording(
        detail=bool(wanted), progress=live, steps=arguments.steps, seconds=arguments.seconds, printed=True
    )
    recording = contextlib.ExitStack()
    recording.enter_context(recorded(loops, files))
    if arguments.after_only:
        recording.enter_context(penstock.install())
    ignored = read_by_torch() if arguments.before_only else set()
    began, process = time.perf_counter(), os.getpid()

    def report() -> None:
        if os.getpid() != process:  # a fork of the program's, which ends as it does
            return
        if live is not None:
            live.end()
        seconds = time.perf_counter() - began
        recording.close()
        found = RunReport(seconds, loops.loops(), loops.without_batches())
        empty = "" if loops.all_loops() else ", and shows nothing"
        lines = [f"the {what} is in {getattr(arguments, what)}{empty}" for what in wanted]
        if ignored:
            lines.append(f"this run ignored {', '.join(sorted(ignored))}: torch's loader has no such arguments")
        if "json" in files and ("{rank}" in arguments.json or not rank_here()):
            lines += _write(files["json"], found.as_json())
        if rank_here() == 0:
            with contextlib.suppress(Exception):  # what the program has replaced it by
                sys.stdout.flush()
            say_last(
                stream,
                [
                    f"penstock: {shown(line)}"
                    for line in [*found.lines(whole=arguments.steps is arguments.seconds is None), *lines]
                ],
            )

    atexit.register(report)
    try:
        run(program)
    except NoSuchProgram as error:
        atexit.unregister(report)
        recording.close()
        return _refuse(str(error))
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    finally:
        if live is not None:
            live.clear()
    threads = [one for one in threading.enumerate() if not one.daemon and one is not threading.current_thread()]
    return int(bool(wanted) and not threads and not loops.all_loops())


def _write(file: OutputFile, text: str) -> list[str]:
    """Write a text to a file; return a line where that fails."""
    try:
        with file.opened() as opened:
            opened.write(text.encode())
    except OSError as error:
        return [f"{file.path}: {error.strerror}"]
    return []


# --- twice, in two processes --------------------------------------------------------------------------------------


#: The words that start a child's `penstock run`.
COMMAND = (sys.executable, "-m", "penstock", "run")

#: Loops that are as fast as each other, by how many times as fast one is.
_SAME = (0.95, 1.05)

Row = tuple[str, str, str, str]
#: The loops over one loader in one run, by the fields of a run's figures; None: that run had no such loop.
Loop = Mapping[str, Any] | None


class Ended(NamedTuple):
    """How a child process ended."""

    code: int
    """Its exit code, as a shell has it: 128 and the number of the signal that ended it."""
    figures: Mapping[str, Any]
    """What it wrote (RunReport.as_json, parsed); empty: it wrote nothing."""
    read: int = 0
    """Bytes that it and its children read from disks."""


def _run_twice(arguments: argparse.Namespace, program: Program, files: Mapping[str, OutputFile]) -> int:
    """Run a program with torch's loader, then with Penstock's in its place, and compare."""
    if int(os.environ.get("WORLD_SIZE", "1") or 1) > 1:
        return _refuse("--replace runs a program twice, which the ranks of one job cannot do: give --after-only too")
    options = ["--quiet"] if arguments.quiet else []
    if arguments.compare and arguments.steps is arguments.seconds is None:
        arguments.steps, arguments.seconds = STEPS, SECONDS
    limits = {"--steps": arguments.steps, "--seconds": arguments.seconds}
    options += [word for name, limit in limits.items() if limit is not None for word in (name, str(limit))]
    replaced = [word for what in RECORDINGS if what in files for word in (f"--{what}", getattr(arguments, what))]
    replaced += ["--replace", "--after-only"]
    runs: list[Ended] = []
    with tempfile.TemporaryDirectory(prefix="penstock-run-") as folder:
        for words, more in (("torch's loader", ["--replace", "--before-only"]), ("Penstock's in its place", replaced)):
            say(f"penstock: run {len(runs) + 1} of 2, with {words}")
            path = os.path.join(folder, str(len(runs)))
            ended = run_child([*COMMAND, *options, *more, "--json", path, *program.words], path)
            if ended.code or not ended.figures:
                why = f"ended with exit code {ended.code}" if ended.code else "ended by os._exit() without figures"
                before = ", and the run before it did not" if runs else ""
                say(f"penstock: nothing is compared, because the run with {words} {why}{before}")
                return ended.code or 1
            runs.append(ended)
    first, second = runs
    lines = [*compared(first.figures, second.figures), gained(first.figures, second.figures)]
    if "report" in files:
        _add_to_page(files["report"], lines)
    if first.read > 2 * second.read + (16 << 20):
        read = f"the first run read {size_of(first.read)} from disks, the second {size_of(second.read)}"
        lines.append(f"{read}, because the files were in memory by then: compare once more")
    if "json" in files:
        both = {"before": first.figures, "after": second.figures}
        lines += _write(files["json"], json.dumps(both, indent=1) + "\n")
    for line in lines:
        say(f"penstock: {shown(line)}")
    return 0 if first.figures["loops"] and second.figures["loops"] else 1


def _add_to_page(file: OutputFile, lines: Sequence[str]) -> None:
    """Add the comparison to the report of the second run, as far as that was written."""
    *rows, said = map(html.escape, lines)
    both = [f'<h2>Both runs</h2>\n<p class="verdict">{said}</p>\n<pre>', *rows, "</pre>", "<h2>What to do</h2>"]
    with contextlib.suppress(OSError, ValueError):  # ValueError: it is compressed
        text = Path(file.path).read_text("utf-8")
        _write(file, text.replace(both[-1], "\n".join(both), 1))


def run_child(command: Sequence[str], figures: str) -> Ended:
    """Run a command in a child process, and return how it ended. It must be called by the main thread.

    An interrupt from the terminal is the child's, which gets it too. SIGTERM is passed on. figures: the file that the
    child writes its figures to.
    """
    child: subprocess.Popen[bytes] | None = None

    def wait_on(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM and child is not None:
            child.terminate()

    before = {number: signal.signal(number, wait_on) for number in (signal.SIGINT, signal.SIGTERM)}
    blocks = resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock
    try:
        child = subprocess.Popen(command)
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    found: Mapping[str, Any] = {}
    with contextlib.suppress(OSError, ValueError), open(figures, encoding="utf-8") as file:
        found = json.load(file)
    blocks = resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock - blocks
    return Ended(128 - code if code < 0 else code, found, 512 * blocks)


# --- the comparison ---------------------------------------------------------------------------------------------------


def compared(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the lines of a table of two runs' figures (RunReport.as_json, parsed)."""
    rows: list[Row] = [("", "torch's loader", "Penstock's", "")]
    rows.append(_times("the program", before["seconds"], after["seconds"]))
    for one, other in _pairs(before["loops"], after["loops"]):
        loop = one or other or {}
        at = f" at {loop['place']}" if loop["place"] else ""
        rows += [(f"{loop['dataset']}, {loop['batching']}{at}", "", "", ""), *_rows(one, other)]
    width = max(len(row[0]) for row in rows if row[1])  # the line of a loop may be longer
    heads = [row[0].ljust(width) for row in rows]
    rest = table([row[1:] for row in rows], right=(0, 1))
    return [f"{head}  {line}".rstrip() for head, line in zip(heads, rest, strict=True)]


def _pairs(before: Sequence[Loop], after: Sequence[Loop]) -> Iterator[tuple[Loop, Loop]]:
    """Yield the loops of two runs side by side.

    They are over the loaders of one line and one type of dataset: the class may be another, and the number of workers.
    """

    def key(loop: Loop) -> Any:
        return loop and [loop[name] for name in ("place", "dataset", "batching")]

    rest = list(after)
    for one in before:
        other = next((other for other in rest if key(other) == key(one)), None)
        if other is not None:
            rest.remove(other)
        yield one, other
    yield from ((None, other) for other in rest)


def _rows(before: Loop, after: Loop) -> Iterator[Row]:
    counts = ["-" if one is None else f"{one['batches']:,}" for one in (before, after)]
    if counts[0] != counts[1]:
        yield "  batches", counts[0], counts[1], ""
    if before is None or after is None:
        return
    one, other = (loop["waited"] + loop["worked"] for loop in (before, after))
    yield _times("  the loop", one, other)
    yield "  waited", f"{100 * before['wait_share']:.0f} %", f"{100 * after['wait_share']:.0f} %", ""
    for what, form in (("batches", ".1f"), ("samples", ".0f")):
        if before[what] and after[what]:
            rates = _rate(before, what), _rate(after, what)
            yield f"  {what}/s", f"{rates[0]:,{form}}", f"{rates[1]:,{form}}", f"{rates[1] / rates[0]:.2f}x"


def _step(loop: Mapping[str, Any]) -> tuple[float, float]:
    """Return the seconds that a step waited and worked, without the first batch of each pass where there are others."""
    steady = sum(loop["waits"])
    waited = loop["steady_waited"] / steady if steady else loop["waited"] / loop["batches"]
    return waited, loop["worked"] / loop["batches"]


def _rate(loop: Mapping[str, Any], what: str) -> float:
    """Return a loop's "batches" or "samples" a second, of such steps."""
    return float(loop[what] / loop["batches"] / max(sum(_step(loop)), 1e-9))


def gained(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return the sentence that says what Penstock's loader gives: of the loop that took longest with torch's."""
    pairs = [(one, other) for one, other in _pairs(before["loops"], after["loops"]) if one and other]
    if not pairs:
        return "no loop over a DataLoader ran in both runs: there is nothing to compare"
    one, other = max(pairs, key=lambda pair: pair[0]["waited"] + pair[0]["worked"])
    loop = f"the loop over {one['dataset']} at {one['place']}" if one["place"] else f"the loop over {one['dataset']}"
    if not other["penstock"]:
        return (
            f"{loop} had the same loader in both runs: {one['name']} is a derived class that makes its batches itself"
        )
    what = "samples" if one["samples"] and other["samples"] else "batches"
    rates, (waits, works) = [_rate(each, what) for each in (one, other)], zip(_step(one), _step(other), strict=True)
    times = rates[1] / rates[0]
    said = (
        f"Penstock: {times:.3g} times the {what}/s ({rates[0]:,.0f} -> {rates[1]:,.0f}) of {loop}; a step waited "
        f"{duration(waits[0])} -> {duration(waits[1])} and worked {duration(works[0])} -> {duration(works[1])}"
    )
    if _SAME[0] <= times <= _SAME[1]:
        return f"{said}. Changing the import line gives nothing here"
    if (times > 1) is not (waits[1] < waits[0]):  # other programs, or a warm cache of the CPU, may be the reason
        return f"{said}. The work changed, not the wait: compare once more while nothing else runs"
    if one["name"] == other["name"]:  # the program imports Penstock's class
        return f"{said}. {'Write torch' if times < 1 else 'Keep Penstock'}'s loader here"
    if times < 1:
        return f"{said}. Keep torch's loader here"
    return f'{said}. Write "from penstock import DataLoader" instead of torch\'s'


def _times(name: str, before: float, after: float) -> Row:
    return name, duration(before), duration(after), f"{before / after:.2f}x" if after > 0 else ""
