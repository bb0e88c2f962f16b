"""``penstock run --replace``: a program in two child processes, with torch's loader and Penstock's, side by side."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

from penstock.cli.terminal import say, table
from penstock.system.words import duration, size_of

#: The words that start a child's `penstock run`.
COMMAND = (sys.executable, "-m", "penstock", "run")
#: Bytes that the first of two runs reads from disks more than the second, from which on that is said.
_COLD = 16 << 20

Row = tuple[str, str, str, str]
#: The loops over one loader in one run, by the fields of a run's figures; None: that run had no such loop.
Loop = Mapping[str, Any] | None


class Ended(NamedTuple):
    """How a child process ended."""

    code: int
    """Its exit code, as a shell has it: 128 and the number of the signal that ended it."""
    figures: Mapping[str, Any]
    """What it wrote (RunReport.as_json, parsed); empty: it wrote nothing."""
    bytes_read: int
    """What it and its children read from disks, not from the page cache."""


def run_twice(options: Sequence[str], replaced: Sequence[str], program: Sequence[str]) -> tuple[int, list[str], str]:
    """Run a program with torch's loader, then with Penstock's in its place.

    Return (exit code, lines that compare the runs, their figures as JSON): no lines where a run failed, which is said.

    Args:
        options, replaced: words of the command line, for both runs and for the second one.
        program: words that name it, with its arguments.
    """
    runs: list[Ended] = []
    with tempfile.TemporaryDirectory(prefix="penstock-run-") as folder:
        for words, more in (("torch's loader", ()), ("Penstock's in its place", replaced)):
            say(f"penstock: run {len(runs) + 1} of 2, with {words}")
            path = os.path.join(folder, str(len(runs)))
            ended = run_child([*COMMAND, *options, *more, "--json", path, *program], path)
            if ended.code or not ended.figures:
                why = f"ended with exit code {ended.code}" if ended.code else "ended by os._exit() and left no figures"
                say(f"penstock: nothing is compared, as this run {why}")
                return ended.code, [], ""
            runs.append(ended)
    before, after = runs
    lines = compared(before.figures, after.figures)
    if before.bytes_read - after.bytes_read >= _COLD:
        first, second = size_of(before.bytes_read), size_of(after.bytes_read)
        lines.append(
            f"the first run read {first} from disks, the second {second}: the rest was in the page cache by then; a "
            "comparison that is run once more has it in both"
        )
    return 0, lines, json.dumps({"before": before.figures, "after": after.figures}, indent=1) + "\n"


def run_child(command: Sequence[str], figures: str) -> Ended:
    """Run a command in a child process, and return how it ended. It must be called by the main thread.

    An interrupt from the terminal is the child's, which gets it too. SIGTERM is passed on. figures: the file that the
    child writes its figures to.
    """
    child: subprocess.Popen[bytes] | None = None

    def wait_on(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM and child is not None:
            os.kill(child.pid, number)

    before = {number: signal.signal(number, wait_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        child = subprocess.Popen(command)
        _, status, used = os.wait4(child.pid, 0)
        code = child.returncode = os.waitstatus_to_exitcode(status)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    try:
        with open(figures, encoding="utf-8") as file:
            found: Mapping[str, Any] = json.load(file)
    except (OSError, ValueError):
        found = {}
    return Ended(128 - code if code < 0 else code, found, 512 * used.ru_inblock)


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
            rates = before[what] / max(one, 1e-9), after[what] / max(other, 1e-9)
            yield f"  {what}/s", f"{rates[0]:,{form}}", f"{rates[1]:,{form}}", f"{rates[1] / rates[0]:.2f}x"


def _times(name: str, before: float, after: float) -> Row:
    return name, duration(before), duration(after), f"{before / after:.2f}x" if after > 0 else ""
