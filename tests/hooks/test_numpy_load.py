"""numpy.load answered natively: numpy.load itself is the oracle."""

from __future__ import annotations

import builtins
import io
import os
import pathlib
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from penstock.hooks.loads import Refused
from penstock.hooks.loads import load_numpy as load
from tests.corrupt import npy, npy_with_header
from tests.hooks.loaded import answered_by, refused_by
from tests.waiting import run_in_threads

DTYPES = ["|u1", "|i1", "|b1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8", "<c8", "<c16"]
SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (5,), (3, 4), (2, 0, 3), (2, 3, 4), (1, 7), (7, 1), (1, 2) * 4]


def filled(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    count = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    data = (np.arange(count) * 37 % 251).astype(np.uint8)
    return np.ascontiguousarray(data % 2 if dtype == "|b1" else data).view(dtype).reshape(shape)


answered = partial(answered_by, load)
refused = partial(refused_by, load)


def assert_equal(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs) is np.ndarray
    assert (ours.dtype, ours.shape, ours.strides) == (theirs.dtype, theirs.shape, theirs.strides)
    assert str(ours.flags) == str(theirs.flags)
    assert (ours.base is None) == (theirs.base is None)
    if ours.base is not None:
        assert type(ours.base) is type(theirs.base) is np.ndarray
        assert (ours.base.shape, str(ours.base.flags)) == (theirs.base.shape, str(theirs.base.flags))
    assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", "CF")
def test_equals_numpy(dtype: str, order: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "ä sample.npy"
    for shape in SHAPES:
        np.save(path, np.asarray(filled(shape, dtype), order=order))  # type: ignore[call-overload]
        theirs = np.load(path)
        for given in (path, str(path), io.BytesIO(path.read_bytes()), str(path)):
            assert_equal(answered(given), theirs)
        assert_equal(answered(str(path), allow_pickle=True), theirs)


def test_versions_of_the_format(tmp_path: pathlib.Path) -> None:
    for version in ((1, 0), (2, 0), (3, 0)):
        content = npy(filled((3, 4), "<f4"), version)
        assert_equal(answered(io.BytesIO(content)), np.load(io.BytesIO(content)))


def test_a_file_object_is_left_where_numpy_leaves_it(tmp_path: pathlib.Path) -> None:
    with open(tmp_path / "three", "wb") as out:
        out.write(b"in front")
        for shape in ((3, 4), (2,), (5, 5)):
            np.save(out, filled(shape, "<f4"))
    content = (tmp_path / "three").read_bytes()
    for make in (lambda: io.BytesIO(content), lambda: open(tmp_path / "three", "rb")):  # noqa: SIM115
        with make() as ours, make() as theirs:
            for opened in (ours, theirs):
                opened.seek(8)
            for _ in range(3):
                assert_equal(answered(ours), np.load(theirs))
                assert ours.tell() == theirs.tell()
            assert refused(ours)
            assert ours.tell() == theirs.tell()


def test_files_after_each_other(tmp_path: pathlib.Path) -> None:
    """A file that is another one than the last led to expect."""
    draw = random.Random(1)
    path = str(tmp_path / "x.npy")
    for _ in range(300):
        array = filled(draw.choice([(3, 4), (4, 3), (12,), (24,), (3,)]), draw.choice(["<f4", "<i4", "<f8", "|u1"]))
        np.save(path, np.asfortranarray(array) if draw.random() < 0.3 else array)
        if draw.random() < 0.1:
            with open(path, "ab") as out:
                out.write(b"more")
        assert_equal(answered(path), np.load(path))


@pytest.mark.parametrize("count", [0, 1, 5000, 50_000, 5_000_000])
def test_sizes(count: int, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.npy"
    for _ in range(2):
        np.save(path, filled((count,), "<f4"))
        assert_equal(answered(path), np.load(path))


REFUSED: dict[str, Callable[[], Any]] = {
    "structured": lambda: np.zeros(3, [("x", "<f4"), ("y", "<i4")]),
    "big-endian": lambda: np.zeros(3, ">f4"),
    "text": lambda: np.array(["a", "bc"]),
    "bytes": lambda: np.array([b"a"]),
    "date": lambda: np.array(["2020-01-01"], "datetime64[D]"),
    "long double": lambda: np.zeros(2, np.longdouble),
    "9-d": lambda: np.zeros((1,) * 9),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_left_to_numpy(name: str) -> None:
    file = io.BytesIO()
    np.save(file, REFUSED[name]())
    file.seek(0)
    assert refused(file)
    assert file.tell() == 0


def test_other_files_and_arguments(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "x.npy")
    np.save(path, np.arange(5))
    np.savez(tmp_path / "x.npz", a=np.arange(5))
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    (tmp_path / "none").touch()
    assert ".npz" in refused(str(tmp_path / "x.npz"))
    for name in ("objects.npy", "none", "missing", ".", "a\0b"):
        assert refused(str(tmp_path / name))
        assert refused(str(tmp_path / name), allow_pickle=True)
    assert refused(os.fsencode(path))
    assert refused(3)
    for options in (
        {"mmap_mode": "r"},
        {"encoding": "latin1"},
        {"encoding": "nonsense"},
        {"fix_imports": False},
        {"max_header_size": 10},
        {"allow_pickle": 1},
    ):
        assert refused(path, **options)
    with monkeypatch.context() as patch:
        patch.setattr(builtins, "open", lambda *_, **__: None)
        assert refused(path)
    assert_equal(answered(path), np.load(path))


def test_damaged_files(tmp_path: pathlib.Path) -> None:
    content = npy(filled((3, 2), "<i2"))
    path = tmp_path / "x.npy"
    path.write_bytes(content)
    answered(str(path))  # what is expected of the next file
    for length in range(len(content)):
        path.write_bytes(content[:length])
        assert refused(str(path))
        assert refused(io.BytesIO(content[:length]))
    count = 0
    for at in range(len(content)):
        for bits in (1, 0x80, 0xFF):
            damaged = bytearray(content)
            damaged[at] ^= bits
            path.write_bytes(damaged)
            for given in (str(path), io.BytesIO(damaged)):
                ours = load(given)
                if type(ours) is not Refused:
                    count += 1
                    assert_equal(ours, np.load(io.BytesIO(damaged)))
    assert count > 0
    for header in (b"{}\n", b"{'descr': '<f4', 'fortran_order': False, 'shape': (4, 9999999999999)}\n"):
        assert refused(io.BytesIO(npy_with_header(header)))


@pytest.mark.native
def test_bytes_at_random_and_threads(tmp_path: pathlib.Path) -> None:
    """No file makes the native core step outside its memory; threads do not see each other's files."""
    draw = random.Random(5)
    content = npy(filled((3, 4), "<f4"))
    for _ in range(1000):
        damaged = bytearray(content)
        for _ in range(draw.randrange(1, 5)):
            damaged[draw.randrange(130)] = draw.choice(b"0123456789<>fiu'(), :\n\x00\xff")
        (tmp_path / "x.npy").write_bytes(damaged)
        load(str(tmp_path / "x.npy"))
        load(io.BytesIO(damaged))
    paths, wanted = [], []
    for i, dtype in enumerate(("<f4", "<f4", "<i8", "|u1")):
        paths.append(str(tmp_path / f"{i}.npy"))
        wanted.append(filled((40, i + 2), dtype))
        np.save(paths[-1], wanted[-1])

    def work(seed: int) -> None:
        for i in random.Random(seed).choices(range(len(paths)), k=200):
            found = answered(paths[i])
            assert (found.tobytes(), found.dtype) == (wanted[i].tobytes(), wanted[i].dtype)

    run_in_threads(4, work)
