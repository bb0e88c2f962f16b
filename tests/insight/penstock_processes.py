"""The command `penstock` in processes of its own, and Python beside it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.python_processes import Program

_COMMAND = "import sys; from penstock.cli import main; sys.argv[0] = 'penstock'; sys.exit(main())"
_NO_STDERR = "import os, sys; os.close(2); sys.stderr = sys.__stderr__ = None; "


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

    def __init__(self, *arguments: str, no_stderr: bool = False, **given: Any) -> None:
        self._program = Program(_NO_STDERR * no_stderr + _COMMAND, *arguments, **given)
        self._program.stdin.close()

    def interrupt(self) -> None:
        """Send what Ctrl-C sends."""
        os.killpg(self._program.pid, signal.SIGINT)

    def end(self) -> Ended:
        """Wait for its end, and end what it has left."""
        ended = self._program.communicate()
        code = self._program.wait()
        self._program.kill()
        return Ended(code, *ended)


def penstock_command(*arguments: str, folder: Path, **given: Any) -> Ended:
    """Run the command `penstock` to its end. no_stderr: it is closed; all else: as Program has it."""
    return Command(*arguments, folder=folder, **given).end()


def python(*arguments: str, folder: Path) -> Ended:
    """Run Python, the reference, with these arguments."""
    command = [sys.executable, *arguments]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def written(folder: Path, files: Mapping[str, str] | Sequence[tuple[str, str]]) -> Path:
    """Write files into a folder, and return it."""
    for name, text in dict(files).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
