"""Rounds of contestants in turn, and a contestant's process as the harness sees it.

The harness writes a line `epoch` or `quit` to the process; worker.py, at the other end, answers with a line of JSON.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from benchmarks import machine

ROOT = Path(__file__).resolve().parent.parent
START_TIMEOUT_S = 1800.0  # a build may write a packed file or compile code
EPOCH_TIMEOUT_S = 600.0


@dataclasses.dataclass
class Outcome:
    """What a contestant gave: numbers per round, or why not."""

    status: str = "measured"
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    explain: str = ""
    rounds: list[dict[str, float]] = dataclasses.field(default_factory=list)


class Failed(Exception):
    """A contestant that cannot go on; the text says why."""


class Runner(Protocol):
    """A contestant that the harness can run: a Worker, or a Local in this process. All but close() may raise Failed."""

    def start(self) -> dict[str, str]:
        """Builds the contestant; returns the versions of its packages."""

    def epoch(self) -> dict[str, Any]:
        """Runs an epoch; returns the contestant's `numbers`, and `explain`, a text."""

    def close(self) -> None:
        """Ends the contestant and what it left running."""


class Worker:
    """A contestant's process group, stopped between its epochs: nothing that it prefetches costs others time."""

    def __init__(self, python: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.worker", *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._pending = b""

    def start(self) -> dict[str, str]:
        versions: dict[str, str] = self._answer(START_TIMEOUT_S)["versions"]
        return versions

    def epoch(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(b"epoch\n")
            self._process.stdin.flush()
            return self._answer(EPOCH_TIMEOUT_S)
        except BrokenPipeError as gone:
            raise Failed("its process ended") from gone
        finally:
            self._signal(signal.SIGSTOP)

    def close(self) -> None:
        """Ends the group, once: by `quit` when the process answers, else by SIGKILL."""
        if self._process.returncode is not None:
            return
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(subprocess.TimeoutExpired, BrokenPipeError):
            with self._process.stdin as orders:
                orders.write(b"quit\n")
            self._process.wait(timeout=10)
        self._signal(signal.SIGKILL)  # its own workers, where it left some
        self._process.stdout.close()
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._pending:
            if not select.select([pipe], [], [], timeout_s)[0]:
                raise Failed(f"no answer within {timeout_s:.0f} s")
            piece = os.read(pipe, 1 << 16)
            if not piece:
                raise Failed("its process ended")
            self._pending += piece
        line, self._pending = self._pending.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise Failed(answer["failed"])
        return answer


def measure(
    runners: Mapping[str, Callable[[], Runner]], rounds: int, fresh: bool, title: str
) -> tuple[dict[str, Outcome], float]:
    """Runs an epoch of each contestant in turn as a warm-up, then `rounds` times again.

    With `fresh`, a contestant is made anew for each of its epochs. Returns the outcomes by the contestants' names, and
    the MB that the machine read from disks after the warm-up.
    """
    outcomes = {name: Outcome() for name in runners}
    live: dict[str, Runner] = {}
    disk = 0.0
    with contextlib.ExitStack() as stack, progress(title, len(runners) * (rounds + 1)) as step:
        for turn in range(rounds + 1):
            disk = machine.disk_read_mb() if turn == 1 else disk
            for name, outcome in outcomes.items():
                step(f"{name}, round {turn}" if turn else f"{name}, warm-up")
                if outcome.status != "measured":
                    continue
                try:
                    if name not in live:
                        live[name] = stack.enter_context(contextlib.closing(runners[name]()))
                        outcome.versions = live[name].start()
                    answer = live[name].epoch()
                    outcome.explain = outcome.explain or answer["explain"]
                    if turn > 0:
                        outcome.rounds.append(answer["numbers"])
                except (Failed, OSError) as why:
                    outcome.status = str(why)
                    outcome.rounds.clear()
                if name in live and (fresh or outcome.status != "measured"):
                    live.pop(name).close()
    return outcomes, machine.disk_read_mb() - disk


@contextlib.contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[str], None]]:
    """A bar on stderr, or lines where tqdm is missing; the function yielded is called with the name of each step."""
    try:
        from tqdm import tqdm
    except ImportError:
        yield lambda text: say(f"{title}: {text}")
        return
    with tqdm(total=total, desc=title, file=sys.stderr, unit="epoch") as bar:
        begun = False

        def step(text: str) -> None:
            nonlocal begun
            bar.update(begun)
            begun = True
            bar.set_postfix_str(text)

        yield step
        bar.update(begun)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
