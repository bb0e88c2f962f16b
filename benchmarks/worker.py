"""A contestant's process: `python -m benchmarks.worker question table contestant setup packages`.

Answers each line on stdin with one line of JSON on the stdout that it was started with; what libraries print goes to
stderr. The first line it writes says that the contestant is built, or why it is not.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.metadata
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks.harness import Question, Setup
from benchmarks.process import ROOT

PR_SET_PDEATHSIG = 1


def main(question: str, table: str, contestant: str, setup: str, packages: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))  # never outlive the harness

    def tell(**facts: Any) -> None:
        answers.write(json.dumps(facts) + "\n")
        answers.flush()

    given = Setup(**json.loads(setup))
    data = given.data
    try:
        asked: Question = importlib.import_module(f"benchmarks.{question}").QUESTION
        chosen = next(c for t in asked.tables if t.name == table for c in t.contestants if c.name == contestant)
        running = chosen.build(given)
    except ImportError as missing:
        tell(failed=f"not installed: {plain(missing, data)}")
        return
    except Exception as broken:
        traceback.print_exc()
        tell(failed=f"failed: {type(broken).__name__}: {plain(broken, data)}")
        return
    tell(versions={name: version(name) for name in json.loads(packages)})
    for line in sys.stdin:
        if line.strip() != "epoch":
            break
        try:
            gc.collect()
            began = time.perf_counter()
            done = running.epoch()
            seconds = time.perf_counter() - began
            numbers = done if isinstance(done, dict) else {"samples_per_s": done / seconds, "seconds": seconds}
            tell(numbers=numbers, explain=pathless(str(running.explain()), data) if running.explain else "")
        except Exception as broken:
            traceback.print_exc()
            tell(failed=f"failed: {type(broken).__name__}: {plain(broken, data)}")
            return
    answers.flush()
    os._exit(0)  # peers' threads and torch's persistent workers are ended by the harness with the process group


def plain(error: BaseException, data: str) -> str:
    """The error's first line, without this machine's paths."""
    return pathless((str(error).splitlines() or [""])[0], data)[:300]


def pathless(text: str, data: str) -> str:
    """The text with DATA for the folder of the data, and without the other folders of this machine."""
    text = text.replace(data, "DATA")
    for folder in (str(ROOT), sys.prefix, str(Path.home())):
        text = text.replace(folder + os.sep, "")
    return text


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


if __name__ == "__main__":
    main(*sys.argv[1:])
