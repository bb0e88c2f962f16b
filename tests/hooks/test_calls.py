"""Calls that a dataset's own code makes: answered in our workers, and only there; and counted, or refused and why."""

from __future__ import annotations

import copy
import inspect
import io
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as tud
from PIL import Image

import penstock
from penstock import call_counts
from penstock.call_counts import MOST_REASONS, OTHER_REASONS, CallCounts, CallMeter, RefusedCalls, this_thread
from penstock.errors import WorkerDied
from penstock.hooks.calls import example_of, natively
from tests import python_processes
from tests.data import Made, Stream, photo_files
from tests.executors_under_test import options
from tests.same import assert_passes
from tests.waiting import wait_until

SIZE = 12
WAYS = options("caller", "caller, seed", "threads, 2", "threads, caller", "processes, 2", "processes, persistent")


def files(folder: Path, read: Callable[[str], Any], suffix: str) -> Made:
    """Return a dataset of one file a sample."""
    return Made(lambda index: (read(f"{folder}/{index}{suffix}"), index), SIZE)


def through_a_file(path: str) -> Any:
    with open(path, "rb") as file:
        return torch.load(file)


READS: list[tuple[Callable[[str], Any], str]] = [
    (lambda path: torch.load(path), ".pt"),
    (lambda path: torch.load(Path(path)), ".dict"),
    (through_a_file, ".dict"),
    (lambda path: torch.load(io.BytesIO(Path(path).read_bytes()), map_location="cpu", weights_only=True), ".pt"),
    (lambda path: torch.load(path, weights_only=False), ".dict"),
    (lambda path: torch.serialization.load(path), ".pt"),
    (lambda path: np.load(path), ".npy"),
    (lambda path: np.load(path)["x"], ".npz"),
    (lambda path: np.load(path)["x"], "c.npz"),
    (lambda path: np.fromfile(path, np.uint8)[-2400:], ".npy"),
    (lambda path: torch.from_numpy(np.load(path, mmap_mode="r").copy()), ".npy"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("files")
    for i in range(SIZE):
        values = torch.arange(i, i + 600.0).reshape(20, 30)
        torch.save(values, root / f"{i}.pt")
        parts = {"image": values.t(), "views": [values[1], values[2]], "label": i, "name": f"n{i}"}
        torch.save(parts, root / f"{i}.dict")
        np.save(root / f"{i}.npy", values.numpy())
        np.savez(root / f"{i}.npz", x=values.numpy())
        np.savez_compressed(root / f"{i}c.npz", x=values.numpy())
    return root


@WAYS
@pytest.mark.parametrize(("read", "suffix"), READS, ids=range(len(READS)))
def test_batches_are_torchs(folder: Path, read: Any, suffix: str, options: dict[str, Any]) -> None:
    dataset = files(folder, read, suffix)
    assert_passes(penstock.DataLoader(dataset, 4, **options), list(tud.DataLoader(dataset, 4)))


def original_calls(work: Callable[[], Any], function: Any) -> int:
    """Return how often a function's own code ran in this thread while something was done."""
    code, seen = inspect.unwrap(function).__code__, 0

    def look(frame: Any, event: str, argument: Any) -> None:
        nonlocal seen
        seen += event == "call" and frame.f_code is code

    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
    return seen


@pytest.mark.parametrize(("function", "suffix"), [(torch.load, ".pt"), (np.load, ".npy")], ids=["torch", "numpy"])
def test_where_calls_are_answered(folder: Path, function: Any, suffix: str) -> None:
    read = (lambda path: torch.load(path)) if suffix == ".pt" else (lambda path: np.load(path))
    dataset = files(folder, read, suffix)
    loader = penstock.DataLoader(dataset, 4)
    assert original_calls(lambda: list(loader), function) == 0
    assert original_calls(lambda: dataset[0], function) == 1, "outside of a loader"
    assert original_calls(lambda: [dataset[0] for _ in loader], function) == 3, "in the loop's own code"
    others: list[Any] = [penstock.DataLoader(dataset, 4, worker_method="process"), tud.DataLoader(dataset, 4)]
    for other in others:
        assert original_calls(partial(list, other), function) == SIZE


def test_other_threads_are_left_alone_while_workers_read(folder: Path) -> None:
    began, done = threading.Event(), threading.Event()

    def slow(path: str) -> Any:
        began.set()
        done.wait(30)
        return torch.load(path)

    dataset = files(folder, slow, ".pt")
    batches = iter(penstock.DataLoader(dataset, 4, num_workers=1, worker_method="thread", share_dataset=True))
    began.wait(30)
    seen = original_calls(lambda: torch.load(folder / "0.pt"), torch.load)
    done.set()
    assert (len(list(batches)), seen) == (3, 1)


def test_a_function_of_the_programs_own_wins(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = files(folder, lambda path: torch.load(path), ".pt")
    list(penstock.DataLoader(dataset, 4))
    monkeypatch.setattr(torch, "load", lambda path: torch.ones(3))
    for _ in range(2):
        batches: Any = list(penstock.DataLoader(dataset, 4, num_workers=1))
        assert [values.tolist() for values, _ in batches] == [[[1.0] * 3] * 4] * 3


@WAYS
def test_errors_are_the_originals(tmp_path: Path, options: dict[str, Any]) -> None:
    (tmp_path / "0.pt").write_bytes(b"nothing")
    torch.save({"when": Path("x")}, tmp_path / "1.pt")
    reads: list[tuple[Any, type[Exception], str]] = [
        (lambda path: torch.load(path + "missing"), FileNotFoundError, "missing"),
        (lambda path: torch.load(f"{tmp_path}/0.pt"), pickle.UnpicklingError, "Weights only load failed"),
        (lambda path: torch.load(f"{tmp_path}/1.pt"), pickle.UnpicklingError, "Weights only load failed"),
        (lambda path: torch.load(), TypeError, "positional argument"),  # type: ignore[call-arg]
        (lambda path: np.load(path + "missing"), FileNotFoundError, "missing"),
        (lambda path: np.load(*[path] * 6), TypeError, "positional arguments"),
    ]
    for read, kind, text in reads:
        with pytest.raises(kind, match=text):
            list(penstock.DataLoader(files(tmp_path, read, ".pt"), 4, **options))


#: A dataset that was given a function before any loader read is answered, and still goes to other processes.
HELD = """
import pickle, sys, numpy, torch, penstock
from torch import load
held = (load, torch.load, numpy.load)
class Files(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): return load(f'{sys.argv[1]}/{index}.pt')
loader = penstock.DataLoader(Files(), 2)
for batch in loader: pass
assert pickle.loads(pickle.dumps(held)) == held == (torch.load, torch.load, numpy.load)
assert 'torch.load: 4 answered natively' in loader.explain(), loader.explain()
"""
REPLACED_BEFORE = """
import functools, sys, numpy, torch
torch.load = functools.partial(torch.load, weights_only=False)
numpy.load = lambda path: 7
import penstock
class Files(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): return torch.load(f'{sys.argv[1]}/{index}.pt'), numpy.load('')
for values, sevens in penstock.DataLoader(Files(), 2): assert sevens.tolist() == [7, 7]
"""


@pytest.mark.parametrize("code", [HELD, REPLACED_BEFORE], ids=["held", "replaced before"])
def test_functions_of_programs(folder: Path, code: str) -> None:
    assert python_processes.run(code, folder).returncode == 0


COUNTED_WAYS = options(
    "caller", "caller, seed", "caller, fed", "threads, 2", "threads, caller", "processes, 2", "processes, persistent",
    "processes, out of order",
)  # fmt: skip
ARCHIVE = "zip: compressed record"


class Files(tud.Dataset[Any]):
    """Loads a tensor, and an array or, for every third sample, an archive."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        values = torch.load(f"{self.folder}/{index}.pt")
        found = np.load(self.folder / "0.npy") if index % 3 else np.load(f"{self.folder}/0c.npz")["x"]
        return values, found


class Dying(Files):
    """Ends its worker process at the sixth sample, behind the load, once the loop has the batch before."""

    def __getitem__(self, index: int) -> Any:
        found = super().__getitem__(index)
        if index == 5:
            wait_until(lambda: (self.folder / "has a batch").exists())
            os.kill(os.getpid(), signal.SIGKILL)
        return found


def go_through(loader: Any, epochs: int = 1) -> Any:
    for _ in range(epochs):
        for _ in loader:
            pass
    return loader


def lines_of(loader: Any) -> list[str]:
    return [line for line in loader.explain().splitlines() if line.startswith("calls")]


def counts_of(epochs: int, folder: Path) -> dict[str, CallCounts]:
    example = f"{folder}/0c.npz"
    archives = RefusedCalls(4 * epochs, example if len(example) <= 40 else f"...{example[-37:]}")
    return {"numpy.load": CallCounts(8 * epochs, {ARCHIVE: archives}), "torch.load": CallCounts(SIZE * epochs)}


@COUNTED_WAYS
def test_calls_are_counted_in_every_kind_of_worker(folder: Path, options: dict[str, Any]) -> None:
    loader = penstock.DataLoader(Files(folder), 4, **options)
    assert loader.stats().calls == {} and lines_of(loader) == []
    for epochs in (1, 2):
        go_through(loader)
        assert loader.stats().calls == counts_of(epochs, folder)
    example = counts_of(1, folder)["numpy.load"].refused[ARCHIVE].example
    assert lines_of(loader) == [
        f'calls    numpy.load: 16 answered natively; 8 numpy\'s own ("{example}": {ARCHIVE})',
        "calls    torch.load: 24 answered natively",
    ]


@options("caller", "threads, 2", "processes, 1")
def test_an_iterable_dataset(folder: Path, options: dict[str, Any]) -> None:
    made = {**options, "num_workers": min(1, options["num_workers"])}  # each worker goes through all of it
    loader = go_through(penstock.DataLoader(Stream(SIZE, Files(folder).__getitem__, shared=False), 4, **made))
    assert loader.stats().calls == counts_of(1, folder)


def test_a_spawned_worker_and_one_where_nothing_is_answered(folder: Path) -> None:
    loader = go_through(penstock.DataLoader(Files(folder), 4, num_workers=1, multiprocessing_context="spawn"))
    assert loader.stats().calls == counts_of(1, folder)
    loader = go_through(penstock.DataLoader(Files(folder), 4, num_workers=1, worker_method="process"))
    assert loader.stats().calls == {}


def test_calls_outside_of_workers_are_not_counted(folder: Path) -> None:
    dataset = Files(folder)
    loader = penstock.DataLoader(dataset, 4)
    for _ in loader:
        dataset[0]
    dataset[0]
    assert loader.stats().calls == counts_of(1, folder)
    assert this_thread.sink is None


@options("caller", "threads, 2", "processes, 2")
def test_each_loader_has_its_own_counts(folder: Path, options: dict[str, Any]) -> None:
    one, other = (penstock.DataLoader(Files(folder), 4, **options) for _ in range(2))
    for _ in zip(one, other, strict=True):
        pass
    go_through(other)
    assert one.stats().calls == counts_of(1, folder)
    assert other.stats().calls == counts_of(2, folder)


def test_a_loader_in_a_dataset_counts_for_itself(folder: Path) -> None:
    inner = penstock.DataLoader(Files(folder), 4)

    def read(index: int) -> Any:
        go_through(inner)
        return torch.load(f"{folder}/0.pt")

    outer = go_through(penstock.DataLoader(Made(read, 2)))
    assert outer.stats().calls == {"torch.load": CallCounts(2)}
    assert inner.stats().calls == counts_of(2, folder)


def test_a_worker_that_dies_leaves_the_counts_of_its_batches(folder: Path) -> None:
    loader = penstock.DataLoader(Dying(folder), 4, num_workers=1)
    batches = iter(loader)
    next(batches)
    (folder / "has a batch").touch()
    with pytest.raises(WorkerDied):
        next(batches)
    assert loader.stats().calls["torch.load"].answered == 4


def test_a_copy_counts_anew(folder: Path) -> None:
    loader = go_through(penstock.DataLoader(Files(folder), 4))
    for twin in (copy.copy(loader), pickle.loads(pickle.dumps(loader))):
        assert twin.stats().calls == {}


def test_transforms_count_by_image() -> None:
    transforms = pytest.importorskip("torchvision.transforms")

    def images(*rest: Any) -> Made:
        transform = transforms.Compose([transforms.Resize(8), *rest, transforms.ToTensor()])
        return Made(lambda index: transform(Image.new("RGB" if index else "CMYK", (16, 16)))[:3], SIZE)

    name, why = "torchvision transforms", "the image is of mode CMYK"
    another_mode = {why: RefusedCalls(1, "")}
    for made in ({}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}):
        plain = go_through(penstock.DataLoader(images(), 4, **made))
        assert plain.stats().calls == {name: CallCounts(11, another_mode)}
        assert lines_of(plain) == [f"calls    {name}: 11 answered natively; 1 torchvision's own ({why})"]
        part = go_through(penstock.DataLoader(images(transforms.ElasticTransform(sigma=1.0)), 4, **made))
        refused = {"ElasticTransform has no native form": RefusedCalls(11, ""), **another_mode}
        assert part.stats().calls[name] == CallCounts(11, refused)


def test_a_compose_that_cannot_be_followed_is_counted() -> None:
    transforms = pytest.importorskip("torchvision.transforms")

    def changing(index: int) -> Any:
        transform = transforms.Compose([transforms.Resize(8), transforms.ToTensor()])
        handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
        try:
            return transform(Image.new("RGB", (16, 16)))
        finally:
            handle.remove()

    loader = go_through(penstock.DataLoader(Made(changing, SIZE), 4))
    why = "the Compose, or what its transforms call, was changed"
    assert loader.stats().calls == {"torchvision transforms": CallCounts(0, {why: RefusedCalls(SIZE, "")})}


def test_names_of_owners_and_many_reasons() -> None:
    loader: Any = penstock.DataLoader([1])  # type: ignore[arg-type]
    with natively(loader._executors.counters.meter.calls):
        for number in range(6):
            for _ in range(number + 1):
                call_counts.refused("PIL.Image.open", f"reason {number}", "" if number else "x" * 100)
    assert lines_of(loader) == [
        "calls    PIL.Image.open: 0 answered natively; 6 Pillow's own (reason 5); 5 Pillow's own (reason 4); "
        "4 Pillow's own (reason 3); 3 Pillow's own (reason 2); 2 Pillow's own (reason 1); "
        f'1 Pillow\'s own ("...{"x" * 37}": reason 0)'
    ]
    assert loader.stats().calls["PIL.Image.open"].refused["reason 0"].example == "..." + "x" * 37


def test_examples_are_paths(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    assert example_of("a/b") == "a/b" and example_of(Path("a/b")) == "a/b"
    assert example_of(3) == ""
    with (tmp_path / "a").open("rb") as file:
        assert example_of(file) == str(tmp_path / "a")


def test_a_meter_keeps_so_many_reasons() -> None:
    meter = CallMeter()
    sink = meter.of_this_thread()
    for number in range(3 * MOST_REASONS):
        sink.count("f", str(number))
        sink.count("g", "one")
    counts = meter.counts()
    assert len(counts["f"].refused) == MOST_REASONS + 1
    assert counts["f"].refused[OTHER_REASONS].calls == 2 * MOST_REASONS
    assert counts["g"].refused == {"one": RefusedCalls(3 * MOST_REASONS, "")}


@options("caller", "threads, 2", "processes, 2")
def test_the_rest_of_a_folders_transform_counts(tmp_path: Path, options: dict[str, Any]) -> None:
    def unchanged(image: Any) -> Any:
        return image

    transforms = pytest.importorskip("torchvision.transforms")
    photo_files(tmp_path, SIZE)
    transform = transforms.Compose([transforms.CenterCrop(16), unchanged, transforms.Resize(8), transforms.ToTensor()])
    loader = go_through(penstock.DataLoader(penstock.ImageFolder(tmp_path, transform), 4, **options))
    calls = loader.stats().calls
    assert calls["PIL.Image.convert"] == CallCounts(SIZE, {})
    assert calls["torchvision transforms"].answered == SIZE
