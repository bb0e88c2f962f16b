"""The file of an index of JPEG decoder states: damaged, cut off, foreign, torn or full, it costs no wrong pixel."""

from __future__ import annotations

import errno
import os
import resource
import signal
from pathlib import Path

import numpy as np
import pytest

import penstock._native as _native
from tests.forking import assert_in_child
from tests.indexed_photos import LOW, Reader, encoded

pytestmark = pytest.mark.native


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    """Photos and an index of them, from which they were read."""
    made = Reader(tmp_path)
    made.check(made.open())
    return made


def test_every_byte_that_is_flipped(reader: Reader) -> None:
    whole = reader.path.read_bytes()
    wrong = reused = 0
    for at in (*range(128), *range(4096, len(whole))):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(whole)
            damaged[at] ^= flip
            reader.path.write_bytes(damaged)
            try:
                index = reader.open()
            except ValueError:  # the header: whoever opens it makes a new one
                assert at < 64
                continue
            for _ in range(2):
                reader.check(index)
            _, _, hits, changed, error = index.counts()
            assert error == 0 and hits >= 3
            wrong += changed
            reused += hits
    assert wrong > 0 and reused > wrong


@pytest.mark.parametrize("size", [0, 1, 63, 64, 4095, 4096, 4200])
def test_an_index_that_is_cut_off(size: int, reader: Reader) -> None:
    os.truncate(reader.path, size)
    if 0 < size < 64:
        with pytest.raises(ValueError, match="not an index"):
            reader.open()
        return
    index = reader.open()
    for _ in range(2):
        reader.check(index)
    assert index.counts()[0] == 3
    os.truncate(reader.path, size)  # while it is open
    reader.check(index)


def test_random_bytes_for_slots(reader: Reader) -> None:
    whole = reader.path.read_bytes()
    for seed in range(50):
        noise = np.random.default_rng(seed).bytes(len(whole) - 4096)
        reader.path.write_bytes(whole[:4096] + noise)
        reader.check(reader.open())


def test_an_index_of_other_photos(tmp_path: Path) -> None:
    one, other = Reader(tmp_path / "one"), Reader(tmp_path / "other", LOW)
    one.check(one.open())
    other.path.write_bytes(one.path.read_bytes())
    other.check(other.open())  # the same photos, of which more rows are known in the end
    Path(other.dataset.root, "class", "0.jpg").write_bytes(encoded(7, subsampling=0))
    other.wanted = [np.asarray(other.dataset[i][0]) for i in range(3)]
    index = other.open()
    other.check(index)
    assert index.counts()[3] == 1


def test_forms_that_are_no_index(reader: Reader) -> None:
    descriptor = os.open(reader.path, os.O_RDWR)
    foreign, sizes = [(4, 96), (3, 64), (3, 512)], [(3, slot) for slot in (0, 31, 513, 1 << 31)]
    for samples, slot in (*foreign, *sizes):
        with pytest.raises(ValueError, match="not an index" if (samples, slot) in foreign else "slot"):
            _native.JpegIndex(descriptor, samples, slot, True)
    with pytest.raises(ValueError, match="more samples"):
        _native.JpegIndex.file_bytes(1 << 62, 64)
    os.close(descriptor)
    with pytest.raises(OSError, match="Bad file"):
        _native.JpegIndex(descriptor, 3, 96, True)


def test_an_index_that_is_only_read(reader: Reader, tmp_path: Path) -> None:
    before = reader.path.read_bytes()
    index = reader.open(writable=False)
    reader.check(index)
    assert index.counts()[2:] == (3, 0, 0)
    more = Reader(tmp_path, LOW)
    more.check(more.open(writable=False))
    assert reader.path.read_bytes() == before


@pytest.mark.parametrize("slot", [32, 64, 128, 512])
def test_slots_that_are_too_small_for_every_row(slot: int, tmp_path: Path) -> None:
    reader = Reader(tmp_path, slot=slot)
    index = reader.open()
    for _ in range(3):
        reader.check(index)
    assert index.counts()[0] == 3
    assert index.counts()[2] == (0 if slot == 32 else 6)  # of two states none lies above the crop
    assert reader.path.stat().st_size == _native.JpegIndex.file_bytes(3, slot)


def test_a_slot_that_was_written_in_part(reader: Reader, tmp_path: Path) -> None:
    whole = reader.path.read_bytes()
    more = Reader(tmp_path, LOW)
    more.check(more.open())
    after = reader.path.read_bytes()
    for written in range(4096, len(whole), 5):
        reader.path.write_bytes(after[:written] + whole[written:])
        for one in (reader, more):
            one.check(one.open())


def test_a_disk_that_becomes_full(tmp_path: Path) -> None:
    """A file may not become longer than the limit of its process: a write then fails, as it does on a full disk."""
    reader = Reader(tmp_path)
    reader.open()

    def reads() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        index = reader.open()
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        reader.check(index)
        reader.check(index)
        files, _, _, _, error = index.counts()
        assert files == 0 and error == errno.EFBIG

    assert_in_child(reads)
