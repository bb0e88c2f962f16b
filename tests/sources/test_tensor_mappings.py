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
from tests.carriers_under_test import options
from tests.packing.packed import flip_bit
from tests.same import assert_same

library: Any = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")

COUNT = 9
NAMES = [str(number) for number in range(COUNT)]
DTYPES = [
    *("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64"),
    *("uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2"),
]
WAYS = options("caller", "threads, 2", "processes, 2", "processes, persistent")


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
@WAYS
def test_batches(folder: Path, suffix: str, options: Any) -> None:
    labels = {name: int(name) for name in NAMES}
    loader = penstock.DataLoader(penstock.TensorFolder(folder, NAMES, labels, suffix=suffix), batch_size=4, **options)
    wanted = [tensors_of(number) for number in range(COUNT)]
    for begin, (batch, numbers) in zip(range(0, COUNT, 4), loader, strict=True):
        assert numbers.tolist() == list(range(begin, min(begin + 4, COUNT)))
        collated = torch.utils.data.default_collate(wanted[begin : begin + 4])
        assert_same(batch, {name: collated[name] for name in batch})  # save_file has an order of its own
    assert "several tensors by name are read by Python" in loader.explain()


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_conforms(folder: Path, suffix: str) -> None:
    assert_same_as_torch(penstock.TensorFolder(folder, NAMES, suffix=suffix), shuffle=True)


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


DAMAGED = {
    "empty": b"",
    "short": b"\x01\x02",
    "a huge header": (1 << 63).to_bytes(8, "little") + b"{}",
    "a header past the end": (40).to_bytes(8, "little") + b"{}",
    "no JSON": (4).to_bytes(8, "little") + b"abcd",
    "not UTF-8": (4).to_bytes(8, "little") + b"\xff\xfe\x00\x01",
    "a list": (2).to_bytes(8, "little") + b"[]",
    "deep": (2000).to_bytes(8, "little") + b"[" * 2000,
    "metadata": (23).to_bytes(8, "little") + b'{"__metadata__": [1,2]}',
    "no such dtype": header_of(dtype="F33"),
    "a dtype that is no text": header_of(dtype=[1]),
    "a negative side": header_of(shape=[-4]),
    "a side that is no number": header_of(shape=[4.0]),
    "a true side": header_of(shape=[True]),
    "sides that overflow": header_of(shape=[1 << 32, 1 << 32, 4]),
    "a shape that needs more": header_of(shape=[5]),
    "offsets behind the end": header_of(data_offsets=[16, 32]),
    "offsets that go back": header_of(data_offsets=[16, 0]),
    "three offsets": header_of(data_offsets=[0, 16, 20]),
    "an entry that is no object": header_of().replace(b'{"dtype"', b'["dtype"')[:8] + b"x" * 60,
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
