"""Packing: what is packed, that the same call goes on after a crash, and what is refused."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import tarfile
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from torch.utils.data import ConcatDataset, Subset, TensorDataset

import penstock
from penstock.packing import pack as pack_module
from penstock.packing.engines import Packing
from penstock.packing.unpack import unpack
from tests.packing.packed import contents, interrupt_packing, plain, write_photos, write_tensors
from tests.same import assert_same


def equal(a: Any, b: Any, *, pixels: bool = False) -> None:
    """Assert that two datasets give the same samples, of the same types; pixels: of images only these count."""
    assert len(a) == len(b)
    for index in range(len(a)):
        assert_same(*(plain(one) if pixels else one for one in (a[index], b[index])))


# --- what is packed ---------------------------------------------------------------------------------------------------


def test_image_folders(tmp_path: Path) -> None:
    root = write_photos(tmp_path / "photos")
    for number, kind in enumerate((penstock.ImageFolder, torchvision.datasets.ImageFolder)):
        out = tmp_path / f"out{number}"
        packed = penstock.pack(kind(root), out, shard_size="8KiB")
        assert packed.samples == 26 and packed.shards > 2 and packed.kept == 0
        found = penstock.Shards(out)
        equal(found, kind(root))
        assert found.classes == ["cat", "dog"] and found.targets == kind(root).targets
    assert contents(tmp_path / "out0") == contents(tmp_path / "out1")


@pytest.mark.parametrize("suffix", [".pt", ".npy"])
@pytest.mark.parametrize("values", [None, int, float, str])
def test_tensor_folders(tmp_path: Path, suffix: str, values: Any) -> None:
    root = write_tensors(tmp_path / "data", suffix=suffix)
    labels = None if values is None else {f"id-{number}": values(number % 3) for number in range(30)}
    folder = penstock.TensorFolder(root, labels=labels, suffix=suffix)
    penstock.pack(folder, tmp_path / "out", shard_size=10_000)
    found = penstock.Shards(tmp_path / "out")
    equal(found, folder)
    assert [found.name(i) for i in range(len(found))] == list(folder.ids)


def test_arrays_and_tuples_of_tensors(tmp_path: Path) -> None:
    x, y = torch.arange(60.0).reshape(10, 3, 2), torch.arange(10, dtype=torch.int32)
    z = torch.arange(40, dtype=torch.bfloat16).reshape(10, 4)
    for number, dataset in enumerate(
        (TensorDataset(x, y), penstock.Arrays(x.numpy(), y), TensorDataset(x), TensorDataset(x, z, y), TensorDataset(z))
    ):
        penstock.pack(dataset, tmp_path / str(number), shard_size=1500)
        equal(penstock.Shards(tmp_path / str(number)), dataset)


def test_images_in_arrays(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    mnist = torchvision.datasets.MNIST.__new__(torchvision.datasets.MNIST)
    mnist.data = torch.from_numpy(random.integers(0, 256, (7, 28, 28), np.uint8))
    cifar = torchvision.datasets.CIFAR10.__new__(torchvision.datasets.CIFAR10)
    cifar.data = random.integers(0, 256, (7, 32, 32, 3), np.uint8)
    mnist.targets, cifar.targets = torch.arange(7), list(range(7))
    for name, dataset in (("mnist", mnist), ("cifar", cifar)):
        dataset.transform = dataset.target_transform = None
        penstock.pack(dataset, tmp_path / name)
        equal(penstock.Shards(tmp_path / name), dataset)


def test_subsets_and_concatenations(tmp_path: Path) -> None:
    folder = penstock.ImageFolder(write_photos(tmp_path / "photos"))
    chosen = Subset(folder, [7, 3, 20])
    penstock.pack(chosen, tmp_path / "subset")
    equal(penstock.Shards(tmp_path / "subset"), chosen)
    both: Any = ConcatDataset([folder, chosen])
    penstock.pack(both, tmp_path / "both")
    equal(penstock.Shards(tmp_path / "both"), both)
    with pytest.raises(penstock.InvalidOption, match="belongs to two samples"):
        penstock.pack(Subset(folder, [3, 3]), tmp_path / "twice")
    tensors = penstock.TensorFolder(write_tensors(tmp_path / "data"))
    with pytest.raises(penstock.InvalidOption, match="parts of the dataset differ"):
        penstock.pack(ConcatDataset([folder, tensors]), tmp_path / "mixed")


class Own(torch.utils.data.Dataset[Any]):
    """A dataset of the user's own: paths."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.rglob("*.jpg"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Path, int]:
        return self.paths[index], index


def test_datasets_of_ones_own(tmp_path: Path) -> None:
    own = Own(write_photos(tmp_path / "photos"))
    with pytest.raises(penstock.InvalidOption, match="give to_bytes="):
        penstock.pack(own, tmp_path / "out")
    penstock.pack(own, tmp_path / "bytes", to_bytes=lambda sample: sample[0].read_bytes())
    assert penstock.Shards(tmp_path / "bytes")[3].size == penstock.ImageFolder(tmp_path / "photos")[3][0].size

    def pair(sample: tuple[Path, int]) -> dict[str, bytes]:
        return {"jpg": sample[0].read_bytes(), "cls": str(sample[1]).encode()}

    penstock.pack(own, tmp_path / "pairs", to_bytes=pair, shard_size=5000)
    found = penstock.Shards(tmp_path / "pairs")
    assert [label for _, label in (found[i] for i in range(len(found)))] == list(range(len(own)))

    def several(sample: tuple[Path, int]) -> dict[str, bytes]:
        path, number = sample
        files = {"json": b'{"n": %d}' % number, "name.txt": path.name.encode()}
        return files if number % 2 else {**files, "raw": b"\0\1"}

    penstock.pack(own, tmp_path / "files", to_bytes=several, shard_size=5000)
    mixed = penstock.Shards(tmp_path / "files")
    assert mixed[1] == {"json": {"n": 1}, "name.txt": own.paths[1].name}
    assert mixed[2] == {"json": {"n": 2}, "name.txt": own.paths[2].name, "raw": b"\0\1"}
    for wrong in (lambda _: None, lambda _: {}, lambda _: {"jpg": 3}, lambda _: {"a/b": b""}):
        with pytest.raises(penstock.InvalidOption, match="to_bytes gave"):
            penstock.pack(own, tmp_path / "wrong", to_bytes=wrong)


def test_any_program_reads_the_shards(tmp_path: Path) -> None:
    root = write_photos(tmp_path / "photos")
    penstock.pack(penstock.ImageFolder(root), tmp_path / "out", shard_size="8KiB")
    for path in sorted((tmp_path / "out").glob("*.tar")):
        with tarfile.open(path) as archive:
            assert all((info.uid, info.gid, info.mtime, info.mode) == (0, 0, 0, 0o644) for info in archive)
            archive.extractall(tmp_path / "back", filter="data")
    files = contents(tmp_path / "back")
    labels = {name: files.pop(name) for name in list(files) if name.endswith(".cls")}
    assert files == contents(root)
    assert labels["cat/1.cls"] == b"0" and labels["dog/1.cls"] == b"1" and len(labels) == 26
    assert unpack(tmp_path / "out", tmp_path / "unpacked") == 26
    assert contents(tmp_path / "unpacked") == contents(root)


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
    found = subprocess.run([sys.executable, "-c", _WEBDATASET, *shards], check=True, capture_output=True, text=True)
    expected = [f"{zlib.crc32(image.tobytes())} {label}" for image, label in (folder[i] for i in range(len(folder)))]
    assert found.stdout.split("\n")[:-1] == expected


def test_long_names_and_names_that_are_not_ascii(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    names = ["n" * 99, "long" * 50, "\u00e4\u4e2d", "with space", "two\nlines", os.fsdecode(b"raw-\xff")]
    for number, name in enumerate(names):
        np.save(os.path.join(tmp_path, "data", f"{name}.npy"), np.full(3, number))
    folder = penstock.TensorFolder(tmp_path / "data", suffix=".npy")
    penstock.pack(folder, tmp_path / "out")
    equal(penstock.Shards(tmp_path / "out"), folder)
    unpack(tmp_path / "out", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(tmp_path / "data")


def test_names_that_webdataset_takes_for_one_sample(tmp_path: Path) -> None:
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    write_photos(tmp_path / "more")
    for name in ("a.1.jpg", "a.2.jpg"):
        os.link(tmp_path / "more" / "cat" / "1.jpg", tmp_path / "photos" / "cat" / name)
    folder = penstock.ImageFolder(tmp_path / "photos")
    with pytest.warns(RuntimeWarning, match="first dot"):
        penstock.pack(folder, tmp_path / "out")
    equal(penstock.Shards(tmp_path / "out"), folder)


def test_smaller_and_decoded_images(tmp_path: Path) -> None:
    folder = penstock.ImageFolder(write_photos(tmp_path / "photos"))
    told: list[Any] = []
    penstock.pack(folder, tmp_path / "small", max_side=40, quality=95, on_measured=told.append)
    small = penstock.Shards(tmp_path / "small")
    png = next(index for index in range(len(folder)) if folder.samples[index][0].endswith(".png"))
    assert max(small[0][0].size) == 40
    assert_same(small[png], folder[png])  # only JPEGs become smaller
    lines = "\n".join(told[0].lines())
    assert "pixels" in lines and 0 < told[0].share < 1
    row = small.index.rows([0])[0]
    assert (row["width"], row["height"]) == small[0][0].size
    penstock.pack(folder, tmp_path / "decoded", decoded=True)
    equal(penstock.Shards(tmp_path / "decoded"), folder, pixels=True)
    with pytest.raises(penstock.InvalidOption, match="for images"):
        penstock.pack(TensorDataset(torch.zeros(3, 2)), tmp_path / "x", decoded=True)


# --- crashes and repetitions ------------------------------------------------------------------------------------------


def test_the_same_bytes_whoever_packs(tmp_path: Path) -> None:
    folder = penstock.ImageFolder(write_photos(tmp_path / "photos"))
    for name, workers in (("one", 1), ("four", 4)):
        penstock.pack(folder, tmp_path / name, shard_size=9000, workers=workers)
    assert contents(tmp_path / "one") == contents(tmp_path / "four")
    packed = penstock.pack(folder, tmp_path / "one", shard_size=9000)
    assert packed.kept == packed.shards
    assert contents(tmp_path / "one") == contents(tmp_path / "four")


def _pack_photos(root: Path, out: Path) -> None:
    penstock.pack(penstock.ImageFolder(root), out, shard_size=20_000, workers=2)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.timeout(300)
def test_killed_at_any_moment(tmp_path: Path) -> None:
    root = write_photos(tmp_path / "photos", count=100)
    context = multiprocessing.get_context("fork")
    began = time.monotonic()
    _pack_photos(root, tmp_path / "whole")
    lasted = time.monotonic() - began
    reference = contents(tmp_path / "whole")
    random = np.random.default_rng(os.getpid())
    for attempt in range(5):
        out, kills = tmp_path / f"out{attempt}", 0
        while True:
            child = context.Process(target=_pack_photos, args=(root, out))
            child.start()
            child.join(lasted * random.uniform(0, 1) if kills < 6 else None)
            if child.is_alive() and child.pid is not None:
                os.kill(child.pid, signal.SIGKILL)
                kills += 1
            child.join()
            held = contents(out) if out.exists() else {}
            final = {name: data for name, data in held.items() if ".packing" not in name}
            assert all(reference[name] == data for name, data in final.items()), "a final name with other bytes"
            if child.exitcode == 0:
                break
        assert contents(out) == reference


class Stop(BaseException):
    """Ends a packing at one system call, as the end of the process would."""


@pytest.mark.parametrize("options", [{}, {"decoded": True}])
@pytest.mark.parametrize("call", ["rename", "fsync", "open", "write"])
def test_ended_at_each_system_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, options: dict[str, Any]
) -> None:
    folder = penstock.ImageFolder(write_photos(tmp_path / "photos", count=4))

    def packed(out: Path) -> None:
        penstock.pack(folder, out, shard_size=6000, workers=1, **options)

    packed(tmp_path / "whole")
    reference = contents(tmp_path / "whole")
    real, out = getattr(os, call), tmp_path / "out"
    for number in range(100):
        left = [number]

        def stopping(*given: Any, left: list[int] = left, **named: Any) -> Any:
            if str(out) in str(given[0]) or isinstance(given[0], int):
                left[0] -= 1
                if left[0] == -1:
                    raise Stop
            return real(*given, **named)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, stopping)
            try:
                packed(out)
            except Stop:
                continue
        break
    assert contents(out) == reference and number > 3


def test_a_file_that_changes_while_it_is_packed(tmp_path: Path) -> None:
    root = write_photos(tmp_path / "photos")

    def change(now: Packing) -> None:
        if now.samples == 1:
            with (root / "dog" / "9.jpg").open("ab") as file:
                file.write(b"more")

    with pytest.raises(penstock.DatasetChanged, match=r"dog/9\.jpg was changed while it was packed"):
        penstock.pack(penstock.ImageFolder(root), tmp_path / "out", shard_size=6000, workers=1, on_progress=change)


def test_finished_shards_are_not_written_again(tmp_path: Path) -> None:
    folder = penstock.ImageFolder(write_photos(tmp_path / "photos"))
    interrupt_packing(folder, tmp_path / "out")
    before = {path: path.stat().st_ino for path in (tmp_path / "out").glob("*.tar")}
    assert before
    packed = penstock.pack(folder, tmp_path / "out", shard_size=6000, workers=1)
    assert packed.kept == len(before)
    assert all(path.stat().st_ino == inode for path, inode in before.items())
    assert not list((tmp_path / "out").glob(".*"))


def test_a_source_that_changed_meanwhile(tmp_path: Path) -> None:
    root = write_photos(tmp_path / "photos")
    interrupt_packing(penstock.ImageFolder(root), tmp_path / "out")
    with pytest.raises(penstock.InvalidOption, match=r"other options.*shard_size"):
        penstock.pack(penstock.ImageFolder(root), tmp_path / "out", shard_size=7000)
    os.utime(root / "dog" / "1.jpg", (1, 1))
    with pytest.raises(penstock.DatasetChanged, match="names, labels, sizes or times of files"):
        penstock.pack(penstock.ImageFolder(root), tmp_path / "out", shard_size=6000)
    penstock.pack(penstock.ImageFolder(root), tmp_path / "out", shard_size=7000, restart=True)
    equal(penstock.Shards(tmp_path / "out"), penstock.ImageFolder(root))
    assert not list((tmp_path / "out").glob(".*"))


@pytest.mark.parametrize("options", [{}, {"decoded": True}])
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    folder, out = penstock.ImageFolder(write_photos(tmp_path / "photos")), tmp_path / "out"
    real, written = os.write, [0]

    def full(descriptor: int, data: Any) -> int:
        written[0] += len(data)
        if written[0] > 15_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(penstock.OutOfSpace, match="more are needed") as caught:
            penstock.pack(folder, out, shard_size=6000, workers=1, **options)
    assert caught.value.missing > 0 and caught.value.errno == errno.ENOSPC
    assert not list(out.rglob("*.partial"))
    penstock.pack(folder, out, shard_size=6000, **options)
    equal(penstock.Shards(out), folder, pixels=True)

    monkeypatch.setattr(pack_module, "free_bytes", lambda _: 1000)
    with pytest.raises(penstock.OutOfSpace, match="more are needed"):
        penstock.pack(folder, tmp_path / "other")
    assert not list((tmp_path / "other").glob("*"))


# --- what is refused --------------------------------------------------------------------------------------------------


def test_folders_that_hold_something_else(tmp_path: Path) -> None:
    folder = penstock.ImageFolder(write_photos(tmp_path / "photos"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "data-000000.tar").write_bytes(b"mine")
    with pytest.raises(penstock.InvalidOption, match="which Penstock did not write"):
        penstock.pack(folder, tmp_path / "mine", restart=True)
    assert contents(tmp_path / "mine") == {"data-000000.tar": b"mine"}
    penstock.pack(folder, tmp_path / "out", split="train")
    penstock.pack(Subset(folder, [1, 2]), tmp_path / "out", split="val")
    with pytest.raises(penstock.InvalidOption, match="holds the split 'val' already"):
        penstock.pack(folder, tmp_path / "out", split="val")
    assert len(penstock.Shards(tmp_path / "out", "train")) == 26 and len(penstock.Shards(tmp_path / "out", "val")) == 2


@pytest.mark.parametrize(
    "options",
    [
        {"split": "../x"},
        {"split": ""},
        {"split": ".hidden"},
        {"shard_size": "many"},
        {"shard_size": 0},
        {"workers": 0},
        {"quality": 80},
        {"quality": 0, "max_side": 10},
        {"max_side": 0},
    ],
)
def test_wrong_options(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(penstock.InvalidOption):
        penstock.pack(TensorDataset(torch.zeros(3)), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_an_empty_dataset_and_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(penstock.InvalidOption, match="no sample"):
        penstock.pack(TensorDataset(torch.zeros(0)), tmp_path / "out")
    root = write_photos(tmp_path / "photos")
    folder = penstock.ImageFolder(root)
    (root / "cat" / "1.jpg").unlink()
    with pytest.raises(penstock.MissingSample, match=r"1\.jpg"):
        penstock.pack(folder, tmp_path / "out")


def test_two_packings_at_once(tmp_path: Path) -> None:
    folder = penstock.ImageFolder(write_photos(tmp_path / "photos"))

    def other(now: Packing) -> None:
        with pytest.raises(penstock.InvalidOption, match="another process packs"):
            penstock.pack(folder, tmp_path / "out", split="other")

    penstock.pack(folder, tmp_path / "out", on_progress=other)
