"""Scripts that train with two processes, started as a user starts them."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
#: A rank that waits in vain ends by itself after so long; see the scripts.
PATIENCE_SECONDS = 90
TRIES = 3
needs_gloo = pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch was built without gloo")


def environment() -> dict[str, str]:
    """Return the environment of scripts, which import the tests' modules."""
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}


def begin(patience: float = PATIENCE_SECONDS) -> None:
    """Do what each rank does first: one that waits in vain for the other ends, and says where."""
    faulthandler.dump_traceback_later(patience, exit=True)
    torch.set_num_threads(1)


def end(file: Path, results: Any) -> None:
    """Write what this rank has found into FILE-<rank>.json, and leave the others."""
    Path(f"{file}-{dist.get_rank()}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


#: Forks the ranks of each verb in turn from a process that has imported what they need, which takes seconds.
_RANKS = """
import importlib, json, os, socket, sys
from pathlib import Path

work, folder = importlib.import_module("tests.frameworks." + sys.argv[1]), Path(sys.argv[2])
for verb, ranks in json.loads(sys.argv[3]).items():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(ranks):
        children.append(os.fork())
        if not children[-1]:
            if ranks > 1:
                os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1"}
                os.environ |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_PORT": str(port)}
            work.main(verb, folder)
            sys.exit()
    if any([os.waitpid(child, 0)[1] for child in children]):
        sys.exit(f"{verb} has failed")
"""


def launched(work: str, folder: Path, **verbs: int) -> None:
    """Call main(verb, folder) of a module beside this one in so many ranks as each verb says, verb by verb.

    Their environment is that of torchrun's, which tests/test_examples.py and others start.
    """
    if not dist.is_gloo_available():
        pytest.skip("this torch was built without gloo")
    run("-c", _RANKS, work, str(folder), json.dumps(verbs), cwd=folder)


def found_in(folder: Path, name: str = "found", ranks: int = 2) -> list[Any]:
    """Return what each rank has found."""
    return [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(ranks)]


def run(*arguments: str, cwd: Path | None = None) -> str:
    """Run Python with these arguments and return what it writes.

    Forking a process whose C++ threads (gloo's, autograd's) come and go may leave the child waiting for a lock of the
    interpreter: CPython 3.11 takes it in the child before it makes it anew (_PyThreadState_DeleteExcept). torch's own
    loader meets it here about once in thirty runs. Such a run is tried again; one that fails otherwise is not.
    """
    for _ in range(TRIES):
        status, said, errors = _run_once([sys.executable, *arguments], cwd)
        if status is not None and "Timeout (0:0" not in errors:
            break
    assert status == 0, errors
    return said


def _run_once(command: list[str], cwd: Path | None) -> tuple[int | None, str, str]:
    """Return (exit status, None if it took too long; stdout; stderr), and leave no process of it behind.

    It writes to files: a child that waits for ever would keep pipes open after its parents have ended.
    """
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as errors:
        options: Any = {"stdout": said, "stderr": errors, "start_new_session": True, "env": environment()}
        process = subprocess.Popen(command, cwd=cwd, **options)
        try:
            code: int | None = process.wait(2 * PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        for leader in (process.pid, *descendants(process.pid)):  # torchrun gives each rank a session of its own
            with contextlib.suppress(ProcessLookupError):
                os.killpg(leader, signal.SIGKILL)
        process.wait()
        said.seek(0)
        errors.seek(0)
        return code, said.read(), errors.read()


def status(process: int) -> tuple[int, str] | None:
    """Return (parent, state) of a process."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(fields[1]), fields[0]


def lives(process: int) -> bool:
    found = status(process)
    return found is not None and found[1] not in "ZX"


def descendants(ancestor: int) -> set[int]:
    """Return the processes that a process has started, and these."""
    parents = {int(path.name): status(int(path.name)) for path in Path("/proc").iterdir() if path.name.isdigit()}
    found, size = {ancestor}, 0
    while len(found) > size:
        size = len(found)
        found |= {process for process, what in parents.items() if what is not None and what[0] in found}
    return found - {ancestor}
