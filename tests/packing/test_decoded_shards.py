"""Shards of decoded images: batches equal to torch's of the same PIL images, draws included; and damaged arrays."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
import torchvision.transforms as T
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, Subset
from torchvision.transforms import v2

import penstock
from tests.packing.packed import flip_bit, offset_of, start_readers, write_photos
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


class Pictures(Dataset[Any]):
    """PIL images of the pixels in shards, with a transform: a dataset of the user's own, which Python reads."""

    def __init__(self, shards: penstock.Shards, transform: Any) -> None:
        self.arrays = [np.asarray(shards.read(index)) for index in range(len(shards))]
        self.labels = shards.targets
        self.transform = transform

    def __len__(self) -> int:
        return len(self.arrays)

    def __getitem__(self, index: int) -> Any:
        image = Image.fromarray(self.arrays[index])
        return (image if self.transform is None else self.transform(image)), self.labels[index]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of decoded images of 14 sizes."""
    folder = tmp_path_factory.mktemp("photos")
    penstock.pack(
        penstock.ImageFolder(write_photos(folder / "photos")), folder / "out", shard_size="64KiB", decoded=True
    )
    return folder / "out"


def in_memory(name: str, pixels: Any) -> Any:
    """Return torchvision's dataset of this name, of these pixels."""
    kind = getattr(torchvision.datasets, name)
    dataset = kind.__new__(kind)
    dataset.data, dataset.targets = pixels, torch.arange(len(pixels)) if name == "MNIST" else list(range(len(pixels)))
    dataset.transform = dataset.target_transform = None
    return dataset


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cifar") / "out"
    penstock.pack(in_memory("CIFAR10", np.random.default_rng(0).integers(0, 256, (23, 32, 32, 3), np.uint8)), out)
    return out


@pytest.fixture(scope="module")
def mnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("mnist") / "out"
    pixels = np.random.default_rng(0).integers(0, 256, (23, 28, 28), np.uint8)
    penstock.pack(in_memory("MNIST", torch.from_numpy(pixels)), out)
    return out


@pytest.fixture
def copy(packed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(packed, tmp_path / "copy"))


def loader(dataset: Any, **options: Any) -> Any:
    return penstock.DataLoader(dataset, **{"batch_size": 5, "shuffle": True, "seed": 3, "num_workers": 2, **options})


# --- what torch gives -------------------------------------------------------------------------------------------------


@pytest.mark.native
@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("transform", FIXED)
def test_batches_are_those_of_torchs_loader(packed: Path, transform: Any, verify: bool) -> None:
    found = penstock.Shards(packed, transform=transform, verify=verify)
    ours = loader(found, shuffle=False)
    theirs = torch.utils.data.DataLoader(Pictures(penstock.Shards(packed), transform), batch_size=5)
    assert_same(list(ours), list(theirs))
    assert "native threads" in ours.explain()
    assert ours.stats().read_by_python == {}


@pytest.mark.native
@pytest.mark.parametrize("transform", RANDOM)
def test_draws_are_those_of_torchvisions_transforms(packed: Path, transform: Any) -> None:
    ours = loader(penstock.Shards(packed, transform=transform))
    theirs = loader(Pictures(penstock.Shards(packed), transform), worker_method="thread")
    for _ in range(2):
        assert_same(list(ours), list(theirs))
    assert "native threads" in ours.explain() and "native threads" not in theirs.explain()
    assert ours.stats().read_by_python == {}


@pytest.mark.native
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pixels", ["cifar", "mnist"])
def test_images_of_one_size(request: pytest.FixtureRequest, pixels: str, workers: int) -> None:
    path = request.getfixturevalue(pixels)
    for transform in (T.ToTensor(), T.Compose([T.RandomCrop(24, padding=4), T.RandomHorizontalFlip(), T.ToTensor()])):
        ours = loader(penstock.Shards(path, transform=transform), num_workers=workers)
        theirs = loader(Pictures(penstock.Shards(path), transform), num_workers=2, worker_method="thread")
        assert_same(list(ours), list(theirs))
        assert ours.stats().read_by_python == {} and "mode " + ("L" if pixels == "mnist" else "RGB") in ours.explain()


@pytest.mark.native
def test_images_of_several_sizes_do_not_collate(packed: Path) -> None:
    with pytest.raises(penstock.ShapeMismatch, match=r"\[3, 60, 8\d\]|\(3, 60, 8\d\)"):
        list(loader(penstock.Shards(packed, transform=T.ToTensor())))


def test_without_a_transform(packed: Path) -> None:
    found = penstock.Shards(packed)
    pictures = Pictures(found, None)
    assert_same(list(loader(found, collate_fn=list)), list(loader(pictures, collate_fn=list)))
    with pytest.raises(TypeError) as theirs:
        list(torch.utils.data.DataLoader(pictures))
    with pytest.raises(TypeError) as ours:
        list(loader(found))
    assert str(theirs.value).splitlines()[-1] in str(ours.value)


@pytest.mark.native
def test_parts_and_several_datasets(packed: Path, cifar: Path) -> None:
    def both(read: Any) -> Any:
        first, second = (read(penstock.Shards(path, transform=DRAWN)) for path in (packed, cifar))
        return ConcatDataset([Subset(first, [25, 3, 9, 4, 3]), second])

    ours = loader(both(lambda shards: shards))
    theirs = loader(both(lambda shards: Pictures(shards, DRAWN)), worker_method="thread")
    assert_same(list(ours), list(theirs))
    assert "native threads" in ours.explain()


def test_shards_in_an_object_store(packed: Path, tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    far = penstock.Shards(packed.as_uri(), transform=DRAWN, cache_folder=tmp_path / "cache")
    ours = loader(far, shuffle=False)
    assert_same(list(ours), list(loader(penstock.Shards(packed, transform=DRAWN), shuffle=False)))
    assert ours.stats().read_by_python == {} and "native threads" in ours.explain()


@pytest.mark.native
def test_labels_are_transformed_once(packed: Path) -> None:
    seen: list[int] = []

    def negative(label: int) -> int:
        seen.append(label)
        return -label

    found = penstock.Shards(packed, transform=CENTERED, target_transform=negative)
    labels = [label for _, batch in loader(found, shuffle=False) for label in batch.tolist()]
    assert labels == [-label for label in found.targets] and len(seen) == len(found)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["process", "thread"])
def test_batches_that_workers_fetch(packed: Path, method: str) -> None:
    options: dict[str, Any] = {"worker_method": method, "collate_fn": list}
    if method == "process":
        options["multiprocessing_context"] = "fork"
    found = penstock.Shards(packed, transform=DRAWN)
    assert_same(list(loader(found, **options)), list(loader(Pictures(found, DRAWN), **options)))


@pytest.mark.native
def test_a_transform_that_changes_between_two_passes(packed: Path) -> None:
    found = penstock.Shards(packed, transform=CENTERED)
    ours = loader(found, shuffle=False)
    list(ours)
    found.transform = FIXED[2]
    assert_same(list(ours), list(loader(Pictures(found, FIXED[2]), shuffle=False)))


def test_a_function_of_the_users_is_pythons(packed: Path) -> None:
    found = penstock.Shards(packed, transform=lambda image: torch.tensor(image.size))
    assert_same(list(loader(found)), list(loader(Pictures(found, found.transform))))
    assert "native threads" not in loader(found).explain()


def test_pillows_function_is_replaced(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def black(array: Any, *mode: Any) -> Any:
        return Image.new("RGB", (50, 50))

    found = penstock.Shards(packed, transform=CENTERED)
    monkeypatch.setattr(Image, "fromarray", black)
    assert_same(list(loader(found)), list(loader(Pictures(found, CENTERED))))


# --- arrays that are none of the recipe's -----------------------------------------------------------------------------


@pytest.mark.native
@pytest.mark.parametrize("first", ["RGB", "L"])
def test_images_of_another_mode_are_read_by_python(tmp_path: Path, first: str) -> None:
    random = np.random.default_rng(0)
    colour = in_memory("CIFAR10", random.integers(0, 256, (6, 28, 28, 3), np.uint8))
    grey = in_memory("MNIST", torch.from_numpy(random.integers(0, 256, (6, 28, 28), np.uint8)))
    parts = [colour, Subset(grey, [0, 1])] if first == "RGB" else [grey, Subset(colour, [0, 5])]
    penstock.pack(ConcatDataset(parts), tmp_path / "out")
    transform = T.Compose([T.Grayscale(), T.ToTensor()])
    found = penstock.Shards(tmp_path / "out", transform=transform)
    ours = loader(found)
    assert_same(list(ours), list(loader(Pictures(found, transform))))
    assert sum(ours.stats().read_by_python.values()) == 2 and f"mode {first}" in ours.explain()


def change_header(path: Path, at: int, old: bytes, new: bytes) -> None:
    """Change the text in the header of the .npy file that begins at a place in a shard; it keeps its length."""
    with path.open("r+b") as file:
        file.seek(at)
        head = file.read(128)
        assert old in head
        changed = head[:-1].replace(old, new).rstrip(b" ").ljust(127) + b"\n"
        file.seek(at)
        file.write(changed[:127] + b"\n")


@pytest.mark.native
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"(60, ", b"(61, "),
        (b"(60, ", b"(0, "),
        (b"(60, ", b"(-60, "),
        (b"(60, ", b"(18446744073709551676, "),
        (b"(60, ", b"(4294967296, 4294967296, "),
        (b"(60, ", b"(9223372036854775807, "),
        (b", 3)", b", 0)"),
        (b", 3)", b", 5)"),
        (b", 3)", b", 3, 1)"),
        (b", 3)", b", 1)"),
        (b", 3)", b")"),  # a grey image
        (b"(60, ", b"("),  # another one
        (b"|u1", b"|i1"),
        (b"|u1", b"<f8"),
        (b"|u1", b"|O8"),
        (b"NUMPY", b"NUMPI"),
        (b"'shape'", b"'shapf'"),
        (b"NUMPY\x01", b"NUMPY\x09"),
        (b"v\x00{", b"\xff\xff{"),
        (b"v\x00{", b"\x00\x00{"),
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
@pytest.mark.parametrize("at", [0, 20, 127, 128, 5000, 14_000])
def test_a_flipped_bit(copy: Path, at: int) -> None:
    path, offset = offset_of(penstock.Shards(copy), 7)
    flip_bit(path, offset + at)
    found = penstock.Shards(copy, transform=DRAWN)
    with pytest.raises(penstock.ChecksumMismatch, match=r"CRC-32C is 0x.*the index says 0x") as ours:
        list(loader(found))
    assert (ours.value.sample_id, ours.value.path) == (found.name(7), str(path))
    replacing = loader(found, on_error="replace")
    assert sum(len(labels) for _, labels in replacing) == 26
    if at >= 128:  # a pixel
        unchecked = penstock.Shards(copy, transform=DRAWN, verify=False)
        assert_same(list(loader(unchecked)), list(loader(Pictures(unchecked, DRAWN), worker_method="thread")))


@pytest.mark.native
def test_readers_bring_the_files(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = penstock.Shards(copy, transform=DRAWN)
    expected = list(loader(found))
    start_readers(monkeypatch)
    for verify in (True, False):
        assert_same(list(loader(penstock.Shards(copy, transform=DRAWN, verify=verify))), expected)
    path, offset = offset_of(found, 7)
    flip_bit(path, offset + 5000)
    with pytest.raises(penstock.ChecksumMismatch, match=found.name(7)):
        list(loader(found))


@pytest.mark.native
def test_a_shard_that_is_cut_off_meanwhile(copy: Path) -> None:
    for verify in (True, False):
        found = penstock.Shards(copy, transform=DRAWN, verify=verify)
        ours = loader(found, shuffle=False)
        batches = iter(ours)
        next(batches)
        del batches
        path = Path(found.files.path(len(found.files.shards) - 1))
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(penstock.CorruptSample, match="cut off, or another file"):
            list(ours)
        path.write_bytes(whole)
