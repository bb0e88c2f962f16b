"""Row 13: the main process killed (SIGKILL, SIGTERM), also with full buffers; a rank of torchrun killed.

After 5 seconds no process is left, no entry of /dev/shm, no semaphore and no temporary file.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from tests.faults.conftest import Count
from tests.sample_datasets import tensor_files
from tests.waiting import wait_until

PROGRAM = """
import os, sys, time
import torch, penstock
from penstock import DataLoader, TensorFolder

class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 1 << 20
    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.full((40_000,), index)

how = sys.argv[1]
dataset = TensorFolder(sys.argv[2]) if how == "native" else Numbers()
sampler = iter(lambda: 1, 0)
options = {} if how == "native" else {"worker_method": how}
loader = DataLoader(dataset, 8, sampler=sampler, num_workers=2, prefetch_factor=4, **options)
batches = iter(loader)
next(batches)
open("begun", "x").close()
while True:
    if len(sys.argv) > 3:
        time.sleep(60)  # a consumer that stalls, with full buffers
    next(batches)
"""


def of_program(mark: str) -> list[int]:
    """Return the processes whose working folder is this."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.readlink(f"/proc/{name}/cwd") == mark:
                    found.append(int(name))
            except OSError:
                continue
    return found


def exist(paths: list[Path]) -> bool:
    return all(path.exists() for path in paths)


def left_in_memory() -> set[str]:
    return set(os.listdir("/dev/shm"))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("stalls", [False, True], ids=["", "stalled"])
@pytest.mark.parametrize("how", ["native", "thread", "process"])
def test_the_main_process(how: str, stalls: bool, tmp_path: Path, tries: Count) -> None:
    tensor_files(tmp_path / "data", 40)
    chance = random.Random(13)
    (tmp_path / "temporary").mkdir()
    before = left_in_memory()
    for number in range(tries(1, 6)):
        folder = tmp_path / f"run{number}"
        folder.mkdir()
        given = [PROGRAM, how, str(tmp_path / "data"), *(["stalls"] if stalls else [])]
        environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
        program = subprocess.Popen(
            [sys.executable, "-c", *given], cwd=folder, env=environment, stderr=subprocess.DEVNULL
        )
        wait_until((folder / "begun").exists)
        time.sleep(chance.random() * 0.3)
        program.send_signal(chance.choice([signal.SIGKILL, signal.SIGTERM]))
        program.wait(5)
        deadline = time.monotonic() + 5
        while (left := of_program(str(folder))) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not left
        while (entries := left_in_memory() - before) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not entries
        assert not list((tmp_path / "temporary").iterdir())


TRAINING = """
import os, sys, time
import torch, torch.distributed as dist, penstock
dist.init_process_group("gloo")
rank = dist.get_rank()
loader = penstock.DataLoader(range(1 << 16), 8, num_workers=2, worker_method="process", seed=1, shuffle=True)
for step, batch in enumerate(loader):
    if step == 3:
        open(f"begun{rank}", "x").close()
    time.sleep(0.01)
"""


@pytest.mark.timeout(900)
def test_a_rank_of_torchrun(tmp_path: Path, tries: Count) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    before = left_in_memory()
    for number in range(tries(1, 4)):
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone", "train.py"]
        launcher = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        begun = [tmp_path / f"begun{rank}" for rank in range(2)]
        wait_until(partial(exist, begun))
        ranks = [
            process
            for process in of_program(str(tmp_path))
            if b"train.py" in Path(f"/proc/{process}/cmdline").read_bytes()
            and b"torch.distributed.run" not in Path(f"/proc/{process}/cmdline").read_bytes()
        ]
        os.kill(random.Random(number).choice(ranks), signal.SIGKILL)
        _, said = launcher.communicate(timeout=60)
        assert launcher.returncode, said
        deadline = time.monotonic() + 5
        while (left := of_program(str(tmp_path))) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not left and not left_in_memory() - before
        for path in begun:
            path.unlink()
