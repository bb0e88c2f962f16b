"""Row 15: /dev/shm of 8 and 64 MB, `ulimit -n 64`, memory that may be locked of 64 KB.

The right batches, or an error with what is needed and what is available; never SIGBUS, and nothing is left.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.data import tensor_files

PROGRAM = """
import os, resource, sys
{limit}
import torch, penstock

class Images(torch.utils.data.Dataset):
    def __len__(self): return 24
    def __getitem__(self, index): return torch.full(({floats},), float(index))

how, root = sys.argv[1:]
dataset = penstock.TensorFolder(root) if how == "native" else Images()
options = {{}} if how == "native" else {{"worker_method": how}}
before = set(os.listdir("/dev/shm"))
try:
    for pinned in (False, True):
        import warnings
        warnings.simplefilter("ignore")
        loader = penstock.DataLoader(dataset, 8, num_workers=2, pin_memory=pinned, **options)
        got = [float(value) for batch in loader for value in batch.flatten(1)[:, 0]]
        assert got == [float(index) for index in range(len(dataset))], got
    print("right")
except (OSError, RuntimeError, MemoryError) as error:
    print("said", "".join([str(error), *getattr(error, "__notes__", [])]))
del loader
import gc; gc.collect()
left = set(os.listdir("/dev/shm")) - before
assert not left, left
"""


def ended(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    if "mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip(f"a small /dev/shm takes a mount: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr[-3000:])
    return done.stdout


@pytest.mark.parametrize("how", ["native", "thread", "process"])
@pytest.mark.parametrize(("size", "floats"), [("8m", 1000), ("8m", 400_000), ("64m", 400_000), ("64m", 3_000_000)])
def test_shared_memory(size: str, floats: int, how: str, tmp_path: Path, only_full: Any) -> None:
    only_full(how != "process" or floats != 400_000)
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    tensor_files(tmp_path, 24, (2,))
    program = PROGRAM.format(limit="", floats=floats)
    mount = f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"'
    found = ended(["unshare", "-m", "sh", "-c", mount, "sh", sys.executable, "-c", program, how, str(tmp_path)])
    if how != "process" or floats == 1000:
        assert found == "right\n"
    else:
        assert found == "right\n" or ("/dev/shm" in found and "shm-size" in found), found


LIMITS = {"open files": "RLIMIT_NOFILE, (64, 64)", "locked memory": "RLIMIT_MEMLOCK, (65536, 65536)"}


@pytest.mark.parametrize("how", ["native", "thread", "process"])
@pytest.mark.parametrize("limit", LIMITS)
def test_limits(limit: str, how: str, tmp_path: Path, only_full: Any) -> None:
    only_full(how == "thread")
    tensor_files(tmp_path, 24, (2,))
    program = PROGRAM.format(limit=f"resource.setrlimit(resource.{LIMITS[limit]})", floats=1000)
    found = ended([sys.executable, "-c", program, how, str(tmp_path)])
    assert found == "right\n" or "ulimit -n" in found, found
