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
from penstock.errors import WorkerDied
from tests import python_processes
from tests.carriers_under_test import options
from tests.data import Made, Stream, photo_files
from tests.in_workers import within
from tests.same import assert_same_outcome
from tests.waiting import wait_until

SIZE = 12


def files(folder: Path, read: Callable[[str], Any], suffix: str) -> Made:
    """Return a dataset of one file a sample."""
    return Made(lambda index: (read(f"{folder}/{index}{suffix}"), index), SIZE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("files")
    for i in range(SIZE):
        values = torch.arange(i, i + 600.0).reshape(20, 30)
        torch.save(values, root / f"{i}.pt")
        np.save(root / f"{i}.npy", values.numpy())
        np.savez_compressed(root / f"{i}c.npz", x=values.numpy())
    return root


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


def test_errors_are_the_originals(tmp_path: Path) -> None:
    (tmp_path / "0.pt").write_bytes(b"nothing")
    torch.save({"when": Path("x")}, tmp_path / "1.pt")
    path = str(tmp_path / "0.pt")
    many: Any = [path] * 6
    calls: list[Callable[[], Any]] = [
        *(lambda: torch.load(f"{path}missing"), lambda: torch.load(path), lambda: torch.load(tmp_path / "1.pt")),
        *(lambda: torch.load(), lambda: np.load(f"{path}missing"), lambda: np.load(*many)),  # type: ignore[call-arg]
    ]
    for call in calls:
        with pytest.raises(Exception, match=r"."):
            call()
        assert_same_outcome(partial(within, call), call)


FUNCTIONS = (
    *("torch.load", "numpy.load", "numpy.fromfile", "safetensors.torch.load_file", "soundfile.read"),
    *("cv2.imread", "cv2.imdecode"),
)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_pickled_and_put_back(name: str) -> None:
    home, _, attribute = name.rpartition(".")
    module = pytest.importorskip(home)
    before, said = getattr(module, attribute), getattr(module, attribute).__module__

    def look() -> Any:
        ours = getattr(module, attribute)
        assert ours is not before and (ours.__name__, ours.__doc__) == (before.__name__, before.__doc__)
        stored = [pickle.dumps(one) for one in (before, ours)]
        assert [pickle.loads(one) for one in stored] == [before, ours]
        return ours, stored

    ours, stored = within(look)
    assert (getattr(module, attribute), before.__module__) == (before, said)
    assert all(one in (before, ours) for one in (*map(pickle.loads, stored), pickle.loads(pickle.dumps(ours))))
    assert b"penstock" not in pickle.dumps(before) and pickle.loads(pickle.dumps(before)) is before


def test_pickle_looks_for_a_function_without_a_module_in_all_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> None:
        pass

    load.__module__, load.__qualname__ = None, "load"  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "torchaudio", None)  # as where it is not installed
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(load)


#: A program that imports a function by name, before any loader reads, is answered.
HELD = """
import sys, torch, penstock
from torch import load
class Files(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): return load(f'{sys.argv[1]}/{index}.pt')
loader = penstock.DataLoader(Files(), 2)
for batch in loader: pass
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


def calls_of(loader: Any) -> dict[str, tuple[int, dict[str, tuple[int, str]]]]:
    """Return, by function, how many calls were answered; and how many were not by reason, with an example."""
    return {name: (counts.answered, counts.refused) for name, counts in loader.stats().calls.items()}


def shortened(path: object) -> str:
    return str(path) if len(str(path)) <= 40 else f"...{str(path)[-37:]}"


def counts_of(epochs: int, folder: Path) -> dict[str, Any]:
    archives = {ARCHIVE: (4 * epochs, shortened(folder / "0c.npz"))}
    return {"numpy.load": (8 * epochs, archives), "torch.load": (SIZE * epochs, {})}


@COUNTED_WAYS
def test_calls_are_counted_in_every_kind_of_worker(folder: Path, options: dict[str, Any]) -> None:
    loader = penstock.DataLoader(Files(folder), 4, **options)
    assert calls_of(loader) == {} and lines_of(loader) == []
    for epochs in (1, 2):
        go_through(loader)
        assert calls_of(loader) == counts_of(epochs, folder)
    example = shortened(folder / "0c.npz")
    assert lines_of(loader) == [
        f'calls    numpy.load: 16 answered natively; 8 numpy\'s own ("{example}": {ARCHIVE})',
        "calls    torch.load: 24 answered natively",
    ]


@options("caller", "threads, 2", "processes, 1")
def test_an_iterable_dataset(folder: Path, options: dict[str, Any]) -> None:
    made = {**options, "num_workers": min(1, options["num_workers"])}  # each worker goes through all of it
    loader = go_through(penstock.DataLoader(Stream(SIZE, Files(folder).__getitem__, shared=False), 4, **made))
    assert calls_of(loader) == counts_of(1, folder)


def test_a_spawned_worker_and_one_where_nothing_is_answered(folder: Path) -> None:
    loader = go_through(penstock.DataLoader(Files(folder), 4, num_workers=1, multiprocessing_context="spawn"))
    assert calls_of(loader) == counts_of(1, folder)
    loader = go_through(penstock.DataLoader(Files(folder), 4, num_workers=1, worker_method="process"))
    assert calls_of(loader) == {}


def test_calls_outside_of_workers_are_not_counted(folder: Path) -> None:
    dataset = Files(folder)
    loader = penstock.DataLoader(dataset, 4)
    for _ in loader:
        dataset[0]
    dataset[0]
    assert calls_of(loader) == counts_of(1, folder)


@options("caller", "threads, 2", "processes, 2")
def test_each_loader_has_its_own_counts(folder: Path, options: dict[str, Any]) -> None:
    one, other = (penstock.DataLoader(Files(folder), 4, **options) for _ in range(2))
    for _ in zip(one, other, strict=True):
        pass
    go_through(other)
    assert calls_of(one) == counts_of(1, folder)
    assert calls_of(other) == counts_of(2, folder)


def test_a_loader_in_a_dataset_counts_for_itself(folder: Path) -> None:
    inner = penstock.DataLoader(Files(folder), 4)

    def read(index: int) -> Any:
        go_through(inner)
        return torch.load(f"{folder}/0.pt")

    outer = go_through(penstock.DataLoader(Made(read, 2)))
    assert calls_of(outer) == {"torch.load": (2, {})}
    assert calls_of(inner) == counts_of(2, folder)


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
        assert calls_of(twin) == {}


def test_transforms_count_by_image() -> None:
    transforms = pytest.importorskip("torchvision.transforms")

    def images(*rest: Any) -> Made:
        transform = transforms.Compose([transforms.Resize(8), *rest, transforms.ToTensor()])
        return Made(lambda index: transform(Image.new("RGB" if index else "CMYK", (16, 16)))[:3], SIZE)

    name, why = "torchvision transforms", "the image is of mode CMYK"
    another_mode = {why: (1, "")}
    for made in ({}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}):
        plain = go_through(penstock.DataLoader(images(), 4, **made))
        assert calls_of(plain) == {name: (11, another_mode)}
        assert lines_of(plain) == [f"calls    {name}: 11 answered natively; 1 torchvision's own ({why})"]
        part = go_through(penstock.DataLoader(images(transforms.ElasticTransform(sigma=1.0)), 4, **made))
        refused = {"ElasticTransform has no native form": (11, ""), **another_mode}
        assert calls_of(part)[name] == (11, refused)


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
    assert calls_of(loader) == {"torchvision transforms": (0, {why: (SIZE, "")})}


@options("caller", "threads, 2", "processes, 2")
def test_the_rest_of_a_folders_transform_counts(tmp_path: Path, options: dict[str, Any]) -> None:
    def unchanged(image: Any) -> Any:
        return image

    transforms = pytest.importorskip("torchvision.transforms")
    photo_files(tmp_path, SIZE)
    transform = transforms.Compose([transforms.CenterCrop(16), unchanged, transforms.Resize(8), transforms.ToTensor()])
    loader = go_through(penstock.DataLoader(penstock.ImageFolder(tmp_path, transform), 4, **options))
    calls = loader.stats().calls
    assert calls_of(loader)["PIL.Image.convert"] == (SIZE, {})
    assert calls["torchvision transforms"].answered == SIZE


def test_examples_are_paths_and_the_commonest_reason_comes_first(folder: Path) -> None:
    file = folder / "0.pt"

    def load(index: int) -> int:
        with file.open("rb") as opened:
            given: Any = [str(file), file, opened, io.BytesIO(file.read_bytes())][index]
            options: dict[str, Any] = {"map_location": "meta"} if index < 3 else {"weights_only": False}
            torch.load(given, **options)
        return index

    loader = go_through(penstock.DataLoader(Made(load, 4), sampler=[3, 2, 1, 0]))
    device, anything = "its map_location= names a device", "it may unpickle any object (weights_only=False)"
    assert calls_of(loader) == {"torch.load": (0, {device: (3, shortened(file)), anything: (1, "")})}
    line = f"0 answered natively; 3 torch's own (\"{shortened(file)}\": {device}); 1 torch's own ({anything})"
    assert lines_of(loader) == [f"calls    torch.load: {line}"]


def test_so_many_reasons_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [type(f"Kind{number}", (), {"__module__": __name__}) for number in range(24)]
    for number, kind in enumerate(kinds):
        monkeypatch.setattr(sys.modules[__name__], kind.__name__, kind, raising=False)
        torch.save([kind()], tmp_path / f"{number}.pt")

    def load(index: int) -> int:
        with pytest.raises(pickle.UnpicklingError):
            torch.load(tmp_path / f"{index}.pt")
        return index

    counts = go_through(penstock.DataLoader(Made(load, 24), 4)).stats().calls["torch.load"]
    assert len(counts.refused) == 9 and counts.refused["other reasons"].calls == 16
