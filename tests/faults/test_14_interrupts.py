"""Row 14: Ctrl-C, once and twice, at the start, in the middle, with a worker that hangs, and while a pass is closed.

The program is back within a second, with one KeyboardInterrupt; no process is left, and the loader can be used anew.
"""

from __future__ import annotations

import random
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from tests.faults.conftest import Count
from tests.faults.test_13_killed_programs import left_in_memory, of_program
from tests.python_processes import Program
from tests.sample_datasets import tensor_files
from tests.waiting import wait_until


def none_runs(folder: Path) -> bool:
    return not of_program(str(folder))


PROGRAM = """
import os, signal, sys, time
import torch, penstock
signal.signal(signal.SIGINT, signal.default_int_handler)

class Numbers(torch.utils.data.Dataset):
    hangs = False
    def __len__(self): return 1 << 16
    def __getitem__(self, index):
        time.sleep(0.001)
        while self.hangs and index > 100: time.sleep(0.01)
        return torch.full((1000,), index)

how, moment, root = sys.argv[1:]
dataset = penstock.TensorFolder(root) if how == "native" else Numbers()
Numbers.hangs = moment == "hung"
options = {} if how == "native" else {"worker_method": how}
if how == "native":
    options = {"sampler": [number % 40 for number in range(200_000)]}
loader = penstock.DataLoader(dataset, 8, num_workers=2, **options)
batches = iter(loader) if moment in ("closing", "steady") else None
interrupted = 0
open("begun", "x").close()
try:
    if moment == "closing":
        next(batches)
        while True:
            (getattr(batches, "close", None) or batches._shutdown_workers)()  # __del__ would ignore the interrupt
            batches = iter(loader)
            next(batches)
    for batch in batches or loader:
        if moment == "stalled": time.sleep(60)
except KeyboardInterrupt:
    begun = time.monotonic()
    interrupted += 1
batches = batch = None
Numbers.hangs = False
assert interrupted == 1
print("interrupted", flush=True)
again = iter(penstock.DataLoader(Numbers(), 8, num_workers=2, worker_method="process"))
assert next(again).shape == (8, 1000)
again = None
print("usable", flush=True)
"""


@pytest.mark.parametrize("moment", ["start", "steady", "stalled", "hung", "closing"])
@pytest.mark.parametrize("how", ["native", "thread", "process"])
def test_once(how: str, moment: str, tmp_path: Path, tries: Count) -> None:
    if how == "native" and moment == "hung":
        pytest.skip("native threads run no code of a sample")
    tensor_files(tmp_path / "data", 40, (3,))
    chance, before = random.Random(14), left_in_memory()
    for number in range(tries(1, 4)):
        folder = tmp_path / f"run{number}"
        folder.mkdir()
        program = Program(PROGRAM, how, moment, tmp_path / "data", folder=folder)
        wait_until((folder / "begun").exists)
        time.sleep(0.5 if moment == "hung" else 0.4 * chance.random() * (moment != "start"))
        sent = time.monotonic()
        program.send_signal(signal.SIGINT)
        assert program.stdout.readline() == "interrupted\n", program.communicate()[1]
        assert time.monotonic() - sent < 1.5
        out, error = program.communicate()
        assert out == "usable\n" and program.returncode == 0, error
        wait_until(partial(none_runs, folder))
        wait_until(lambda: not left_in_memory() - before)


@pytest.mark.parametrize("how", ["native", "thread", "process"])
def test_twice(how: str, tmp_path: Path, tries: Count) -> None:
    """The second Ctrl-C comes while the first one ends the pass: the program ends, and leaves nothing."""
    tensor_files(tmp_path / "data", 40, (3,))
    chance, before = random.Random(15), left_in_memory()
    for number in range(tries(1, 6)):
        folder = tmp_path / f"run{number}"
        folder.mkdir()
        program = Program(PROGRAM, how, "steady", tmp_path / "data", folder=folder)
        wait_until((folder / "begun").exists)
        time.sleep(0.2)
        program.send_signal(signal.SIGINT)
        time.sleep(chance.random() * 0.05)
        program.send_signal(signal.SIGINT)
        program.communicate()
        wait_until(partial(none_runs, folder))
        wait_until(lambda: not left_in_memory() - before)
