"""torch.load and numpy.load that a dataset's own class calls: answered in our workers, and only there."""

from __future__ import annotations

import inspect
import io
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as tud

import penstock
from penstock.testing.bitwise import difference
from tests.executors_under_test import options

SIZE = 12
WAYS = options("caller", "caller, seed", "threads, 2", "threads, caller", "processes, 2", "processes, persistent")


class Files(tud.Dataset[Any]):
    """The tutorials' own class: one file a sample."""

    def __init__(self, folder: Path, read: Callable[[str], Any], suffix: str) -> None:
        self.folder, self.read, self.suffix = folder, read, suffix

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        return self.read(f"{self.folder}/{index}{self.suffix}"), index


def through_a_file(path: str) -> Any:
    with open(path, "rb") as file:
        return torch.load(file)


def through_memory(path: str) -> Any:
    return torch.load(io.BytesIO(Path(path).read_bytes()), map_location="cpu", weights_only=True)


def any_object(path: str) -> Any:
    return torch.load(path, weights_only=False)


READS: list[tuple[Callable[[str], Any], str]] = [
    (lambda path: torch.load(path), ".pt"),
    (lambda path: torch.load(Path(path)), ".dict"),
    (through_a_file, ".dict"),
    (through_memory, ".pt"),
    (any_object, ".dict"),
    (lambda path: torch.serialization.load(path), ".pt"),
    (lambda path: np.load(path), ".npy"),
    (lambda path: np.load(path)["x"], ".npz"),
    (lambda path: torch.from_numpy(np.load(path, mmap_mode="r").copy()), ".npy"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("files")
    for i in range(SIZE):
        values = torch.arange(i, i + 600.0).reshape(20, 30)
        torch.save(values, root / f"{i}.pt")
        torch.save(
            {"image": values.t(), "views": [values[1], values[2]], "label": i, "name": f"n{i}"}, root / f"{i}.dict"
        )
        np.save(root / f"{i}.npy", values.numpy())
        np.savez(root / f"{i}.npz", x=values.numpy())
    return root


@WAYS
@pytest.mark.parametrize(("read", "suffix"), READS, ids=range(len(READS)))
def test_batches_are_torchs(folder: Path, read: Any, suffix: str, options: dict[str, Any]) -> None:
    dataset = Files(folder, read, suffix)
    theirs = list(tud.DataLoader(dataset, 4))
    loader: Any = penstock.DataLoader(dataset, 4, **options)
    for _ in range(2):
        for batch, expected in zip(loader, theirs, strict=True):
            assert difference(batch, expected) is None


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
    dataset = Files(folder, read, suffix)
    loader: Any = penstock.DataLoader(dataset, 4)
    assert original_calls(lambda: list(loader), function) == 0
    assert original_calls(lambda: dataset[0], function) == 1, "outside of a loader"
    assert original_calls(lambda: [dataset[0] for _ in loader], function) == 3, "in the loop's own code"
    by_name: Any = penstock.DataLoader(dataset, 4, worker_method="process")
    assert original_calls(lambda: list(by_name), function) == SIZE
    theirs = tud.DataLoader(dataset, 4)
    assert original_calls(lambda: list(theirs), function) == SIZE


def test_other_threads_are_left_alone_while_workers_read(folder: Path) -> None:
    seen = []
    began, done = threading.Event(), threading.Event()

    def slow(path: str) -> Any:
        began.set()
        done.wait(30)
        return torch.load(path)

    dataset = Files(folder, slow, ".pt")
    loader: Any = penstock.DataLoader(dataset, 4, num_workers=1, worker_method="thread", share_dataset=True)
    batches = iter(loader)
    began.wait(30)
    seen.append(original_calls(lambda: torch.load(folder / "0.pt"), torch.load))
    done.set()
    assert len(list(batches)) == 3
    assert seen == [1]


def test_a_function_of_the_programs_own_wins(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Files(folder, lambda path: torch.load(path), ".pt")
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
            list(penstock.DataLoader(Files(tmp_path, read, ".pt"), 4, **options))


def test_functions_that_a_program_holds(folder: Path) -> None:
    """A dataset that was given a function before any loader read is answered, and still goes to other processes."""
    code = (
        "import pickle, sys, numpy, torch, penstock\n"
        "from torch import load\n"
        "held = (load, torch.load, numpy.load)\n"
        "class Files(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 4\n"
        "    def __getitem__(self, index): return load(f'{sys.argv[1]}/{index}.pt')\n"
        "loader = penstock.DataLoader(Files(), 2)\n"
        "for batch in loader: pass\n"
        "assert pickle.loads(pickle.dumps(held)) == held == (torch.load, torch.load, numpy.load)\n"
        "assert 'torch.load: 4 answered natively' in loader.explain(), loader.explain()\n"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, timeout=100)


def test_functions_that_were_replaced_before(folder: Path) -> None:
    code = (
        "import functools, sys, numpy, torch\n"
        "torch.load = functools.partial(torch.load, weights_only=False)\n"
        "numpy.load = lambda path: 7\n"
        "import penstock\n"
        "class Files(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 4\n"
        "    def __getitem__(self, index): return torch.load(f'{sys.argv[1]}/{index}.pt'), numpy.load('')\n"
        "for values, sevens in penstock.DataLoader(Files(), 2): assert sevens.tolist() == [7, 7]\n"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, timeout=100)
