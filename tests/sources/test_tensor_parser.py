"""Tensor files that the native core reads: torch.load(weights_only=True) and numpy.load are the oracle."""

import struct
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

import penstock
from tests.corrupt import Archive, Record, archive_of, npy, npy_with_header, oracle, raw, saved, tensor_files
from tests.hooks.loaded import ARRAY_DTYPES, DTYPES, filled, filled_array
from tests.same import outcomes

ALL_DTYPES = [*DTYPES, torch.complex32]

pytestmark = [
    pytest.mark.native,
    # torch warns once that ComplexHalf is experimental.
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning"),
]


GOOD = filled((3, 4), torch.float32)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def read(folder: Path, files: Sequence[bytes]) -> Iterator[tuple[Any, list[Any]]]:
    """Yield loaders over a folder of these files, each with what one pass gives: a sample or an error for each."""
    for number, file in enumerate(files):
        (folder / f"{number:04}.pt").write_bytes(file)
    dataset = penstock.TensorFolder(folder, [f"{number:04}" for number in range(len(files))])
    for workers in (0, 1, 2):
        loader: Any = penstock.DataLoader(dataset, num_workers=workers)
        yield loader, outcomes(loader)


def assert_equal(found: Any, wanted: torch.Tensor) -> None:
    assert isinstance(found, torch.Tensor), found
    (found,) = found  # a batch of one
    assert (found.dtype, found.shape, raw(found)) == (wanted.dtype, wanted.shape, raw(wanted))


def check(folder: Path, files: Iterable[bytes]) -> None:
    """Assert that files are read as Python reads them, whatever the one before was, and by the native core alone."""
    given = list(files)
    for loader, found in read(folder, given):
        for one, file in zip(found, given, strict=True):
            assert_equal(one, oracle(file))
        assert loader.stats().read_by_python == {}


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=name_of)
def test_every_dtype_of_torch(dtype: torch.dtype, tmp_path: Path) -> None:
    shapes = ((), (0,), (7,), (3, 4), (2, 0, 3), (1, 5, 1), (2, 3, 1, 2, 1, 2, 1, 2))
    check(tmp_path, (saved(filled(shape, dtype)) for shape in shapes))


VIEWS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda t: t.t(), lambda t: t[1:], lambda t: t[:, 2:], lambda t: t[3], lambda t: t[:, 3], lambda t: t[::2, ::3],
    lambda t: t[:1].expand(5, -1), lambda t: t[2:3, 2:3], lambda t: t[6:6], lambda t: t[5, 7],
    lambda t: t.unfold(1, 3, 2), lambda t: t.reshape(2, 3, 2, 4).permute(2, 0, 3, 1),
    lambda t: t.t()[None, :, None], lambda t: t[0, 0].expand(2, 3, 4), lambda t: t.t()[:0],
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.int32, torch.int64, torch.complex128], ids=name_of)
def test_views_of_a_larger_storage(dtype: torch.dtype, tmp_path: Path) -> None:
    check(tmp_path, (saved(view(filled((6, 8), dtype))) for view in VIEWS))


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_strides_and_offset(data: st.DataObject, tmp_path: Path) -> None:
    dtype = data.draw(st.sampled_from(ALL_DTYPES))
    shape = data.draw(st.lists(st.integers(0, 4), max_size=8).map(tuple))
    stride = tuple(data.draw(st.integers(0, 9)) for _ in shape)
    offset = data.draw(st.integers(0, 20))
    reach = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if 0 not in shape else 0
    storage = filled((offset + reach + data.draw(st.integers(0, 5)),), dtype)
    check(tmp_path, [saved(storage.as_strided(shape, stride, offset))])


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("descr", ARRAY_DTYPES)
def test_every_dtype_of_npy(version: tuple[int, int], descr: str, tmp_path: Path) -> None:
    files: list[bytes] = []
    for shape in ((), (0,), (5,), (3, 4), (2, 0, 3), (2, 3, 4, 5)):
        array = filled_array(shape, descr)
        files += [npy(array, version), npy(np.asfortranarray(array), version)]
    check(tmp_path, files)


def test_npy_keys_in_any_order_and_bytes_after_the_data(tmp_path: Path) -> None:
    header = b"{'shape': (3,4), 'fortran_order': True, 'descr': '<f4'}    \n"
    file = npy_with_header(header, np.arange(12, dtype=np.float32).tobytes() + b"more")
    check(tmp_path, [file, file + bytes(5000)])


def test_archives_of_other_writers(tmp_path: Path) -> None:
    good = archive_of(saved(filled((3, 4), torch.float32)))
    sizes = b"XX\1\0y" + struct.pack("<HHQQ", 1, 16, 48, 48)
    elsewhere = good.pickle.replace(b"X\x03\0\0\0cpu", b"X\x06\0\0\0cuda:1")
    assert elsewhere != good.pickle
    archives = (
        good,
        replace(good, zip64=False),
        good.drop(b"byteorder").drop(b".storage_alignment").drop(b".format_version"),
        Archive(tuple(reversed(good.records))),
        good.edit(b"data/0", local_extra=b"FB" + struct.pack("<H", 5000) + b"Z" * 5000),
        good.plus(Record(b"archive/.note-of-a-later-torch", b"hello")),
        good.edit(b"data/0", size=0xFFFFFFFF, packed=0xFFFFFFFF, extra=sizes),
        good.edit(b"data.pkl", data=elsewhere),
    )
    check(tmp_path, (archive.file() for archive in archives))


def cuts() -> Iterator[bytes]:
    """Yield good files that were cut off, at every third byte."""
    for file in (saved(GOOD), npy(GOOD.numpy())):
        yield from (file[:length] for length in range(0, len(file), 3))


@pytest.mark.parametrize("what", ["bad", "cut off"])
def test_bad_files_are_left_to_python(what: str, tmp_path: Path) -> None:
    """Nor is one taken for the good file that came before it."""
    given, reasons = zip(*tensor_files().values(), strict=True) if what == "bad" else (list(cuts()), ())
    good = [saved(GOOD), npy(GOOD.numpy())]
    for loader, found in read(tmp_path, [one for file in given for one in (*good, file)]):
        told = " ".join(loader.stats().read_by_python)
        for number, bad in enumerate(found[2::3]):
            try:
                wanted = loader.dataset[3 * number + 2]
            except Exception as error:
                said = str(error).partition(" at 0x")[0]  # an object's address
                assert bad[0] == type(error).__name__ and bad[1].partition(" at 0x")[0] == said
            else:  # torch takes some files for what they are not: no values to compare
                if isinstance(bad, tuple):  # a dtype that no batch has
                    assert "reshape it, or write your own Dataset" in bad[1]
                    continue
                assert (bad.dtype, bad.shape) == (wanted.dtype, (1, *wanted.shape))
                assert not reasons or reasons[number] in told
        for one in (*found[::3], *found[1::3]):
            assert_equal(one, GOOD)


def test_files_that_are_not_what_the_last_one_was(tmp_path: Path) -> None:
    base = filled((3, 64, 64), torch.float32)
    tensors = [
        base, base + 1, base.permute(2, 0, 1), base[1:], base.double(), base.to(torch.int32), base.flatten(), base * 2,
        base.reshape(64, 3, 64), base[0, 0, 0], torch.zeros(0), base.view(torch.uint32), base.expand(2, -1, -1, -1),
    ]  # fmt: skip
    order = [0, 0, 1, 0, 2, 0, 3, 3, 4, 0, 5, 5, 0, 6, 0, 7, 8, 0, 9, 9, 10, 10, 11, 0, 11, 12, 0]
    check(tmp_path, (saved(tensors[i]) if n % 5 else npy(tensors[i].numpy()) for n, i in enumerate(order)))


def test_large_files(tmp_path: Path) -> None:
    large = filled((700, 1000), torch.float32)  # over 1 MiB: read in parts
    records = archive_of(saved(large)).records
    note = Record(b"archive/.note", bytes(40_000))
    files = [saved(tensor) for tensor in (large, large.t(), large[3], large[:, 5], large[10:20], large, large)]
    files += [npy(np.asfortranarray(large.numpy())), Archive(tuple(reversed(records))).file()]
    check(tmp_path, [*files, Archive((note, *records, replace(note, name=b"archive/.b"))).file()])


def test_a_sparse_file_of_more_than_4_gib(tmp_path: Path) -> None:
    """A view near the end of a storage of 4 GiB and 64 bytes; the file has holes and takes no room on the disk."""
    length = 2**32 + 64
    view = filled((16,), torch.uint8)
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
    for workers in (0, 1):
        loader: Any = penstock.DataLoader(penstock.TensorFolder(tmp_path, ["x"]), num_workers=workers)
        assert_equal(next(iter(loader)), view)
        assert loader.stats().read_by_python == {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(torch.load(path, weights_only=True, mmap=True), view)
