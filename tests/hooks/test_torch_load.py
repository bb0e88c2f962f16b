"""torch.load answered natively: torch.load itself is the oracle."""

from __future__ import annotations

import builtins
import gc
import gzip
import io
import os
import pathlib
import pickle
import random
import re
import warnings
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.serialization import config

from penstock import _native
from penstock.hooks.calls import natively
from penstock.hooks.loads import Refused
from tests.corrupt import archive_of, saved
from tests.forking import assert_in_child
from tests.hooks.loaded import answered, assert_equal, corpus, filled, random_object, refused
from tests.waiting import run_in_threads

CORPUS = corpus()
pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")


@pytest.fixture
def file(tmp_path: pathlib.Path) -> str:
    path = str(tmp_path / "sample.pt")
    torch.save({"x": torch.arange(6.0), "y": [1, "a"]}, path)
    return path


@pytest.mark.parametrize("name", CORPUS)
def test_equals_torch(name: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "ä sample.pt"
    torch.save(CORPUS[name], path)
    content = path.read_bytes()
    theirs = torch.load(str(path))
    for given in (str(path), path, io.BytesIO(content)):
        assert_equal(answered(given), theirs)
    with open(path, "rb") as ours, open(path, "rb") as other:
        assert_equal(answered(ours), torch.load(other))
        assert ours.tell() == other.tell()
    assert_equal(answered(str(path), "cpu", weights_only=True, mmap=False), theirs)
    assert_equal(answered(str(path), torch.device("cpu")), theirs)


@pytest.mark.parametrize("name", ["tensor", "empty", "dict", "many tensors", "plain", "big and small", "views"])
def test_a_file_object_is_left_where_torch_leaves_it(name: str, tmp_path: pathlib.Path) -> None:
    other = torch.zeros(5)
    with open(tmp_path / "two", "wb") as out:
        out.write(b"in front")
        torch.save(CORPUS[name], out)
    torch.save(other, tmp_path / "one")
    content = (tmp_path / "two").read_bytes()
    for make in (lambda: io.BytesIO(content), lambda: open(tmp_path / "two", "rb")):  # noqa: SIM115
        with make() as ours, make() as theirs:
            for opened in (ours, theirs):
                opened.seek(8)
            assert_equal(answered(ours), torch.load(theirs))
            assert ours.tell() == theirs.tell()
            assert ours.read() == theirs.read()
            assert refused(ours)
            assert ours.tell() == theirs.tell()


@pytest.mark.parametrize("seed", range(150))
def test_random_structures(seed: int) -> None:
    content = saved(random_object(random.Random(seed)))
    assert_equal(answered(io.BytesIO(content)), torch.load(io.BytesIO(content)))


def test_several_files_after_each_other(tmp_path: pathlib.Path) -> None:
    """What one file left behind in the thread's memory is not in the next."""
    names = random.Random(3).choices(list(CORPUS), k=200)
    for name in names:
        content = saved(CORPUS[name])
        (tmp_path / "x.pt").write_bytes(content)
        assert_equal(answered(str(tmp_path / "x.pt")), torch.load(io.BytesIO(content)))
        assert refused(io.BytesIO(content[:-1]))


@pytest.mark.parametrize("size", [0, 3, 40, 3000, 40_000, 400_000, 3_000_000])
def test_sizes(size: int, tmp_path: pathlib.Path) -> None:
    for value in (
        filled((size,), torch.uint8),
        {"a": filled((size,), torch.uint8), "b": filled((size // 2,), torch.int16)},
    ):
        torch.save(value, tmp_path / "x.pt")
        assert_equal(answered(str(tmp_path / "x.pt")), torch.load(tmp_path / "x.pt"))


# --- what is refused --------------------------------------------------------------------------------------------------


class Subclass(torch.Tensor):
    pass


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "sparse": (lambda: torch.eye(3).to_sparse(), "sparse tensor"),
    "csr": (lambda: torch.eye(3).to_sparse_csr(), "sparse tensor"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.randn(3), 0.1, 0, torch.qint8), "quantized|not read"),
    "subclass": (lambda: torch.randn(3).as_subclass(Subclass), "subclass"),
    "conjugate": (lambda: torch.randn(3, dtype=torch.complex64).conj(), "conjugate"),
    "meta": (lambda: torch.empty(3, device="meta"), "meta"),
    "storage": (lambda: torch.randn(3).untyped_storage(), "storage"),
    "class": (lambda: OrderedDict, "function or a class"),
    "9-d": (lambda: torch.zeros((1,) * 9), "form"),
    "empty views": (lambda: torch.empty(0, 4).split(2, 1), "twice"),
    "counter": (lambda: Counter("aab"), "Counter"),
    "path": (lambda: [pathlib.PurePosixPath("x")], "pathlib"),
    "bytearray": (lambda: bytearray(b"ab"), "bytearray"),
    "device": (lambda: torch.device("cpu"), "torch.device"),
    "deque": (lambda: deque([1]), "collections.deque"),
    "state dict": (lambda: torch.nn.Linear(2, 2).state_dict(), "not read natively"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_left_to_torch(name: str) -> None:
    make, words = REFUSED[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        content = saved(make())
    reason = refused(io.BytesIO(content))
    assert re.search(words, reason), reason


def test_other_files(tmp_path: pathlib.Path, file: str) -> None:
    legacy = saved(torch.ones(3), _use_new_zipfile_serialization=False)
    assert "before 1.6" in refused(io.BytesIO(legacy))
    (tmp_path / "folder").mkdir()
    (tmp_path / "none").touch()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "none", "missing", "pipe", "x.safetensors", "a\0b"):
        assert refused(str(tmp_path / name))
    assert refused(os.fsencode(file))
    assert refused(None)
    assert refused(5)
    with gzip.open(tmp_path / "x.gz", "wb") as out:
        out.write(pathlib.Path(file).read_bytes())
    with gzip.open(tmp_path / "x.gz") as zipped:
        assert refused(zipped)
    with open(file, "r+b") as writable:
        assert refused(writable)
    with open(file, "rb", buffering=0) as raw:
        assert refused(raw)
    with open(file, "rb") as opened:
        pass
    assert refused(opened)
    closed = io.BytesIO(legacy)
    closed.close()
    assert refused(closed)


def test_arguments(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for options in (
        {"map_location": "meta"},
        {"map_location": "cuda:0"},
        {"map_location": torch.device("cpu", 0)},
        {"map_location": {"cuda": "cpu"}},
        {"map_location": lambda storage, _: storage},
        {"map_location": b"cpu"},
        {"pickle_module": pickle},
        {"weights_only": False},
        {"weights_only": 1},
        {"mmap": True},
        {"encoding": "ascii"},
    ):
        assert refused(file, **options), options
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    assert refused(file)
    assert refused(file, weights_only=True)
    monkeypatch.delenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")
    assert answered(file)


def test_other_devices() -> None:
    """A tensor saved from another device is on the CPU where the call says so, as with torch."""
    archive = archive_of(saved(torch.arange(3.0)))
    elsewhere = archive.pickle.replace(b"X\3\0\0\0cpu", b"X\6\0\0\0cuda:0")
    content = archive.edit(b"data.pkl", data=elsewhere).file()
    assert "another device" in refused(io.BytesIO(content))
    assert_equal(answered(io.BytesIO(content), "cpu"), torch.load(io.BytesIO(content), "cpu"))


def test_states_of_torch(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.serialization.skip_data():
        assert refused(file)
    with torch._subclasses.FakeTensorMode():
        assert refused(file)
    with torch.device("meta"):
        assert refused(file)
    with torch.inference_mode():
        assert refused(file)
    for name, value in (("mmap", True), ("endianness", torch.serialization.LoadEndianness.BIG)):
        before = getattr(config.load, name)
        setattr(config.load, name, value)
        try:
            with natively():
                assert refused(file), name
        finally:
            setattr(config.load, name, before)
        with natively():
            assert answered(file)
    with torch.serialization.safe_globals([deque]), torch.no_grad():
        assert_equal(answered(file), torch.load(file))
    assert_equal(answered(file), torch.load(file))
    registry = list(torch.serialization._package_registry)
    torch.serialization.register_package(1, lambda _: None, lambda _, __: None)
    try:
        assert refused(file)
    finally:
        torch.serialization._package_registry[:] = registry
    with monkeypatch.context() as patch:
        patch.setattr(builtins, "open", lambda *_: None)
        assert refused(file)
    assert answered(file)


def test_what_torch_cannot_rebuild_is_left_to_its_error(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "x.pt")
    torch.save(torch.zeros(2, dtype=torch.float8_e5m2).requires_grad_(), path)
    with pytest.raises(RuntimeError, match="requires grad"):
        torch.load(path)
    assert refused(path)


# --- whose memory it is -----------------------------------------------------------------------------------------------


def test_tensors_are_as_other_tensors(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "x.pt")
    torch.save({"big": torch.randn(3000), "small": torch.arange(4.0)}, path)
    for which in ("big", "small"):
        for call in (
            lambda one: one.resize_(5000),
            lambda one: one.untyped_storage().resize_(100_000),
            lambda one: one.share_memory_().is_shared(),
            lambda one: one.mul_(2).sum().item(),
            lambda one: one.numpy().flags.owndata,
            lambda one: pickle.loads(pickle.dumps(one)).sum().item(),
            lambda one: torch.stack([one, one]).sum().item(),
            lambda one: one.requires_grad_().sum().backward(),
        ):
            outcomes = []
            # Each call has tensors of its own: torch has changed the shape when it finds that it cannot resize.
            for one in (answered(path)[which], torch.load(path)[which]):
                try:
                    outcomes.append(str(call(one)))
                except RuntimeError as error:
                    outcomes.append(str(error))
            assert outcomes[0] == outcomes[1]


def test_memory_is_given_back(tmp_path: pathlib.Path) -> None:
    paths = []
    for i, value in enumerate(
        (torch.ones(300_000), [torch.ones(100_000), torch.ones(100_000)], torch.ones(200_000)[1:])
    ):
        paths.append(str(tmp_path / f"{i}.pt"))
        torch.save(value, paths[-1])

    def resident() -> int:
        return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def work() -> None:
        for path in paths:
            answered(path)

    work()
    gc.collect()
    before = resident()
    for _ in range(150):
        work()
    assert resident() - before < 60e6  # a leak of one storage would be 120 MB


def test_a_kept_tensor_keeps_its_values(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "x.pt")
    kept = []
    for i in range(50):
        torch.save({"x": torch.full((500,), i), "y": torch.tensor(i)}, path)
        kept.append(answered(path))
    for i, one in enumerate(kept):
        assert (one["x"] == i).all()
        assert one["y"] == i


@pytest.mark.native
def test_threads(tmp_path: pathlib.Path) -> None:
    paths = []
    for name in ("dict", "views", "tensor", "big and small", "cyclic"):
        paths.append(str(tmp_path / f"{name}.pt"))
        torch.save(CORPUS[name], paths[-1])
    wanted = [torch.load(path) for path in paths]

    def work(seed: int) -> None:
        for i in random.Random(seed).choices(range(len(paths)), k=100):
            assert_equal(answered(paths[i]), wanted[i])

    run_in_threads(4, work)


def failing(error: type[BaseException]) -> Any:
    def fail(*_: Any) -> Any:
        raise error

    dtypes = [getattr(torch, name) for name in _native.DTYPES]
    api = torch.Tensor.__dlpack_c_exchange_api__
    return _native.TorchLoader(api, dtypes, fail, fail, torch.Size, OrderedDict, fail, Refused)


def test_errors_while_objects_are_made(file: str) -> None:
    assert type(failing(RuntimeError).path(file, False)) is Refused
    with pytest.raises(KeyboardInterrupt):
        failing(KeyboardInterrupt).path(file, False)


def test_after_fork(file: str) -> None:
    wanted = torch.load(file)
    answered(file)
    assert_in_child(lambda: assert_equal(answered(file), wanted))
