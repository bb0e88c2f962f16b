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
from penstock.insight.machine import State
from tests.sample_datasets import tensor_files


def rules(dataset: Any) -> list[str]:
    return [remark.rule for remark in lint(dataset)]


def only(dataset: Any) -> Remark:
    (remark,) = lint(dataset)
    assert remark.why and remark.change
    return remark


class Held(Dataset[Any]):
    """A dataset that holds whatever it is given."""

    def __init__(self, value: Any = None, transform: Any = None) -> None:
        self.value = value
        self.transform = transform

    def __len__(self) -> int:
        raise AssertionError("the lint called the dataset")

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("the lint called the dataset")


# --- Python objects --------------------------------------------------------------------------------------------------


@pytest.fixture
def costly(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.usefixtures("costly")
@pytest.mark.parametrize("make", MANY.values(), ids=MANY)
def test_many_python_objects(make: Any) -> None:
    remark = only(Held(make()))
    assert (remark.rule, remark.state) == ("python-objects", State.LOOK)
    assert "dataset.value" in remark.what and "MiB" in remark.what
    assert remark.where == f"Held (tests/insight/test_lint.py:{inspect.getsourcelines(Held)[1]})"


FEW: dict[str, Any] = {
    "an array": lambda: np.zeros(1 << 20),
    "bytes": lambda: bytes(8 << 20),
    "a tensor": lambda: torch.zeros(1 << 20),
    "some arrays": lambda: [np.zeros(1 << 16) for _ in range(100)],
    "an array of texts": lambda: np.array([f"id-{i}" for i in range(30_000)]),
    "few texts": lambda: [f"id-{i}" for i in range(100)],
    "small numbers": lambda: [i % 10 for i in range(100_000)],
    "one text, many times": lambda: ["cat", "dog"] * 50_000,
    "itself": lambda: _cycle(),
}


def _cycle() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.usefixtures("costly")
@pytest.mark.parametrize("make", FEW.values(), ids=FEW)
def test_few_python_objects(make: Any) -> None:
    assert lint(Held(make())) == []


def test_weight_is_about_what_memory_takes() -> None:
    texts = [f"/data/train/{i:08}.jpg" for i in range(20_000)]
    assert state.weight(texts) == pytest.approx(sum(map(sys.getsizeof, texts)), rel=0.02)


@pytest.mark.usefixtures("costly")
def test_objects_of_a_class_and_of_slots() -> None:
    class Slots:
        __slots__ = ("names",)

    class Shared(Held):
        table: ClassVar[dict[int, str]] = {i: f"{i}" for i in range(30_000)}

    slotted = Slots()
    slotted.names = [f"{i}" for i in range(30_000)]  # type: ignore[attr-defined]
    assert "dataset.table" in only(Shared()).what
    assert "dataset.value.names" in only(Held(slotted)).what


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


@pytest.mark.usefixtures("costly")
def test_libraries_are_left_out(tmp_path: Path) -> None:
    for dataset in of_libraries(tmp_path):
        assert lint(dataset) == [], dataset


@pytest.mark.usefixtures("costly")
def test_objects_of_a_librarys_dataset_in_one_of_the_users() -> None:
    datasets = pytest.importorskip("torchvision.datasets", reason="torchvision is not installed")

    class Mine(datasets.ImageFolder):  # type: ignore[name-defined]
        pass

    inner, mine = object.__new__(datasets.ImageFolder), object.__new__(Mine)
    inner.samples = mine.samples = [(f"{i}.jpg", i) for i in range(20_000)]
    assert "dataset.value, an ImageFolder," in only(Held(inner)).what
    assert "dataset.value.value, a list," in only(Held(Held(inner.samples))).what
    assert only(mine).where.startswith("Mine (") and "samples" in only(mine).what


@pytest.mark.usefixtures("costly")
def test_objects_in_a_table_of_pandas() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: pip install pandas")
    names = np.array([f"{i}.jpg" for i in range(30_000)], dtype=object)
    table = pandas.DataFrame({"name": pandas.Series(names, dtype=object), "label": np.arange(30_000)})
    assert "dataset.value, a DataFrame" in only(Held(table)).what
    assert lint(Held(table[["label"]])) == []


# --- open files --------------------------------------------------------------------------------------------------


def handles(tmp_path: Path) -> Iterator[tuple[str, Any]]:
    file = tmp_path / "data.bin"
    file.write_bytes(b"data")
    Image.new("RGB", (4, 4)).save(tmp_path / "one.png")
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.writestr("a", "b")
    with tarfile.open(tmp_path / "data.tar", "w") as shard:
        shard.add(file, "data.bin")
    yield "an open file", open(file, "rb")  # noqa: SIM115
    yield "an open file", open(file, encoding="utf-8")  # noqa: SIM115
    yield "an open file", open(file, "rb", buffering=0)  # noqa: SIM115
    yield "an open socket.socket", socket.socket()
    yield "sqlite3.Connection", sqlite3.connect(":memory:")
    yield "zipfile.ZipFile", zipfile.ZipFile(tmp_path / "data.zip")
    yield "tarfile.TarFile", tarfile.open(tmp_path / "data.tar")  # noqa: SIM115
    yield "PIL.ImageFile.ImageFile", Image.open(tmp_path / "one.png")


def test_open_handles(tmp_path: Path) -> None:
    for words, handle in handles(tmp_path):
        with handle:
            for value in (handle, [handle], {"train": handle}, (1, [handle])):
                remark = only(Held(value))
                assert (remark.rule, remark.state) == ("open-handle", State.BAD)
                assert words in remark.what and "self.value = None" in remark.change
        handle.close()
        if "sqlite3" not in words:  # nothing says that such a connection is closed
            assert lint(Held(handle)) == []


def test_files_in_memory_are_no_handles() -> None:
    assert lint(Held([io.BytesIO(b"x"), io.StringIO("x"), io.TextIOWrapper(io.BytesIO(b"x"))])) == []


def test_handles_of_other_libraries(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed: pip install h5py")
    lmdb = pytest.importorskip("lmdb", reason="lmdb is not installed: pip install lmdb")
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["x"] = np.zeros(3)
        assert rules(Held(file)) == rules(Held(file["x"])) == ["open-handle"]
    assert lint(Held(file)) == []
    with lmdb.open(str(tmp_path / "data.lmdb")) as environment:
        assert rules(Held(environment)) == ["open-handle"]


def test_handles_in_datasets_of_datasets(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    with open(tmp_path / "x", "rb") as file:
        inner = Held(file)
        whole: Any = Subset(ConcatDataset([TensorDataset(torch.zeros(3)), Subset(inner, [0])]), [0, 1])
        # ConcatDataset calls len() of its datasets, a Subset's is that of its indices
        remark = only(whole)
    assert remark.what.startswith("dataset.dataset.datasets[1].dataset.value is an open file")


# --- OpenCV ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def cv2(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Put a stand-in for OpenCV in its place, with a pool of eight threads."""
    module = types.ModuleType("cv2")
    module.threads = 8  # type: ignore[attr-defined]
    module.getNumThreads = lambda: module.threads  # type: ignore[attr-defined]
    module.resize = module.setNumThreads = len  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cv2", module)
    return module


def test_opencv_threads(cv2: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {"cv2": cv2, "Held": Held, "__name__": "own_module_of_a_test"}
    exec("class Photos(Held):\n    def __getitem__(self, index):\n        return cv2.resize(index)", names)
    own = types.ModuleType("own_module_of_a_test")
    vars(own).update(names)
    monkeypatch.setitem(sys.modules, own.__name__, own)
    assert only(own.Photos()).rule == "opencv-threads" and "Photos" in only(own.Photos()).where
    assert lint(Held()) == []  # of a module that does not use it
    cv2.threads = 1  # type: ignore[attr-defined]
    assert lint(own.Photos()) == []
    cv2.threads = 8  # type: ignore[attr-defined]
    exec("def start(worker):\n    cv2.setNumThreads(0)", vars(own))
    assert lint(own.Photos()) == []


# --- the whole -----------------------------------------------------------------------------------------------------


class Strange:
    """An object that no code of whose class may run."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"the lint called __getattribute__({name!r})")

    def _refuse(self, *_: Any) -> Any:
        raise AssertionError("the lint called an object's method")

    __eq__ = __hash__ = __repr__ = __len__ = __iter__ = __getitem__ = __bool__ = __sizeof__ = __call__ = _refuse


class StrangeList(list[Any]):
    def _refuse(self, *_: Any) -> Any:
        raise AssertionError("the lint called a list's method")

    __eq__ = __iter__ = __getitem__ = __len__ = __bool__ = __sizeof__ = __repr__ = _refuse


class StrangeDict(dict[Any, Any]):
    def _refuse(self, *_: Any) -> Any:
        raise AssertionError("the lint called a dictionary's method")

    __eq__ = __iter__ = __getitem__ = __len__ = __bool__ = __sizeof__ = items = keys = values = _refuse


def test_no_code_of_the_dataset_runs() -> None:
    strange = Strange()
    held = StrangeList([strange, strange])
    assert lint(Held([held, StrangeDict({1: held}), {"x": strange}, (strange,)], transform=strange)) == []
    assert lint(strange) == []


def test_a_loader_stands_for_its_dataset(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    with open(tmp_path / "x", "rb") as file:
        datasets: Any = [Held(file)]
        assert rules(penstock.DataLoader(datasets, num_workers=0)) == ["open-handle"]


@pytest.mark.usefixtures("costly")
def test_what_fails_comes_before_what_costs(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    with open(tmp_path / "x", "rb") as file:
        assert rules(Held(MANY["a list of texts"](), [file])) == ["open-handle", "python-objects"]


@pytest.mark.usefixtures("costly")
def test_what_is_installed_is_no_code_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages" / "own_installed"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("class Table:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    try:
        table = importlib.import_module("own_installed").Table()
        table.names = MANY["a list of texts"]()
        assert lint(Held(table)) == []
        assert lint(table) == []
    finally:
        sys.modules.pop("own_installed", None)
