"""Python programs in processes of their own, forked from one that has imported torch: its import takes seconds."""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from typing_extensions import Self

from tests import huge_pages

# A program runs in a grandchild of this process, and ends as Python ends it: with its exit handlers, its error and its
# exit code. The child between them sends the grandchild's number and how it ended.
_PARENT = """
import gc, importlib, json, os, signal, socket, sys, types
import numpy, torch
import penstock
for module in sys.argv[2:]:
    importlib.import_module(module)
gc.collect(), gc.freeze()  # what the import has made is no work for the end of each fork
tidy()
orders = socket.socket(fileno=int(sys.argv[1]))
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    message, files, _, _ = socket.recv_fds(orders, 1 << 20, 4)
    if not message:
        os._exit(0)
    if not os.fork():
        break
    for file in files:
        os.close(file)
orders.close()
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell has ignored in the background
program = os.fork()
if program:
    os.write(files[3], f"{program}\\n".encode())
    for file in files[:3]:
        os.close(file)
    os.write(files[3], f"{os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])}\\n".encode())
    os._exit(0)
for number, file in enumerate(files[:3]):
    os.dup2(file, number)
for file in files:
    os.close(file)
job = json.loads(message)
os.setpgid(0, 0)
os.chdir(job["folder"])
os.environ.clear()
os.environ.update(job["environment"])
sys.argv = ["-c", *job["arguments"]]
sys.modules["__main__"] = types.ModuleType("__main__")
exec(compile(job["source"], "<string>", "exec"), sys.modules["__main__"].__dict__)
"""


@functools.cache
def _parent(*imported: str) -> socket.socket:
    """Return the socket of the process that programs are forked from: one for all tests that have the same imported."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        number = theirs.fileno()
        source = inspect.getsource(huge_pages) + _PARENT
        parent = subprocess.Popen([sys.executable, "-c", source, str(number), *imported], pass_fds=[number])
    atexit.register(parent.wait)
    atexit.register(ours.close)  # before it: the last one that is registered is called first
    return ours


#: What programs that read photos import: a second of work.
VISION = ("torchvision", "torchvision.transforms.v2")


class Program:
    """A program that runs, in a process group of its own; as a subprocess.Popen, as far as the tests need one.

    Args:
        imported: modules that are imported before it begins, beside numpy, torch and penstock.
        stderr: a file in the place of one of its own.

    Attributes:
        stdin, stdout: pipes, as text.
    """

    def __init__(
        self,
        source: str,
        *arguments: Any,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        stderr: Path | None = None,
        imported: Sequence[str] = (),
    ) -> None:
        (in_, stdin), (stdout, out), (end, status) = (os.pipe() for _ in range(3))
        # A terminal must not become the one that controls the tests.
        error = os.memfd_create("stderr") if stderr is None else os.open(stderr, os.O_WRONLY | os.O_NOCTTY)
        job = {
            "source": source,
            "arguments": list(map(str, arguments)),
            "folder": os.getcwd() if folder is None else str(folder),
            "environment": {**os.environ, **(environment or {})},
        }
        socket.send_fds(_parent(*imported), [json.dumps(job).encode()], [in_, out, error, status])
        for file in (in_, out, status, *([] if stderr is None else [error])):
            os.close(file)
        self._error = os.fdopen(error) if stderr is None else io.StringIO()
        self.stdin, self.stdout, self._end = os.fdopen(stdin, "w"), os.fdopen(stdout), os.fdopen(end)
        self.pid = int(self._end.readline())
        self.returncode: int | None = None

    def send_signal(self, number: int) -> None:
        """Send a signal to the program, if it runs."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def has_ended(self) -> bool:
        """Return whether the program has ended."""
        return self.returncode is not None or bool(select.select([self._end], [], [], 0)[0])

    def wait(self) -> int:
        """Return the exit code (below 0: a signal's number), once it ends."""
        if self.returncode is None:
            self.returncode = int(self._end.readline())
        return self.returncode

    def communicate(self) -> tuple[str, str]:
        """Return what the program writes to stdout and stderr until it ends."""
        self.stdin.close()
        out = self.stdout.read()
        self.wait()
        self._error.seek(0)
        error = self._error.read()
        self.close()
        return out, error

    def kill(self) -> None:
        """End the program, and what it has started in its process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """Wait for its end."""
        self.stdin.close()
        self.wait()
        for file in (self.stdout, self._error, self._end):
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None:
            self.close()
        else:
            self.kill()


class Ended(NamedTuple):
    """How a program ended: its exit code (below 0: a signal's number), and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


def run(source: str, *arguments: Any, **given: Any) -> Ended:
    """Run a program to its end; what is given: as Program has it."""
    with Program(source, *arguments, **given) as program:
        out, error = program.communicate()
        return Ended(program.wait(), out, error)


def run_main(module: str, *arguments: Any, **given: Any) -> Ended:
    """Run the function `main` of a module, which takes the arguments, to its end; what is given: as Program has it."""
    return run(f"import sys; from {module} import main; sys.exit(main(sys.argv[1:]))", *arguments, **given)


_FILE = """
import pathlib, runpy, sys
del sys.argv[0]
sys.path.insert(0, str(pathlib.Path(sys.argv[0]).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_file(script: Path, *arguments: Any, **given: Any) -> Ended:
    """Run a script to its end, as Python runs it by its path; what is given: as Program has it."""
    return run(_FILE, script, *arguments, **given)
