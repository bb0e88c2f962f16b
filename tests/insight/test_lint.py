"""The lint of a dataset's code and state: what it remarks on, where, and that none of the dataset's code runs."""

from __future__ import annotations

import collections
import importlib
import inspect
import io
import socket
import sqlite3
import sys
import tarfile
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ChainDataset, ConcatDataset, Dataset, StackDataset, Subset, TensorDataset, random_split

import penstock
from penstock.insight import lint as state
from penstock.insight.lint import Remark, lint
from tests.data import tensor_files


def rules(dataset: Any) -> list[str]:
    return [remark.rule for remark in lint(dataset)]


def only(dataset: Any) -> Remark:
    (remark,) = lint(dataset)
    assert remark.why and remark.change
    return remark


class Held(Dataset[Any]):
    def __init__(self, value: Any = None, transform: Any = None) -> None:
        self.value, self.transform = value, transform

    def __len__(self) -> int:
        raise AssertionError("the lint called the dataset")

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("the lint called the dataset")


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Any]:
    """Return an open file."""
    (tmp_path / "x").write_bytes(b"x")
    with open(tmp_path / "x", "rb") as found:
        yield found


@pytest.fixture(autouse=True)
def _costly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a megabyte of objects worth a remark, so that tests need not make more."""
    monkeypatch.setattr(state, "COSTLY_BYTES", 1 << 20)


MANY: dict[str, Any] = {
    "a list of texts": lambda: [f"/data/train/{i}.jpg" for i in range(30_000)],
    "a list of pairs": lambda: [(f"{i}.jpg", i % 10) for i in range(20_000)],
    "a list of numbers": lambda: list(range(1000, 60_000)),
    "a dictionary": lambda: {f"id-{i}": {"label": i, "box": [i, i + 1]} for i in range(10_000)},
    "a set": lambda: {f"id-{i}" for i in range(30_000)},
    "an array of objects": lambda: np.array([f"id-{i}" for i in range(30_000)], dtype=object),
    "a list of objects": lambda: [types.SimpleNamespace(path=f"{i}.jpg", size=i * 1000) for i in range(10_000)],
    "a default dictionary": lambda: collections.defaultdict(list, {f"{i}": [f"{i}.jpg"] for i in range(10_000)}),
}
FEW: dict[str, Any] = {
    "an array": lambda: np.zeros(1 << 20),
    "bytes": lambda: bytes(8 << 20),
    "a tensor": lambda: torch.zeros(1 << 20),
    "some arrays": lambda: [np.zeros(1 << 16) for _ in range(100)],
    "an array of texts": lambda: np.array([f"id-{i}" for i in range(30_000)]),
    "few texts": lambda: [f"id-{i}" for i in range(100)],
    "small numbers": lambda: [i % 10 for i in range(100_000)],
    "one text, many times": lambda: ["cat", "dog"] * 50_000,
    "itself": lambda: CYCLE,
    "files in memory": lambda: [io.BytesIO(b"x"), io.StringIO("x"), io.TextIOWrapper(io.BytesIO(b"x"))],
}
CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize("name", [*MANY, *FEW])
def test_many_and_few_python_objects(name: str) -> None:
    if name in FEW:
        assert lint(Held(FEW[name]())) == []
    else:
        remark = only(Held(MANY[name]()))
        assert (remark.rule, remark.state.name) == ("python-objects", "LOOK")
        assert "dataset.value" in remark.what and "MiB" in remark.what
        assert remark.where == f"Held (tests/insight/test_lint.py:{inspect.getsourcelines(Held)[1]})"


def test_weight_is_about_what_memory_takes() -> None:
    texts = [f"/data/train/{i:08}.jpg" for i in range(20_000)]
    assert state.weight(texts) == pytest.approx(sum(map(sys.getsizeof, texts)), rel=0.02)


def test_objects_of_a_class_and_of_slots() -> None:
    class Slots:
        __slots__ = ("names",)

    class Shared(Held):
        table: ClassVar[list[str]] = MANY["a list of texts"]()

    slotted: Any = Slots()
    slotted.names = Shared.table
    assert "dataset.table" in only(Shared()).what and "dataset.value.names" in only(Held(slotted)).what


def of_libraries(folder: Path) -> Iterator[Any]:
    """Yield datasets of torchvision, torch, Hugging Face and Penstock, with long lists in them."""
    tensors = penstock.TensorFolder(tensor_files(folder / "tensors", 40))
    penstock.pack(tensors, folder / "packed")
    names = [(f"{i}.jpg", i) for i in range(20_000)]
    datasets = pytest.importorskip("torchvision.datasets", reason="torchvision is not installed")
    for kind in vars(datasets).values():
        if inspect.isclass(kind) and issubclass(kind, Dataset):
            made: Any = object.__new__(kind)
            made.samples = names
            yield made
    rows = TensorDataset(torch.zeros(40, 2))
    yield from (tensors, rows, penstock.Arrays(np.zeros((40, 3))), penstock.Shards(folder / "packed"))
    yield from (StackDataset(rows, rows), ChainDataset([]), ConcatDataset([rows, rows]), *random_split(rows, [20, 20]))
    yield Subset(rows, list(range(1000, 30_000)))
    yield penstock.Mix({"a": (rows, 0.5), "b": (TensorDataset(torch.ones(40, 2)), 0.5)})
    hugging_face = pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")
    yield hugging_face.Dataset.from_dict({"name": [f"id-{i}" for i in range(200)]}).with_format("torch")


def test_libraries_are_left_out(tmp_path: Path) -> None:
    assert [type(dataset) for dataset in of_libraries(tmp_path) if lint(dataset)] == []


def test_objects_of_a_librarys_dataset_in_one_of_the_users() -> None:
    datasets = pytest.importorskip("torchvision.datasets", reason="torchvision is not installed")

    class Mine(datasets.ImageFolder):  # type: ignore[name-defined]
        pass

    inner, mine = object.__new__(datasets.ImageFolder), object.__new__(Mine)
    inner.samples = mine.samples = [(f"{i}.jpg", i) for i in range(20_000)]
    assert "dataset.value, an ImageFolder," in only(Held(inner)).what
    assert "dataset.value.value, a list," in only(Held(Held(inner.samples))).what
    assert only(mine).where.startswith("Mine (") and "samples" in only(mine).what


def test_objects_in_a_table_of_pandas() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: pip install pandas")
    names = np.array([f"{i}.jpg" for i in range(30_000)], dtype=object)
    table = pandas.DataFrame({"name": pandas.Series(names, dtype=object), "label": np.arange(30_000)})
    assert "dataset.value, a DataFrame" in only(Held(table)).what
    assert lint(Held(table[["label"]])) == []


def handles(folder: Path) -> Iterator[tuple[str, Any]]:
    names = [str(folder / name) for name in ("data.bin", "one.png", "data.zip", "data.tar")]
    (folder / "data.bin").write_bytes(b"data")
    Image.new("RGB", (4, 4)).save(names[1])
    with zipfile.ZipFile(names[2], "w") as archive, tarfile.open(names[3], "w") as shard:
        archive.writestr("a", "b")
        shard.add(names[0], "data.bin")
    for options in ({"mode": "rb"}, {"encoding": "utf-8"}, {"mode": "rb", "buffering": 0}):
        yield "an open file", open(names[0], **options)  # noqa: SIM115
    yield "an open socket.socket", socket.socket()
    yield "sqlite3.Connection", sqlite3.connect(":memory:")
    yield "zipfile.ZipFile", zipfile.ZipFile(names[2])
    yield "tarfile.TarFile", tarfile.open(names[3])  # noqa: SIM115
    yield "PIL.ImageFile.ImageFile", Image.open(names[1])


def test_open_handles(tmp_path: Path) -> None:
    for words, handle in handles(tmp_path):
        for value in (handle, [handle], {"train": handle}, (1, [handle])):
            remark = only(Held(value))
            assert (remark.rule, remark.state.name) == ("open-handle", "BAD")
            assert words in remark.what and "self.value = None" in remark.change
        handle.close()
        assert "sqlite3" in words or lint(Held(handle)) == []  # nothing says that such a connection is closed


def test_handles_of_other_libraries(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed: pip install h5py")
    lmdb = pytest.importorskip("lmdb", reason="lmdb is not installed: pip install lmdb")
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["x"] = np.zeros(3)
        assert rules(Held(file)) == rules(Held(file["x"])) == ["open-handle"]
    assert lint(Held(file)) == []
    with lmdb.open(str(tmp_path / "data.lmdb")) as environment:
        assert rules(Held(environment)) == ["open-handle"]


def test_handles_in_datasets_of_datasets(file: Any) -> None:
    # ConcatDataset calls len() of its datasets, a Subset's is that of its indices
    datasets: Any = ConcatDataset([TensorDataset(torch.zeros(3)), Subset(Held(file), [0])])
    remark = only(Subset(datasets, [0, 1]))
    assert remark.what.startswith("dataset.dataset.datasets[1].dataset.value is an open file")


def test_a_loader_stands_for_its_dataset(file: Any) -> None:
    datasets: Any = [Held(file)]
    assert rules(penstock.DataLoader(datasets, num_workers=0)) == ["open-handle"]


def test_what_fails_comes_before_what_costs(file: Any) -> None:
    assert rules(Held(MANY["a list of texts"](), [file])) == ["open-handle", "python-objects"]


def refuse(*arguments: Any) -> Any:
    raise AssertionError(f"the lint called a method of an object's class: {arguments[1:]}")


METHODS = "__eq__ __hash__ __repr__ __len__ __iter__ __getitem__ __bool__ __sizeof__ __call__ items keys values"
STRANGE = dict.fromkeys(METHODS.split(), refuse)
Strange: Any = type("Strange", (), {**STRANGE, "__getattribute__": refuse})
StrangeList: Any = type("StrangeList", (list,), STRANGE)
StrangeDict: Any = type("StrangeDict", (dict,), STRANGE)


def test_no_code_of_the_dataset_runs() -> None:
    strange = Strange()
    held = StrangeList([strange, strange])
    for dataset in (strange, Held([held, StrangeDict({1: held}), {"x": strange}, (strange,)], transform=strange)):
        assert lint(dataset) == []


def test_what_is_installed_is_no_code_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages" / "own_installed"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("class Table:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    table = importlib.import_module("own_installed").Table()
    table.names = MANY["a list of texts"]()
    found = lint(Held(table)), lint(table)
    del sys.modules["own_installed"]
    assert found == ([], [])
