"""Row 5: a shard, an index file or the description that is cut off, empty, grown, of another dataset, or missing.

It is refused when the dataset is opened, before the first batch; the error has its name and, for a shard, both sizes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from tests.data import write_tensors


def cut(path: Path, other: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def empty(path: Path, other: Path) -> None:
    path.write_bytes(b"")


def grown(path: Path, other: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def swapped(path: Path, other: Path) -> None:
    shutil.copy(other / path.name, path)


def missing(path: Path, other: Path) -> None:
    path.unlink()


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return two datasets, of 30 and 40 samples, in shards of different sizes."""
    folder = tmp_path_factory.mktemp("packed")
    for name, count, size in (("one", 30, 12_000), ("two", 40, 9000)):
        source = write_tensors(folder / f"{name} source", count=count)
        penstock.pack(penstock.TensorFolder(source), folder / name, shard_size=size)
    return folder / "one", folder / "two"


@pytest.mark.parametrize("damage", [cut, empty, grown, swapped, missing], ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", ["data-000001.tar", "data.index.npy", "data.ids.npy", "dataset.json"])
def test_refused_when_it_is_opened(
    name: str, damage: Callable[[Path, Path], None], packed: tuple[Path, Path], tmp_path: Path
) -> None:
    one, two = packed
    folder = tmp_path / "copy"
    shutil.copytree(one, folder)
    before = (folder / name).stat().st_size
    damage(folder / name, two)
    if name.endswith(".tar") and damage is swapped:
        assert (folder / name).stat().st_size != before, "a shard of the same size is found by its checksums"
    with pytest.raises((penstock.CorruptShards, FileNotFoundError)) as raised:
        penstock.Shards(folder)
    said = str(raised.value)
    if name != "dataset.json" or damage is not swapped:
        assert name in said
    if name.endswith(".tar") and damage is not missing:
        assert f"{before:,}" in said and f"{(folder / name).stat().st_size:,}" in said, said


def test_a_shard_of_the_same_size(packed: tuple[Path, Path], tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(packed[0], folder)
    shards = sorted(folder.glob("*.tar"))
    first, second = (path.read_bytes() for path in shards[:2])
    assert len(first) == len(second)
    shards[0].write_bytes(second)
    with pytest.raises(penstock.CorruptSample) as raised:
        list(penstock.DataLoader(penstock.Shards(folder), 4))
    assert shards[0].name in str(raised.value)
