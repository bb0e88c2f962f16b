"""Life cycles: batches that stay, iterators that end early, several at once, forks, Ctrl-C; nothing left behind."""

from __future__ import annotations

import gc
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as tud
import torchvision
from torchvision import transforms as v1

import penstock
from penstock.sources.reading import read_image
from penstock.system.cgroup import cgroup_quota
from penstock.system.cpus import usable_cpus
from tests.photos import grey_files
from tests.python_processes import Program
from tests.sample_datasets import tensor_files

pytestmark = pytest.mark.native


def counting(size: int = 200, width: int = 2000) -> penstock.Arrays:
    return penstock.Arrays(np.repeat(np.arange(size, dtype=np.int32)[:, None], width, axis=1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tensor_files(tmp_path_factory.mktemp("tensors"), 60, (50, 50))


@pytest.fixture(scope="module")
def pngs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return grey_files(tmp_path_factory.mktemp("pngs"), 40)


@pytest.mark.parametrize(
    "view",
    [
        lambda batch: batch[3:4, 5:6],
        lambda batch: batch.numpy()[3:4, 5:6],
        lambda batch: memoryview(batch.numpy().reshape(-1))[6000:],
        lambda batch: batch.view(torch.float32)[3:4].view(torch.int32),
        lambda batch: batch.untyped_storage(),
        lambda batch: torch.utils.dlpack.from_dlpack(batch)[3:4],
    ],
    ids=["slice", "numpy", "memoryview", "dtype view", "storage", "dlpack"],
)
def test_a_view_keeps_its_batch(view: Any) -> None:
    loader = penstock.DataLoader(counting(), batch_size=10, num_workers=2)
    iterator = iter(loader)
    held = view(next(iterator)[0])
    assert loader.stats().buffers_lent >= 1
    for _ in iterator:
        pass
    for _ in loader:
        pass
    del _  # the last batch of the pass
    if isinstance(held, torch.UntypedStorage):
        held = torch.tensor([], dtype=torch.int32).set_(held)[3 * 2000 : 3 * 2000 + 1]
    assert int(held[0] if isinstance(held, memoryview) else held.reshape(-1)[0]) == 3
    del held
    gc.collect()
    assert loader.stats().buffers_lent == 0


def test_buffers_are_recycled() -> None:
    loader = penstock.DataLoader(counting(2000), batch_size=10, num_workers=2)
    for _ in range(3):
        for _ in loader:
            pass
    stats = loader.stats()
    assert (stats.batches, stats.samples) == (600, 6000)
    assert stats.buffers_created <= 12, stats
    assert stats.buffers_lent <= 1, stats


def test_python_threads_end_too(pngs: Path) -> None:
    dataset = torchvision.datasets.ImageFolder(str(pngs), v1.ToTensor())
    loader = penstock.DataLoader(dataset, batch_size=4, num_workers=3)
    before = threading.active_count()
    iterator = iter(loader)
    images, _ = next(iterator)
    assert [round(float(image[0, 0, 0]) * 255) for image in images] == [0, 1, 2, 3]
    assert threading.active_count() == before + 3
    del iterator
    gc.collect()
    assert threading.active_count() == before
    assert len(list(loader)) == 10
    assert threading.active_count() == before


def test_num_workers_none_uses_the_cpus_allowed() -> None:
    assert 1 <= usable_cpus() <= len(os.sched_getaffinity(0))
    assert penstock.DataLoader(counting()).num_workers == usable_cpus()


@pytest.mark.parametrize(
    ("membership", "limits", "cpus"),
    [
        ("0::/\n", {"cpu.max": "150000 100000"}, 2),
        ("0::/\n", {"cpu.max": "max 100000"}, None),
        (
            "0::/job/task\n",
            {"cpu.max": "max 100000", "job/cpu.max": "250000 100000", "job/task/cpu.max": "max 100000"},
            3,
        ),
        ("0::/../outside\n", {"cpu.max": "400000 100000"}, 4),
        (
            "4:memory:/x\n3:cpu,cpuacct:/x\n",
            {"cpu/x/cpu.cfs_quota_us": "50000", "cpu/x/cpu.cfs_period_us": "100000"},
            1,
        ),
        ("3:cpu:/x\n", {"cpu/x/cpu.cfs_quota_us": "-1", "cpu/x/cpu.cfs_period_us": "100000"}, None),
        ("0::/\n", {"cpu.max": "nonsense"}, None),
        ("", {}, None),
    ],
)
def test_cgroup_quota(tmp_path: Path, membership: str, limits: dict[str, str], cpus: int | None) -> None:
    (tmp_path / "cgroup").write_text(membership)
    for name, text in limits.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert cgroup_quota(str(tmp_path / "cgroup"), str(tmp_path)) == cpus
    assert cgroup_quota(str(tmp_path / "nowhere"), str(tmp_path)) is None


def test_ctrl_c_while_waiting(tmp_path: Path) -> None:
    script = """
import signal, sys, threading
import torch, penstock
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what it runs in the background ignore it
gate = threading.Event()
root = sys.argv[1]
torch.save([torch.zeros(3)], f"{root}/odd.pt")       # Python must read it ...
folder = penstock.TensorFolder(root)
folder.read = lambda position: (print("reading", flush=True), gate.wait())[0]   # ... and never ends
loader = penstock.DataLoader(folder, num_workers=2)
try:
    next(iter(loader))
except KeyboardInterrupt:
    print("interrupted", flush=True)
gate.set()
"""
    with Program(script, tmp_path) as process:
        assert process.stdout.readline() == "reading\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        assert process.wait() == 0


def test_inside_torchs_worker_processes(folder: Path) -> None:
    """A dataset of ours is a plain dataset too: torch's own loader can read it in forked workers."""
    dataset = penstock.TensorFolder(folder)
    list(penstock.DataLoader(dataset, batch_size=8, num_workers=2))  # our threads have run in this process
    batches = list(tud.DataLoader(dataset, batch_size=8, num_workers=2))
    assert torch.equal(torch.cat(batches)[:, 0, 0], torch.arange(60.0))


def test_timeout(tmp_path: Path) -> None:
    gate = threading.Event()
    torch.save([torch.zeros(3)], tmp_path / "zz.pt")
    slow = penstock.TensorFolder(tmp_path)
    slow.read = lambda position: (gate.wait(), torch.zeros(50, 50))[1]  # type: ignore[method-assign]
    iterator = iter(penstock.DataLoader(slow, num_workers=1, timeout=0.2))
    with pytest.raises(RuntimeError, match=r"timed out after 0\.2 seconds"):
        next(iterator)
    gate.set()
    assert next(iterator).shape == (1, 50, 50)


def test_a_sample_that_is_read_for_ever_is_named(pngs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def slow(file: Any, path: str) -> Any:
        if path.endswith("06.png"):
            go_on.wait()
        return read_image(file, path)

    monkeypatch.setattr("penstock.sources.torchvision_folder.read_image", slow)
    dataset = torchvision.datasets.ImageFolder(str(pngs), v1.ToTensor())
    batches = iter(penstock.DataLoader(dataset, batch_size=4, num_workers=2, timeout=0.3))
    next(batches)
    with pytest.raises(penstock.WorkerStuck, match=r"timed out after 0.3 seconds") as raised:
        next(batches)
    assert "06.png" in str(raised.value) and "by Python" in str(raised.value)
    go_on.set()
    x, _ = next(batches)
    assert len(x) == 4
