"""torch.load answered natively: torch.load itself is the oracle, of damaged and hostile files too."""

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
from penstock.hooks.loads import load_torch as load
from tests.corrupt import archive_of, saved
from tests.forking import assert_in_child
from tests.hooks.loaded import answered, assert_equal, corpus, filled, random_object, refused
from tests.same import assert_same, assert_same_outcome
from tests.waiting import run_in_threads

CORPUS = corpus()
pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")


@pytest.fixture
def file(tmp_path: pathlib.Path) -> str:
    return written(tmp_path / "sample.pt", {"x": torch.arange(6.0), "y": [1, "a"]})


def written(path: pathlib.Path, value: Any) -> str:
    torch.save(value, path)
    return str(path)


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
    content = b"in front" + saved(CORPUS[name])
    (tmp_path / "two").write_bytes(content)
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
    for name in random.Random(3).choices(list(CORPUS), k=200):
        path = written(tmp_path / "x.pt", CORPUS[name])
        assert_equal(answered(path), torch.load(path))
        assert refused(io.BytesIO(saved(CORPUS[name])[:-1]))


@pytest.mark.parametrize("size", [0, 3, 40, 3000, 40_000, 400_000, 3_000_000])
def test_sizes(size: int, tmp_path: pathlib.Path) -> None:
    one, other = filled((size,), torch.uint8), filled((size // 2,), torch.int16)
    for value in (one, {"a": one, "b": other}):
        path = written(tmp_path / "x.pt", value)
        assert_equal(answered(path), torch.load(path))


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
    names = ("folder", "none", "missing", "pipe", "x.safetensors", "a\0b")
    for given in (*(str(tmp_path / name) for name in names), os.fsencode(file), None, 5):
        assert refused(given)
    (tmp_path / "x.gz").write_bytes(gzip.compress(pathlib.Path(file).read_bytes()))
    for opened in (gzip.open(tmp_path / "x.gz"), open(file, "r+b"), open(file, "rb", buffering=0)):  # noqa: SIM115
        with opened:
            assert refused(opened)
    for closed in (open(file, "rb"), io.BytesIO(legacy)):  # noqa: SIM115
        closed.close()
        assert refused(closed)


def test_arguments(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    locations = ("meta", "cuda:0", torch.device("cpu", 0), {"cuda": "cpu"}, lambda storage, _: storage, b"cpu")
    for options in (
        *({"map_location": location} for location in locations),
        *({"pickle_module": pickle}, {"weights_only": False}, {"weights_only": 1}),
        *({"mmap": True}, {"encoding": "ascii"}),
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
    states = (torch.serialization.skip_data, torch._subclasses.FakeTensorMode, torch.inference_mode)
    for state in (*states, lambda: torch.device("meta")):
        with state():
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
    path = written(tmp_path / "x.pt", torch.zeros(2, dtype=torch.float8_e5m2).requires_grad_())
    with pytest.raises(RuntimeError, match="requires grad"):
        torch.load(path)
    assert refused(path)


def test_tensors_are_as_other_tensors(tmp_path: pathlib.Path) -> None:
    path = written(tmp_path / "x.pt", {"big": torch.randn(3000), "small": torch.arange(4.0)})
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
            # Each call has tensors of its own: torch has changed the shape when it finds that it cannot resize.
            ours, theirs = answered(path)[which], torch.load(path)[which]
            assert_same_outcome(lambda: str(call(ours)), lambda: str(call(theirs)))  # noqa: B023


def test_memory_is_given_back(tmp_path: pathlib.Path) -> None:
    values = (torch.ones(300_000), [torch.ones(100_000), torch.ones(100_000)], torch.ones(200_000)[1:])
    paths = [written(tmp_path / f"{i}.pt", value) for i, value in enumerate(values)]

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
    values = [{"x": torch.full((500,), i), "y": torch.tensor(i)} for i in range(50)]
    assert_same([answered(written(tmp_path / "x.pt", value)) for value in values], values)


@pytest.mark.native
def test_threads(tmp_path: pathlib.Path) -> None:
    names = ("dict", "views", "tensor", "big and small", "cyclic")
    paths = [written(tmp_path / f"{name}.pt", CORPUS[name]) for name in names]
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


SMALL = saved({"x": torch.arange(3.0), "y": [filled((2, 2), torch.int16).t(), (1, 2.5, "text", None, b"\xff", {1})]})


def assert_as_torch(content: bytes, **options: Any) -> bool:
    """Return whether there was an answer, which torch.load then also has."""
    ours = load(io.BytesIO(content), **options)
    if type(ours) is Refused:
        return False
    assert_equal(ours, torch.load(io.BytesIO(content), **options))
    return True


def test_every_truncation() -> None:
    assert not any(assert_as_torch(SMALL[:length]) for length in range(len(SMALL)))
    assert not assert_as_torch(SMALL + b"\0")


@pytest.mark.parametrize("bits", [0x01, 0x80, 0xFF])
def test_every_byte_flipped(bits: int) -> None:
    count = 0
    for at in range(len(SMALL)):
        damaged = bytearray(SMALL)
        damaged[at] ^= bits
        count += assert_as_torch(bytes(damaged))
    assert 0 < count < len(SMALL)


@pytest.mark.parametrize("name", ["views", "dict", "parameter", "sets", "same list", "cyclic", "complex", "uint16"])
def test_pickles_that_were_changed(name: str) -> None:
    """Bytes of a pickle are changed, and its CRC-32 with them."""
    value = torch.ones(2, dtype=torch.uint16) if name == "uint16" else CORPUS[name]
    archive = archive_of(saved(value))
    pickled, draw = archive.pickle, random.Random(name)
    for at in range(len(pickled)):
        for byte in (draw.randrange(256), pickled[at] ^ 1, draw.choice(b"NK)]}(.tueaqhRcQX\x85\x86\x87")):
            data = pickled[:at] + bytes([byte]) + pickled[at + 1 :]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert_as_torch(archive.edit(b"data.pkl", data=data).file())


@pytest.mark.native
def test_bytes_at_random() -> None:
    """Nothing that a file holds makes the native core step outside its memory."""
    draw = random.Random(5)
    contents = [saved(CORPUS[name]) for name in ("views", "dict", "parameter", "cyclic", "many tensors", "keys")]
    for content in contents:
        archive = archive_of(content)
        for _ in range(400):
            data = bytearray(archive.pickle)
            for _ in range(draw.randrange(1, 4)):
                at = draw.randrange(len(data))
                data[at : at + draw.randrange(3)] = draw.randbytes(draw.randrange(3))
            load(io.BytesIO(archive.edit(b"data.pkl", data=bytes(data)).file()))
            damaged = bytearray(content)
            for _ in range(draw.randrange(1, 5)):
                damaged[draw.randrange(len(damaged))] = draw.randrange(256)
            load(io.BytesIO(damaged))


RAN: list[int] = []


class Evil:
    def __reduce__(self) -> Any:
        return evil, ()


def evil() -> None:
    RAN.append(1)


HOSTILE = [
    b"\x80\x02cos\nsystem\nX\4\0\0\0true\x85R.", b"\x80\x02c__builtin__\neval\nX\1\0\0\x001\x85R.",
    b"\x80\x02ctorch\nfloat32\n)R.", b"\x80\x02ctorch\nFloatStorage\n)R.",
    b"\x80\x02c__builtin__\nset\n](K\1K\2ec__builtin__\nset\n\x85R\x85R.", b"\x80\x04]\x94.",
    b"\x80\x02ccollections\nOrderedDict\n)Rq\0}b.", b"\x80\x02]q\0h\0h\0e.", b"\x80\x02h\0.",
    b"\x80\x02r\xff\xff\xff\xff.", b"\x80\x02X\xff\xff\xff\xffab.", b"\x80\x02\x8a\xff\1.",
    b"\x80\x02" + b"(" * 100 + b".", b"\x80\x02}(K\1u.", b"\x80\x02}(]K\1u.", b"\x80\x02.", b"\x80\x02t.",
    b"\x80\x02N", b"",
]  # fmt: skip


def test_nothing_in_a_file_is_called() -> None:
    for value in (Evil(), [Evil()], {"x": torch.ones(2), "y": Evil()}):
        assert "evil" in refused(io.BytesIO(saved(value)))
    archive = archive_of(saved([1, 2]))
    for pickled in HOSTILE:
        assert refused(io.BytesIO(archive.edit(b"data.pkl", data=pickled).file())), pickled
    assert not RAN
