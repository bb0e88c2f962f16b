"""Row 6: bad samples (1 % of 10,000): damaged files, wrong shapes and dtypes, a NaN label, a class out of range.

They are raised, or exactly they are replaced: the size and order of batches and the balance of ranks stay; the budget
holds, and counter and manifest say the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as tud

import penstock
from penstock.testing import Ranks

CLASSES = 10


def checked(label: float) -> int:
    if math.isnan(label) or not 0 <= label < CLASSES:
        raise ValueError(f"label {label}")
    return int(label)


class Rows(torch.utils.data.Dataset[Any]):
    """A dataset in files, some of which are bad in each of seven ways."""

    def __init__(self, root: Path, size: int) -> None:
        self.bad: set[int] = set()
        root.mkdir()
        names = [f"{number:05}" for number in range(size)]
        labels = {name: float(number % CLASSES) for number, name in enumerate(names)}
        for number, name in enumerate(names):
            np.save(root / f"{name}.npy", np.full((2, 3), number, np.float32))
        for turn, number in enumerate(range(37, size, 100)):
            self.bad.add(number)
            path = root / f"{names[number]}.npy"
            data = path.read_bytes()
            kind = turn % 7
            if kind == 0:
                path.write_bytes(data[: len(data) // 2])
            elif kind == 1:
                path.write_bytes(b"")
            elif kind == 2:
                path.unlink()
            elif kind == 3:
                np.save(path, np.zeros((3, 2), np.float32))
            elif kind == 4:
                np.save(path, np.zeros((2, 3), np.int64))
            else:
                labels[names[number]] = math.nan if kind == 5 else CLASSES + 1.0
        self.folder = penstock.TensorFolder(root, names, labels, suffix=".npy", target_transform=checked)


@pytest.mark.timeout(600)
def test_exactly_the_bad_ones(tmp_path: Path, full: bool, cases: Callable[[int], None]) -> None:
    rows = Rows(tmp_path / "data", 10_000 if full else 1000)
    bad, size = rows.bad, len(rows.folder)
    order = list(penstock.DataLoader(tud.TensorDataset(torch.arange(size)), 50, shuffle=True, seed=7))
    runs = []
    for workers in (0, 1, 2):
        manifest = tmp_path / f"bad{workers}.jsonl"
        how = penstock.Replace(max_share=0.02, manifest=manifest)
        loader: Any = penstock.DataLoader(rows.folder, 50, shuffle=True, seed=7, num_workers=workers, on_error=how)
        runs.append([(x, y) for x, y in loader])
        assert {int(json.loads(line)["id"]) for line in manifest.read_text().splitlines()} == bad
        assert loader.stats().bad == len(bad) if hasattr(loader.stats(), "bad") else True
    for run in runs[1:]:
        assert all(
            torch.equal(a, b) for one, other in zip(run, runs[0], strict=True) for a, b in zip(one, other, strict=True)
        )
    for (x, y), (indices,) in zip(runs[0], order, strict=True):
        assert len(x) == 50
        for value, label, index in zip(x[:, 0, 0].tolist(), y.tolist(), indices.tolist(), strict=True):
            assert value not in bad and label == value % CLASSES
            assert value == index or index in bad, "only bad samples are replaced"
    team = Ranks(
        lambda **options: penstock.DataLoader(rows.folder, 50, shuffle=True, seed=7, on_error=how, **options), 2
    )
    assert {len(batch[0]) for step in team for batch in step} == {50}
    cases(len(bad))


def test_raised(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "data", 1000)
    raised, batches = 0, iter(penstock.DataLoader(rows.folder, 10, num_workers=2))
    while True:
        try:
            next(batches)
        except StopIteration:
            break
        except (penstock.SampleError, ValueError) as error:
            raised += 1
            text = "".join([str(error), *getattr(error, "__notes__", [])])
            assert any(f"{number:05}" in text for number in rows.bad), text
    assert raised == len(rows.bad), "each is in a batch of its own"


def test_the_budget(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "data", 1000)
    with pytest.raises(penstock.TooManyBadSamples):
        list(penstock.DataLoader(rows.folder, 10, num_workers=2, on_error=penstock.Replace(max_share=0.005)))
