"""Calls of a package that a sample imports are answered from the next batch on, in whatever worker imports it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests import python_processes

#: Batches of one sample: only the first of each worker comes before its import is noticed.
PROGRAM = """
import json, sys, torch, penstock
def sample(index):
    from safetensors.torch import load_file
    return load_file(sys.argv[1])["x"]
class Files(torch.utils.data.Dataset):
    def __len__(self): return 40
    def __getitem__(self, index): return sample(index)
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self): return map(sample, range(40))
assert "safetensors.torch" not in sys.modules
options = json.loads(sys.argv[2])
loader = penstock.DataLoader(Stream() if options.pop("iterable", False) else Files(), **options)
assert [batch.tolist() for batch in loader] == [[[0.0, 1.0, 2.0]]] * 40
answered = loader.stats().calls["safetensors.torch.load_file"].answered
assert answered >= 20, answered
"""


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize(
    "options",
    [
        {}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True},
        {"num_workers": 1, "worker_method": "thread"}, {"num_workers": 1, "iterable": True},
    ],
)  # fmt: skip
def test_calls_are_answered_from_the_next_batch_on(tmp_path: Path, seed: int | None, options: dict[str, Any]) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"x": np.arange(3, dtype=np.float32)}, path)
    ended = python_processes.run(PROGRAM, path, json.dumps({**options, "seed": seed}))
    assert ended.returncode == 0, ended
