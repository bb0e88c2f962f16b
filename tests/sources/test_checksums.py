"""Damaged files: a bit that flipped, or an end that is missing, is an error however they are read; and CRC-32C."""

from __future__ import annotations

import io
import random
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penstock
from tests.corrupt import Archive, archive_of, npy, saved
from tests.data import tensor_files
from tests.native_testing import crc32_by, crc32c_by, crc_ways
from tests.same import assert_same

pytestmark = pytest.mark.native

#: Where each kind of file is hit: inside its elements.
KINDS: dict[str, Callable[[int], torch.Tensor]] = {
    "small": lambda i: torch.full((300,), float(i)),
    "strided": lambda i: (torch.arange(300.0) + i).reshape(20, 15).t(),
    "view": lambda i: (torch.arange(900.0) + i)[300:600],
    "large": lambda i: torch.full((400_000,), float(i)),  # over 1 MiB: read in parts
    "large-strided": lambda i: (torch.arange(400_000.0) + i).reshape(400, 1000).t(),
    "large-view": lambda i: (torch.arange(400_000.0) + i)[1000:2000],
    "empty-view": lambda i: (torch.arange(300.0) + i)[7:7],
    "bytes": lambda i: torch.full((5,), i, dtype=torch.uint8),
}


#: RFC 3720, appendix B.4; and the check values of the catalogue of parametrised CRCs (CRC-32 and CRC-32/ISCSI).
KNOWN: dict[Any, dict[bytes, int]] = {
    crc32_by: {
        b"": 0, b"a": 0xE8B7BE43, b"123456789": 0xCBF43926, bytes(32): 0x190A55AD, b"\xff" * 32: 0xFF6CAB0B,
        b"The quick brown fox jumps over the lazy dog": 0x414FA339, bytes(1 << 20): zlib.crc32(bytes(1 << 20)),
    },
    crc32c_by: {
        b"": 0, b"123456789": 0xE3069283, bytes(32): 0x8A9136AA, b"\xff" * 32: 0x62A8AB43,
        bytes(range(32)): 0x46DD794E, bytes(range(31, -1, -1)): 0x113FDB5C,
    },
}  # fmt: skip


@pytest.mark.parametrize("way", crc_ways())
@pytest.mark.parametrize("crc_by", KNOWN, ids=["CRC-32", "CRC-32C"])
def test_checksums(crc_by: Any, way: str) -> None:
    """Known answers; and any length, alignment and split, against zlib and the portable way."""
    for data, answer in KNOWN[crc_by].items():
        assert crc_by(way, data) == answer
    theirs: Any = zlib.crc32 if crc_by is crc32_by else partial(crc32c_by, "portable")
    rng = random.Random(5)
    data = rng.randbytes(30_000)
    for length in [*range(300), 600, 767, 768, 769, 1536, 12_287, 12_288, 12_289, 25_000]:
        for start in (0, 1, 2, 3, 8, 15, 31, 33):
            part = data[start : start + length]
            assert crc_by(way, part) == theirs(part), (length, start)
    for _ in range(300):
        data = rng.randbytes(rng.choice([10, 100, 1000, 10_000]))
        before = rng.randrange(1 << 32)
        split, at = before, 0
        while at < len(data):
            end = at + rng.randint(0, max(1, len(data) // 3))
            split = crc_by(way, data[at:end], split)
            at = end
        assert split == theirs(data, before)


def place_of(file: bytes, record: str) -> tuple[int, int]:
    """Where a record's contents begin, and how many bytes they have."""
    with zipfile.ZipFile(io.BytesIO(file)) as archive:
        info = next(i for i in archive.infolist() if i.filename.partition("/")[2] == record)
    return info.header_offset + 30 + sum(struct.unpack_from("<HH", file, info.header_offset + 26)), info.file_size


def flipped(file: bytes, record: str, bit: int = 3, at: float = 0.5) -> bytes:
    """The file with one bit of a record's contents flipped."""
    begin, size = place_of(file, record)
    data = bytearray(file)
    data[begin + int(size * at)] ^= 1 << bit
    return bytes(data)


def with_other_checksum(file: bytes) -> bytes:
    """The file with one bit of the elements' checksum flipped."""
    data = bytearray(file)
    data[file.rindex(b"PK\1\2", 0, file.rindex(b"archive/data/0")) + 16] ^= 4
    return bytes(data)


def full(number: int) -> torch.Tensor:
    return torch.full((300,), float(number))


def assert_corrupt(read: Callable[[], Any], record: str = "data/0") -> None:
    """Assert that a read fails by the checksum of a record."""
    with pytest.raises(penstock.CorruptSample, match=f"the CRC-32 of {record} is"):
        read()


def routes(dataset: penstock.TensorFolder, other: penstock.TensorFolder) -> list[Callable[[], Any]]:
    """The ways that read files: `other` is the dataset with a transform, which Python calls."""
    loader: Any = penstock.DataLoader
    return [
        *(partial(list, loader(dataset, batch_size=4, num_workers=workers)) for workers in (0, 2)),
        partial(list, loader(dataset, batch_size=None, num_workers=0)),
        partial(list, loader(dataset, batch_size=4, collate_fn=list, num_workers=0)),
        partial(list, loader(other, batch_size=4, num_workers=0)),
        partial(list, loader(other, batch_size=4, num_workers=2, worker_method="thread")),
        lambda: [dataset[i] for i in range(len(dataset))],
    ]


def doubled(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit(kind: str, tmp_path: Path) -> None:
    for i in range(8):
        (tmp_path / f"{i}.pt").write_bytes(saved(KINDS[kind](i)))
    dataset = penstock.TensorFolder(tmp_path)
    ways = routes(dataset, penstock.TensorFolder(tmp_path, transform=doubled))
    for read in ways:
        read()  # the good files pass
    path = tmp_path / "5.pt"
    good = path.read_bytes()
    for record, bit, at in (("data/0", 0, 0.0), ("data/0", 7, 0.9999999), ("data.pkl", 0, 0.999)):
        path.write_bytes(flipped(good, record, bit, at))
        assert_corrupt(ways[0], record)
    path.write_bytes(flipped(good, "data/0"))
    torch.load(path)  # does not notice
    said = (
        f"sample '5' ({path}) cannot be read as a tensor: the CRC-32 of data/0 is not the one in the file: its content "
    )
    for read in ways:
        with pytest.raises(penstock.CorruptSample, match=re.escape(said)) as caught:
            read()
        assert (caught.value.sample_id, caught.value.path) == ("5", str(path))
        assert "has changed since it was written; write it again with torch.save" in str(caught.value)


def test_a_flipped_bit_in_worker_processes(tmp_path: Path) -> None:
    tensor_files(tmp_path, 4, (300,), "{}")
    (tmp_path / "2.pt").write_bytes(flipped((tmp_path / "2.pt").read_bytes(), "data/0"))
    dataset = penstock.TensorFolder(tmp_path, transform=doubled)
    methods: list[Any] = ["process", None]
    for method in methods:
        assert_corrupt(partial(list, penstock.DataLoader(dataset, num_workers=1, worker_method=method)))


def test_a_pickle_that_was_changed(tmp_path: Path) -> None:
    """float32 became int32 by one bit, which torch.load takes; and a pickle that torch.load refuses."""
    good = saved(torch.ones(12))
    pickle = archive_of(good).pickle
    (tmp_path / "a.pt").write_bytes(good.replace(pickle, pickle.replace(b"K\x0c\x85", b"K\x0b\x85")))
    assert torch.load(tmp_path / "a.pt").shape == (11,)
    (tmp_path / "b.pt").write_bytes(flipped(good, "data.pkl", 0, 0.5))
    with pytest.raises(Exception):  # noqa: B017  whatever torch raises
        torch.load(tmp_path / "b.pt")
    for name in "ab":
        for workers in (0, 1):
            loader: Any = penstock.DataLoader(penstock.TensorFolder(tmp_path, [name]), num_workers=workers)
            assert_corrupt(partial(list, loader), r"data\.pkl")


def reads_as_torch_does(folder: Path) -> None:
    dataset = penstock.TensorFolder(folder)
    want = [torch.load(folder / f"{name}.pt") for name in dataset.ids]
    for workers in (0, 2):
        assert_same(list(penstock.DataLoader(dataset, batch_size=None, num_workers=workers)), want)
        batches = list(penstock.DataLoader(dataset, batch_size=2, num_workers=workers))
        assert_same(torch.cat(batches), torch.stack(want))
    assert_same([dataset[i] for i in range(len(want))], want)


def test_files_without_checksums(tmp_path: Path) -> None:
    """torch.save may leave them out, which it writes as 0: nothing is checked then."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        tensor_files(tmp_path, 6, (300,), "{}")
    finally:
        torch.serialization.set_crc32_options(before)
    with zipfile.ZipFile(tmp_path / "3.pt") as archive:
        assert archive.testzip() is not None  # zipfile takes 0 for a checksum
    reads_as_torch_does(tmp_path)


def test_elements_that_were_filled_in_later(tmp_path: Path) -> None:
    """torch.serialization.skip_data() leaves room for them, and their checksum 0."""
    for i in range(4):
        path = tmp_path / f"{i}.pt"
        with torch.serialization.skip_data():
            torch.save(torch.zeros(300), path)
        with path.open("r+b") as file:
            file.seek(place_of(path.read_bytes(), "data/0")[0])
            file.write(full(i).numpy().tobytes())
    reads_as_torch_does(tmp_path)


def test_a_directory_that_was_changed(tmp_path: Path) -> None:
    """A bit that flipped in the checksum itself is a change too."""
    tensor_files(tmp_path, 4, (300,), "{}")
    (tmp_path / "2.pt").write_bytes(with_other_checksum(saved(full(2))))
    for read in routes(penstock.TensorFolder(tmp_path), penstock.TensorFolder(tmp_path, transform=doubled)):
        assert_corrupt(read)


def test_a_compressed_archive(tmp_path: Path) -> None:
    """Records that another program has compressed are Python's to read, and to check."""
    for i in range(4):
        with (
            zipfile.ZipFile(io.BytesIO(saved(full(i)))) as old,
            zipfile.ZipFile(tmp_path / f"{i}.pt", "w", zipfile.ZIP_DEFLATED) as new,
        ):
            for name in old.namelist():
                new.writestr(name, old.read(name))
    reads_as_torch_does(tmp_path)
    # What zlib unpacks cannot be damaged so that it does not notice: the checksum is.
    (tmp_path / "2.pt").write_bytes(with_other_checksum((tmp_path / "2.pt").read_bytes()))
    assert_corrupt(lambda: penstock.TensorFolder(tmp_path)[2])


def test_archives_of_other_writers(tmp_path: Path) -> None:
    """Records in another order, and what zipfile cannot read: no proof of damage."""
    good = archive_of(saved(full(1)))
    (tmp_path / "0.pt").write_bytes(Archive(tuple(reversed(good.records))).file())
    (tmp_path / "1.pt").write_bytes(good.edit(b".data/serialization_id", data=b"\xff").file())
    (tmp_path / "2.pt").write_bytes(saved(full(2), _use_new_zipfile_serialization=False))
    dataset = penstock.TensorFolder(tmp_path, ["0", "2"])
    assert [float(row[0]) for row in penstock.DataLoader(dataset, batch_size=None)] == [1.0, 2.0]


def messages(folder: Path, suffix: str = ".pt") -> Iterator[str]:
    """Yield what each way of reading says of the one file of a folder."""
    for read in routes(*(penstock.TensorFolder(folder, ["x"], suffix=suffix, transform=f) for f in (None, doubled))):
        with pytest.raises(penstock.CorruptSample) as caught:
            read()
        assert (caught.value.sample_id, caught.value.path) == ("x", str(folder / f"x{suffix}"))
        assert "Invalid argument" not in str(caught.value) and ".;" not in str(caught.value)
        yield str(caught.value)


WHOLE = saved(torch.arange(1000.0))
STRIDED = saved(torch.arange(1000.0).reshape(20, 50).t())
BEGIN = WHOLE.index(torch.arange(1000.0).numpy().tobytes()[:64])
CUTS = {"1-byte": 1, "magic": 4, "in-the-pickle": 100, "in-the-elements": BEGIN + 2000, "last-byte": len(WHOLE) - 1}
OLD = saved(torch.arange(100.0), _use_new_zipfile_serialization=False)
NPY = npy(np.arange(100.0))
CUT_OFF = ("was it cut off",)
#: By name: the suffix, the content, and what is said beside its size.
CUT_FILES: dict[str, tuple[str, bytes, tuple[str, ...]]] = {
    **{name: (".pt", WHOLE[:cut], (*CUT_OFF, "torch.save(tensor, path)")) for name, cut in CUTS.items()},
    **{f"before torch 1.6, {length}": (".pt", OLD[:length], CUT_OFF) for length in (1, 90, 400)},
    **{f"npy, {length}": (".npy", NPY[:length], ()) for length in (3, 8, 60, 300, 927)},
    **{f"empty, {suffix}": (suffix, b"", ("is an empty file; write it again",)) for suffix in (".pt", ".npy")},
}


@pytest.mark.parametrize("name", CUT_FILES)
def test_a_file_that_was_cut_off(name: str, tmp_path: Path) -> None:
    suffix, content, words = CUT_FILES[name]
    size = [f"it has {len(content):,} byte"] if content else []
    (tmp_path / f"x{suffix}").write_bytes(content)
    for said in messages(tmp_path, suffix):
        assert all(text in said for text in (*words, *size)), said
    if suffix == ".npy" and content:
        with pytest.raises(penstock.CorruptSample, match=f"it has {len(content)} bytes") as caught:
            penstock.Arrays(tmp_path / "x.npy")
        assert isinstance(caught.value, type(caught.value.__cause__))


def test_every_cut(tmp_path: Path) -> None:
    """And what torch.load raises is a class of ours."""
    dataset = penstock.TensorFolder(tmp_path, ["x"])
    loader: Any = penstock.DataLoader(dataset, num_workers=0)
    for file in (WHOLE, STRIDED):
        for length in (*range(1, len(file), 97), *range(len(file) - 30, len(file))):
            (tmp_path / "x.pt").write_bytes(file[:length])
            with pytest.raises(Exception) as theirs:
                torch.load(tmp_path / "x.pt")
            with pytest.raises(type(theirs.value), match="was it cut off"):
                list(loader)
