"""penstock.Shards: batches equal to those of the dataset that was packed; and every way in which shards can be bad."""

from __future__ import annotations

import errno
import gc
import io
import json
import multiprocessing
import os
import pickle
import shutil
import tarfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as T
from torch.utils.data import Subset, TensorDataset

import penstock
import penstock._native as _native
from penstock.storage.tar import header, member_bytes
from tests.commands import attempted, command
from tests.data import write_tensors
from tests.packing.packed import contents, flip_bit, offset_of, plain
from tests.same import assert_same
from tests.values import resumed

TRANSFORM = T.Compose([T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.ToTensor()])


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


@pytest.fixture(params=["packed", "decoded"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of shards of photos, or of decoded ones."""
    return Path(shutil.copytree(request.getfixturevalue(request.param), tmp_path / request.param))


def loader_of(dataset: Any, **options: Any) -> Any:
    return penstock.DataLoader(dataset, batch_size=5, shuffle=True, seed=3, num_workers=2, **options)


def batches(dataset: Any) -> list[Any]:
    return list(loader_of(dataset))


def describe(folder: Path, name: str, data: bytes) -> None:
    """Write a file of an index, and make dataset.json speak of it."""
    (folder / f"data.{name}.npy").write_bytes(data)
    held = json.loads((folder / "dataset.json").read_text())
    held["splits"]["data"][name] |= {"crc32c": _native.crc32c(data), "bytes": len(data)}
    del held["crc32c"]
    (folder / "dataset.json").write_text(json.dumps(held))


def rewritten(copy: Path, change: Callable[[Any], None]) -> None:
    """Change the rows of an index."""
    rows, file = np.load(copy / "data.index.npy"), io.BytesIO()
    change(rows)
    np.save(file, rows)
    describe(copy, "index", file.getvalue())


@pytest.mark.native
@pytest.mark.parametrize("verify", [True, False])
def test_batches_of_images(photos: Path, packed: Path, verify: bool, reading: None) -> None:
    found, folder = penstock.Shards(packed, transform=TRANSFORM, verify=verify), penstock.ImageFolder(photos, TRANSFORM)
    loader = loader_of(found)
    assert "native threads" in loader.explain() and f"verify={verify}" in loader.explain() + "verify=True"
    assert_same(list(loader), batches(folder))
    assert sum(loader.stats().read_by_python.values()) == 2  # the PNGs
    assert_same(batches(Subset(found, [3, 9, 4])), batches(Subset(folder, [3, 9, 4])))


@pytest.mark.native
@pytest.mark.parametrize("verify", [True, False])
def test_batches_of_tensors(tensors: penstock.TensorFolder, packed_tensors: Path, verify: bool) -> None:
    loader = loader_of(penstock.Shards(packed_tensors, verify=verify))
    assert_same(list(loader), batches(tensors))
    assert loader.stats().read_by_python == {}


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    "options", [{"worker_method": "process", "multiprocessing_context": "fork"}, {"worker_method": "thread"}], ids=str
)
def test_batches_that_workers_fetch(photos: Path, either: Path, options: dict[str, Any]) -> None:
    ours, theirs = (
        [plain(sample) for batch in loader_of(dataset, collate_fn=list, **options) for sample in batch]
        for dataset in (penstock.Shards(either), penstock.ImageFolder(photos))
    )
    assert_same(ours, theirs)


def test_the_same_ids_labels_and_resumed_pass(photos: Path, packed: Path) -> None:
    found, folder = penstock.Shards(packed, transform=TRANSFORM), penstock.ImageFolder(photos, TRANSFORM)
    assert found.targets == folder.targets and found.class_to_idx == folder.class_to_idx
    assert [found.name(i) for i in range(26)] == [os.path.relpath(path, photos) for path, _ in folder.samples]
    assert found.labels is not None and list(found.labels[3:5]) == folder.targets[3:5]
    other = penstock.DataLoader(penstock.Shards(packed, transform=TRANSFORM), batch_size=5, shuffle=True, seed=3)
    begun, again = resumed(loader_of(found), other, 2)
    assert_same([*begun, *again], batches(found))


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


def test_no_shards_there(tmp_path: Path, packed: Path) -> None:
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(FileNotFoundError, match="penstock pack"):
            penstock.Shards(folder)
    with pytest.raises(penstock.InvalidOption, match="contains no split 'train'; it holds 'data'"):
        penstock.Shards(packed, "train")


def test_packed_again_meanwhile(copy: Path, photos: Path) -> None:
    state = pickle.dumps(penstock.Shards(copy))
    shutil.rmtree(copy)
    penstock.pack(Subset(penstock.ImageFolder(photos), [0, 1]), copy)
    with pytest.raises(penstock.DatasetChanged, match="packed again"):
        pickle.loads(state)


@pytest.mark.parametrize("name", ["data-000000.tar", "data.index.npy", "data.ids.npy"])
def test_links_are_refused(copy: Path, name: str) -> None:
    """tests/faults/test_05_wrong_files.py has files that are cut off, exchanged and missing."""
    (copy / name).rename(copy / "moved")
    (copy / name).symlink_to(copy / "moved")
    with pytest.raises(penstock.CorruptShards, match="link") as caught:
        penstock.Shards(copy)
    assert str(copy / name) in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda held, split: held.update(format="x"),
        lambda held, split: held.update(version=9),
        lambda held, split: split.pop("shards"),
        lambda held, split: split["shards"][0].update(name="../data-000000.tar"),
        lambda held, split: split["shards"][0].update(bytes=-1),
        lambda held, split: split["shards"][0].update(bytes="8"),
        lambda held, split: split["index"].update(name="/etc/passwd"),
        lambda held, split: split.update(samples=27),
        lambda held, split: split.update(samples=1 << 62),
        lambda held, split: split.update(kind="pickles"),
        lambda held, split: split.update(label=None),
        lambda held, split: held.update(splits=3),
    ],
)
def test_damaged_descriptions(copy: Path, change: Callable[[Any, Any], Any]) -> None:
    path = copy / "dataset.json"
    held = json.loads(path.read_text())
    change(held, held["splits"]["data"])
    changed = json.dumps(held)
    del held["crc32c"]
    for text, words in ((changed, "damaged"), (json.dumps(held), r"dataset\.json|data\.index"), ("{", "damaged")):
        path.write_text(text)
        with pytest.raises(penstock.CorruptShards, match=words):
            penstock.Shards(copy)


@pytest.mark.native
def test_a_flipped_bit(either: Path, reading: None) -> None:
    path, offset = offset_of(penstock.Shards(either), 7)
    flip_bit(path, offset + 300)
    found = penstock.Shards(either, transform=TRANSFORM)
    name = found.name(7)
    for read in (lambda: found[7], lambda: batches(found)):
        with pytest.raises(penstock.ChecksumMismatch, match=r"CRC-32C is 0x.*the index says 0x") as caught:
            read()
        assert (caught.value.sample_id, caught.value.path) == (name, str(path)) and name in str(caught.value)
    replaced = list(penstock.DataLoader(found, batch_size=5, num_workers=2, on_error="replace"))
    assert sum(len(labels) for _, labels in replaced) == 26
    found_by_name = [line.partition(":")[0] for line in command("verify", either, code=1).splitlines()[:-1]]
    assert found_by_name == ["CorruptShards", "ChecksumMismatch"]


@pytest.mark.native
@pytest.mark.parametrize("shape", [(3, 5), (70_000,), (600_000,), (3_000_000,)])
def test_tensors_of_every_size_and_a_flipped_bit(tmp_path: Path, shape: tuple[int, ...], reading: None) -> None:
    """Arrays have no checksum of their own; a batch is read by the layout of the one before it."""
    tensor = torch.arange(8 * int(np.prod(shape)), dtype=torch.float32).reshape(8, *shape)
    arrays = TensorDataset(tensor, torch.arange(8))
    penstock.pack(arrays, tmp_path / "out", shard_size="8MiB")
    found, wanted = penstock.Shards(tmp_path / "out"), list(torch.utils.data.DataLoader(arrays, batch_size=2))

    def loader(**options: Any) -> Any:
        return penstock.DataLoader(penstock.Shards(tmp_path / "out"), batch_size=2, num_workers=2, **options)

    clean = loader()
    assert_same(list(clean), wanted)
    assert clean.stats().read_by_python == {}
    path, offset = offset_of(found, 5)
    flip_bit(path, offset + 128 + int(np.prod(shape)) * 2)
    batches = iter(loader())
    assert_same([next(batches), next(batches)], wanted[:2])
    with pytest.raises(penstock.ChecksumMismatch, match=found.name(5)) as caught:
        next(batches)
    assert (caught.value.sample_id, caught.value.path) == (found.name(5), str(path))
    replaced = [label for _, labels in loader(on_error="replace") for label in labels.tolist()]
    assert len(replaced) == 8 and 5 not in replaced
    unchecked = penstock.Shards(tmp_path / "out", verify=False)
    assert not torch.equal(next(iter(penstock.DataLoader(unchecked, batch_size=8, num_workers=2)))[0], tensor)


@pytest.mark.native
@pytest.mark.parametrize("verify", [True, False])
def test_a_shard_that_is_changed_after_it_was_opened(either: Path, verify: bool) -> None:
    found, path = penstock.Shards(either, transform=TRANSFORM, verify=verify), either / "data-000001.tar"
    changes: list[tuple[Callable[[], Any], Any, str]] = [
        (lambda: os.truncate(path, path.stat().st_size // 2), penstock.CorruptSample, "cut off, or another file"),
        (path.unlink, penstock.MissingSample, "Put the shard back"),
        (lambda: path.symlink_to(either / "data-000000.tar"), penstock.UnreadableSample, "symbolic link"),
    ]
    for change, error, words in changes:
        change()
        with pytest.raises(error, match=words):
            batches(found)


@pytest.mark.native
@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize(
    ("column", "value"), [("offset", 1 << 63), ("offset", -1), ("length", -1), ("length", 1 << 40), ("offset", 1 << 30)]
)
def test_an_index_that_leads_out_of_its_shard(copy: Path, column: str, value: int, verify: bool) -> None:
    rewritten(copy, lambda rows: rows["members"][column].__setitem__((3, 0), value % (1 << 64)))
    found = penstock.Shards(copy, transform=TRANSFORM, verify=verify)
    for read in (lambda: found[3], lambda: batches(found)):
        with pytest.raises(penstock.CorruptSample, match="of another dataset"):
            read()


@pytest.mark.native
@pytest.mark.parametrize(
    ("column", "value"), [("shard", 99), ("id_offset", 1 << 63), ("id_length", (1 << 32) - 1), ("id_offset", 3)]
)
def test_an_index_with_wrong_columns(copy: Path, column: str, value: int) -> None:
    rewritten(copy, lambda rows: rows[column].__setitem__(3, value))
    found = penstock.Shards(copy, transform=TRANSFORM)
    for read in (lambda: found[3], *([lambda: batches(found)] if column == "shard" else [])):
        with pytest.raises(penstock.CorruptShards):
            read()


def test_an_index_that_is_cut_off_meanwhile(copy: Path) -> None:
    found = penstock.Shards(copy, transform=TRANSFORM)
    os.truncate(copy / "data.index.npy", 200)
    with pytest.raises(penstock.CorruptShards, match="cannot be read any more"):
        found[25]


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
        program = _native.Program([[_native.TensorFileFiller(table)]])
        for position in (*range(30), *range(30)):
            content = _native.read_file(program, 0, position, None, 1 << 20)
            assert not isinstance(content, str)
            assert_same(torch.load(io.BytesIO(content.tobytes())), found[position][0])
        assert table.open_shards == 2
    del table, program
    assert len(os.listdir("/proc/self/fd")) == before
    for wrong in ([100, 8, 24], [12, 8, 1 << 60], [12, 1 << 63, 24], [1, 2]):
        with pytest.raises(ValueError):
            _native.ShardTable(found.index.native, shards, wrong, True)


@pytest.mark.parametrize("name", ["a", "a" * 99, "a" * 100, "d/" * 60 + "n", "\u00e4.jpg", "x" * 300])
@pytest.mark.parametrize("size", [0, 1, 511, 512, 1 << 20, (1 << 33) - 1, 1 << 33])
def test_headers_are_those_of_tarfile(name: str, size: int) -> None:
    written = header(name, size)
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    assert written == info.tobuf(tarfile.PAX_FORMAT)
    assert member_bytes(name, size) == len(written) + size + -size % 512


def test_unpacking(photos: Path, packed: Path, copy: Path, tmp_path: Path) -> None:
    attempted("unpack", packed, tmp_path / "back")
    assert contents(tmp_path / "back") == contents(photos)
    with pytest.raises(penstock.InvalidOption, match="holds files"):
        attempted("unpack", packed, tmp_path / "back")
    path, offset = offset_of(penstock.Shards(copy), 0)
    flip_bit(path, offset)
    with pytest.raises(penstock.ChecksumMismatch):
        attempted("unpack", copy, tmp_path / "damaged")


def test_unpacking_to_a_full_disk(photos: Path, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, left = os.write, [4000]

    def full(descriptor: int, data: Any) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        data = data[: left[0]]  # as a disk does: a part, then nothing
        left[0] -= len(data)
        return real(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(penstock.OutOfSpace, match=r"is full: .* are free") as caught:
            attempted("unpack", packed, tmp_path / "back")
    assert caught.value.missing > 0
    whole, kept = contents(photos), contents(tmp_path / "back")
    assert kept and kept.items() <= whole.items(), "no file is cut off"
    attempted("unpack", packed, tmp_path / "other")
    assert contents(tmp_path / "other") == whole


def test_ids_that_leave_the_folder(copy: Path, tmp_path: Path) -> None:
    data = (copy / "data.ids.npy").read_bytes()
    describe(copy, "ids", data.replace(b"cat/deep/0.jpg\0", b"../../evil.jpg\0"))
    with pytest.raises(penstock.OutsideRoot, match="leads out of the folder"):
        attempted("unpack", copy, tmp_path / "a" / "b" / "back")
    assert not (tmp_path / "a").exists(), "nothing was written"
    assert not list(tmp_path.rglob("evil.jpg"))
