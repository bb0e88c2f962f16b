"""A run of several ranks, killed at random steps and started again on other numbers of ranks: each sample once."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.data import noise_image, tensor_files
from tests.frameworks.launching import TORCHRUN, descendants, environment, lives, needs_gloo
from tests.waiting import wait_until

pytest.importorskip("torchvision")

from tests.frameworks import run_killed  # needs torchvision

SCRIPT = Path(run_killed.__file__)
#: Ranks of each run that is killed, and by how many steps it comes on at the least.
RUNS = list(zip((3, 1), random.Random(3).sample(range(1, 8), 2), strict=True))
LAST = 2

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), needs_gloo]


class Run:
    """A run of torchrun, in a session of its own; each rank is in one of its own too, where torchrun puts it."""

    def __init__(self, folder: Path, ranks: int, *arguments: str) -> None:
        self._errors = folder / f"errors-{len(list(folder.glob('errors-*')))}"
        command = [sys.executable, *TORCHRUN[:-1], str(ranks), str(SCRIPT), str(folder), *arguments]
        options: dict[str, Any] = {"start_new_session": True, "env": environment()}
        with self._errors.open("w") as errors:  # a file: a child that waits for ever would keep a pipe open
            self._process = subprocess.Popen(command, stdout=errors, stderr=errors, **options)
        self.processes = {self._process.pid}
        self.shared: set[str] = set()

    def wait(self, condition: Callable[[], bool]) -> int | None:
        """Wait until something is so, or the run has ended; return the exit status of a run that has."""
        deadline = time.monotonic() + run_killed.PATIENCE_SECONDS
        while not condition() and self._process.poll() is None:
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.001)  # between looks at what another process does, which tells nobody
        return self._process.returncode

    def said(self) -> str:
        return self._errors.read_text()

    def look(self) -> None:
        """Note which processes there are, and which files of shared memory they have."""
        self.processes |= descendants(self._process.pid)
        for process in self.processes:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                self.shared |= set(re.findall(r"/dev/shm/\S+", Path(f"/proc/{process}/maps").read_text()))

    def kill(self) -> None:
        """Kill torchrun and all that it started, at once, and wait until they are gone."""
        self.look()
        for process in sorted(self.processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)
        self._process.wait()
        wait_until(lambda: not any(map(lives, self.processes)))


class Killed(NamedTuple):
    """An epoch that was gone through by runs most of which were killed."""

    folder: Path
    stops: list[int]
    """How many steps were taken when each was killed."""
    processes: set[int]
    """All there were."""
    shared: set[str]
    """Files of shared memory that they had open."""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """Run the epoch to its end."""
    folder = tmp_path_factory.mktemp("killed")
    tensor_files(folder / "tensors", run_killed.SAMPLES["tensors"], (6,), "id-{}")
    for number in range(run_killed.SAMPLES["images"]):
        (folder / "images" / f"{number:03}").mkdir(parents=True)
        noise_image(number, 24, 20).save(folder / "images" / f"{number:03}" / "image.png")
    stops = [0]
    processes: set[int] = set()
    shared: set[str] = set()
    for ranks, further in [*RUNS, (LAST, None)]:
        last = stops[-1] + (further or 0)
        run = Run(folder, ranks, *([] if further is None else [str(last)]))
        try:
            assert run.wait(lambda last=last: len(run_killed.lines(folder)) > last) is None, run.said()  # type: ignore[misc]
            run.look()
            if further is None:
                assert run.wait(lambda: False) == 0, run.said()
        finally:
            run.kill()
        assert (folder / "done").exists() == (further is None)
        stops.append(len(run_killed.lines(folder)))
        processes |= run.processes
        shared |= run.shared
    return Killed(folder, stops[1:-1], processes, shared)


def test_the_runs_were_killed_within_the_epoch(killed: Killed) -> None:
    folder, stops = killed.folder, killed.stops
    lines = run_killed.lines(folder)
    worlds = [line["world"] for line in lines]
    wanted = [ranks for (ranks, _), count in zip(RUNS, np.diff([0, *stops]), strict=True) for _ in range(count)]
    assert worlds == wanted + [LAST] * (len(lines) - stops[-1])
    assert set(worlds) == {1, 2, 3} and len(lines) > stops[-1] + 1
    assert all(0 < line["states"]["python"]["position"] < run_killed.SAMPLES["python"] for line in lines[: stops[-1]])


@pytest.mark.parametrize("name", list(run_killed.SAMPLES))
def test_each_sample_came_once_and_is_what_it_would_have_been(killed: Killed, name: str) -> None:
    folder = killed.folder
    came = [tuple(pair) for line in run_killed.lines(folder) for pair in line["handed"][name]]
    loader = run_killed.loaders(folder)[name]
    undisturbed = [pair for batch in loader for pair in run_killed.handed(loader, batch)]
    numbers = Counter(number for number, _ in came)
    assert [number for number, count in numbers.items() if count > 1] == []
    assert sorted(numbers) == list(range(run_killed.SAMPLES[name])) and dict(came) == dict(undisturbed)
    assert name == "python" or "native thread" in loader.explain()


def test_nothing_is_left_behind(killed: Killed) -> None:
    assert len(killed.processes) > len(RUNS) + sum(ranks for ranks, _ in RUNS)
    wait_until(lambda: not any(map(lives, killed.processes)))
    assert [path for path in killed.shared if Path(path).exists()] == []
