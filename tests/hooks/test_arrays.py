"""numpy.fromfile, numpy.memmap, .npz archives and safetensors answered natively: the libraries are the oracle."""

from __future__ import annotations

import gc
import json
import random
import struct
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.corrupt import damages, npy
from tests.hooks.loaded import filled
from tests.in_workers import answered, refused, within
from tests.same import assert_same, assert_same_outcome

safetensors = pytest.importorskip("safetensors", reason="safetensors is not installed: pip install safetensors")
pytest.importorskip("safetensors.torch")
pytestmark = pytest.mark.native


def fromfile(*arguments: Any, **named: Any) -> Any:
    return np.fromfile(*arguments, **named)


def load(path: Any) -> Any:
    return np.load(path)


def load_file(*arguments: Any, **named: Any) -> Any:
    return safetensors.torch.load_file(*arguments, **named)


def assert_alike(call: Callable[[], Any]) -> None:
    """Assert that a call gives the same within a worker and outside."""
    assert_same_outcome(lambda: within(call), call)


# --- numpy.fromfile ---------------------------------------------------------------------------------------------------


@pytest.fixture
def raw(tmp_path: Path) -> str:
    path = tmp_path / "ä.bin"
    path.write_bytes(random.Random(1).randbytes(9003))
    return str(path)


PAIR = np.dtype([("a", "<i2"), ("b", ">f8")])


@pytest.mark.parametrize(
    "dtype", [float, "f4", np.int16, ">i4", "?", "S7", "c8", PAIR, "M8[s]", torch.tensor(0).numpy().dtype]
)
@pytest.mark.parametrize(
    "options", [{}, {"count": 3}, {"count": 10**6}, {"count": np.int64(2), "offset": 5}, {"offset": 9003}]
)
def test_fromfile(raw: str, dtype: Any, options: Any) -> None:
    ours, theirs = answered(fromfile, raw, dtype, **options), np.fromfile(raw, dtype, **options)
    assert (ours.dtype, ours.shape, str(ours.flags)) == (theirs.dtype, theirs.shape, str(theirs.flags))
    assert ours.base is None
    assert ours.tobytes() == theirs.tobytes()
    assert answered(fromfile, Path(raw), dtype, **options).tobytes() == theirs.tobytes()


@pytest.mark.parametrize(
    "options",
    [
        {"count": -2}, {"count": 0}, {"count": 1.5}, {"offset": -1}, {"offset": 20000}, {"offset": 2**70},
        {"dtype": "O"}, {"dtype": "(2,)f4"}, {"dtype": "S0"}, {"dtype": "nonsense"}, {"sep": " "}, {"sep": b""},
        {"like": np.ones(1)}, {"count": 2**63}, {"strange": 1},
    ],
)  # fmt: skip
def test_fromfile_is_numpys_otherwise(raw: str, options: Any) -> None:
    assert_alike(lambda: np.fromfile(raw, **{"dtype": "u1", **options}))
    assert_alike(lambda: np.fromfile(raw + "missing", "u1"))
    assert_alike(lambda: np.fromfile("/dev/null", "u1"))
    assert_alike(lambda: np.fromfile(str(Path(raw).parent), "u1"))
    assert_alike(lambda: np.fromfile())  # type: ignore[call-overload]
    with open(raw, "rb") as file:
        file.seek(3)
        assert_alike(lambda: np.fromfile(file, "u1", 4, offset=1)[:0])
        assert "BufferedReader" in refused(fromfile, file)


# --- numpy.memmap -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["r", "c", "readonly", "copyonwrite"])
@pytest.mark.parametrize(
    "options",
    [
        {}, {"offset": 3}, {"offset": 5, "shape": (7, 11)}, {"shape": ()}, {"shape": (17, 59)}, {"shape": 100},
        {"shape": (2, 3), "dtype": "<i4", "order": "F"},
    ],
)  # fmt: skip
def test_memmap(raw: str, mode: Any, options: Any) -> None:
    for path in (raw, Path(raw)):
        ours, theirs = (call(path, mode=mode, **options) for call in (partial(answered, np.memmap), np.memmap))
        for name in ("dtype", "shape", "strides", "filename", "mode", "offset"):
            assert getattr(ours, name) == getattr(theirs, name), name
        assert (type(ours), str(ours.flags)) == (type(theirs), str(theirs.flags))
        assert type(ours.base) is type(theirs.base)
        assert type(vars(ours.T)["_mmap"]) is type(vars(theirs.T)["_mmap"])
        assert_same(np.array(ours), np.array(theirs))
    if mode in ("c", "copyonwrite"):
        ours[...] = 0
        assert np.memmap(raw, mode="r").any()


def test_memmap_is_numpys_otherwise(raw: str, tmp_path: Path) -> None:
    within(np.memmap, tmp_path / "new", "f4", "w+", shape=(3,))[:] = 1
    within(np.memmap, tmp_path / "new", "f4", "r+")[0] = 5
    assert np.fromfile(tmp_path / "new", "f4").tolist() == [5, 1, 1]
    (tmp_path / "empty").touch()
    cases: list[tuple[Any, ...]] = [
        (raw, "f4", "r"), (raw, "u1", "r", 3), (raw, "u1", "r", 0, (20000,)), (raw, "u1", "r", 0, (-1,)),
        (raw, "u1", "x"), (raw, "O", "r"), (tmp_path / "empty", "u1", "r"), (raw + "x", "u1", "r"),
        (raw, "u1", "r", 0, (3, 0)), (raw, "u1", "r", 0, [3, 4]), (raw, "u1", "r", 0, np.int64(3)),
        (raw, "u1", "r", 0, (2**40, 2**40)), (), (raw, "u1", "r", 0, (3,), "Z"),
    ]  # fmt: skip
    for arguments in cases:
        assert_alike(lambda: np.array(np.memmap(*arguments)))  # noqa: B023

    class Own(np.memmap):
        pass

    assert "no file" in refused(Own, raw, mode="r")


# --- .npz -------------------------------------------------------------------------------------------------------------

ARRAYS: dict[str, Any] = {
    "x": np.arange(12.0).reshape(3, 4), "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "scalar": np.float32(3), "empty": np.empty((0, 3)), "a b": np.array([True, False]), "half": np.ones(5, np.float16),
    "y.npy": np.arange(3),
}  # fmt: skip


def test_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "ä.npz"
    np.savez(path, **ARRAYS)
    for given in (str(path), path):
        with answered(load, given) as ours, np.load(given) as theirs:
            assert issubclass(type(ours), np.lib.npyio.NpzFile)
            assert (list(ours), len(ours), ours.files) == (list(theirs), len(theirs), theirs.files)
            assert (repr(ours), dir(ours.f), ours.pickle_kwargs) == (repr(theirs), dir(theirs.f), theirs.pickle_kwargs)
            for name in (*theirs, "x.npy", "y", "y.npy", "y.npy.npy", "no", 7):
                assert (name in ours) == (name in theirs)
                assert_same_outcome(lambda: ours[name], lambda: theirs[name])  # noqa: B023
            for name in theirs:
                assert str(ours[name].flags) == str(theirs[name].flags)
                assert (ours[name].base is None) == (theirs[name].base is None)
            assert ours._opened is None, "zipfile has opened it"
            assert_same(dict(ours), dict(theirs))
            assert_same(ours.f.x, theirs.f.x)
            assert ours.get("no", 5) == 5
            assert ours.zip.namelist() == theirs.zip.namelist()
            assert_same(ours["x"], theirs["x"])
        assert (ours.zip, ours.fid, ours.f) == (None, None, None)
        assert_same_outcome(lambda: ours["x"], lambda: theirs["x"])
        ours.close()


def archive(tmp_path: Path, *records: tuple[str, bytes], **options: Any) -> str:
    with zipfile.ZipFile(tmp_path / "made.npz", "w", **options) as made:
        for name, content in records:
            made.writestr(name, content)
    return str(tmp_path / "made.npz")


def test_records_that_are_left_to_numpy(tmp_path: Path) -> None:
    records = [
        ("text.txt", b"no array"), ("objects.npy", npy(np.array([{}], object))),
        ("big.npy", npy(np.arange(3, dtype=">i4"))), ("longer.npy", npy(np.arange(3)) + b"more"),
        ("short.npy", npy(np.arange(3))[:-1]), ("head.npy", npy(np.arange(3))[:40]),
        ("strings.npy", npy(np.array(["a", "bc"]))), ("none.npy", b""), ("good.npy", npy(np.arange(4))),
    ]  # fmt: skip
    path = archive(tmp_path, *records)
    with answered(load, path) as ours, np.load(path) as theirs:
        for name in theirs:
            assert_same_outcome(lambda: ours[name], lambda: theirs[name])  # noqa: B023
    packed = archive(tmp_path, *records, compression=zipfile.ZIP_DEFLATED)
    assert refused(load, packed) == "zip: compressed record"
    assert "name" in refused(load, archive(tmp_path, ("ä.npy", npy(np.array(1)))))
    with pytest.warns(UserWarning, match="Duplicate"):
        assert "one name" in refused(load, archive(tmp_path, ("x.npy", npy(np.array(1))), ("x.npy", npy(np.array(2)))))
    many = archive(tmp_path, *((f"array number {i} of many.npy", npy(np.array(i))) for i in range(200)))
    with answered(load, many) as ours:
        assert [int(ours[name]) for name in ours] == list(range(200))


def all_of(path: str) -> Any:
    """Return what numpy reads of an archive: each array, or the type and text of the error."""
    found: list[Any] = []
    with np.load(path) as arrays:
        for name in arrays:
            try:
                found.append((name, arrays[name]))
            except Exception as error:
                found.append((name, type(error).__name__, str(error)))
    return found


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # where numpy finds no directory
def test_damaged_archives(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.arange(5), b=np.array([[1, 2]], np.float32))
    path = tmp_path / "damaged.npz"
    for damaged in damages((tmp_path / "x.npz").read_bytes(), random.Random(3)):
        path.write_bytes(damaged)
        assert_alike(lambda: all_of(str(path)))
    gc.collect()


# --- safetensors ------------------------------------------------------------------------------------------------------

TENSORS = {
    f"{dtype}"[6:]: filled((3, 5), dtype)
    for dtype in (torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.uint8)
}


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt", "more": "a,b: {c}"}])
@pytest.mark.parametrize(
    "tensors", [TENSORS, {"ä": torch.tensor(2.5)}, {f"n{i}": torch.full((i + 1,), i) for i in range(100)}]
)
def test_safetensors(tmp_path: Path, tensors: Any, metadata: Any) -> None:
    path = tmp_path / "ä.safetensors"
    safetensors.torch.save_file(tensors, path, metadata)
    for given in (str(path), path):
        ours, theirs = answered(load_file, given), safetensors.torch.load_file(given)
        assert_same(ours, theirs)
        for name, value in theirs.items():
            mine, other = ours[name].untyped_storage(), value.untyped_storage()
            assert (mine.nbytes(), mine.resizable()) == (other.nbytes(), other.resizable())
            assert (ours[name]._version, ours[name].requires_grad) == (value._version, value.requires_grad)
    assert_same(answered(load_file, path, "cpu"), theirs)
    assert_same(answered(load_file, path, torch.device("cpu")), theirs)


def test_safetensors_is_the_librarys_otherwise(tmp_path: Path) -> None:
    path = str(tmp_path / "x.safetensors")
    safetensors.torch.save_file({"x": torch.ones(3)}, path)
    assert "device" in refused(load_file, path, "cuda")
    assert "device" in refused(load_file, path, 0)
    assert "backend" in refused(load_file, path, backend="pread")

    def load_to_meta() -> Any:
        with torch.device("meta"):
            return load_file(path)

    assert "modes" in refused(load_to_meta)
    assert_alike(lambda: safetensors.torch.load_file(path + "x"))
    assert_alike(lambda: safetensors.torch.load_file(path, nonsense=1))
    for tensors in ({"x": torch.empty(0)}, {"x": filled((4,), torch.float8_e5m2)}):
        safetensors.torch.save_file(tensors, path)
        assert refused(load_file, path)
        assert_alike(lambda: safetensors.torch.load_file(path))


def with_header(header: Any, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(begin: int, end: int, shape: list[int], dtype: str = "U8") -> Any:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


TWICE = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}'


def test_damaged_safetensors(tmp_path: Path) -> None:
    path, huge = tmp_path / "x.safetensors", 2**63 - 1
    safetensors.torch.save_file({"a": torch.arange(3), "b": torch.ones(2, 2)}, path, {"k": "v"})
    damaged = [
        *damages(path.read_bytes(), random.Random(5), flips=4),
        with_header({"a": entry(0, 4, [4]), "b": entry(4, 6, [2])}, b"abcdef"),
        with_header({"a": entry(4, 8, [4]), "b": entry(0, 4, [4])}, b"abcdefgh"),
        with_header({"a": entry(0, 4, [4]), "b": entry(0, 4, [4])}, b"abcd"),
        with_header({"a": entry(0, 4, [5])}, b"abcd"),
        with_header({"a": entry(0, huge, [huge])}, b"abcd"),
        with_header({"a": entry(0, 4, [2**62, 4, 4])}, b"abcd"),
        with_header({"a": entry(4, 0, [4])}, b"abcd"),
        with_header({"a": entry(0, 4, [4], "U9")}, b"abcd"),
        with_header({}, b""),
        with_header(b"", b""),
        b"",
        with_header(TWICE, b"ab"),
        struct.pack("<Q", 2**64 - 1) + b"{}",
        struct.pack("<Q", 2**63) + b"{}",
    ]

    def read() -> Any:
        try:
            return safetensors.torch.load_file(path)
        except safetensors.SafetensorError as error:  # which names one of several tensors, in no order
            raise ValueError(str(error).partition("`")[0]) from error

    for one in damaged:
        path.write_bytes(one)
        assert_alike(read)
