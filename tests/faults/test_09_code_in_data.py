"""Row 9: code in data: pickles in `.pt` files, object arrays in `.npy`, members of shards, states and manifests.

The code never runs at any entry point, and no reader falls back to another reader that would run it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penstock
from penstock.cli import main
from tests.data import tensor_files

ERRORS = (penstock.PenstockError, RuntimeError, ValueError, OSError, TypeError, KeyError, pickle.UnpicklingError)


class Canary:
    """An object whose unpickling makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def saved(value: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, **options)
    return file.getvalue()


def array(value: Any) -> bytes:
    file = io.BytesIO()
    made = np.empty(1, object)
    made[0] = value
    np.save(file, made, allow_pickle=True)
    return file.getvalue()


FILES: dict[str, Callable[[Any], bytes]] = {
    ".pt": saved,
    "dict.pt": lambda canary: saved({"image": torch.zeros(3), "label": canary}),
    "tuple.pt": lambda canary: saved((torch.zeros(3), [canary])),
    "old.pt": lambda canary: saved(canary, _use_new_zipfile_serialization=False),
    "pickle.pt": pickle.dumps,
    ".npy": array,
    "pickle.npy": pickle.dumps,
}


@pytest.fixture
def canary(tmp_path: Path) -> Any:
    """Return a canary, and assert afterwards that it has not run, though it would."""
    path = tmp_path / "canary"
    yield Canary(path)
    assert not path.exists(), "the canary ran"
    pickle.loads(pickle.dumps(Canary(path)))
    assert path.exists()


@pytest.mark.parametrize(
    "how",
    [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "process"}, {"on_error": "replace"}],
    ids=str,
)
@pytest.mark.parametrize("kind", FILES)
def test_files(kind: str, how: dict[str, Any], canary: Any, tmp_path: Path) -> None:
    suffix = kind[kind.index(".") :]
    (tmp_path / "data").mkdir()
    for number in range(4):
        good = torch.zeros(3)
        path = tmp_path / "data" / f"{number}{suffix}"
        if number == 2:
            path.write_bytes(FILES[kind](canary))
        elif suffix == ".pt":
            torch.save(good, path)
        else:
            np.save(path, good.numpy())
    dataset = penstock.TensorFolder(tmp_path / "data", suffix=suffix)
    if "on_error" in how:
        assert len(list(penstock.DataLoader(dataset, batch_size=2, **how))) == 2
    else:
        with pytest.raises(ERRORS):
            list(penstock.DataLoader(dataset, batch_size=2, **how))
    with pytest.raises(ERRORS):
        dataset[2]
    with pytest.raises(ERRORS):
        penstock.pack(dataset, tmp_path / "out", decoded=True)


@pytest.mark.parametrize("kind", FILES)
def test_members_of_tar_files(kind: str, canary: Any, tmp_path: Path) -> None:
    folder = tmp_path / "tars"
    folder.mkdir()
    with tarfile.open(folder / "a.tar", "w") as archive:
        data = FILES[kind](canary)
        info = tarfile.TarInfo(f"0{kind[kind.index('.') :]}")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    assert main(["index", str(folder)]) == 0
    dataset = penstock.Shards(folder)
    for workers in (0, 2):
        with pytest.raises(ERRORS):
            list(penstock.DataLoader(dataset, num_workers=workers))
    with pytest.raises(ERRORS):
        dataset[0]
    assert main(["verify", str(folder), "--decode"]) in (1, 2)


@pytest.mark.parametrize("name", ["dataset.json", "data.index.npy", "data.ids.npy"])
def test_index_files(name: str, canary: Any, tmp_path: Path) -> None:
    penstock.pack(penstock.TensorFolder(tensor_files(tmp_path / "data", 4)), tmp_path / "out")
    for text in (pickle.dumps(canary), array(canary), saved(canary)):
        (tmp_path / "out" / name).write_bytes(text)
        with pytest.raises(ERRORS):
            penstock.Shards(tmp_path / "out")[0]
        assert main(["verify", str(tmp_path / "out")]) in (1, 2)


def test_cached_copies(canary: Any, tmp_path: Path) -> None:
    dataset = penstock.TensorFolder(tensor_files(tmp_path / "data", 4))
    list(penstock.DataLoader(dataset, cache=tmp_path / "cache"))
    for path in [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]:
        size = path.stat().st_size
        path.write_bytes((saved(canary) * (1 + size // 100))[:size])
        with contextlib.suppress(penstock.StorageError):
            assert len(list(penstock.DataLoader(dataset, cache=tmp_path / "cache"))) == 4


def test_manifests_states_and_ledgers(canary: Any, tmp_path: Path) -> None:
    dataset = penstock.TensorFolder(tensor_files(tmp_path / "data", 8))
    for name, options in (
        ("bad.jsonl", {"on_error": penstock.Replace(max_share=0.5, manifest=tmp_path / "bad.jsonl")}),
        ("run.ledger", {"ledger": tmp_path / "run.ledger", "seed": 1}),
    ):
        (tmp_path / name).write_bytes(pickle.dumps(canary))
        with contextlib.suppress(*ERRORS, UserWarning):
            list(penstock.DataLoader(dataset, batch_size=2, **options))
    loader = penstock.DataLoader(dataset, batch_size=2, seed=1)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    json.dumps(state)  # a state is plain data
    for key in state:
        with pytest.raises(ERRORS):
            penstock.DataLoader(dataset, batch_size=2, seed=1).load_state_dict({**state, key: pickle.dumps(canary)})
