"""Row 4: one flipped bit anywhere in a shard, its index or description, a loose `.pt` file, a cached copy or a ledger.

Each is detected, with the name of shard, file or sample, or lies where no reader looks; never wrong data. This check is
on by default; `Shards(verify=False)` and `TensorFolder(verify=False)` switch it off. A ledger has no checksums: it is
refused, with its name, or differs from any other ledger of the run, as `penstock ledger diff` says.
"""

from __future__ import annotations

import random
import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penstock
from penstock.state import ledger
from tests.data import tensor_files, write_photos, write_tensors
from tests.faults import caches
from tests.faults.conftest import Count
from tests.packing.packed import flip_bit
from tests.same import assert_same

Read = Callable[[Path], list[Any]]


def read_shards(folder: Path) -> list[Any]:
    return list(penstock.DataLoader(penstock.Shards(folder), batch_size=50))


def read_tensors(folder: Path) -> list[Any]:
    return list(penstock.DataLoader(penstock.TensorFolder(folder), batch_size=5))


def packed_photos(folder: Path) -> Read:
    photos = penstock.ImageFolder(write_photos(folder.parent / "photos"), transform=_array)
    penstock.pack(photos, folder, shard_size=30_000)
    return lambda out: list(penstock.DataLoader(penstock.Shards(out, transform=_array), batch_size=1))


def packed_tensors(folder: Path) -> Read:
    """Pack more samples than the ends of the index hold."""
    labels = {f"id-{number}": number % 7 for number in range(4000)}
    source = write_tensors(folder.parent / "tensors", count=4000)
    penstock.pack(penstock.TensorFolder(source, labels=labels), folder, shard_size="4MiB")
    return read_shards


def loose(folder: Path) -> Read:
    tensor_files(folder, 10, (7, 5))
    return read_tensors


def _array(image: Any) -> Any:
    return torch.frombuffer(bytearray(image.convert("RGB").resize((8, 8)).tobytes()), dtype=torch.uint8)


@pytest.mark.parametrize(("make", "share"), [(packed_photos, 0.3), (packed_tensors, 0.4), (loose, 0.3)])
@pytest.mark.timeout(3000)
def test_never_wrong_data(make: Callable[[Path], Read], share: float, tmp_path: Path, tries: Count) -> None:
    folder = tmp_path / "data"
    read = make(folder)
    wanted = read(folder)
    random_ = random.Random(7)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    found: Counter[str] = Counter()
    for number in range(tries(12, int(1000 * share))):
        path = files[number % len(files)]
        at = random_.randrange(path.stat().st_size)
        flip_bit(path, at)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert_same(read(folder), wanted)
            found["unread"] += 1
        except penstock.PenstockError as error:
            assert path.name in str(error) or path.stem in str(error), (path, at, error)
            found[type(error).__name__] += 1
        flip_bit(path, at)
    assert_same(read(folder), wanted)
    assert found.total() > found["unread"], found


def test_ledgers(tmp_path: Path, tries: Count) -> None:
    good, path = tmp_path / "good", tmp_path / "flipped"
    loader = penstock.DataLoader(penstock.Arrays(np.arange(40)), batch_size=4, seed=5, shuffle=True, ledger=good)
    for _ in range(3):
        list(loader)
    wanted, random_, found = ledger.read(good), random.Random(7), Counter[str]()
    bits = [(at, bit) for at in range(good.stat().st_size) for bit in range(8)]
    for at, bit in random_.sample(bits, tries(200, len(bits))):
        data = bytearray(good.read_bytes())
        data[at] ^= 1 << bit
        path.write_bytes(data)
        try:
            compared = ledger.compare(wanted, ledger.read(path))
            assert compared.at or compared.since or compared.facts, (at, bit)
            found["differs"] += 1
        except penstock.InvalidOption as error:
            assert str(path) in str(error)
            found["refused"] += 1
    assert len(found) == 2


@pytest.mark.timeout(3000)
def test_cached_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tries: Count) -> None:
    random_, home = random.Random(7), tmp_path / "home"
    with caches.made("files", tmp_path / "data", monkeypatch) as cache:
        cache.read(home)
        shutil.copytree(home, tmp_path / "good")
        files = sorted(path for path in home.rglob("*") if path.is_file())
        for number in range(tries(10, 200)):
            path = files[number % len(files)]
            flip_bit(path, random_.randrange(path.stat().st_size))
            assert cache.read(home) == cache.wanted
            shutil.rmtree(home)
            shutil.copytree(tmp_path / "good", home)
