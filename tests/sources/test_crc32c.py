"""CRC-32C: the published vectors, all ways alike, in parts, at any alignment; and rows of a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import penstock._native as _native
from tests.native_testing import crc32c_by, crc_ways

pytestmark = pytest.mark.native

#: RFC 3720, appendix B.4; and the check value of the catalogue of parametrised CRCs (CRC-32/ISCSI).
VECTORS = [
    (b"", 0),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
]


@pytest.mark.parametrize("way", [*crc_ways(), None])
@pytest.mark.parametrize(("data", "expected"), VECTORS)
def test_published_vectors(way: str | None, data: bytes, expected: int) -> None:
    assert (_native.crc32c(data) if way is None else crc32c_by(way, data)) == expected


@pytest.mark.parametrize("way", crc_ways())
def test_every_length_and_alignment(way: str) -> None:
    data = np.random.default_rng(0).integers(0, 256, 30_000, np.uint8).tobytes()
    for length in [*range(70), 255, 256, 767, 768, 769, 1536, 12_287, 12_288, 12_289, 25_000]:
        for start in range(3):
            part = data[start : start + length]
            assert crc32c_by(way, part) == crc32c_by("portable", part), (length, start)
            half = length // 3
            assert crc32c_by(way, part[half:], crc32c_by(way, part[:half])) == crc32c_by(way, part)


def test_any_buffer() -> None:
    data = bytes(range(256)) * 200
    views = (bytearray(data), memoryview(data), np.frombuffer(data, np.uint8), np.frombuffer(data, np.float64))
    assert {_native.crc32c(view) for view in views} == {_native.crc32c(data)}
    with pytest.raises(TypeError):
        _native.crc32c("text")  # type: ignore[arg-type]


def test_rows(tmp_path: Path) -> None:
    rows = np.arange(60, dtype=np.uint8).reshape(20, 3)
    (tmp_path / "rows").write_bytes(b"head" + rows.tobytes())
    with open(tmp_path / "rows", "rb") as file:
        table = _native.RowFile(file.fileno(), 4, 3, 20)
    out = np.empty((3, 3), np.uint8)
    table.read(np.array([19, 0, 7]), out)
    assert np.array_equal(out, rows[[19, 0, 7]])
    for wrong in (20, -1, 1 << 62):
        with pytest.raises(IndexError):
            table.read(np.array([0, 1, wrong]), out)
    with pytest.raises(ValueError, match="another number of rows"):
        table.read(np.array([0]), out)
    (tmp_path / "rows").write_bytes(b"head")  # cut off meanwhile
    with pytest.raises(OSError, match="No data"):
        table.read(np.array([0, 1, 2]), out)


def test_rows_that_no_file_can_hold(tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(b"")
    with open(tmp_path / "rows", "rb") as file, pytest.raises(ValueError, match="no file"):
        _native.RowFile(file.fileno(), 4, 1 << 40, 1 << 40)
