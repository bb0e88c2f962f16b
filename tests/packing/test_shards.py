"""penstock.Shards: batches equal to those of the dataset that was packed; and every way in which shards can be bad."""

from __future__ import annotations

import errno
import gc
import json
import multiprocessing
import os
import pickle
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as T
from torch.utils.data import Subset

import penstock
import penstock._native as _native
from penstock.packing.unpack import unpack, verify
from tests.packing.packed import contents, flip_bit, offset_of, write_photos, write_tensors
from tests.same import assert_same

TRANSFORM = T.Compose([T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.ToTensor()])


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos") / "photos")


@pytest.fixture(scope="module")
def packed(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packed") / "out"
    penstock.pack(penstock.ImageFolder(photos), out, shard_size="8KiB")
    return out


@pytest.fixture(scope="module")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> penstock.TensorFolder:
    root = write_tensors(tmp_path_factory.mktemp("tensors") / "data")
    return penstock.TensorFolder(root, labels={f"id-{number}": number % 7 for number in range(30)})


@pytest.fixture(scope="module")
def packed_tensors(tensors: penstock.TensorFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packed") / "out"
    penstock.pack(tensors, out, shard_size=12_000)
    return out


@pytest.fixture
def copy(packed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(packed, tmp_path / "copy"))


def batches(dataset: Any, **options: Any) -> list[Any]:
    return list(penstock.DataLoader(dataset, batch_size=5, shuffle=True, seed=3, num_workers=2, **options))


# --- samples and batches ----------------------------------------------------------------------------------------------


@pytest.mark.native
@pytest.mark.parametrize("verify", [True, False])
def test_batches_of_images(photos: Path, packed: Path, verify: bool) -> None:
    found = penstock.Shards(packed, transform=TRANSFORM, verify=verify)
    loader = penstock.DataLoader(found, batch_size=5, shuffle=True, seed=3, num_workers=2)
    assert "native threads" in loader.explain() and f"verify={verify}" in loader.explain() + "verify=True"
    assert_same(list(loader), batches(penstock.ImageFolder(photos, TRANSFORM)))
    assert sum(loader.stats().read_by_python.values()) == 2  # the PNGs
    assert_same(batches(Subset(found, [3, 9, 4])), batches(Subset(penstock.ImageFolder(photos, TRANSFORM), [3, 9, 4])))


@pytest.mark.native
@pytest.mark.parametrize("verify", [True, False])
def test_batches_of_tensors(tensors: penstock.TensorFolder, packed_tensors: Path, verify: bool) -> None:
    found = penstock.Shards(packed_tensors, verify=verify)
    loader = penstock.DataLoader(found, batch_size=5, shuffle=True, seed=3, num_workers=2)
    assert_same(list(loader), batches(tensors))
    assert loader.stats().read_by_python == {}


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["process", "thread"])
def test_batches_that_workers_fetch(photos: Path, packed: Path, method: str) -> None:
    def loader(dataset: Any) -> list[Any]:
        options: dict[str, Any] = {"num_workers": 2, "worker_method": method, "multiprocessing_context": "fork"}
        if method == "thread":
            del options["multiprocessing_context"]
        return list(penstock.DataLoader(dataset, batch_size=5, collate_fn=list, **options))

    assert_same(loader(penstock.Shards(packed)), loader(penstock.ImageFolder(photos)))


def test_the_same_ids_labels_and_resumed_pass(photos: Path, packed: Path) -> None:
    found, folder = penstock.Shards(packed, transform=TRANSFORM), penstock.ImageFolder(photos, TRANSFORM)
    assert found.targets == folder.targets and found.class_to_idx == folder.class_to_idx
    assert [found.name(i) for i in range(26)] == [os.path.relpath(path, photos) for path, _ in folder.samples]
    assert found.labels is not None and list(found.labels[3:5]) == folder.targets[3:5]
    loader = penstock.DataLoader(found, batch_size=5, shuffle=True, seed=3, num_workers=2)
    expected = list(loader)
    loader = penstock.DataLoader(found, batch_size=5, shuffle=True, seed=3, num_workers=2)
    running = iter(loader)
    begun = [next(running), next(running)]
    state = loader.state_dict()
    del running
    other = penstock.DataLoader(penstock.Shards(packed, transform=TRANSFORM), batch_size=5, shuffle=True, seed=3)
    other.load_state_dict(state)
    assert_same([*begun, *other], expected)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_pickled_and_in_a_forked_process(packed: Path) -> None:
    found = penstock.Shards(packed)
    assert_same(pickle.loads(pickle.dumps(found))[4], found[4])
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert_same(pool.apply(found.__getitem__, (4,)), found[4])
    for wrong in (26, -27):
        with pytest.raises(IndexError, match="26 samples"):
            found[wrong]
    assert_same(found[-1], found[25])


def test_shards_in_a_cycle_of_references_close_their_files_in_silence(packed: Path) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        found = penstock.Shards(packed)
        found.transform = [found]  # type: ignore[assignment]
        assert found.name(0)
    del found
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gc.collect()
    assert not caught and len(os.listdir("/proc/self/fd")) == before


def test_packed_again_meanwhile(packed: Path, copy: Path, tmp_path: Path, photos: Path) -> None:
    state = pickle.dumps(penstock.Shards(copy))
    shutil.rmtree(copy)
    penstock.pack(Subset(penstock.ImageFolder(photos), [0, 1]), copy)
    with pytest.raises(penstock.DatasetChanged, match="packed again"):
        pickle.loads(state)


# --- bad input --------------------------------------------------------------------------------------------------------


def test_no_shards_there(tmp_path: Path, packed: Path) -> None:
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(FileNotFoundError, match="penstock pack"):
            penstock.Shards(folder)
    with pytest.raises(penstock.InvalidOption, match="holds no split 'train'; it holds 'data'"):
        penstock.Shards(packed, "train")


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _link(path: Path) -> None:
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


@pytest.mark.parametrize("name", ["data-000000.tar", "data.index.npy", "data.ids.npy"])
@pytest.mark.parametrize(
    ("damage", "words"),
    [(_cut, "cut off"), (Path.unlink, "missing"), (_link, "link")],
)
def test_damaged_files(copy: Path, name: str, damage: Callable[[Path], None], words: str) -> None:
    damage(copy / name)
    with pytest.raises(penstock.CorruptShards, match=words) as caught:
        penstock.Shards(copy)
    assert str(copy / name) in str(caught.value)


def test_swapped_shards(copy: Path) -> None:
    size = (copy / "data-000000.tar").stat().st_size
    other = next(path for path in sorted(copy.glob("data-*.tar")) if path.stat().st_size != size)
    (copy / "data-000000.tar").rename(copy / "x")
    shutil.copy(other, copy / "data-000000.tar")
    with pytest.raises(penstock.CorruptShards, match="another file"):
        penstock.Shards(copy)
    alike = bytearray((copy / "x").read_bytes())
    for at in range(512, len(alike) - 1024, 512):
        alike[at : at + 16] = bytes(16)
    (copy / "data-000000.tar").write_bytes(alike)  # of the same length: each sample's checksum tells
    with pytest.raises(penstock.ChecksumMismatch):
        penstock.Shards(copy)[0]


def test_the_index_of_another_dataset(copy: Path, photos: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(photos, tmp_path / "photos"))
    shutil.copy(root / "cat" / "1.jpg", root / "cat" / "2.jpg")
    penstock.pack(penstock.ImageFolder(root), tmp_path / "other", shard_size="8KiB")
    assert (tmp_path / "other" / "data.index.npy").stat().st_size == (copy / "data.index.npy").stat().st_size
    shutil.copy(tmp_path / "other" / "data.index.npy", copy / "data.index.npy")
    with pytest.raises(penstock.CorruptShards, match="of another dataset"):
        penstock.Shards(copy)


@pytest.mark.parametrize(
    "change",
    [
        lambda held: held.update(format="x"),
        lambda held: held.update(version=9),
        lambda held: held["splits"]["data"].pop("shards"),
        lambda held: held["splits"]["data"]["shards"][0].update(name="../data-000000.tar"),
        lambda held: held["splits"]["data"]["shards"][0].update(bytes=-1),
        lambda held: held["splits"]["data"]["shards"][0].update(bytes="8"),
        lambda held: held["splits"]["data"]["index"].update(name="/etc/passwd"),
        lambda held: held["splits"]["data"].update(samples=27),
        lambda held: held["splits"]["data"].update(samples=1 << 62),
        lambda held: held["splits"]["data"].update(kind="pickles"),
        lambda held: held["splits"]["data"].update(label=None),
        lambda held: held.update(splits=3),
    ],
)
def test_damaged_descriptions(copy: Path, change: Callable[[Any], Any]) -> None:
    path = copy / "dataset.json"
    held = json.loads(path.read_text())
    change(held)
    path.write_text(json.dumps(held))
    with pytest.raises(penstock.CorruptShards, match=r"dataset\.json|data\.index"):
        penstock.Shards(copy)
    path.write_text("{")
    with pytest.raises(penstock.CorruptShards, match="damaged"):
        penstock.Shards(copy)


@pytest.mark.native
def test_a_flipped_bit(copy: Path) -> None:
    path, offset = offset_of(penstock.Shards(copy), 7)
    flip_bit(path, offset + 300)
    found = penstock.Shards(copy, transform=TRANSFORM)
    name = found.name(7)
    with pytest.raises(penstock.ChecksumMismatch, match=r"CRC-32C is 0x.*the index says 0x") as caught:
        found[7]
    assert (caught.value.sample_id, caught.value.path) == (name, str(path)) and name in str(caught.value)
    with pytest.raises(penstock.ChecksumMismatch, match=name):
        batches(found)
    replaced = list(penstock.DataLoader(found, batch_size=5, num_workers=2, on_error="replace"))
    assert sum(len(labels) for _, labels in replaced) == 26
    assert [type(error) for error in verify(copy)] == [penstock.CorruptShards, penstock.ChecksumMismatch]


@pytest.mark.native
def test_a_shard_that_is_changed_after_it_was_opened(copy: Path) -> None:
    found = penstock.Shards(copy, transform=TRANSFORM)
    _cut(copy / "data-000001.tar")
    with pytest.raises(penstock.CorruptSample, match="cut off, or another file"):
        batches(found)
    (copy / "data-000001.tar").unlink()
    with pytest.raises(penstock.MissingSample, match="Put the shard back"):
        batches(found)
    (copy / "data-000001.tar").symlink_to(copy / "data-000000.tar")
    with pytest.raises(penstock.UnreadableSample, match="symbolic link"):
        batches(found)


def _rewritten(copy: Path, change: Callable[[Any], None]) -> None:
    """Change the rows of an index, and make dataset.json speak of the result."""
    path = copy / "data.index.npy"
    rows = np.load(path)
    change(rows)
    np.save(path, rows)
    held = json.loads((copy / "dataset.json").read_text())
    data = path.read_bytes()
    ends = _native.crc32c(data[-(1 << 16) :], _native.crc32c(data[: 1 << 16]))
    held["splits"]["data"]["index"] |= {"crc32c": _native.crc32c(data), "ends_crc32c": ends, "bytes": len(data)}
    (copy / "dataset.json").write_text(json.dumps(held))


@pytest.mark.native
@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("offset", 1 << 63),
        ("offset", (1 << 64) - 1),
        ("length", (1 << 64) - 1),
        ("length", 1 << 40),
        ("offset", 1 << 30),
    ],
)
def test_an_index_that_leads_out_of_its_shard(copy: Path, column: str, value: int, verify: bool) -> None:
    def change(rows: Any) -> None:
        rows["members"][column][3, 0] = value

    _rewritten(copy, change)
    found = penstock.Shards(copy, transform=TRANSFORM, verify=verify)
    with pytest.raises(penstock.CorruptSample, match="of another dataset"):
        found[3]
    with pytest.raises(penstock.CorruptSample, match="of another dataset"):
        batches(found)


@pytest.mark.native
@pytest.mark.parametrize(
    ("column", "value"),
    [("shard", 99), ("id_offset", 1 << 63), ("id_length", (1 << 32) - 1), ("id_offset", 3)],
)
def test_an_index_with_wrong_columns(copy: Path, column: str, value: int) -> None:
    def change(rows: Any) -> None:
        rows[column][3] = value

    _rewritten(copy, change)
    found = penstock.Shards(copy, transform=TRANSFORM)
    with pytest.raises(penstock.CorruptShards):
        found[3]
    if column == "shard":
        with pytest.raises(penstock.CorruptShards):
            batches(found)


def test_an_index_that_is_cut_off_meanwhile(copy: Path) -> None:
    found = penstock.Shards(copy, transform=TRANSFORM)
    os.truncate(copy / "data.index.npy", 200)
    with pytest.raises(penstock.CorruptShards, match="cannot be read any more"):
        found[25]


# --- the native table -------------------------------------------------------------------------------------------------


@pytest.mark.native
def test_more_shards_than_may_be_open(packed_tensors: Path) -> None:
    found = penstock.Shards(packed_tensors)
    assert len(found.files.shards) > 2
    fields = found.index.dtype.fields
    assert fields is not None
    columns = [fields[name][1] for name in ("shard", "id_length", "members")]
    shards = [(os.fsencode(found.files.path(n)), shard.bytes) for n, shard in enumerate(found.files.shards)]
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for verified in (True, False):
        table = _native.ShardTable(found.index.native, shards, columns, verified, 2)
        spec = _native.Spec("float32", [3, 5])
        for position in (*range(30), *range(30)):
            out = torch.empty(15)
            filler = _native.TensorFileFiller(table)
            assert _native.read_tensor(filler, position, out.view(torch.uint8), spec) is None
            assert_same(out.view(3, 5), found[position][0])
        assert table.open_shards == 2
    del table, filler
    assert len(os.listdir("/proc/self/fd")) == before
    for wrong in ([100, 8, 24], [12, 8, 1 << 60], [12, 1 << 63, 24], [1, 2]):
        with pytest.raises(ValueError):
            _native.ShardTable(found.index.native, shards, wrong, True)


# --- unpacking --------------------------------------------------------------------------------------------------------


def test_unpacking(photos: Path, packed: Path, copy: Path, tmp_path: Path) -> None:
    unpack(packed, tmp_path / "back")
    assert contents(tmp_path / "back") == contents(photos)
    with pytest.raises(penstock.InvalidOption, match="holds files"):
        unpack(packed, tmp_path / "back")
    path, offset = offset_of(penstock.Shards(copy), 0)
    flip_bit(path, offset)
    with pytest.raises(penstock.ChecksumMismatch):
        unpack(copy, tmp_path / "damaged")


def test_unpacking_to_a_full_disk(photos: Path, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, written = os.write, [0]

    def full(descriptor: int, data: Any) -> int:
        if written[0] + len(data) > 4000:
            if written[0] < 4000:  # as a disk does: a part, then nothing
                data = data[: 4000 - written[0]]
            else:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written[0] += len(data)
        return real(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(penstock.OutOfSpace, match="more are needed") as caught:
            unpack(packed, tmp_path / "back")
    assert caught.value.missing > 0
    whole = contents(photos)
    kept = contents(tmp_path / "back")
    assert kept and all(whole[name] == data for name, data in kept.items()), "no file is cut off"
    unpack(packed, tmp_path / "other")
    assert contents(tmp_path / "other") == whole


def test_ids_that_leave_the_folder(copy: Path, tmp_path: Path) -> None:
    path = copy / "data.ids.npy"
    data = path.read_bytes().replace(b"cat/deep/0.jpg\0", b"../../evil.jpg\0")
    path.write_bytes(data)
    held = json.loads((copy / "dataset.json").read_text())
    ends = _native.crc32c(data[-(1 << 16) :], _native.crc32c(data[: 1 << 16]))
    held["splits"]["data"]["ids"] |= {"crc32c": _native.crc32c(data), "ends_crc32c": ends}
    (copy / "dataset.json").write_text(json.dumps(held))
    with pytest.raises(penstock.OutsideRoot, match="leads out of the folder"):
        unpack(copy, tmp_path / "a" / "b" / "back")
    assert not (tmp_path / "a").exists(), "nothing was written"
    assert not list(tmp_path.rglob("evil.jpg"))
