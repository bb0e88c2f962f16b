"""The bytes of one sample: a file, a part of a file and memory are read alike."""

import errno
import os

import numpy as np
import pytest

import penstock._native as _native
from tests.native_testing import SampleFile

pytestmark = pytest.mark.native

CONTENT = bytes(range(256)) * 40


@pytest.fixture(params=["whole", "part", "checked", "memory"])
def sample(request, tmp_path):
    """Return CONTENT as a SampleFile of each kind."""
    path = tmp_path / "file"
    if request.param == "memory":
        return SampleFile.memory(CONTENT)
    if request.param == "whole":
        path.write_bytes(CONTENT)
        return SampleFile.whole(str(path))
    path.write_bytes(b"x" * 1000 + CONTENT + b"y" * 1000)
    if request.param == "checked":
        return SampleFile.checked(str(path), 1000, len(CONTENT), _native.crc32c(CONTENT))
    return SampleFile.part(str(path), 1000, len(CONTENT))


@pytest.mark.parametrize("offset", [0, 1, 255, len(CONTENT) - 1, len(CONTENT), len(CONTENT) + 1, 2**62])
@pytest.mark.parametrize("rooms", [[0], [10], [1, 2, 3], [100, 0, 10_000], [2_000, 2_000, 2_000, 50_000]])
def test_a_read_gives_what_lies_there_and_ends_with_the_sample(sample, rooms, offset):
    assert sample.readv(rooms, offset) == CONTENT[offset : offset + sum(rooms)]


@pytest.mark.parametrize("bytes", [0, 1, len(CONTENT), len(CONTENT) + 1, 100_000])
def test_a_long_read_ends_with_the_sample(sample, bytes):
    assert sample.read(bytes, 0) == CONTENT[:bytes]
    assert sample.size() == len(CONTENT)


def test_a_part_past_the_end_of_its_file_is_short(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    assert SampleFile.part(str(path), 5, 100).read(100, 0) == b"56789"
    assert SampleFile.part(str(path), 5, 100).size() == 100  # whoever reads it finds it truncated
    assert SampleFile.part(str(path), 2**63, 2**63).read(10, 0) == b""
    assert SampleFile.part(str(path), 0, 2**64 - 1).read(100, 2**63 + 5) == b""


LONG = np.random.default_rng(0).bytes(1_000_003)


@pytest.mark.parametrize("rooms", [[len(LONG)], [100, 999_000, 5_000], [0, 300_000, 300_000, 500_000], [len(LONG) + 9]])
def test_a_checksum_is_compared_where_the_bytes_are_put(tmp_path, rooms):
    path = tmp_path / "file"
    path.write_bytes(b"before" + LONG + b"behind")
    crc = _native.crc32c(LONG)
    assert SampleFile.checked(str(path), 6, len(LONG), crc).readv(rooms, 0) == LONG
    with pytest.raises(OSError) as caught:
        SampleFile.checked(str(path), 6, len(LONG), crc ^ 1).readv(rooms, 0)
    assert caught.value.errno == errno.EBADMSG


@pytest.mark.parametrize(("rooms", "offset"), [([10], 0), ([5, 5], 7), ([2_000_000], 1), ([1], 2**62), ([], 0)])
def test_no_byte_is_given_before_its_checksum_was_compared(tmp_path, rooms, offset):
    path = tmp_path / "file"
    path.write_bytes(LONG)
    crc = _native.crc32c(LONG)
    sample = SampleFile.checked(str(path), 0, len(LONG), crc)
    assert sample.readv(rooms, offset) == LONG[offset : offset + sum(rooms)]
    path.write_bytes(b"")
    assert sample.read(len(LONG), 0) == LONG  # it is in memory
    for content in (LONG[:-1], LONG[:-1] + bytes([LONG[-1] ^ 128]), b""):
        path.write_bytes(content)
        damaged = SampleFile.checked(str(path), 0, len(LONG), crc)
        for _ in range(2):
            with pytest.raises(OSError):
                damaged.readv(rooms, offset)
            with pytest.raises(OSError):
                damaged.read(5, 0)


def test_what_is_no_regular_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    folder, pipe = SampleFile.whole(str(tmp_path)), SampleFile.whole(str(tmp_path / "pipe"))
    for call, error, words in (
        (folder.size, IsADirectoryError, None),
        (lambda: folder.read(1, 0), IsADirectoryError, None),
        (pipe.size, ValueError, "not a regular file"),
        (lambda: pipe.read(1, 0), OSError, os.strerror(errno.ESPIPE)),
    ):
        with pytest.raises(error, match=words):
            call()


def test_an_empty_sample(tmp_path):
    path = tmp_path / "empty"
    path.touch()
    files = [SampleFile.whole(str(path)), SampleFile.part(str(path), 0, 0), SampleFile.checked(str(path), 0, 0, 0)]
    for sample in (SampleFile.memory(b""), *files):
        assert (sample.size(), sample.readv([5, 5], 0)) == (0, b"")
