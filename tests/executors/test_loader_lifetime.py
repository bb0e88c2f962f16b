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
from penstock.system.cpus import usable_cpus
from tests.photos import grey_files
from tests.python_processes import Program
from tests.sample_datasets import tensor_files

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tensor_files(tmp_path_factory.mktemp("tensors"), 60, (50, 50))


@pytest.fixture(scope="module")
def pngs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return grey_files(tmp_path_factory.mktemp("pngs"), 40)


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
    numbers = penstock.Arrays(np.arange(200, dtype=np.int32))
    assert penstock.DataLoader(numbers).num_workers == usable_cpus()


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
