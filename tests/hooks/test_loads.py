"""torch.load and numpy.load answered natively: they themselves are the oracle, of damaged and hostile files too."""

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
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from penstock import _native
from penstock.hooks import loads
from penstock.hooks.calls import natively
from penstock.hooks.loads import Refused, load_numpy, load_torch as load
from tests.corrupt import archive_of, npy, npy_with_header, saved
from tests.forking import assert_in_child
from tests.hooks.loaded import (
    ARRAY_DTYPES,
    answered,
    answered_by,
    assert_equal,
    corpus,
    filled,
    filled_array,
    random_object,
    refused,
    refused_by,
)
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


def test_random_structures() -> None:
    for seed in range(150):
        content = saved(random_object(random.Random(seed)))
        assert_equal(answered(io.BytesIO(content)), torch.load(io.BytesIO(content)))


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
    "70,000 numbers": (lambda: [*range(70_000)], "more than 65,535 objects"),
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
    options: Any
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
    torch.serialization.set_default_load_endianness(torch.serialization.LoadEndianness.BIG)
    try:
        with natively():
            assert refused(file)
    finally:
        torch.serialization.set_default_load_endianness(None)
    with natively():
        assert answered(file)
    if torch.__version__ >= "2.7":
        config = import_module("torch.utils.serialization.config")
        config.load.mmap = True  # monkeypatch would delete it at the end
        try:
            with natively():
                assert refused(file)
        finally:
            config.load.mmap = False
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


def failing(error: type[BaseException]) -> Any:
    def fail(*_: Any) -> Any:
        raise error

    dtypes = [getattr(torch, name, None) for name in _native.DTYPES]
    api = getattr(torch.Tensor, "__dlpack_c_exchange_api__", torch._C._from_dlpack)
    return _native.TorchLoader(api, dtypes, fail, fail, torch.Size, OrderedDict, fail, Refused)


def test_errors_while_objects_are_made(file: str) -> None:
    assert type(failing(RuntimeError).path(file, False)) is Refused
    with pytest.raises(KeyboardInterrupt):
        failing(KeyboardInterrupt).path(file, False)


def by_capsules(dtypes: list[Any]) -> Any:
    """Return a loader as torch before 2.10 needs it."""
    made = (torch._utils._rebuild_parameter, torch.Size, OrderedDict, torch._C._increment_version, Refused)
    return _native.TorchLoader(torch._C._from_dlpack, dtypes, loads._view, *made)


@pytest.mark.parametrize("name", CORPUS)
def test_tensors_are_made_of_capsules_where_torch_has_no_exchange_api(name: str) -> None:
    content = saved(CORPUS[name])
    found, _ = by_capsules([getattr(torch, name, None) for name in _native.DTYPES]).bytes(content, 0, False)
    wanted = torch.load(io.BytesIO(content))
    assert_equal(found, wanted)
    del content, wanted
    gc.collect()
    torch.save(found, io.BytesIO())  # its storages hold their memory


def test_a_dtype_that_torch_lacks_is_refused() -> None:
    content = saved({"x": torch.arange(3.0), "dtype": torch.float64})
    lacking = [None if name == "float64" else getattr(torch, name, None) for name in _native.DTYPES]
    assert type(by_capsules(lacking).bytes(content, 0, False)[0]) is Refused


def test_after_fork(file: str) -> None:
    wanted = torch.load(file)
    answered(file)
    assert_in_child(lambda: assert_equal(answered(file), wanted))


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
                assert_as_original(TORCH, archive.edit(b"data.pkl", data=data).file())


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
    b"\x80\x02N", b"", b"\x80\x02})" + b"\x85" * 200_000 + b"Ns.",
]  # fmt: skip


def test_nothing_in_a_file_is_called() -> None:
    for value in (Evil(), [Evil()], {"x": torch.ones(2), "y": Evil()}):
        assert "evil" in refused(io.BytesIO(saved(value)))
    archive = archive_of(saved([1, 2]))
    for pickled in HOSTILE:
        assert refused(io.BytesIO(archive.edit(b"data.pkl", data=pickled).file())), pickled
    assert not RAN


SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (5,), (3, 4), (2, 0, 3), (2, 3, 4), (1, 7), (7, 1), (1, 2) * 4]


array_answered = partial(answered_by, load_numpy)
array_refused = partial(refused_by, load_numpy)


def assert_equal_arrays(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs) is np.ndarray
    assert (ours.dtype, ours.shape, ours.strides) == (theirs.dtype, theirs.shape, theirs.strides)
    assert str(ours.flags) == str(theirs.flags)
    assert (ours.base is None) == (theirs.base is None)
    if ours.base is not None:
        assert type(ours.base) is type(theirs.base) is np.ndarray
        assert (ours.base.shape, str(ours.base.flags)) == (theirs.base.shape, str(theirs.base.flags))
    assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("dtype", ARRAY_DTYPES)
@pytest.mark.parametrize("order", "CF")
def test_equals_numpy(dtype: str, order: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "ä sample.npy"
    for shape in SHAPES:
        np.save(path, np.asarray(filled_array(shape, dtype), order=order))  # type: ignore[call-overload]
        theirs = np.load(path)
        for given in (path, str(path), io.BytesIO(path.read_bytes()), str(path)):
            assert_equal_arrays(array_answered(given), theirs)
        assert_equal_arrays(array_answered(str(path), allow_pickle=True), theirs)


REFUSED_ARRAYS: dict[str, Callable[[], Any]] = {
    "structured": lambda: np.zeros(3, [("x", "<f4"), ("y", "<i4")]),
    "big-endian": lambda: np.zeros(3, ">f4"),
    "text": lambda: np.array(["a", "bc"]),
    "bytes": lambda: np.array([b"a"]),
    "date": lambda: np.array(["2020-01-01"], "datetime64[D]"),
    "long double": lambda: np.zeros(2, np.longdouble),
    "9-d": lambda: np.zeros((1,) * 9),
}


@pytest.mark.parametrize("name", REFUSED_ARRAYS)
def test_what_is_left_to_numpy(name: str) -> None:
    file = io.BytesIO()
    np.save(file, REFUSED_ARRAYS[name]())
    file.seek(0)
    assert array_refused(file)
    assert file.tell() == 0


def test_other_npy_files_and_arguments(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "x.npy")
    np.save(path, np.arange(5))
    np.savez(tmp_path / "x.npz", a=np.arange(5))
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    (tmp_path / "none").touch()
    (tmp_path / "x.npz").rename(tmp_path / "archive")
    assert ".npz" in array_refused(str(tmp_path / "archive"))
    for name in ("objects.npy", "none", "missing", ".", "a\0b"):
        assert array_refused(str(tmp_path / name))
        assert array_refused(str(tmp_path / name), allow_pickle=True)
    assert array_refused(os.fsencode(path)) and array_refused(3)
    encodings = ({"encoding": "latin1"}, {"encoding": "nonsense"})
    for options in (
        {"mmap_mode": "r"},
        *encodings,
        {"fix_imports": False},
        {"max_header_size": 10},
        {"allow_pickle": 1},
    ):
        assert array_refused(path, **options)
    with monkeypatch.context() as patch:
        patch.setattr(builtins, "open", lambda *_, **__: None)
        assert array_refused(path)
    assert_equal_arrays(array_answered(path), np.load(path))


def test_headers_of_arrays_that_make_no_sense() -> None:
    for header in (b"{}\n", b"{'descr': '<f4', 'fortran_order': False, 'shape': (4, 9999999999999)}\n"):
        assert array_refused(io.BytesIO(npy_with_header(header)))


# --- both functions ---------------------------------------------------------------------------------------------------


class Function(NamedTuple):
    """A function that loads files, what answers for it, and files for it."""

    answer: Callable[..., Any]
    original: Callable[..., Any]
    assert_equal: Callable[[Any, Any], None]
    files: dict[str, bytes]
    sizes: Callable[[int], list[bytes]]
    """Returns files that hold about so many bytes."""


def tensors_of(size: int) -> list[bytes]:
    one, other = filled((size,), torch.uint8), filled((size // 2,), torch.int16)
    return [saved(one), saved({"a": one, "b": other})]


SMALL = saved({"x": torch.arange(3.0), "y": [filled((2, 2), torch.int16).t(), (1, 2.5, "text", None, b"\xff", {1})]})
VERSIONS = {(1, 0): (3, 4), (2, 0): (2,), (3, 0): (5, 5)}
ARRAYS = [
    filled_array(shape, dtype) for shape in [(3, 4), (4, 3), (12,), (24,)] for dtype in ("<f4", "<i4", "<f8", "|u1")
]
ARRAY_FILES = [npy(array) for array in ARRAYS]
TORCH = Function(
    load,
    torch.load,
    assert_equal,
    {"small": SMALL} | {name: saved(value) for name, value in CORPUS.items()},
    tensors_of,
)
NUMPY = Function(
    load_numpy,
    np.load,
    assert_equal_arrays,
    {
        "small": npy(filled_array((3, 2), "<i2")),
        **{f"{version}": npy(filled_array(shape, "<f4"), version) for version, shape in VERSIONS.items()},
        **{f"{n}, {order}": npy(np.asarray(one, order=order)) for n, one in enumerate(ARRAYS) for order in "CF"},  # type: ignore[call-overload]
        "more behind": npy(filled_array((3, 4), "<f4")) + b"more",
    },
    lambda size: [npy(filled_array((size,), "|u1")), npy(filled_array((size // 4,), "<f4"))],
)
FUNCTIONS = pytest.mark.parametrize("function", [TORCH, NUMPY], ids=["torch", "numpy"])


def assert_as_original(function: Function, content: bytes) -> bool:
    """Return whether there was an answer, which the original then also has."""
    ours = function.answer(io.BytesIO(content))
    if type(ours) is Refused:
        return False
    function.assert_equal(ours, function.original(io.BytesIO(content)))
    return True


@FUNCTIONS
def test_a_file_object_is_left_where_the_original_leaves_it(function: Function, tmp_path: pathlib.Path) -> None:
    draw, path = random.Random(4), tmp_path / "several"
    names = ["tensor", "empty", "dict", "many tensors", "plain", "big and small", "views"]
    for name in names if function is TORCH else function.files.keys() - {"more behind"}:
        # torch.save's archives end the file; numpy's arrays may follow each other
        files = [function.files[name]] if function is TORCH else [function.files[name], *draw.choices(ARRAY_FILES, k=2)]
        content = b"in front" + b"".join(files)
        path.write_bytes(content)
        for make in (lambda: io.BytesIO(content), lambda: open(path, "rb")):  # noqa: B023, SIM115
            with make() as ours, make() as theirs:
                for opened in (ours, theirs):
                    opened.seek(8)
                for _ in files:
                    function.assert_equal(answered_by(function.answer, ours), function.original(theirs))
                    assert ours.tell() == theirs.tell()
                assert refused_by(function.answer, ours)
                assert ours.tell() == theirs.tell()


@FUNCTIONS
def test_files_after_each_other(function: Function, tmp_path: pathlib.Path) -> None:
    """What one file left behind in the thread's memory, or led to expect, is not in the next."""
    path = tmp_path / "x"
    for name in random.Random(3).choices(list(function.files), k=250):
        path.write_bytes(function.files[name])
        function.assert_equal(answered_by(function.answer, str(path)), function.original(path))
        assert name == "more behind" or refused_by(function.answer, io.BytesIO(function.files[name][:-1]))


@FUNCTIONS
@pytest.mark.parametrize("size", [0, 3, 40, 3000, 40_000, 400_000, 3_000_000])
def test_sizes(function: Function, size: int, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x"
    for content in function.sizes(size):
        path.write_bytes(content)
        for _ in range(2):
            function.assert_equal(answered_by(function.answer, str(path)), function.original(path))


@FUNCTIONS
@pytest.mark.native
def test_threads(function: Function, tmp_path: pathlib.Path) -> None:
    """Threads do not see each other's files."""
    files = {str(tmp_path / f"{n}"): content for n, content in enumerate([*function.files.values()][:12])}
    for path, content in files.items():
        pathlib.Path(path).write_bytes(content)
    wanted = {path: function.original(path) for path in files}

    def work(seed: int) -> None:
        for path in random.Random(seed).choices(list(files), k=150):
            function.assert_equal(answered_by(function.answer, path), wanted[path])

    run_in_threads(4, work)


@FUNCTIONS
def test_damaged_files(function: Function, tmp_path: pathlib.Path) -> None:
    content, path = function.files["small"], tmp_path / "x"
    path.write_bytes(content)
    answered_by(function.answer, str(path))  # what is expected of the next file
    flipped = [content[:at] + bytes([content[at] ^ bits]) + content[at + 1 :]
               for bits in (0x01, 0x80, 0xFF) for at in range(len(content))]  # fmt: skip
    assert 0 < sum(assert_as_original(function, one) for one in flipped) < len(flipped)
    for length in range(len(content)):
        path.write_bytes(content[:length])
        assert refused_by(function.answer, str(path)) and refused_by(function.answer, io.BytesIO(content[:length]))
    for one in flipped[:: 1 if function is NUMPY else 7]:
        path.write_bytes(one)
        if type(ours := function.answer(str(path))) is not Refused:
            function.assert_equal(ours, function.original(path))
    assert assert_as_original(function, content + b"\0") is (function is NUMPY)
