"""The CRC-32C of what is read from shards: compared where the bytes are put, by workers and by readers alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as T

import penstock
from tests.packing.packed import flip_bit, offset_of, start_readers, write_photos
from tests.same import assert_same


@pytest.fixture(params=["workers", "readers"])
def reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have workers read the shards, or readers from the start of each pass, though nothing blocks."""
    if request.param == "readers":
        start_readers(monkeypatch)


@pytest.mark.native
@pytest.mark.parametrize("shape", [(3, 5), (70_000,), (600_000,), (3_000_000,)])
def test_tensors_of_every_size_and_a_flipped_bit(tmp_path: Path, shape: tuple[int, ...], reading: None) -> None:
    """Arrays have no checksum of their own; a batch is read by the layout of the one before it."""
    tensor = torch.arange(8 * int(np.prod(shape)), dtype=torch.float32).reshape(8, *shape)
    arrays = torch.utils.data.TensorDataset(tensor, torch.arange(8))
    penstock.pack(arrays, tmp_path / "out", shard_size="8MiB")

    def loader(**options: Any) -> Any:
        found = penstock.Shards(tmp_path / "out")
        return penstock.DataLoader(found, batch_size=2, num_workers=2, **options)

    clean = loader()
    assert_same(list(clean), list(torch.utils.data.DataLoader(arrays, batch_size=2)))
    assert clean.stats().read_by_python == {}
    found = penstock.Shards(tmp_path / "out")
    path, offset = offset_of(found, 5)
    flip_bit(path, offset + 128 + int(np.prod(shape)) * 2)
    batches = iter(loader())
    assert_same([next(batches), next(batches)], list(torch.utils.data.DataLoader(arrays, batch_size=2))[:2])
    with pytest.raises(penstock.ChecksumMismatch, match=found.name(5)) as caught:
        next(batches)
    assert (caught.value.sample_id, caught.value.path) == (found.name(5), str(path))
    replaced = [label for _, labels in loader(on_error="replace") for label in labels.tolist()]
    assert len(replaced) == 8 and 5 not in replaced
    unchecked = penstock.Shards(tmp_path / "out", verify=False)
    assert not torch.equal(next(iter(penstock.DataLoader(unchecked, batch_size=8, num_workers=2)))[0], tensor)


@pytest.mark.native
def test_images(tmp_path: Path, reading: None) -> None:
    folder = write_photos(tmp_path / "photos")
    penstock.pack(penstock.ImageFolder(folder), tmp_path / "out", shard_size="8KiB")
    transform = T.Compose([T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.ToTensor()])

    def batches(dataset: Any) -> list[Any]:
        return list(penstock.DataLoader(dataset, batch_size=5, shuffle=True, seed=3, num_workers=2))

    found = penstock.Shards(tmp_path / "out", transform=transform)
    assert_same(batches(found), batches(penstock.ImageFolder(folder, transform)))
    path, offset = offset_of(found, 7)
    flip_bit(path, offset + 300)
    with pytest.raises(penstock.ChecksumMismatch, match=found.name(7)):
        batches(found)
