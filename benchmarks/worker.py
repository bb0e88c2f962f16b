"""A contestant's process: `python -m benchmarks.worker question contestant setup`.

Answers each line on stdin with one line of JSON on the stdout that it was started with; what libraries print goes to
stderr. The first line it writes says that the contestant is built, or why it is not.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine
from benchmarks.process import ROOT, Failed
from benchmarks.question import Contestant, Question, Running, Setup

PR_SET_PDEATHSIG = 1


class Local:
    """A contestant in this process, as process.Runner has it."""

    def __init__(self, contestant: Contestant, setup: Setup) -> None:
        self._contestant = contestant
        self._setup = setup
        self._running: Running | None = None

    def start(self) -> dict[str, str]:
        with self._failing():
            self._running = self._contestant.build(self._setup)
        return {name: machine.version(name) for name in self._contestant.recorded}

    def epoch(self) -> dict[str, Any]:
        assert self._running is not None
        with self._failing():
            gc.collect()
            began = time.perf_counter()
            done = self._running.epoch()
            seconds = time.perf_counter() - began
            numbers = done if isinstance(done, dict) else {"samples_per_s": done / seconds, "seconds": seconds}
            explain = self._running.explain
            return {"numbers": numbers, "explain": self._pathless(str(explain())) if explain else ""}

    def close(self) -> None:
        self._running = None
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Raises Failed with the first line of what the contestant raises, without this machine's paths."""
        try:
            yield
        except Exception as error:
            what = "not installed"
            if not isinstance(error, ImportError):
                what = f"failed: {type(error).__name__}"
                traceback.print_exc()
            raise Failed(f"{what}: {self._pathless(str(error).partition(chr(10))[0])[:300]}") from error

    def _pathless(self, text: str) -> str:
        """The text with DATA for the folder of the data, and without the other folders of this machine."""
        if self._setup.data:
            text = text.replace(self._setup.data, "DATA")
        for folder in (str(ROOT), sys.prefix, str(Path.home())):
            text = text.replace(folder + os.sep, "")
        return text


def main(question: str, contestant: str, setup_as_json: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))  # never outlive the harness

    def answer(**facts: Any) -> None:
        answers.write(json.dumps(facts) + "\n")
        answers.flush()

    asked: Question = importlib.import_module(f"benchmarks.{question}").QUESTION
    setup = Setup(**json.loads(setup_as_json))
    table = next(table for table in asked.tables if table.name == setup.variant)
    local = Local(next(one for one in table.contestants if one.name == contestant), setup)
    try:
        answer(versions=local.start())
        for line in sys.stdin:
            if line.strip() != "epoch":
                break
            answer(**local.epoch())
    except Failed as why:
        answer(failed=str(why))
        return
    os._exit(0)  # peers' threads and torch's persistent workers are ended by the harness with the process group


if __name__ == "__main__":
    main(*sys.argv[1:])
