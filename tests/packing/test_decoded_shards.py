"""Shards of decoded images: batches equal to torch's of the same PIL images, draws included; and damaged arrays."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as T
from PIL import Image
from torch.utils.data import ConcatDataset, Subset
from torchvision.transforms import v2

import penstock
from tests.data import Made, in_memory
from tests.packing.packed import flip_bit, offset_of
from tests.same import assert_same

NORMALIZE = T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CENTERED = T.Compose([T.Resize(40), T.CenterCrop(32), T.ToTensor(), NORMALIZE])
DRAWN = T.Compose([T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.ToTensor(), NORMALIZE])
FIXED = [
    CENTERED,
    T.Compose([T.CenterCrop(90), T.PILToTensor()]),  # larger than some images: pads
    T.Compose([T.Resize((20, 30), T.InterpolationMode.BICUBIC), T.Grayscale(), T.ToTensor()]),
    v2.Compose([v2.ToImage(), v2.Resize((24, 24), antialias=True), v2.ToDtype(torch.float32, scale=True)]),
]
RANDOM = [
    DRAWN,
    T.Compose([T.RandomCrop(64, padding=6, pad_if_needed=True), T.RandomVerticalFlip(), T.ToTensor()]),
    v2.Compose([v2.RandomResizedCrop(30), v2.RandomHorizontalFlip(0.3), v2.PILToTensor()]),
]


class Pictures(Made):
    """PIL images of the pixels in shards, with a transform: a dataset of the user's own, which Python reads."""

    def __init__(self, shards: penstock.Shards, transform: Any) -> None:
        super().__init__(self.picture, len(shards))
        self.arrays = [np.asarray(shards.read(index)) for index in range(len(shards))]
        self.labels = shards.targets
        self.transform = transform

    def picture(self, index: int) -> Any:
        image = Image.fromarray(self.arrays[index])
        return (image if self.transform is None else self.transform(image)), self.labels[index]


def packed_noise(name: str, out: Path) -> Path:
    """Pack 23 images of one size, and return their folder."""
    penstock.pack(in_memory(name, None, 23), out)
    return out


@pytest.fixture
def copy(decoded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(decoded, tmp_path / "copy"))


def loader(dataset: Any, **options: Any) -> Any:
    return penstock.DataLoader(dataset, **{"batch_size": 5, "shuffle": True, "seed": 3, "num_workers": 2, **options})


def assert_read_natively(ours: Any, wanted: Any, passes: int = 1) -> None:
    """Assert that a loader gives these batches, and that Python reads no sample for it."""
    for _ in range(passes):
        assert_same(list(ours), list(wanted))
    assert "native threads" in ours.explain() and ours.stats().read_by_python == {}


@pytest.mark.native
@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("transform", FIXED)
def test_batches_are_those_of_torchs_loader(decoded: Path, transform: Any, verify: bool) -> None:
    theirs = torch.utils.data.DataLoader(Pictures(penstock.Shards(decoded), transform), batch_size=5)
    assert_read_natively(loader(penstock.Shards(decoded, transform=transform, verify=verify), shuffle=False), theirs)


@pytest.mark.native
@pytest.mark.parametrize("transform", RANDOM)
def test_draws_are_those_of_torchvisions_transforms(decoded: Path, transform: Any, reading: None) -> None:
    theirs = loader(Pictures(penstock.Shards(decoded), transform), worker_method="thread")
    assert_read_natively(loader(penstock.Shards(decoded, transform=transform)), theirs, passes=2)
    assert "native threads" not in theirs.explain()


@pytest.mark.native
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("pixels", "mode"), [("CIFAR10", "RGB"), ("MNIST", "L")])
def test_images_of_one_size(pixels: str, mode: str, workers: int, tmp_path: Path) -> None:
    path = packed_noise(pixels, tmp_path / "out")
    for transform in (T.ToTensor(), T.Compose([T.RandomCrop(24, padding=4), T.RandomHorizontalFlip(), T.ToTensor()])):
        ours = loader(penstock.Shards(path, transform=transform), num_workers=workers)
        theirs = loader(Pictures(penstock.Shards(path), transform), worker_method="thread")
        assert_same(list(ours), list(theirs))
        assert ours.stats().read_by_python == {} and f"mode {mode}" in ours.explain()


@pytest.mark.native
def test_images_of_several_sizes_do_not_collate(decoded: Path) -> None:
    with pytest.raises(penstock.ShapeMismatch, match=r"\[3, 60, 8\d\]|\(3, 60, 8\d\)"):
        list(loader(penstock.Shards(decoded, transform=T.ToTensor())))


def test_without_a_transform(decoded: Path) -> None:
    found = penstock.Shards(decoded)
    pictures = Pictures(found, None)
    assert_same(list(loader(found, collate_fn=list)), list(loader(pictures, collate_fn=list)))
    with pytest.raises(TypeError) as theirs:
        list(torch.utils.data.DataLoader(pictures))
    with pytest.raises(TypeError, match=re.escape(str(theirs.value).splitlines()[-1])):
        list(loader(found))


@pytest.mark.native
def test_parts_and_several_datasets(decoded: Path, tmp_path: Path) -> None:
    first, second = (penstock.Shards(path, transform=DRAWN) for path in (decoded, packed_noise("CIFAR10", tmp_path)))
    part = [25, 3, 9, 4, 3]
    ours: Any = ConcatDataset([Subset(first, part), second])
    theirs: Any = ConcatDataset([Subset(Pictures(first, DRAWN), part), Pictures(second, DRAWN)])
    assert_read_natively(loader(ours), loader(theirs, worker_method="thread"))


def test_shards_in_an_object_store(decoded: Path, tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    far = penstock.Shards(decoded.as_uri(), transform=DRAWN, cache_folder=tmp_path / "cache")
    near = loader(penstock.Shards(decoded, transform=DRAWN), shuffle=False)
    assert_read_natively(loader(far, shuffle=False), near)


@pytest.mark.native
def test_labels_are_transformed_once(decoded: Path) -> None:
    seen: list[int] = []

    def negative(label: int) -> int:
        seen.append(label)
        return -label

    found = penstock.Shards(decoded, transform=CENTERED, target_transform=negative)
    labels = [label for _, batch in loader(found, shuffle=False) for label in batch.tolist()]
    assert labels == [-label for label in found.targets] and len(seen) == len(found)


@pytest.mark.native
def test_a_transform_that_changes_between_two_passes(decoded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = penstock.Shards(decoded)
    ours = loader(found, shuffle=False)
    own = T.Lambda(lambda image: torch.tensor(image.size))
    for found.transform in (CENTERED, FIXED[2], own):
        assert_same(list(ours), list(loader(Pictures(found, found.transform), shuffle=False)))
        assert ("native threads" in ours.explain()) == (found.transform is not own)
    monkeypatch.setattr(Image, "fromarray", lambda array, *mode: Image.new("RGB", (50, 50)))
    found.transform = CENTERED
    assert_same(list(loader(found)), list(loader(Pictures(found, CENTERED))))


@pytest.mark.native
@pytest.mark.parametrize("first", ["RGB", "L"])
def test_images_of_another_mode_are_read_by_python(tmp_path: Path, first: str) -> None:
    colour, grey = in_memory("CIFAR10", None, 6), in_memory("MNIST", None, 6)
    colour.data = np.ascontiguousarray(colour.data[:, :28, :28])
    parts = [colour, Subset(grey, [0, 1])] if first == "RGB" else [grey, Subset(colour, [0, 5])]
    penstock.pack(ConcatDataset(parts), tmp_path / "out")
    transform = T.Compose([T.Grayscale(), T.ToTensor()])
    found = penstock.Shards(tmp_path / "out", transform=transform)
    ours = loader(found)
    assert_same(list(ours), list(loader(Pictures(found, transform))))
    assert sum(ours.stats().read_by_python.values()) == 2 and f"mode {first}" in ours.explain()


def change_header(path: Path, at: int, old: bytes, new: bytes) -> None:
    """Change the text in the header of the .npy file that begins at a place in a shard; it keeps its length."""
    data = path.read_bytes()
    head = data[at : at + 128]
    assert old in head
    changed = head[:-1].replace(old, new).rstrip(b" ").ljust(127)[:127] + b"\n"
    path.write_bytes(data[:at] + changed + data[at + 128 :])


@pytest.mark.native
@pytest.mark.parametrize(
    ("old", "new"),
    [
        *((b"(60, ", other) for other in (b"(61, ", b"(0, ", b"(-60, ", b"(18446744073709551676, ")),
        *((b"(60, ", other) for other in (b"(4294967296, 4294967296, ", b"(9223372036854775807, ")),
        *((b", 3)", other) for other in (b", 0)", b", 5)", b", 3, 1)", b", 1)")),
        (b", 3)", b")"),  # a grey image
        (b"(60, ", b"("),  # another one
        *((b"|u1", other) for other in (b"|i1", b"<f8", b"|O8")),
        (b"NUMPY", b"NUMPI"),
        (b"'shape'", b"'shapf'"),
        (b"NUMPY\x01", b"NUMPY\x09"),
        *((b"v\x00{", other) for other in (b"\xff\xff{", b"\x00\x00{")),
    ],
)
def test_damaged_headers(copy: Path, old: bytes, new: bytes) -> None:
    change_header(*offset_of(penstock.Shards(copy), 7), old, new)
    with pytest.raises(penstock.ChecksumMismatch):
        list(loader(penstock.Shards(copy, transform=CENTERED)))
    found = penstock.Shards(copy, transform=CENTERED, verify=False)
    grey = new in (b")", b"(")
    with pytest.raises(RuntimeError if grey else penstock.CorruptSample) as theirs:
        found[7]
    with pytest.raises(type(theirs.value)) as ours:
        list(loader(found))
    assert str(ours.value) == str(theirs.value)
    assert grey or ours.value.sample_id == found.name(7)  # type: ignore[attr-defined]


@pytest.mark.native
def test_an_array_in_fortran_order(copy: Path) -> None:
    change_header(*offset_of(penstock.Shards(copy), 7), b"False", b"True")
    found = penstock.Shards(copy, transform=CENTERED, verify=False)
    ours = loader(found)
    assert_same(list(ours), list(loader(Pictures(found, CENTERED))))
    assert ours.stats().read_by_python == {"npy: in Fortran order": 1}


@pytest.mark.native
def test_a_changed_pixel_is_read_where_nothing_is_verified(copy: Path) -> None:
    path, offset = offset_of(penstock.Shards(copy), 7)
    flip_bit(path, offset + 5000)
    unchecked = penstock.Shards(copy, transform=DRAWN, verify=False)
    assert_same(list(loader(unchecked)), list(loader(Pictures(unchecked, DRAWN), worker_method="thread")))
