"""The native readers of .pt and .npy files: torch.load(weights_only=True) and numpy.load are the oracle."""

import os
import struct
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.corrupt import Archive, Record, archive_of, npy, npy_with_header, oracle, raw, saved, tensor_files
from tests.native_testing import TensorReader, parse_tensor, probe

DTYPES = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64,
    torch.bfloat16, torch.bool, torch.complex32, torch.complex64, torch.complex128, torch.uint16, torch.uint32,
    torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,

]  # fmt: skip
if hasattr(torch, "float8_e8m0fnu"):  # of torch 2.7
    DTYPES.append(torch.float8_e8m0fnu)
NPY_DTYPES = ["|u1", "|i1", "|b1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8", "<c8", "<c16"]
BAD_FILES = tensor_files()

pytestmark = [
    pytest.mark.native,
    # torch warns once that ComplexHalf is experimental.
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning"),
]


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def filled(count: int, dtype: torch.dtype) -> torch.Tensor:
    """`count` elements, bytes all different from their neighbours (bool: 0 and 1)."""
    data = torch.arange(count * dtype.itemsize, dtype=torch.int64) * 37 % 251
    return (data % 2 if dtype == torch.bool else data).to(torch.uint8).view(dtype)


def check_read(reader: TensorReader, path: Path, want: torch.Tensor, name_length: int = 1) -> None:
    spec = name_of(want.dtype), tuple(want.shape)
    assert probe(str(path)) == spec
    assert reader.read(str(path), name_length, *spec) == raw(want)


def check_file(file: bytes, tmp_path: Path) -> None:
    """The file is read natively, by the careful path and by the predicted one, as Python reads it."""
    want = oracle(file)
    layout = parse_tensor(file)
    assert isinstance(layout, dict), layout
    assert (layout["dtype"], layout["shape"]) == (name_of(want.dtype), tuple(want.shape))
    assert layout["contiguous"] == (want.is_contiguous() or want.numel() == 0)
    path = tmp_path / "x.pt"
    path.write_bytes(file)
    reader = TensorReader()
    for _ in range(2):
        check_read(reader, path, want)
    # A storage that goes on for long after the view is not worth predicting.
    assert reader.predicted == int(layout["contiguous"] and len(file) - layout["offset"] - layout["reach"] < 60_000)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_every_dtype_of_torch(dtype: torch.dtype, tmp_path: Path) -> None:
    for shape in ((), (0,), (7,), (3, 4), (2, 0, 3), (1, 5, 1), (2, 3, 1, 2, 1, 2, 1, 2)):
        check_file(saved(filled(int(np.prod(shape)), dtype).reshape(shape)), tmp_path)


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.t(), lambda t: t[1:], lambda t: t[:, 2:], lambda t: t[3], lambda t: t[:, 3], lambda t: t[::2, ::3],
        lambda t: t[:1].expand(5, -1), lambda t: t[2:3, 2:3], lambda t: t[6:6], lambda t: t[5, 7],
        lambda t: t.unfold(1, 3, 2), lambda t: t.reshape(2, 3, 2, 4).permute(2, 0, 3, 1),
        lambda t: t.t()[None, :, None], lambda t: t[0, 0].expand(2, 3, 4), lambda t: t.t()[:0],
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.int32, torch.int64, torch.complex128], ids=name_of)
def test_views_of_a_larger_storage(view: Any, dtype: torch.dtype, tmp_path: Path) -> None:
    check_file(saved(view(filled(48, dtype).reshape(6, 8))), tmp_path)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_strides_and_offset(data: st.DataObject, tmp_path: Path) -> None:
    dtype = data.draw(st.sampled_from(DTYPES))
    shape = data.draw(st.lists(st.integers(0, 4), max_size=8).map(tuple))
    stride = tuple(data.draw(st.integers(0, 9)) for _ in shape)
    offset = data.draw(st.integers(0, 20))
    reach = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if 0 not in shape else 0
    storage = filled(offset + reach + data.draw(st.integers(0, 5)), dtype)
    check_file(saved(storage.as_strided(shape, stride, offset)), tmp_path)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("descr", NPY_DTYPES)
def test_every_dtype_of_npy(version: tuple[int, int], descr: str, tmp_path: Path) -> None:
    dtype = np.dtype(descr)
    for shape in ((), (0,), (5,), (3, 4), (2, 0, 3), (2, 3, 4, 5)):
        count = int(np.prod(shape))
        array = (np.arange(count * dtype.itemsize) * 37 % (2 if descr == "|b1" else 251)).astype(np.uint8).view(dtype)
        check_file(npy(array.reshape(shape), version), tmp_path)
        check_file(npy(np.asfortranarray(array.reshape(shape)), version), tmp_path)


def test_npy_keys_in_any_order_and_bytes_after_the_data(tmp_path: Path) -> None:
    header = b"{'shape': (3,4), 'fortran_order': True, 'descr': '<f4'}    \n"
    file = npy_with_header(header, np.arange(12, dtype=np.float32).tobytes() + b"more")
    check_file(file, tmp_path)
    check_file(file + bytes(5000), tmp_path)


def test_archives_of_other_writers(tmp_path: Path) -> None:
    good = archive_of(saved(filled(12, torch.float32).reshape(3, 4)))
    sizes = b"XX\1\0y" + struct.pack("<HHQQ", 1, 16, 48, 48)
    elsewhere = good.pickle.replace(b"X\x03\0\0\0cpu", b"X\x06\0\0\0cuda:1")
    assert elsewhere != good.pickle
    for archive in (
        good,
        replace(good, zip64=False),
        good.drop(b"byteorder").drop(b".storage_alignment").drop(b".format_version"),
        Archive(tuple(reversed(good.records))),
        good.edit(b"data/0", local_extra=b"FB" + struct.pack("<H", 5000) + b"Z" * 5000),
        good.plus(Record(b"archive/.note-of-a-later-torch", b"hello")),
        good.edit(b"data/0", size=0xFFFFFFFF, packed=0xFFFFFFFF, extra=sizes),
        good.edit(b"data.pkl", data=elsewhere),
    ):
        check_file(archive.file(), tmp_path)


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_are_left_to_python(name: str, tmp_path: Path) -> None:
    file, reason = BAD_FILES[name]
    given_reason = parse_tensor(file)
    assert isinstance(given_reason, str) and reason in given_reason
    path, good_path = tmp_path / "x", tmp_path / "y"
    good = filled(12, torch.float32).reshape(3, 4)
    path.write_bytes(file)
    good_path.write_bytes(saved(good) if b"NUMPY" not in file[:6] else npy(good.numpy()))
    reader = TensorReader()
    assert probe(str(path)) == ("python", given_reason)
    for _ in range(2):  # nor is it taken for the good file that came before it
        assert reader.read(str(path), 1, "float32", (3, 4)) == ("python", given_reason)
        check_read(reader, good_path, good)


def test_a_file_that_is_not_what_the_last_one_was(tmp_path: Path) -> None:
    reader = TensorReader()
    base = filled(3 * 64 * 64, torch.float32).reshape(3, 64, 64)
    tensors = [
        base, base + 1, base.permute(2, 0, 1), base[1:], base.double(), base.to(torch.int32), base.flatten(), base * 2,
        base.reshape(64, 3, 64), base[0, 0, 0], torch.zeros(0), base.view(torch.uint32), base.expand(2, -1, -1, -1),
    ]  # fmt: skip
    order = [0, 0, 1, 0, 2, 0, 3, 3, 4, 0, 5, 5, 0, 6, 0, 7, 8, 0, 9, 9, 10, 10, 11, 0, 11, 12, 0]
    for i, kind in enumerate(order):
        file = tmp_path / f"{i:03}.pt"
        file.write_bytes(saved(tensors[kind]) if i % 5 else npy(tensors[kind].numpy()))
        if reader.predicted == 0 and i:  # not probed: the predicted read alone must find the difference
            assert reader.read(str(file), 3, "float32", (3, 64, 64)) == raw(base)
        check_read(reader, file, tensors[kind], 3)
        if kind not in (0, 1, 7):
            spec = name_of(tensors[kind].dtype), tuple(tensors[kind].shape)
            expected = raw(tensors[kind]) if spec == ("float32", (3, 64, 64)) else ("mismatch", spec)
            assert reader.read(str(file), 3, "float32", (3, 64, 64)) == expected
    assert reader.predicted > 5


def test_files_of_one_folder_take_one_read_each(tmp_path: Path) -> None:
    reader = TensorReader()
    for i in range(2000, 2020):
        tensor = filled(1000, torch.float32) + i
        torch.save(tensor, tmp_path / f"{i}.pt")
        assert reader.read(str(tmp_path / f"{i}.pt"), 4, "float32", (1000,)) == raw(tensor)
    assert reader.predicted == 19


def test_truncated_everywhere(tmp_path: Path) -> None:
    """A file cut at any byte is never read natively, not even after a good one of the same kind."""
    tensor = filled(12, torch.float32).reshape(3, 4)
    good, cut = tmp_path / "good", tmp_path / "cut"
    for file in (saved(tensor), npy(tensor.numpy())):
        good.write_bytes(file)
        reader = TensorReader()
        for length in range(0, len(file), 3):
            reader.read(str(good), 1, "float32", (3, 4))
            cut.write_bytes(file[:length])
            outcome = reader.read(str(cut), 1, "float32", (3, 4))
            assert isinstance(outcome, tuple) and outcome[0] == "python", length


def test_large_files(tmp_path: Path) -> None:
    reader = TensorReader()
    large = filled(700_000, torch.float32).reshape(700, 1000)  # over 1 MiB: read in parts
    records = archive_of(saved(large)).records
    note = Record(b"archive/.note", bytes(40_000))
    views = [large, large.t(), large[3], large[:, 5], large[10:20], large, large]
    files = [(saved(tensor), tensor) for tensor in views]
    files += [(npy(np.asfortranarray(large.numpy())), large), (Archive(tuple(reversed(records))).file(), large)]
    files += [(Archive((note, *records, replace(note, name=b"archive/.b"))).file(), large)]
    for i, (file, tensor) in enumerate(files):
        (tmp_path / f"{i}.pt").write_bytes(file)
        check_read(reader, tmp_path / f"{i}.pt", tensor)
        assert reader.predicted >= 1 or i < len(views) - 1


def test_a_sparse_file_of_more_than_4_gib(tmp_path: Path) -> None:
    """A view near the end of a storage of 4 GiB and 64 bytes; the file has holes and takes no room on the disk."""
    length = 2**32 + 64
    view = filled(16, torch.uint8)
    small = archive_of(saved(view))
    pickle = small.pickle.replace(b"K\x10tq", b"\x8a\x05" + length.to_bytes(5, "little") + b"tq")
    pickle = pickle.replace(b"QK\x00", b"Q\x8a\x05" + (2**32 + 8).to_bytes(5, "little"))
    extra = struct.pack("<HHQQ", 1, 16, length, length)
    parts = small.edit(b"data.pkl", data=pickle).edit(b"data/0", data=b"", size=0xFFFFFFFF, extra=extra)
    storage = next(r for r in parts.records if r.name == b"archive/data/0")
    file = parts.drop(b"data/0").plus(storage).file()
    # Move all that follows the storage's local header behind the hole.
    split = file.index(b"PK\x03\x04", file.index(b"archive/.data/serialization_id")) + 30 + len(storage.name)
    tail = bytearray(file[split:])
    end64 = tail.index(b"PK\6\6")
    (start,) = struct.unpack_from("<Q", tail, end64 + 48)
    struct.pack_into("<Q", tail, end64 + 48, start + length)
    locator = tail.index(b"PK\6\7")
    struct.pack_into("<Q", tail, locator + 8, split + length + end64)
    tail[-6:-2] = b"\xff" * 4
    path = tmp_path / "x.pt"
    with path.open("wb") as out:
        out.write(file[:split])
        out.seek(split + 2**32 + 8)
        out.write(raw(view))
        out.seek(split + length)
        out.write(tail)
    check_read(TensorReader(), path, view)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(torch.load(path, weights_only=True, mmap=True), view)


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    reader = TensorReader()
    (tmp_path / "good").write_bytes(saved(filled(12, torch.float32)))
    os.mkfifo(tmp_path / "fifo")
    for _ in range(2):  # before and after a prediction exists
        for path, error in ((tmp_path, IsADirectoryError), (tmp_path / "missing", FileNotFoundError)):
            with pytest.raises(error):
                reader.read(str(path), 1, "float32", (12,))
        for path in (tmp_path / "fifo", Path("/dev/zero")):
            assert reader.read(str(path), 1, "float32", (12,)) == ("python", "not a regular file")
        reader.read(str(tmp_path / "good"), 1, "float32", (12,))
