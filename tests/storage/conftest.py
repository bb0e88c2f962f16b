"""What tests of storage share. A disk that is nearly full does not decide what they see."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from tests.data import tensor_files

SAMPLES = 240


@pytest.fixture(autouse=True)
def _nothing_is_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.storage.tiers._LEFT", 0.0)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of shards of tensors."""
    source = tensor_files(tmp_path_factory.mktemp("tensors"), SAMPLES, (32, 32), "id-{:04d}")
    labels = {f"id-{number:04d}": number % 7 for number in range(SAMPLES)}
    out = tmp_path_factory.mktemp("packed")
    penstock.pack(penstock.TensorFolder(source, sorted(labels), labels), out, shard_size=100_000)
    return out
