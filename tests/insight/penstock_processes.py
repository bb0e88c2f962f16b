"""Processes that run the command `penstock`, forked from one that has imported it: torch's import takes seconds."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

# Its forks leave the loop, and end as Python ends the command: with its exit handlers, its error and its exit code.
_PARENT = """
import gc, json, os, sys
import penstock
from penstock.cli import main

gc.collect(), gc.freeze()  # what the import has made is no work for the end of each fork
orders, answers = (os.fdopen(int(number), mode) for number, mode in zip(sys.argv[1:], "rw"))
while job := json.loads(orders.readline() or "null"):
    child = os.fork()
    if child == 0:
        orders.close(), answers.close()
        os.setpgid(0, 0)
        os.chdir(job["folder"])
        os.environ.clear()
        os.environ.update(job["environment"])
        for number, (path, flags) in enumerate(job["files"]):
            opened = os.open(path, flags | os.O_NOCTTY)
            os.dup2(opened, number)
            os.close(opened)
        if job["no_stderr"]:
            os.close(2)
            sys.stderr = sys.__stderr__ = None
        sys.argv = ["penstock", *job["arguments"]]
        break
    print(child, file=answers, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers, flush=True)
else:
    sys.exit()
sys.exit(main())
"""


class Ended(NamedTuple):
    """How a command ended: its exit code (below 0: a signal's number), and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> list[str]:
        """The lines of Penstock's own on stderr."""
        return [line for line in self.err.splitlines() if line.startswith("penstock: ")]

    @property
    def program_err(self) -> str:
        """What the program wrote to stderr."""
        return "".join(line for line in self.err.splitlines(keepends=True) if not line.startswith("penstock: "))


class Command:
    """A command that runs."""

    def __init__(self, parent: PenstockProcesses, out: Path, err: Path) -> None:
        self._parent, self._out, self._err = parent, out, err
        self.process = int(parent.answers.readline())

    def interrupt(self) -> None:
        """Send what Ctrl-C sends."""
        os.killpg(self.process, signal.SIGINT)

    def end(self) -> Ended:
        """Wait for its end."""
        code = int(self._parent.answers.readline())
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process, signal.SIGKILL)
        read = [path.read_text() if path.is_file() else "" for path in (self._out, self._err)]
        return Ended(code, *read)


class PenstockProcesses:
    """The process that commands are forked from; one runs at a time."""

    def __init__(self) -> None:
        ours, theirs = os.pipe(), os.pipe()
        self.orders, self.answers = os.fdopen(ours[1], "w"), os.fdopen(theirs[0])
        numbers = (ours[0], theirs[1])
        words = [sys.executable, "-c", _PARENT, *map(str, numbers)]
        self._process = subprocess.Popen(words, pass_fds=numbers)
        for number in numbers:
            os.close(number)
        self._folder = tempfile.TemporaryDirectory()

    def start(
        self,
        *arguments: str,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        stderr: Path | None = None,
        no_stderr: bool = False,
    ) -> Command:
        """Start a command. stderr: in the place of a file; no_stderr: it is closed."""
        out, err = (Path(self._folder.name, name) for name in ("out", "err"))
        writes = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        err = stderr or err
        files = [("/dev/null", os.O_RDONLY), (str(out), writes), (str(err), os.O_RDWR if stderr else writes)]
        environment = {**os.environ, **(environment or {})}
        job = {"folder": str(folder), "files": files, "environment": environment, "no_stderr": no_stderr}
        print(json.dumps({**job, "arguments": arguments}), file=self.orders, flush=True)
        return Command(self, out, err)

    def run(self, *arguments: str, folder: Path, **more: Any) -> Ended:
        """Run a command to its end."""
        return self.start(*arguments, folder=folder, **more).end()

    def close(self) -> None:
        """End the process."""
        for file in (self.orders, self.answers):
            file.close()
        self._process.wait()
        self._folder.cleanup()


def python(*arguments: str, folder: Path) -> Ended:
    """Run Python, the reference, with these arguments."""
    ended = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def written(folder: Path, files: Mapping[str, str] | Sequence[tuple[str, str]]) -> Path:
    """Write files into a folder, and return it."""
    for name, text in dict(files).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
