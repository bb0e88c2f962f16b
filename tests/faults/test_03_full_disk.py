"""Row 3: a full disk, EIO and short writes, at the n-th call and for all n: packing, cache, manifest, ledger.

One error with path and errno, and finished shards stay; packing continues when there is space; a cache that cannot be
written changes no batch; a good file is never replaced by a part of one.
"""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penstock
from penstock.cli import main
from tests.data import tensor_files, write_photos
from tests.faults import injection
from tests.packing.packed import contents
from tests.same import assert_same

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
Cases = Callable[[int], None]
ERRORS = ["ENOSPC", "EIO", "EDQUOT"]


def steps(full: bool) -> Callable[[int], int]:
    """Return what gives the next number of a call: all in full, else fewer and fewer."""
    return lambda number: number + 1 if full else 2 * number + 1


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
@pytest.mark.timeout(900)
def test_packing(call: str, error: str, tmp_path: Path, full: bool, cases: Cases) -> None:
    folder, out = penstock.ImageFolder(write_photos(tmp_path / "photos", count=8)), tmp_path / "out"

    def pack(out: Path = out) -> None:
        penstock.pack(folder, out, shard_size=20_000, workers=1)

    pack(tmp_path / "whole")
    reference = contents(tmp_path / "whole")
    paths = [out / name for name in reference] + [out / ".data.packing" / f"{name}.partial" for name in reference]
    paths += [out, out / ".data.packing"]
    paths += [out / ".data.packing" / name for name in ("plan.json", "plan.json.partial")]
    failed = 0

    def refused() -> None:
        try:
            pack()
        except OSError as raised:
            assert raised.errno == getattr(errno, error), repr(raised)
            assert str(tmp_path) in str(raised), repr(raised)
            full_disk = error in ("ENOSPC", "EDQUOT") and call == "write"
            assert isinstance(raised, penstock.OutOfSpace) or not full_disk, repr(raised)
            os._exit(3)

    for _ in injection.each_fault(refused, f"{call}:error={error}", 3, paths, steps(full)):
        held = {name: data for name, data in contents(out).items() if ".packing" not in name}
        assert all(reference[name] == data for name, data in held.items())
        pack()
        assert contents(out) == reference, "gone on with when the disk has space"
        for file in out.iterdir():
            file.unlink()
        failed += 1
    assert failed > 1
    assert contents(out) == reference
    cases(failed)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("call", ["pwrite64", "ftruncate", "fallocate"])
def test_a_cache(call: str, error: str, tmp_path: Path, full: bool, cases: Cases) -> None:
    dataset = penstock.TensorFolder(tensor_files(tmp_path / "data", 24))
    wanted = list(torch.utils.data.DataLoader(dataset, batch_size=4))

    def read(folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loader = penstock.DataLoader(dataset, batch_size=4, num_workers=2, cache=folder)
            for _ in range(2):
                assert_same(list(loader), wanted)

    number = run = 0
    while number < (30 if full else 6):
        number, run, folder = number + 1, run + 1, tmp_path / f"cache{number}"
        assert injection.run(partial(read, folder), f"{call}:error={error}:when={number}+") == 0
        read(folder)  # with what the failed one left
    cases(run)


@pytest.mark.parametrize("error", ERRORS)
def test_a_manifest(error: str, tmp_path: Path, cases: Cases) -> None:
    root = tensor_files(tmp_path / "data", 60)
    bad = sorted(root.glob("*.pt"))[::10]
    for path in bad:
        path.write_bytes(b"")
    dataset, manifest = penstock.TensorFolder(root), tmp_path / "bad.jsonl"

    def read() -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            replace = penstock.Replace(max_share=0.5, manifest=manifest)
            assert len(list(penstock.DataLoader(dataset, batch_size=4, on_error=replace))) == 15
        said = [str(one.message) for one in caught if "could not be written" in str(one.message)]
        if said:
            assert str(manifest) in said[0] and os.strerror(getattr(errno, error)) in said[0]
            os._exit(3)

    failed = 0
    for _ in injection.each_fault(read, f"write:error={error}", 3, [manifest]):
        held = manifest.read_bytes() if manifest.exists() else b""
        assert held == b"" or held.endswith(b"\n"), "whole lines only"
        manifest.unlink()
        failed += 1
    assert failed == len(bad)
    assert len(manifest.read_text().splitlines()) == len(bad)
    cases(failed)


@pytest.mark.parametrize("error", ERRORS)
def test_a_ledger(error: str, tmp_path: Path, cases: Cases) -> None:
    path, dataset = tmp_path / "run.ledger", penstock.Arrays(np.arange(24))

    def loader(file: Path = path) -> Any:
        return penstock.DataLoader(dataset, batch_size=4, shuffle=True, seed=5, ledger=file)

    wanted = list(loader(tmp_path / "good"))
    good = (tmp_path / "good").read_bytes()

    def read() -> None:
        try:
            list(loader())
        except OSError as raised:
            assert str(path) in str(raised) and raised.errno == getattr(errno, error), repr(raised)
            os._exit(3)

    failed = 0
    for _ in injection.each_fault(read, f"write:error={error}", 3, [path]):
        held = path.read_bytes()
        assert good.startswith(held) and (not held or held.endswith(b"\n")), "whole lines only"
        assert_same(list(loader()), wanted)
        assert main(["ledger", "diff", str(tmp_path / "good"), str(path)]) == 0, "continued"
        path.unlink()
        failed += 1
    assert failed == 1 + len(wanted)
    assert path.read_bytes() == good
    cases(failed)


def test_short_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cases: Cases) -> None:
    folder = penstock.ImageFolder(write_photos(tmp_path / "photos", count=8))
    penstock.pack(folder, tmp_path / "whole", shard_size=20_000)
    real: Any = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, memoryview(data)[: 1 + len(data) // 3]))
    penstock.pack(folder, tmp_path / "out", shard_size=20_000)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    cases(1)
