"""Packing: what is packed, that the same call goes on after a crash, and what is refused."""

from __future__ import annotations

import errno
import os
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from torch.utils.data import ConcatDataset, Subset, TensorDataset

import penstock
from tests import python_processes
from tests.commands import command
from tests.data import Made, in_memory, write_photos, write_tensors
from tests.packing.packed import contents, interrupt_packing, plain
from tests.s3_server import S3, serve
from tests.same import assert_same


def equal(a: Any, b: Any, *, pixels: bool = False) -> None:
    """Assert that two datasets give the same samples, of the same types; pixels: of images only these count."""
    assert len(a) == len(b)
    for index in range(len(a)):
        assert_same(*(plain(one) if pixels else one for one in (a[index], b[index])))


def there_and_back(dataset: Any, out: Path, **options: Any) -> penstock.Shards:
    """Pack a dataset, assert that its shards give the same samples, and return them."""
    penstock.pack(dataset, out, **options)
    found = penstock.Shards(out)
    equal(found, dataset)
    return found


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    with serve() as served:
        yield served


@pytest.fixture(params=["folder", "store"])
def out(request: pytest.FixtureRequest, server: S3, tmp_path: Path) -> Any:
    """Where a test packs to: a folder, or one in a store."""
    return tmp_path / "out" if request.param == "folder" else f"{server.url}/{request.node.originalname}"


def held(out: Any, server: S3) -> dict[str, bytes]:
    return contents(out) if isinstance(out, Path) else server.objects(out.removeprefix(f"{server.url}/"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos")


@pytest.fixture
def folder(root: Path) -> penstock.ImageFolder:
    return penstock.ImageFolder(root)


def test_image_folders(root: Path, tmp_path: Path) -> None:
    for name, kind in (("ours", penstock.ImageFolder), ("theirs", torchvision.datasets.ImageFolder)):
        packed = penstock.pack(kind(root), tmp_path / name, shard_size="8KiB")
        assert (packed.samples, packed.shards > 2, packed.kept) == (26, True, 0)
        found = penstock.Shards(tmp_path / name)
        equal(found, kind(root))
        assert found.classes == ["cat", "dog"] and found.targets == kind(root).targets
    assert contents(tmp_path / "ours") == contents(tmp_path / "theirs")


@pytest.mark.parametrize("suffix", [".pt", ".npy"])
@pytest.mark.parametrize("values", [None, int, float, str])
def test_tensor_folders(tmp_path: Path, suffix: str, values: Any) -> None:
    labels = None if values is None else {f"id-{number}": values(number % 3) for number in range(30)}
    folder = penstock.TensorFolder(write_tensors(tmp_path / "data", suffix=suffix), labels=labels, suffix=suffix)
    found = there_and_back(folder, tmp_path / "out", shard_size=10_000)
    assert [found.name(i) for i in range(len(found))] == list(folder.ids)


def test_arrays_and_tuples_of_tensors(tmp_path: Path) -> None:
    x, y = torch.arange(60.0).reshape(10, 3, 2), torch.arange(10, dtype=torch.int32)
    z = torch.arange(40, dtype=torch.bfloat16).reshape(10, 4)
    datasets: list[Any] = [TensorDataset(*fields) for fields in ((x, y), (x,), (x, z, y), (z,))]
    for number, dataset in enumerate([*datasets, penstock.Arrays(x.numpy(), y)]):
        there_and_back(dataset, tmp_path / str(number), shard_size=1500)


@pytest.mark.parametrize("name", ["MNIST", "CIFAR10"])
def test_images_in_arrays(name: str, tmp_path: Path) -> None:
    there_and_back(in_memory(name, None, 7), tmp_path / name)


def test_subsets_and_concatenations(folder: Any, tmp_path: Path) -> None:
    chosen = Subset(folder, [7, 3, 20])
    there_and_back(chosen, tmp_path / "subset")
    there_and_back(ConcatDataset([folder, chosen]), tmp_path / "both")
    tensors = penstock.TensorFolder(write_tensors(tmp_path / "data"))
    wrong: dict[str, Any] = {
        "belongs to two samples": Subset(folder, [3, 3]),
        "parts of the dataset differ": ConcatDataset([folder, tensors]),
        "no sample": TensorDataset(torch.zeros(0)),
    }
    for words, dataset in wrong.items():
        with pytest.raises(penstock.InvalidOption, match=words):
            penstock.pack(dataset, tmp_path / "wrong")


def test_datasets_of_ones_own(root: Path, tmp_path: Path) -> None:
    paths = sorted(root.rglob("*.jpg"))
    own = Made(lambda index: (paths[index], index), len(paths))
    with pytest.raises(penstock.InvalidOption, match="give to_bytes="):
        penstock.pack(own, tmp_path / "out")

    def packed(name: str, to_bytes: Any) -> penstock.Shards:
        penstock.pack(own, tmp_path / name, to_bytes=to_bytes, shard_size=5000)
        return penstock.Shards(tmp_path / name)

    def several(sample: tuple[Path, int]) -> dict[str, bytes]:
        path, number = sample
        files = {"json": b'{"n": %d}' % number, "name.txt": path.name.encode()}
        return files if number % 2 else {**files, "raw": b"\0\1"}

    found = packed("bytes", lambda sample: sample[0].read_bytes())
    assert found[3].size == penstock.ImageFolder(root)[3][0].size
    found = packed("pairs", lambda sample: {"jpg": sample[0].read_bytes(), "cls": str(sample[1]).encode()})
    assert [found[i][1] for i in range(len(found))] == list(range(len(own)))
    mixed = packed("files", several)
    assert mixed[1] == {"json": {"n": 1}, "name.txt": paths[1].name}
    assert mixed[2] == {"json": {"n": 2}, "name.txt": paths[2].name, "raw": b"\0\1"}
    for wrong in (None, {}, {"jpg": 3}, {"a/b": b""}):
        with pytest.raises(penstock.InvalidOption, match="to_bytes returned"):
            penstock.pack(own, tmp_path / "wrong", to_bytes=lambda _, wrong=wrong: wrong)  # type: ignore[misc]


def test_any_program_reads_the_shards(root: Path, folder: Any, tmp_path: Path) -> None:
    penstock.pack(folder, tmp_path / "out", shard_size="8KiB")
    for path in sorted((tmp_path / "out").glob("*.tar")):
        with tarfile.open(path) as archive:
            assert all((info.uid, info.gid, info.mtime, info.mode) == (0, 0, 0, 0o644) for info in archive)
            archive.extractall(tmp_path / "back", filter="data")
    files = contents(tmp_path / "back")
    labels = {name: files.pop(name) for name in list(files) if name.endswith(".cls")}
    assert (labels["cat/1.cls"], labels["dog/1.cls"], len(labels)) == (b"0", b"1", 26)
    assert command("unpack", tmp_path / "out", tmp_path / "unpacked").startswith("26 files written")
    assert files == contents(tmp_path / "unpacked") == contents(root)


_WEBDATASET = """
import sys, zlib, webdataset
shards = webdataset.WebDataset(sys.argv[1:], shardshuffle=False).decode("pil").to_tuple("jpg", "cls")
for image, label in shards:
    print(zlib.crc32(image.tobytes()), label)
"""


def test_webdataset_reads_the_shards(tmp_path: Path) -> None:
    pytest.importorskip("webdataset")
    folder = penstock.ImageFolder(write_photos(tmp_path / "photos", png=False))
    penstock.pack(folder, tmp_path / "out", shard_size="8KiB")
    shards = [str(path) for path in sorted((tmp_path / "out").glob("*.tar"))]
    # In a process of its own: it leaves files open, which is a warning here.
    found = python_processes.run(_WEBDATASET, *shards)
    expected = [f"{zlib.crc32(image.tobytes())} {label}" for image, label in (folder[i] for i in range(len(folder)))]
    assert found.stdout.split("\n")[:-1] == expected


def test_long_names_and_names_that_are_not_ascii(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    names = ["n" * 99, "long" * 50, "\u00e4\u4e2d", "with space", "two\nlines", os.fsdecode(b"raw-\xff")]
    for number, name in enumerate(names):
        np.save(os.path.join(tmp_path, "data", f"{name}.npy"), np.full(3, number))
    there_and_back(penstock.TensorFolder(tmp_path / "data", suffix=".npy"), tmp_path / "out")
    command("unpack", tmp_path / "out", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(tmp_path / "data")


def test_names_that_webdataset_takes_for_one_sample(root: Path, tmp_path: Path) -> None:
    (tmp_path / "dots" / "cat").mkdir(parents=True)
    for name in ("a.1.jpg", "a.2.jpg"):
        os.link(root / "cat" / "1.jpg", tmp_path / "dots" / "cat" / name)
    with pytest.warns(RuntimeWarning, match="first dot"):
        there_and_back(penstock.ImageFolder(tmp_path / "dots"), tmp_path / "out")


def test_smaller_and_decoded_images(folder: Any, tmp_path: Path) -> None:
    told: list[Any] = []
    penstock.pack(folder, tmp_path / "small", max_side=40, quality=95, on_measured=told.append)
    small = penstock.Shards(tmp_path / "small")
    png = next(index for index in range(len(folder)) if folder.samples[index][0].endswith(".png"))
    assert max(small[0][0].size) == 40
    assert_same(small[png], folder[png])  # only JPEGs become smaller
    assert 0 < told[0].share < 1
    row = small.index.rows([0])[0]
    assert (row["width"], row["height"]) == small[0][0].size
    penstock.pack(folder, tmp_path / "decoded", decoded=True)
    equal(penstock.Shards(tmp_path / "decoded"), folder, pixels=True)
    with pytest.raises(penstock.InvalidOption, match="for images"):
        penstock.pack(TensorDataset(torch.zeros(3, 2)), tmp_path / "x", decoded=True)


@pytest.mark.parametrize("options", [{}, {"max_side": 40}, {"decoded": True}], ids=str)
def test_the_same_bytes_whoever_packs_wherever(
    folder: Any, server: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr("penstock.packing.places._PART", 5000)  # shards are sent in parts
    far = f"{server.url}/same{len(options)}{'decoded' in options}"
    for out, workers in ((tmp_path / "one", 1), (tmp_path / "four", 4), (f"{far}/", None)):
        packed = penstock.pack(folder, out, shard_size=9000, workers=workers, **options)
        assert (packed.out, packed.kept, packed.shards > 2) == (str(out).rstrip("/"), 0, True)
    assert contents(tmp_path / "one") == contents(tmp_path / "four") == held(far, server)
    for out in (tmp_path / "one", far):
        again = penstock.pack(folder, out, shard_size=9000, **options)
        assert again.kept == again.shards
    assert contents(tmp_path / "one") == held(far, server)


def test_a_file_that_changes_while_it_is_packed(root: Path, folder: Any, tmp_path: Path) -> None:
    def change(now: Any) -> None:
        if now.samples == 1:
            with (root / "dog" / "9.jpg").open("ab") as file:
                file.write(b"more")

    with pytest.raises(penstock.DatasetChanged, match=r"dog/9\.jpg was changed while it was packed"):
        penstock.pack(folder, tmp_path / "out", shard_size=6000, workers=1, on_progress=change)


def test_finished_shards_are_not_written_again(out: Any, folder: Any, server: S3, tmp_path: Path) -> None:
    interrupt_packing(folder, out)
    finished = [name for name in held(out, server) if name.endswith(".tar")]
    server.requests.clear()
    cut_off = isinstance(out, Path)
    if cut_off:
        os.truncate(out / finished[0], 100)
    packed = penstock.pack(folder, out, shard_size=6000, workers=2)
    assert packed.kept == len(finished) - cut_off > 0
    assert not [name for method, name in server.requests if method in ("PUT", "POST") and name in finished]
    penstock.pack(folder, tmp_path / "reference", shard_size=6000)
    assert held(out, server) == contents(tmp_path / "reference"), "and nothing else is left"


def test_a_source_that_changed_meanwhile(out: Any, root: Path, folder: Any, server: S3, tmp_path: Path) -> None:
    interrupt_packing(folder, out)
    with pytest.raises(penstock.InvalidOption, match=f"{out} holds an unfinished packing .*shard_size"):
        penstock.pack(folder, out, shard_size=7000)
    os.utime(root / "dog" / "1.jpg", (1, 1))
    with pytest.raises(penstock.DatasetChanged, match="names, labels, sizes or times of files"):
        penstock.pack(folder, out, shard_size=6000)
    for each in (out, tmp_path / "reference"):
        penstock.pack(folder, each, shard_size=7000, restart=True)
    assert held(out, server) == contents(tmp_path / "reference")
    equal(penstock.Shards(out, cache_folder=tmp_path / "cache"), folder)


def test_a_full_disk_is_said_with_what_is_missing(folder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/faults/test_03_full_disk.py looks at what is left then."""
    real, written = os.write, [0]

    def full(descriptor: int, data: Any) -> int:
        written[0] += len(data)
        if written[0] > 15_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(penstock.OutOfSpace, match=r"by the samples so far about .* are free") as caught:
            penstock.pack(folder, tmp_path / "out", shard_size=6000, workers=1, decoded=True)
    assert caught.value.missing > 0
    monkeypatch.setattr("penstock.packing.pack.free_bytes", lambda _: 1000)
    with pytest.raises(penstock.OutOfSpace, match=r"is full: .* are free"):
        penstock.pack(folder, tmp_path / "other")
    assert not list((tmp_path / "other").glob("*"))


def test_a_folder_that_holds_something_else(folder: Any, tmp_path: Path) -> None:
    (tmp_path / "data-000000.tar").write_bytes(b"mine")
    before = contents(tmp_path)
    with pytest.raises(penstock.InvalidOption, match="which Penstock did not write"):
        penstock.pack(folder, tmp_path, restart=True)
    assert contents(tmp_path) == before


def test_several_splits_and_a_shard_that_is_gone(out: Any, folder: Any, server: S3, tmp_path: Path) -> None:
    assert penstock.pack(folder, out, split="train", shard_size=6000).shards > 2
    penstock.pack(Subset(folder, [1, 2]), out, split="val")
    with pytest.raises(penstock.InvalidOption, match="holds the split 'val' already"):
        penstock.pack(folder, out, split="val")
    cache = tmp_path / "cache"
    assert [len(penstock.Shards(out, split, cache_folder=cache)) for split in ("train", "val")] == [26, 2]
    if isinstance(out, Path):
        (out / "train-000001.tar").unlink()
    else:
        with pytest.raises(penstock.InvalidOption, match=r"s3://packed holds .* which Penstock did not write"):
            penstock.pack(folder, server.url, restart=True)
        server.client().delete_object(Bucket="packed", Key=f"{out.rpartition('/')[2]}/train-000001.tar")
    with pytest.raises(penstock.CorruptShards, match=f"{out}/train-000001.tar is missing"):
        penstock.pack(folder, out, split="train", shard_size=6000)


@pytest.mark.parametrize(
    "options",
    [
        {"split": "../x"}, {"split": ""}, {"split": ".hidden"}, {"shard_size": "many"}, {"shard_size": 0},
        {"workers": 0}, {"quality": 80}, {"quality": 0, "max_side": 10}, {"max_side": 0},
    ],
)  # fmt: skip
def test_wrong_options(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(penstock.InvalidOption):
        penstock.pack(TensorDataset(torch.zeros(3)), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_file_that_cannot_be_read(root: Path, folder: Any, tmp_path: Path) -> None:
    (root / "cat" / "1.jpg").unlink()
    with pytest.raises(penstock.MissingSample, match=r"1\.jpg"):
        penstock.pack(folder, tmp_path / "out")


def test_two_packings_at_once(folder: Any, tmp_path: Path) -> None:

    def other(now: Any) -> None:
        with pytest.raises(penstock.InvalidOption, match="another process packs"):
            penstock.pack(folder, tmp_path / "out", split="other")

    penstock.pack(folder, tmp_path / "out", on_progress=other)
