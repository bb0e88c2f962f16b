"""One contestant, one process; measured in turn while all others are stopped.

The parent writes a line `epoch` or `quit`, the child (worker.py) answers each with one line of JSON.
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks import machine

ROOT = Path(__file__).resolve().parent.parent
START_TIMEOUT_S = 1800.0  # a build may write a packed file or compile code
EPOCH_TIMEOUT_S = 600.0
BEFORE = " (before)"  # ends the name of a contestant that is run with another build of Penstock


@dataclasses.dataclass(frozen=True)
class Entry:
    """What a worker process is started with."""

    question: str
    table: str
    contestant: str
    python: str
    setup: str  # JSON
    packages: tuple[str, ...]


@dataclasses.dataclass
class Outcome:
    """What a contestant gave: numbers per round, or why not."""

    status: str = "measured"
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    explain: str = ""
    rounds: list[dict[str, float]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Outcomes:
    """Outcomes by contestant, and what was read from disks during the measured rounds."""

    of: dict[str, Outcome]
    disk_read_mb: float | None = None


class Failed(Exception):
    """A contestant that cannot go on; the text says why."""


def python_for(peers_venv: bool, peers_python: str) -> str:
    return peers_python if peers_venv else sys.executable


class Worker:
    """A contestant's process group; stopped except within `running()`."""

    def __init__(self, entry: Entry) -> None:
        command = [
            entry.python,
            "-m",
            "benchmarks.worker",
            entry.question,
            entry.table,
            entry.contestant.removesuffix(BEFORE),
            entry.setup,
            json.dumps(entry.packages),
        ]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self._pending = b""
        self._closed = False

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *raised: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def ready(self) -> dict[str, Any]:
        """Waits until the contestant is built."""
        return self._answer(START_TIMEOUT_S)

    def epoch(self) -> dict[str, Any]:
        """Has one epoch run, alone."""
        assert self._process.stdin is not None
        with self.running():
            try:
                self._process.stdin.write(b"epoch\n")
                self._process.stdin.flush()
            except BrokenPipeError as gone:
                raise Failed("its process ended") from gone
            return self._answer(EPOCH_TIMEOUT_S)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def stop(self) -> None:
        """Stops the whole group: nothing it prefetches costs another contestant time."""
        self._signal(signal.SIGSTOP)

    def close(self) -> None:
        """Ends the group: kindly when it answers `quit`, else by SIGKILL."""
        if self._closed:
            return
        self._closed = True
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
        said: dict[str, Any] = json.loads(line)
        if "failed" in said:
            raise Failed(said["failed"])
        return said


def interleaved_rounds(entries: Sequence[Entry], rounds: int, title: str) -> Outcomes:
    """A warm-up epoch each, then `rounds` times each contestant in turn."""
    outcomes = Outcomes({entry.contestant: Outcome() for entry in entries})
    with contextlib.ExitStack() as stack, progress(title, len(entries) * (rounds + 2)) as step:
        live: dict[str, Worker] = {}
        for entry in entries:
            name, outcome = entry.contestant, outcomes.of[entry.contestant]
            with attempt(outcome):
                step(f"{name}: start", 0)
                worker = stack.enter_context(Worker(entry))
                outcome.versions = worker.ready()["versions"]
                worker.stop()
                step(f"{name}: warm-up", 1)
                outcome.explain = worker.epoch().get("explain", "")
                live[name] = worker
            step("", 1 if name in live else 2)
        disk = machine.disk_read_mb()
        for _ in range(rounds):
            for entry in entries:
                name = entry.contestant
                step(name, 0)
                if name in live:
                    with attempt(outcomes.of[name]):
                        outcomes.of[name].rounds.append(live[name].epoch()["numbers"])
                    if outcomes.of[name].status != "measured":
                        live.pop(name).close()
                step("", 1)
        outcomes.disk_read_mb = machine.disk_read_mb() - disk
    return outcomes


def fresh_rounds(entries: Sequence[Entry], rounds: int, title: str) -> Outcomes:
    """`rounds` times each contestant in turn, each time in a new process, after one round that is thrown away."""
    outcomes = Outcomes({entry.contestant: Outcome() for entry in entries})
    disk = machine.disk_read_mb()
    with progress(title, len(entries) * (rounds + 1)) as step:
        for turn in range(rounds + 1):
            if turn == 1:
                disk = machine.disk_read_mb()
            for entry in entries:
                outcome = outcomes.of[entry.contestant]
                step(entry.contestant, 0)
                if outcome.status == "measured":
                    with attempt(outcome), Worker(entry) as worker:
                        outcome.versions = worker.ready()["versions"]
                        said = worker.epoch()
                        outcome.explain = said.get("explain", "")
                        if turn > 0:
                            outcome.rounds.append(said["numbers"])
                step("", 1)
    outcomes.disk_read_mb = machine.disk_read_mb() - disk
    return outcomes


@contextlib.contextmanager
def attempt(outcome: Outcome) -> Iterator[None]:
    try:
        yield
    except (Failed, OSError) as why:
        outcome.status = str(why)
        outcome.rounds.clear()


@contextlib.contextmanager
def progress(title: str, total: int) -> Iterator[Any]:
    """A bar on stderr (none without tqdm): `step(text, count)`."""
    try:
        from tqdm import tqdm  # noqa: PLC0415  optional here
    except ImportError:
        yield lambda text, count: None
        return
    with tqdm(total=total, desc=title, file=sys.stderr, unit="epoch") as bar:

        def step(text: str, count: int) -> None:
            if text:
                bar.set_postfix_str(text)
            bar.update(count)

        yield step
