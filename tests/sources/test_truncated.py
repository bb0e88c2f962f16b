"""Files that were cut off: every way that reads them says so, with the size that they have."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penstock
from tests.corrupt import npy, saved

pytestmark = pytest.mark.native


def same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def messages(folder: Path, suffix: str = ".pt") -> list[str]:
    """What each way of reading says of the one file of a folder."""
    plain, called = (penstock.TensorFolder(folder, ["x"], suffix=suffix, transform=f) for f in (None, same))
    reads: list[Any] = [
        *(partial(list, penstock.DataLoader(plain, num_workers=workers)) for workers in (0, 2)),
        partial(list, penstock.DataLoader(called, num_workers=0)),
        partial(list, penstock.DataLoader(called, num_workers=1, worker_method="thread")),
    ]
    said = []
    for read in (*reads, lambda: plain[0]):
        with pytest.raises(penstock.CorruptSample) as caught:
            read()
        assert (caught.value.sample_id, caught.value.path) == ("x", str(folder / f"x{suffix}"))
        assert "Invalid argument" not in str(caught.value) and ".;" not in str(caught.value)
        said.append(str(caught.value))
    return said


WHOLE = saved(torch.arange(1000.0))
STRIDED = saved(torch.arange(1000.0).reshape(20, 50).t())
BEGIN = WHOLE.index(torch.arange(1000.0).numpy().tobytes()[:64])
CUTS = {
    "1-byte": 1, "3-bytes": 3, "magic": 4, "local-header": 20, "in-the-pickle": 100, "before-the-elements": BEGIN,
    "1-element": BEGIN + 4, "in-the-elements": BEGIN + 2000, "after-the-elements": BEGIN + 4000,
    "after-the-descriptor": BEGIN + 4016, "in-the-directory": len(WHOLE) - 200, "in-the-end": len(WHOLE) - 18,
    "last-byte": len(WHOLE) - 1,
}  # fmt: skip


@pytest.mark.parametrize("cut", CUTS)
def test_a_pt_file(cut: str, tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(WHOLE[: CUTS[cut]])
    for said in messages(tmp_path):
        assert f"it has {CUTS[cut]:,} byte" in said and "was it cut off" in said
        assert "torch.save(tensor, path)" in said


def test_every_cut(tmp_path: Path) -> None:
    """And what torch.load raises is a class of ours."""
    dataset = penstock.TensorFolder(tmp_path, ["x"])
    loader: Any = penstock.DataLoader(dataset, num_workers=0)
    for file in (WHOLE, STRIDED):
        for length in (*range(1, len(file), 97), *range(len(file) - 30, len(file))):
            (tmp_path / "x.pt").write_bytes(file[:length])
            with pytest.raises(Exception) as theirs:
                torch.load(tmp_path / "x.pt")
            with pytest.raises(type(theirs.value), match="was it cut off"):
                list(loader)


@pytest.mark.parametrize("length", [1, 30, 90, 300, 400])
def test_a_file_of_torch_before_1_6(length: int, tmp_path: Path) -> None:
    file = saved(torch.arange(100.0), _use_new_zipfile_serialization=False)
    (tmp_path / "x.pt").write_bytes(file[:length])
    for said in messages(tmp_path):
        assert f"it has {length:,} byte" in said and "was it cut off" in said


@pytest.mark.parametrize("length", [3, 6, 8, 9, 60, 128, 300, 927])
def test_an_npy_file(length: int, tmp_path: Path) -> None:
    file = npy(np.arange(100.0))
    assert len(file) == 928
    (tmp_path / "x.npy").write_bytes(file[:length])
    for said in messages(tmp_path, ".npy"):
        assert f"it has {length} bytes" in said
    with pytest.raises(penstock.CorruptSample, match=f"it has {length} bytes") as caught:
        penstock.Arrays(tmp_path / "x.npy")
    assert isinstance(caught.value, type(caught.value.__cause__))


def test_an_empty_file(tmp_path: Path) -> None:
    for suffix in (".pt", ".npy"):
        (tmp_path / f"x{suffix}").write_bytes(b"")
        for said in messages(tmp_path, suffix):
            assert "is an empty file; write it again" in said
