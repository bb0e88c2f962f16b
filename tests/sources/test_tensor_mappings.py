"""Folders of .safetensors and .npz files: what safetensors.torch.load_file and numpy.load give, and damaged files."""

from __future__ import annotations

import json
import sys
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penstock
from penstock.errors import CorruptSample, InvalidOption, MissingSample
from penstock.testing import assert_each_sample_once, assert_resume_exact, assert_same_as_torch
from tests.packing.packed import flip_bit
from tests.same import assert_same

library: Any = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")

COUNT = 9
NAMES = [str(number) for number in range(COUNT)]
DTYPES = [
    *("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64"),
    *("uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2"),
]


def tensors_of(number: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(number)
    x, mask = torch.randn(3, 4, generator=draw), torch.rand(5, generator=draw) < 0.5
    return {"x": x, "mask": mask, "n": torch.tensor(number)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("mappings")
    for number in range(COUNT):
        library.save_file(tensors_of(number), root / f"{number}.safetensors")
        arrays: dict[str, Any] = {name: one.numpy() for name, one in tensors_of(number).items()}
        np.savez(root / f"{number}.npz", **arrays)
        np.savez_compressed(root / f"{number}.packed.npz", a=np.arange(number + 2.0))
    return root


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_conforms(folder: Path, suffix: str) -> None:
    labels = {name: int(name) for name in NAMES}
    dataset = penstock.TensorFolder(folder, NAMES, labels, suffix=suffix)
    for number in range(COUNT):
        tensors, label = dataset[number]
        wanted = tensors_of(number)
        assert label == number
        assert_same(tensors, {name: wanted[name] for name in tensors})  # save_file has an order of its own
    assert_same_as_torch(dataset, shuffle=True)
    assert "several tensors by name are read by Python" in penstock.DataLoader(dataset).explain()


def test_resume_ranks_a_cache_and_a_transform(folder: Path) -> None:
    whole = penstock.TensorFolder(folder, suffix=".safetensors")
    make = partial(penstock.DataLoader, whole, batch_size=2, shuffle=True, seed=3)
    assert_each_sample_once(make)
    assert_resume_exact(make)
    loader = penstock.DataLoader(whole, batch_size=3, cache="1MiB", num_workers=2, worker_method="thread")
    assert_same(list(loader), list(loader))
    dataset = penstock.TensorFolder(folder, ["3"], suffix=".safetensors", transform=lambda tensors: tensors["x"] * 2)
    assert torch.equal(dataset[0], tensors_of(3)["x"] * 2)
    assert torch.equal(next(iter(penstock.DataLoader(dataset)))[0], tensors_of(3)["x"] * 2)


def test_compressed_archives(folder: Path) -> None:
    dataset = penstock.TensorFolder(folder, [f"{number}.packed" for number in range(3)], suffix=".npz")
    assert [len(dataset[number]["a"]) for number in range(3)] == [2, 3, 4]
    batch = next(iter(penstock.DataLoader(dataset, batch_size=3, collate_fn=penstock.Padded())))
    assert batch["a"].lengths.tolist() == [2, 3, 4]


def test_as_load_file_reads_them(tmp_path: Path) -> None:
    made: dict[str, torch.Tensor] = {}
    for number, name in enumerate(DTYPES):
        values = torch.arange(24).reshape(2, 3, 4) % 2 + number % 2
        made[f"{name}-{number}"] = values.to(getattr(torch, name))
    made |= {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 3), "größe": torch.ones(1)}
    library.save_file(made, tmp_path / "a.safetensors", metadata={"format": "pt"})
    found = penstock.TensorFolder(tmp_path, suffix=".safetensors")[0]
    wanted = library.load_file(tmp_path / "a.safetensors")
    assert list(found) == list(wanted)
    for name, tensor in wanted.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name].view(-1).view(torch.uint8), tensor.view(-1).view(torch.uint8))


def test_as_numpy_loads_them(tmp_path: Path) -> None:
    many = (np.arange(6).reshape(2, 3).T, np.float32(3), np.arange(4, dtype=">i4"), np.ones(2))
    arrays: dict[str, Any] = dict(zip(("a", "b", "c", "d/e"), many, strict=True))
    np.savez(tmp_path / "a.npz", **arrays)
    found = penstock.TensorFolder(tmp_path, suffix=".npz")[0]
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name].numpy(), array)


def header_of(**entry: Any) -> bytes:
    text = json.dumps({"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16], **entry}}).encode()
    return len(text).to_bytes(8, "little") + text + bytes(16)


#: What is wrong with a file the library says, however it is read.
DAMAGED = {
    "empty": b"",
    "short": b"\x01\x02",
    "a huge header": (1 << 63).to_bytes(8, "little") + b"{}",
    "no JSON": (4).to_bytes(8, "little") + b"abcd",
    "not UTF-8": (4).to_bytes(8, "little") + b"\xff\xfe\x00\x01",
    "no such dtype": header_of(dtype="F33"),
    "sides that overflow": header_of(shape=[1 << 32, 1 << 32, 4]),
    "bytes behind the end": header_of() + b"\0",
    "cut off": header_of()[:-1],
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.safetensors").write_bytes(DAMAGED[name])
    dataset = penstock.TensorFolder(tmp_path, suffix=".safetensors")
    with pytest.raises(CorruptSample, match=r"sample 'a' \(.*a\.safetensors\)"):
        dataset[0]
    with pytest.raises(CorruptSample, match="sample 'a'"):
        next(iter(penstock.DataLoader(dataset, num_workers=1)))


def test_what_is_missing_and_not_packed(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = penstock.TensorFolder(folder, suffix=".safetensors")
    with pytest.raises(InvalidOption, match="to_bytes="):
        penstock.pack(dataset, tmp_path / "shards")
    library.save_file({"x": torch.arange(4.0)}, tmp_path / "a.safetensors")
    gone = penstock.TensorFolder(tmp_path, suffix=".safetensors")
    (tmp_path / "a.safetensors").unlink()
    with pytest.raises(MissingSample):
        gone[0]
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(ImportError, match="pip install safetensors"):
        dataset[0]


def test_damaged_archives(tmp_path: Path) -> None:
    np.savez(tmp_path / "flipped.npz", x=np.arange(4000.0))
    flip_bit(tmp_path / "flipped.npz", 5000)
    np.savez(tmp_path / "objects.npz", x=np.array([{}, 1], dtype=object))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "flipped.npz").read_bytes()[:3000])
    (tmp_path / "none.npz").write_bytes(b"")
    np.save(tmp_path / "array.npy", np.arange(3))
    (tmp_path / "array.npy").rename(tmp_path / "array.npz")
    with zipfile.ZipFile(tmp_path / "text.npz", "w") as archive:
        archive.writestr("readme.txt", "no array")
    for name in ("flipped", "objects", "cut", "none", "array", "text"):
        with pytest.raises(CorruptSample, match=f"sample '{name}'"):
            penstock.TensorFolder(tmp_path, [name], suffix=".npz")[0]
