"""Row 2: power loss after any system call of a packing.

Every state that the disk may hold then opens as the dataset before or after; packing continues from each and writes the
same bytes; a dataset that `pack` has returned is not lost.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from tests.data import write_photos
from tests.faults import power_loss
from tests.packing.packed import contents


def labels(out: Path, split: str) -> list[int]:
    dataset = penstock.Shards(out, split=split, verify=True)
    return [dataset[index][1] for index in range(len(dataset))]


@pytest.mark.parametrize("before", [[], ["train"]], ids=["nothing", "another split"])
@pytest.mark.timeout(600)
def test_every_state(before: list[str], tmp_path: Path, full: bool, cases: Callable[[int], None]) -> None:
    photos = write_photos(tmp_path / "photos", count=3 if full else 1)
    folder, root = penstock.ImageFolder(photos), tmp_path / "root"
    root.mkdir()
    for split in before:
        penstock.pack(folder, root / "out", split=split, shard_size=6000)
    shutil.copytree(root, tmp_path / "began")

    def pack(out: Path = root / "out") -> None:
        penstock.pack(folder, out, split="data", shard_size=6000, workers=1)

    calls = power_loss.record(pack, root, tmp_path / "log")
    assert len(calls) > 20
    whole, wanted = contents(root / "out"), folder.targets
    disk = power_loss.Disk(root, tmp_path / "began")
    number = 0
    for what, state, ended in power_loss.states(disk, calls, tmp_path / "state", every=1 if full else 12):
        number += 1
        out = state / "out"
        for split in before:
            assert labels(out, split) == wanted, what
        try:
            assert labels(out, "data") == wanted, what
        except (FileNotFoundError, penstock.InvalidOption):  # there is no dataset, or no such split
            assert not ended, what
        pack(out)
        assert contents(out) == whole, what
    cases(number)
