"""Cases run in forked processes with a time limit, and their verdicts."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import itertools
import json
import multiprocessing
import os
import select
import signal
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.differential.case import Case, prelude
from tests.forking import begin_in_child, end_of

#: Seconds that a case may take. The slowest import torch in each worker.
LIMIT = 60.0
#: Times that a case of which the two differ is run again, to see whether torch's loader always does the same.
AGAIN = 2


class Verdict(NamedTuple):
    """How a case ended: "same"; "undefined" where torch's loader does not always do the same, or does not end; "fault";
    or "broken", where the program cannot run; and what differs, for a reader.
    """

    word: str
    lines: tuple[str, ...] = ()


class _Ran(NamedTuple):
    """What one run of a program gave: the lines of torch's loader and of ours, None where it did not get so far."""

    theirs: list[str] | None
    ours: list[str] | None
    end: str
    error: str


def verdict_of(case: Case, limit: float = LIMIT) -> Verdict:
    program = case.program()
    ran = _run(program, limit)
    if (found := _differences(ran)) is None:
        return Verdict("same")
    if ran.theirs is not None and any(_run(program, limit).theirs != ran.theirs for _ in range(AGAIN)):
        return Verdict("undefined", tuple(found))
    if ran.theirs is None:
        return Verdict("broken" if ran.end == "ends with 1" else "undefined", tuple(found))
    return Verdict("fault", tuple(found))


def _differences(ran: _Ran) -> list[str] | None:
    if ran.theirs is None or ran.ours is None or ran.end:
        return [f"{'torch' if ran.theirs is None else 'penstock'}: {ran.end}", *ran.error.splitlines()[-60:]]
    if ran.theirs == ran.ours:
        return None
    pairs = enumerate(itertools.zip_longest(ran.theirs, ran.ours), 1)
    wrong = [(number, theirs, ours) for number, (theirs, ours) in pairs if theirs != ours]
    shown = (f"line {n}\n  torch:    {_near(a, b)}\n  penstock: {_near(b, a)}" for n, a, b in wrong[:3])
    return [f"{len(wrong)} of {len(ran.theirs)} lines differ", *"\n".join(shown).splitlines()]


def _near(line: str | None, other: str | None) -> str:
    """Return the part of a line where it begins to differ from another."""
    at = next((n for n, (a, b) in enumerate(zip(str(line), str(other), strict=False)) if a != b), len(str(other)))
    begin = max(0, at - 100) if at > 500 else 0
    return "..." * (begin > 0) + str(line)[begin : begin + 600]


def verdicts_of(cases: Sequence[Case], limit: float = LIMIT) -> Iterator[Verdict]:
    """Yield the verdicts of cases that start no process, run in turn by one; what differs runs alone too."""
    lines, end, error = _run_all([case.body() for case in cases], limit, prelude())
    for number, case in enumerate(cases):
        theirs, ours = [*lines[2 * number : 2 * number + 2], None, None][:2]
        if theirs is not None and theirs == ours:
            yield Verdict("same")
            continue
        alone = verdict_of(case, limit)
        found = _differences(_Ran(theirs, ours, end, error)) or []
        yield alone if alone.word != "same" or theirs is None else Verdict("fault", ("behind others:", *found))


def _run(program: str, limit: float) -> _Ran:
    """Run a program's two loaders in a forked process, and end whatever it leaves."""
    lines, end, error = _run_all([program], limit)
    theirs, ours = [*lines, None, None][:2]
    return _Ran(theirs, ours, end, error)


def _run_all(programs: Sequence[str], limit: float, common: str = "") -> tuple[list[list[str]], str, str]:
    """Return the lines of each program's two loaders, how the forked process that runs them ends, and its stderr.

    common: what stands before each of them.
    """
    with tempfile.TemporaryDirectory(prefix="case-") as folder, tempfile.TemporaryFile("w+") as error:
        read, write = os.pipe()
        child = begin_in_child(partial(_in_child, folder, error.fileno(), write, common, programs), seconds=0)
        os.close(write)
        try:
            lines, end = _watch(child, read, limit)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os.close(read)
        error.seek(0)
        return list(map(json.loads, lines)), end, error.read()


def _watch(child: int, read: int, limit: float) -> tuple[list[str], str]:
    deadline, text, ended = time.monotonic() + limit, b"", False
    while not ended and (left := deadline - time.monotonic()) > 0:
        if select.select([read], [], [], left)[0]:
            part = os.read(read, 1 << 20)
            text, ended = text + part, not part
    lines = text.decode().splitlines()
    if not ended:
        for number in (signal.SIGUSR1, signal.SIGKILL):  # the first has all processes print their stacks
            os.killpg(child, number)
            time.sleep(0.5)
        os.waitpid(child, 0)
        return lines, f"hangs: no end in {limit:g} s"
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return lines, f"ends with {code}" if code else ""


def _in_child(folder: str, error: int, write: int, common: str, programs: Sequence[str]) -> None:
    """Run programs in the folder, send each loader's lines, and do what Python does as a process ends."""
    os.setsid()
    for number in (1, 2):
        os.dup2(error, number)
    os.set_inheritable(write, False)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    sys.path.insert(0, folder)
    sys.modules["__main__"] = types.ModuleType("__main__")
    os.chdir(folder)

    def tell(name: str, lines: list[str]) -> None:
        os.write(write, (json.dumps(lines) + "\n").encode())

    sys.modules["the_case"] = module = types.ModuleType("the_case")
    exec(common, vars(module))
    for program in programs:
        Path("the_case.py").write_text(program)
        exec(compile(program, "the_case.py", "exec"), vars(module))
        module.both(tell)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()


def lanes(number: int, work: Callable[[int, Callable[[object], None]], None]) -> Iterator[object]:
    queue = multiprocessing.get_context("fork").SimpleQueue()

    def work_in(lane: int) -> None:
        try:
            work(lane, queue.put)
        finally:
            queue.put(None)

    children = [begin_in_child(partial(work_in, lane), seconds=0) for lane in range(number)]
    left = number
    while left:
        if (told := queue.get()) is None:
            left -= 1
        else:
            yield told
    for child in children:
        end_of(child)
