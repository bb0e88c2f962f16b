"""Life cycles: batches that stay, passes that end early, Ctrl-C; nothing is left behind or held longer."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import textwrap
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torch.utils.data import default_collate
from torchvision import transforms as v1

import penstock
from penstock.sources.reading import read_image
from penstock.system.limits import usable_cpus
from tests import python_processes
from tests.data import grey_files, rows
from tests.resources import descriptors
from tests.values import flat, taken

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def pngs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return grey_files(tmp_path_factory.mktemp("pngs"), 40)


def test_python_threads_end_too(pngs: Path) -> None:
    dataset = torchvision.datasets.ImageFolder(str(pngs), v1.ToTensor())
    loader = penstock.DataLoader(dataset, batch_size=4, num_workers=3)
    threads, iterator = [threading.active_count()], iter(loader)
    images, _ = next(iterator)
    assert [round(float(image[0, 0, 0]) * 255) for image in images] == [0, 1, 2, 3]
    threads.append(threading.active_count())
    del iterator
    gc.collect()
    threads.append(threading.active_count())
    assert len(list(loader)) == 10
    assert [*threads, threading.active_count()] == [threads[0] + more for more in (0, 3, 0, 0)]


def test_a_loader_that_its_own_collate_fn_holds_is_collected() -> None:
    class Own(penstock.DataLoader[Any]):
        def __init__(self) -> None:
            super().__init__(rows(8), 2, collate_fn=self.collate)

        def collate(self, samples: list[Any]) -> Any:
            return default_collate(samples)

    loader = Own()
    assert len(list(loader)) == 4
    loader.loop_meter.looked = 0.0
    loader.loop_meter.look()  # as behind a long pass, whose verdict is logged when the loader is gone
    gone = weakref.ref(loader)
    del loader
    gc.collect()
    assert gone() is None


@pytest.mark.filterwarnings("ignore:num_workers=1000. native threads")
@pytest.mark.parametrize(("options", "started"), [({}, 2), ({"prefetch_factor": 2}, 2), ({"num_workers": 1}, 1)])
def test_no_more_native_threads_start_than_rows_are_in_flight(options: dict[str, Any], started: int) -> None:
    before = len(os.listdir("/proc/self/task"))
    batches = iter(penstock.DataLoader(rows(8), 2, **{"num_workers": 1000, **options}))
    assert flat(taken(batches, 2)) == [0, 1, 2, 3]
    assert len(os.listdir("/proc/self/task")) <= before + started
    assert flat(batches) == [4, 5, 6, 7]


@pytest.mark.filterwarnings("ignore:num_workers=1000. native threads")
def test_no_more_threads_start_than_files_are_in_flight(pngs: Path) -> None:
    dataset = torchvision.datasets.ImageFolder(str(pngs), v1.ToTensor())
    before = len(os.listdir("/proc/self/task"))
    batches = iter(penstock.DataLoader(dataset, 2, num_workers=1000))
    assert len(taken(batches, 2)) == 2
    assert len(os.listdir("/proc/self/task")) < before + 150  # two for each file, and readers
    assert len(list(batches)) == 18


def test_num_workers_none_uses_the_cpus_allowed() -> None:
    assert 1 <= usable_cpus() <= len(os.sched_getaffinity(0))
    numbers = penstock.Arrays(np.arange(200, dtype=np.int32))
    assert penstock.DataLoader(numbers).num_workers == usable_cpus()


def test_a_sample_that_is_read_for_ever_is_named(pngs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def slow(file: Any, path: str, id: str) -> Any:
        if path.endswith("06.png"):
            go_on.wait()
        return read_image(file, path, id)

    monkeypatch.setattr("penstock.sources.torchvision_datasets.read_image", slow)
    dataset = torchvision.datasets.ImageFolder(str(pngs), v1.ToTensor())
    batches = iter(penstock.DataLoader(dataset, batch_size=4, num_workers=2, timeout=0.3))
    next(batches)
    with pytest.raises(penstock.WorkerStuck, match=r"timed out after 0.3 seconds") as raised:
        next(batches)
    assert "06.png" in str(raised.value) and "by Python" in str(raised.value)
    go_on.set()
    assert len(next(batches)[0]) == 4


def same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def make_tensors(root: Path, value: int) -> None:
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for i in range(4):
        torch.save(torch.full((3,), float(value)), root / f"{i}.pt")


def make_images(root: Path, value: int) -> None:
    shutil.rmtree(root, ignore_errors=True)
    (root / "class").mkdir(parents=True)
    for i in range(4):
        Image.new("RGB", (8, 8), (value, value, value)).save(root / "class" / f"{i}.png")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("called", [False, True], ids=["native", "assisted"])
@pytest.mark.parametrize("kind", ["tensors", "images"])
def test_a_root_that_is_made_anew(tmp_path: Path, kind: str, called: bool, workers: int) -> None:
    make, root = {"tensors": make_tensors, "images": make_images}[kind], tmp_path / "root"
    make(root, 0)
    steps = [*([v1.RandomRotation(0)] if called else []), v1.PILToTensor()]
    dataset: Any = penstock.ImageFolder(root, v1.Compose(steps)) if kind == "images" else None
    dataset = dataset or penstock.TensorFolder(root, transform=same if called else None)
    loader: Any = penstock.DataLoader(dataset, batch_size=2, num_workers=workers, worker_method="thread")
    held = set()
    for value in range(12):
        make(root, value)
        assert set(flat(loader)) == {value}
        held.add(descriptors())
    assert len(held) == 1, held


def test_a_root_that_is_exchanged_during_a_pass(tmp_path: Path) -> None:
    """Another pass finds the new folder, while the first one reads on: in the one or the other, and nothing else."""
    root, other = tmp_path / "root", tmp_path / "other"
    make_tensors(root, 1)
    make_tensors(other, 2)
    loader: Any = penstock.DataLoader(penstock.TensorFolder(root), batch_size=1, num_workers=2)
    iterator = iter(loader)
    values = flat(taken(iterator, 1))
    root.rename(tmp_path / "old")
    other.rename(root)
    assert flat(loader) == [2] * 12
    values += flat(iterator)
    assert len(values) == 12 and set(values) <= {1, 2}
    shutil.rmtree(root)
    with pytest.raises(penstock.MissingSample):
        list(loader)


def test_a_folder_in_a_file_s_place_keeps_no_descriptor(tmp_path: Path) -> None:
    make_images(tmp_path, 0)
    images: Any = penstock.ImageFolder(tmp_path)
    (tmp_path / "class" / "1.png").unlink()
    (tmp_path / "class" / "1.png").mkdir()
    (tmp_path / "x.pt").mkdir()
    tensors: Any = penstock.TensorFolder(tmp_path, ["x"])
    held = set()
    for _ in range(5):
        for dataset, index in ((images, 1), (tensors, 0)):
            with pytest.raises(IsADirectoryError):
                dataset[index]
        held.add(descriptors())
    assert len(held) == 1, held


def test_passes_and_loaders_keep_no_descriptor(tmp_path: Path) -> None:
    """Native, assisted, threads, worker processes, a ledger, a scan cache, a memory-mapped array."""
    make_tensors(tmp_path / "t", 1)
    make_images(tmp_path / "i", 1)
    np.save(tmp_path / "a.npy", np.arange(16.0))
    held = set()
    for turn in range(4):
        tensors, called = (penstock.TensorFolder(tmp_path / "t", transform=step) for step in (None, same))
        sources: list[Any] = [tensors, called, penstock.ImageFolder(tmp_path / "i", v1.PILToTensor())]
        sources.append(penstock.Arrays(tmp_path / "a.npy"))
        ways = ({"num_workers": 0}, {"num_workers": 1, "worker_method": "thread"}, {"num_workers": 1})
        for (number, dataset), options in itertools.product(enumerate(sources), ways):
            extra: Any = {**options, "ledger": tmp_path / f"{turn}-{number}"}
            loader: Any = penstock.DataLoader(dataset, batch_size=2, **extra)
            list(loader)
            next(iter(loader))  # and one that is left in its middle
        del sources, dataset, tensors, called, loader
        if turn:
            held.add(descriptors())
    assert len(held) == 1, held


HUGE = """
    import sys, torch, torchvision, penstock
    from torchvision import transforms as v1
    root, workers, called = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "called"

    def held():
        return int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20

    steps = [v1.RandomHorizontalFlip(1.0), v1.Resize((16, 16)), *[v1.Lambda(lambda image: image)] * called]
    dataset = torchvision.datasets.ImageFolder(root, v1.Compose([*steps, v1.PILToTensor()]))
    sampler = [1] * 4 + [0] + [1] * 4  # huge.jpg is before small.jpg
    iterator = iter(penstock.DataLoader(dataset, sampler=sampler, num_workers=workers, worker_method="thread"))
    next(iterator), next(iterator)
    before = held()
    for _ in range(6):
        next(iterator)
    print(before, held())
"""


@pytest.fixture(scope="module")
def one_huge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("huge")
    (root / "class").mkdir()
    Image.new("RGB", (8, 8)).save(root / "class" / "small.jpg")
    pixels = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((8000, 6000)).save(root / "class" / "huge.jpg", quality=50)
    return root


@pytest.mark.parametrize("called", ["plain", "called"])
@pytest.mark.parametrize("workers", [0, 1])
def test_the_memory_of_one_huge_image(one_huge: Path, workers: int, called: str) -> None:
    """144 million bytes of pixels, and as many again for a step behind them, are not kept when it is done."""
    vision = python_processes.VISION
    done = python_processes.run(textwrap.dedent(HUGE), one_huge, workers, called, imported=vision)
    assert done.returncode == 0, done.stderr
    before, after = map(int, done.stdout.split())
    assert after - before < 100, (before, after)
