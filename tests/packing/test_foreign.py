"""Tar files of other programs: indexed once, and every way in which they can be bad."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penstock
from tests.commands import attempted
from tests.data import write_photos
from tests.packing.packed import contents, flip_bit
from tests.same import assert_same


def write_tar(path: Path, files: dict[str, bytes] | list[tuple[str, bytes]], format: int = tarfile.PAX_FORMAT) -> None:
    """Write a tar file as Python's tarfile does."""
    with tarfile.open(path, "w", format=format) as archive:
        for name, data in files.items() if isinstance(files, dict) else files:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1_700_000_000
            archive.addfile(info, io.BytesIO(data))


OUTSIDE = "../evil.txt", "/etc/evil.txt", "a/../../evil.txt", "a/.."


def npy(value: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray(value))
    return file.getvalue()


@pytest.fixture
def image(tmp_path: Path) -> bytes:
    return (write_photos(tmp_path / "photos", count=2) / "cat" / "1.jpg").read_bytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "wds").mkdir()
    return tmp_path / "wds"


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_images_with_classes(folder: Path, image: bytes, tmp_path: Path, format: int) -> None:
    long = "d" * 90 + "/" + "n" * 60  # of ustar's prefix, pax and GNU long names
    images: set[str] = set()
    for shard in range(3):
        files: dict[str, bytes] = {}
        for n, end in enumerate(["jpg", "jpeg", "jpg", "png"]):
            files |= {f"{long}{shard}{n}.{end}": image, f"{long}{shard}{n}.cls": b"%d" % n}
        images |= {name for name in files if not name.endswith(".cls")}
        write_tar(folder / f"s-{shard}.tar", files, format)
    before = contents(folder)
    assert "12 samples in 3 shards" in attempted("index", folder)
    assert before.items() <= contents(folder).items()
    found = penstock.Shards(folder, transform=np.asarray)
    assert [found[i][1] for i in range(12)] == [0, 1, 2, 3] * 3
    row = found.index.rows([5])[0]
    assert (found.name(5), found[5][0].shape, row["width"], row["height"]) == (f"{long}11", (60, 81, 3), 81, 60)
    assert attempted("verify", folder, "--decode").endswith(": no fault\n")
    attempted("unpack", folder, tmp_path / "back")
    assert contents(tmp_path / "back").keys() == images


@pytest.mark.native
def test_tensors_are_read_natively(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {f"{n}.npy": npy(np.full(4, n, np.float32)) for n in range(10)})
    attempted("index", tmp_path / "a.tar", "--split", "val")
    found = penstock.Shards(tmp_path)
    loader = penstock.DataLoader(found, batch_size=10, num_workers=2)
    assert_same(list(loader), [torch.arange(10.0).repeat(4, 1).T.contiguous()])
    assert loader.stats().read_by_python == {} and found.split == "val"


def test_samples_of_different_files(tmp_path: Path) -> None:
    files = {"a.json": b'{"x": 1}', "a.txt": "\u00e4".encode(), "b.json": b"2", "b.seg.npy": npy([1])}
    write_tar(tmp_path / "a.tar", {"README": b"no suffix", **files})
    write_tar(tmp_path / "b.tar", {"c.txt": b"z", "d.bin": b"", "e.cls": b"x"})
    attempted("index", tmp_path)
    found = penstock.Shards(tmp_path)
    wanted = {"json": {"x": 1}, "txt": "\u00e4"}, {"json": 2, "seg.npy": torch.tensor([1])}, {"txt": "z"}, {"bin": b""}
    assert_same(tuple(found[i] for i in range(4)), wanted)
    with pytest.raises(penstock.CorruptSample, match="does not hold what its suffix says"):
        found[4]


def test_labels_that_are_no_class_numbers(folder: Path, image: bytes) -> None:
    write_tar(folder / "a.tar", {"a.jpg": image, "a.cls": b"dog", "b.jpg": image, "b.cls": b"1"})
    attempted("index", folder)
    assert penstock.Shards(folder)[1]["cls"] == 1


@pytest.mark.parametrize(
    ("names", "error", "words"),
    [
        *((["good.txt", name], penstock.OutsideRoot, "leads out of the folder") for name in OUTSIDE),
        (["a.txt", "b.txt", "a.txt"], penstock.CorruptShards, "belongs to two samples"),
        (["a.txt", "a.txt"], penstock.CorruptShards, "twice in one sample"),
        (["README"], penstock.InvalidOption, "no sample"),
    ],
)
def test_names_that_are_refused(names: list[str], error: type[Exception], words: str, tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [(name, b"%d" % number) for number, name in enumerate(names)])
    with pytest.raises(error, match=words):
        attempted("index", tmp_path)
    assert not (tmp_path / "dataset.json").exists()


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(penstock.InvalidOption, match=r"contains no \.tar file"):
        attempted("index", tmp_path)
    write_tar(tmp_path / "a.tar", {"README": b""})
    (tmp_path / "b.tar").symlink_to(tmp_path / "a.tar")
    with pytest.raises(penstock.CorruptShards, match="symbolic link"):
        attempted("index", tmp_path / "b.tar")
    (tmp_path / "x").mkdir()
    with pytest.raises(penstock.InvalidOption, match="one folder"):
        attempted("index", tmp_path / "a.tar", tmp_path / "x" / "a.tar")


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (["0.txt", "a.txt", "a.txt/b.txt"], "a member 'a.txt' and others below a folder"),
        (["0.txt", "a.txt/b.txt", "a.txt"], "a member 'a.txt' and others below a folder"),
        (["0.txt", "a.txt/b/c/d.txt", "z.txt", "a.txt/b.txt", "a.txt/b.txt/c.txt"], "a member 'a.txt/b.txt' and"),
        (["0.txt", "a/b.txt", "a//b.txt"], "two members 'a//b.txt'"),
        (["0.txt", "a/./b.txt", "a/b.txt"], "two members 'a/b.txt'"),
        (["0.txt", "a.b/c.txt", "a.b/c/d.txt", "a.txt", "b/a.txt"], None),
    ],
)
def test_names_that_cannot_be_files_of_one_folder(tmp_path: Path, names: list[str], what: str | None) -> None:
    write_tar(tmp_path / "a.tar", {name: name.encode() for name in names})
    attempted("index", tmp_path)
    assert len(penstock.Shards(tmp_path)) == len(names), "they can be read"
    if what is None:
        assert attempted("unpack", tmp_path, tmp_path / "back").startswith(f"{len(names)} files written")
        return
    with pytest.raises(penstock.CorruptShards, match=what):
        attempted("unpack", tmp_path, tmp_path / "back")
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz"])
def test_compressed_archives(tmp_path: Path, mode: Any) -> None:
    with tarfile.open(tmp_path / "a.tar", mode):
        pass
    with pytest.raises(penstock.CorruptShards, match="is compressed"):
        attempted("index", tmp_path)
    (tmp_path / "a.tar").rename(tmp_path / "a.tar.gz")
    with pytest.raises(penstock.InvalidOption, match=r"contains no \.tar file; a sample of a compressed tar file"):
        attempted("index", tmp_path)


def test_damaged_archives(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    write_tar(path, {f"{n}.txt": b"x" * 700 for n in range(5)})
    whole = path.read_bytes()
    for length in (100, 512, 900, 1536, 5000, 7680):
        path.write_bytes(whole[:length])
        with pytest.raises(penstock.CorruptShards, match=r"cut off|damaged"):
            attempted("index", tmp_path)
    path.write_bytes(whole)
    flip_bit(path, 1536 + 20)  # the header of the second member
    with pytest.raises(penstock.CorruptShards, match="damaged at byte 1,536"):
        attempted("index", tmp_path)
    path.write_bytes(b"")
    with pytest.raises(penstock.CorruptShards, match="not a plain tar archive"):
        attempted("index", tmp_path)


def test_members_of_an_archive(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"./a/b.txt": b"abc", "n" * 200 + ".txt": b"long"})
    attempted("index", tmp_path)
    found = penstock.Shards(tmp_path)
    assert [(found.name(n), found[n]) for n in range(2)] == [("a/b", {"txt": "abc"}), ("n" * 200, {"txt": "long"})]
