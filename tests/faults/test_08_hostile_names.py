"""Row 8: names with `../` or NUL, absolute, of 4 KB, twice, or equal but for case; links, FIFOs, devices as samples.

They are refused in ID lists, tar files, shards, manifests and image folders; nothing is created outside the root;
nothing hangs.
"""

from __future__ import annotations

import io
import json
import os
import stat
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penstock
from penstock.cli import main
from tests.data import tensor_files
from tests.packing.packed import contents

NAMES = ["../evil", "/evil", "a/../../evil", "a/./../../evil", "..", "", "a\0b", "x" * 4096, "a//../../../evil"]
IDS = [name[:12] or "empty" for name in NAMES]
hostile = pytest.mark.parametrize("name", NAMES, ids=IDS)
REFUSED = (penstock.PenstockError, OSError)


def listed(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*")}


def npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros(3))
    return file.getvalue()


@hostile
def test_an_id_list(name: str, tmp_path: Path) -> None:
    root = tensor_files(tmp_path / "deep" / "data", 4)
    (tmp_path / "deep" / "evil.pt").write_bytes((root / "0.pt").read_bytes() if (root / "0.pt").exists() else b"")
    with pytest.raises(REFUSED):
        list(penstock.DataLoader(penstock.TensorFolder(root, [name])))


def write_tar(path: Path, names: list[str], kind: bytes = tarfile.REGTYPE) -> None:
    data = npy()
    with tarfile.open(path, "w") as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, "/etc/passwd", len(data) if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(data))


@hostile
def test_a_tar_file(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "tars"
    folder.mkdir(parents=True)
    if "\0" in name:
        pytest.skip("a tar header ends at a NUL: the name is the part before it")
    write_tar(folder / "a.tar", [f"{name}.npy"])
    before = listed(tmp_path)
    if main(["index", str(folder)]) == 0 == main(["unpack", str(folder), str(tmp_path / "deep" / "back")]):
        assert len(name) == 4096 or name in ("", ".."), "a name that stays inside"
    inside = str(tmp_path / "deep")
    assert all(path.startswith(inside) for path in listed(tmp_path) - before)
    assert not list(tmp_path.rglob("evil*"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_members_that_are_no_files(kind: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "tars"
    folder.mkdir()
    write_tar(folder / "a.tar", ["a.npy"])
    write_tar(folder / "b.tar", ["b.npy"], kind)
    assert main(["index", str(folder)]) == 2
    assert not any(path.is_symlink() or stat.S_ISFIFO(path.lstat().st_mode) for path in tmp_path.rglob("*"))


@pytest.mark.parametrize("names", [["a.npy", "a.npy"], ["a.npy", "A.npy"], ["a", "a/b"]], ids=str)
def test_twins(names: list[str], tmp_path: Path) -> None:
    """What cannot be told apart is refused; on a file system with case, case twins are two files."""
    folder = tmp_path / "tars"
    folder.mkdir()
    write_tar(folder / "a.tar", [name if name.endswith(".npy") else f"{name}.npy" for name in names])
    if main(["index", str(folder)]):
        assert names[0] == names[1]
        return
    assert main(["unpack", str(folder), str(tmp_path / "back")]) == 0
    assert len(contents(tmp_path / "back")) == 2


@pytest.mark.parametrize("kind", ["symlink", "fifo", "device", "folder", "socket"])
@pytest.mark.parametrize("suffix", [".pt", ".npy"])
@pytest.mark.parametrize("workers", [0, 2])
def test_what_lies_in_a_samples_place(kind: str, suffix: str, workers: int, tmp_path: Path) -> None:
    root = tmp_path / "data"
    if suffix == ".pt":
        tensor_files(root, 4)
    else:
        root.mkdir()
        for number in range(4):
            (root / f"{number}.npy").write_bytes(npy())
    ids = sorted(path.stem for path in root.iterdir())
    path = root / f"{ids[2]}{suffix}"
    path.unlink()
    if kind == "symlink":
        (tmp_path / f"secret{suffix}").write_bytes((root / f"{ids[0]}{suffix}").read_bytes())
        path.symlink_to(tmp_path / f"secret{suffix}")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        try:
            os.mknod(path, 0o600 | (stat.S_IFCHR if kind == "device" else stat.S_IFSOCK), os.makedev(1, 5))
        except PermissionError:
            pytest.skip("only root may make a device")
    dataset = penstock.TensorFolder(root, ids, suffix=suffix)
    with pytest.raises(OSError) as raised:
        list(penstock.DataLoader(dataset, num_workers=workers))
    assert ids[2] in str(raised.value)


@hostile
def test_ids_of_shards(name: str, tmp_path: Path) -> None:
    """Names in packed shards are not used as files' names but by `unpack`."""
    root = tensor_files(tmp_path / "data", 3)
    penstock.pack(penstock.TensorFolder(root), tmp_path / "deep" / "out")
    description = tmp_path / "deep" / "out" / "dataset.json"
    held = json.loads(description.read_text())
    held["splits"][name or "x"] = held["splits"].pop("data")
    for shard in held["splits"][name or "x"]["shards"]:
        shard["name" if isinstance(shard, dict) else 0] = name
    description.write_text(json.dumps(held))
    before = listed(tmp_path)
    with pytest.raises((*REFUSED, ValueError)):
        penstock.Shards(tmp_path / "deep" / "out")[0]
    assert listed(tmp_path) == before


@hostile
def test_a_manifest(name: str, tmp_path: Path) -> None:
    """A manifest's lines name samples; they lead to no file."""
    root = tensor_files(tmp_path / "data", 6)
    manifest = tmp_path / "bad.jsonl"
    line = {"id": name, "path": name, "size": None, "error": "CorruptSample: x", "time": "2026-01-01T00:00:00+00:00"}
    manifest.write_text(json.dumps(line) + "\n")
    before = listed(tmp_path)
    how: Any = penstock.Replace(max_share=0.5, manifest=manifest)
    dataset = penstock.TensorFolder(root)
    with pytest.warns(UserWarning, match="another dataset"):
        batches = list(penstock.DataLoader(dataset, batch_size=3, on_error=how))
    assert torch.equal(torch.cat(batches), torch.cat(list(torch.utils.data.DataLoader(dataset, batch_size=3))))
    assert listed(tmp_path) == before
