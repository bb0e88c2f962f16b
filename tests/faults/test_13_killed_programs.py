"""Row 13: the program is killed (SIGKILL, SIGTERM) at any moment or while its loop stalls, a torchrun rank is killed.

No process, entry of /dev/shm, semaphore or temporary file is left after 5 s: worker processes end after
their present sample. A live recording and the files of a cache stay, for the next program.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.insight import live_files
from tests.data import tensor_files
from tests.faults.conftest import Count
from tests.frameworks.launching import TORCHRUN, descendants, environment, lives, needs_gloo
from tests.python_processes import Program
from tests.waiting import SECONDS, wait_until

PROGRAM = """
import itertools, json, multiprocessing, signal, sys, tempfile
from functools import partial

options, kind, folder, stalls, tests = json.loads(sys.argv[1])
sys.path.insert(0, tests)
import numpy as np
import penstock
from penstock.insight import publishing
from tests.data import Made

tempfile.tempdir = None  # what TMPDIR says here
publishing.FIRST_AFTER = 0.0
publishing.publish()
made = Made(partial(np.full, 100_000), 1 << 20)  # a sample is more than a pipe holds
dataset = {"files": penstock.TensorFolder, "shards": penstock.Shards}.get(kind, lambda folder: made)(folder)
loader = penstock.DataLoader(dataset, 4, num_workers=2, collate_fn=list if kind == "messages" else None, **options)
for number, batch in enumerate(itertools.chain.from_iterable(itertools.repeat(loader))):
    if number == 1:  # both workers work
        config = multiprocessing.process.current_process()._config
        print(json.dumps(config.get("tempdir")), flush=True)  # the folder of Python's own fork server
        while stalls:
            signal.pause()
"""

#: The options of the loader, and what it reads.
WAYS: dict[str, tuple[dict[str, Any], str]] = {
    "fork": ({"worker_method": "process", "multiprocessing_context": "fork"}, "made"),
    "fork, messages": ({"worker_method": "process", "multiprocessing_context": "fork"}, "messages"),
    "persistent": ({"worker_method": "process", "persistent_workers": True}, "messages"),
    "threads": ({"worker_method": "thread"}, "made"),
    "native": ({}, "files"),
    "shards, cache": ({"cache": "cache"}, "shards"),
    "spawn": ({"multiprocessing_context": "spawn"}, "messages"),
    "forkserver": ({"multiprocessing_context": "forkserver"}, "messages"),
}
IMPORTS = ("spawn", "forkserver")  # whose workers take seconds to start


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with files, shards, and what an undisturbed program leaves in a cache."""
    folder = tmp_path_factory.mktemp("data")
    files = penstock.TensorFolder(tensor_files(folder / "files", 40, (1000,)))
    penstock.pack(files, folder / "shards", shard_size="40KiB")
    list(penstock.DataLoader(penstock.Shards(folder / "shards"), 4, num_workers=2, cache=folder / "cache"))
    return folder


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return an empty folder for temporary files, whose name is short enough for sockets in it."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def members(group: int) -> list[int]:
    """Return the processes of a group that live."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(ValueError, ProcessLookupError):
            if os.getpgid(int(name)) == group and lives(int(name)):
                found.append(int(name))
    return found


def unused(before: Collection[str]) -> set[str]:
    """Return the new entries of /dev/shm that no process has mapped: those of other programs are mapped by these."""
    found = [entry for entry in os.scandir("/dev/shm") if entry.name.startswith(("sem.", "torch_", "penstock"))]
    new = {entry.inode(): entry.name for entry in found if entry.name not in before}
    for maps in Path("/proc").glob("[0-9]*/maps") if new else ():
        with contextlib.suppress(OSError):
            for line in maps.read_text().splitlines():
                if "/dev/shm/" in line:
                    new.pop(int(line.split()[4]), None)
    return set(new.values())


def wait_for_none(processes: Any, before: Collection[str]) -> None:
    """Wait until none of the processes lives and /dev/shm holds nothing of theirs: 5 s of a machine of one's own."""
    deadline = time.monotonic() + 5 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    while (found := (processes(), unused(before))) != ([], set()):
        assert time.monotonic() < deadline, found
        time.sleep(0.02)  # between looks at what other processes do, which tells nobody


@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
@pytest.mark.parametrize("way", WAYS)
def test_a_killed_program(
    way: str, number: signal.Signals, data: Path, folder: Path, tmp_path: Path, only_full: Any, tries: Count
) -> None:
    only_full(way in IMPORTS and (way, number) != ("spawn", signal.SIGKILL))
    chance, before = random.Random(13), set(os.listdir("/dev/shm"))
    options, kind = WAYS[way]
    if "cache" in options:
        options = {"cache": str(tmp_path / "cache")}
    variables = {"TMPDIR": str(folder), "XDG_CACHE_HOME": str(tmp_path / "home")}
    once = way in IMPORTS or number == signal.SIGTERM
    for turn in range(tries(1 if once else 2, 4 if way in IMPORTS else 20)):
        stalls = turn % 2 == 0
        job = json.dumps([options, kind, str(data / kind), stalls, str(Path(__file__).parents[2])])
        with Program(PROGRAM, job, environment=variables) as program:
            begun = program.stdout.readline() if stalls or way in IMPORTS else ""
            time.sleep(chance.random() * 0.4)  # the moment
            program.send_signal(number)
            assert program.wait() == -number
            if not begun:  # a semaphore may be left that Python has made and not yet unlinked
                before.update(name for name in os.listdir("/dev/shm") if name.startswith("sem."))
            wait_for_none(lambda group=program.pid: members(group), before)
            if way == "forkserver":  # Python's own folder for its fork server
                shutil.rmtree(json.loads(begun))
            assert os.listdir(folder) == []
            # Python's thread that shares descriptors may write that its connection broke; the workers write nothing.
            assert "_worker_loop" not in program.communicate()[1]
    if "cache" in options:
        names = [{path.name for path in Path(one).rglob("*")} for one in (options["cache"], data / "cache")]
        assert names[0] <= names[1]
    live = tmp_path / "home" / "penstock" / "live"
    assert live_files.jobs(live) == []
    live_files.remove_stale(live)
    assert list(live.iterdir()) == []


RANK = """
import json, os, sys, tempfile
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

import penstock
from tests.frameworks.launching import begin
from tests.data import Made

begin()
tensors, folder = sys.argv[1:]
tempfile.tempdir = f"{folder}/temporary"
endless = Made(partial(np.full, 100_000), 1 << 20)
loaders = [penstock.DataLoader(endless, 4, num_workers=2, worker_method=method) for method in ("process", "thread")]
passes = [iter(loader) for loader in loaders]  # no process is forked beside gloo's threads
native = penstock.DataLoader(penstock.TensorFolder(tensors), 4, num_workers=2)
dist.init_process_group("gloo")
while True:
    for batches in zip(*passes, native):
        dist.all_reduce(torch.ones(1))
        open(f"{folder}/rank-{os.getpid()}", "w").close()
"""


@needs_gloo
@pytest.mark.timeout(900)
def test_a_killed_rank(data: Path, tmp_path: Path, only_full: Any, tries: Count) -> None:
    only_full()
    chance, before = random.Random(13), set(os.listdir("/dev/shm"))
    (script := tmp_path / "rank.py").write_text(RANK)
    for turn in range(tries(0, 8)):
        (folder := tmp_path / str(turn)).mkdir()
        (folder / "temporary").mkdir()
        command = [sys.executable, *TORCHRUN, str(script), str(data / "files"), str(folder)]
        options: Any = {"start_new_session": True, "env": environment(), "stderr": subprocess.DEVNULL}
        with subprocess.Popen(command, **options) as torchrun:
            processes = set[int]()
            try:
                wait_until(lambda: torchrun.poll() is not None or len(list(folder.glob("rank-*"))) == 2)
                time.sleep(chance.random() * 0.2)  # the moment
                processes = descendants(torchrun.pid)
                assert len(processes) >= 6, "two ranks with two workers each"
                ranks = [int(file.name.partition("-")[2]) for file in folder.glob("rank-*")]
                os.kill(chance.choice(ranks), signal.SIGKILL)
                assert torchrun.wait(SECONDS) != 0
                wait_for_none(lambda: [one for one in processes if lives(one)], before)  # noqa: B023
                # Those that torchrun ends leave Python's folders of sockets: it sends SIGTERM to their workers, too.
                assert [name for name in os.listdir(folder / "temporary") if not name.startswith("pymp-")] == []
            finally:
                for process in itertools.chain(processes, [torchrun.pid]):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
