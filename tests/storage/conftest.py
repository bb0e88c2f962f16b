"""What tests of storage share. A disk that is nearly full does not decide what they see."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import penstock
from tests.object_server import ObjectServer
from tests.storage.remote import SAMPLES, objects_of


@pytest.fixture(autouse=True)
def _nothing_is_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.storage.tiers._LEFT", 0.0)


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    """Assert that a test leaves no thread of ours that fetches."""
    before = threading.enumerate()
    yield
    gc.collect()
    left = [thread.name for thread in threading.enumerate() if thread not in before]
    assert not {"penstock-download", "penstock-fetch"} & set(left)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of shards of tensors."""
    source = tmp_path_factory.mktemp("tensors")
    for number in range(SAMPLES):
        torch.save(torch.full((32, 32), number, dtype=torch.float32), source / f"id-{number:04d}.pt")
    out = tmp_path_factory.mktemp("packed")
    labels = {f"id-{number:04d}": number % 7 for number in range(SAMPLES)}
    ids = sorted(labels)
    penstock.pack(penstock.TensorFolder(source, ids, labels), out, shard_size=100_000)
    return out


@pytest.fixture
def server(packed: Path) -> Iterator[ObjectServer]:
    with ObjectServer(objects_of(packed)) as serving:
        yield serving
