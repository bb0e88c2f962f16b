"""The index of JPEG decoder states: the pixels that Pillow gives, whatever the index knows, holds or is made of."""

from __future__ import annotations

import errno
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch.utils.data import ConcatDataset, Subset
from torchvision import transforms

from penstock import DataLoader, ImageFolder
from tests.forking import assert_in_child
from tests.indexed_photos import FORMS, LOW, MIDDLE, PHOTOS, counts_of, encoded, only, pictures, scan_of, torchs
from tests.same import assert_passes, assert_same, outcomes

pytestmark = pytest.mark.native

RANDOM = transforms.Compose([transforms.RandomResizedCrop(32), transforms.PILToTensor()])


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the cache folder of the user, which is empty; half of the disk need not be free for an index."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("penstock.storage.jpeg_index._LEFT", 0.0)
    return tmp_path / "home" / "penstock" / "jpeg-index"


DATASETS: dict[str, Callable[[Path, Any], Any]] = {
    "ours": ImageFolder,
    "torchvision": lambda root, recipe: torchvision.datasets.ImageFolder(root, recipe),
    "subset": lambda root, recipe: Subset(ImageFolder(root, recipe), [13, 2, 7, 5, 3, 1]),
    "concatenated": lambda root, recipe: ConcatDataset(
        [ImageFolder(root, recipe), Subset(ImageFolder(root, recipe), [2])]
    ),
}


def made(dataset: Any, **options: Any) -> Any:
    return DataLoader(dataset, **{"batch_size": 4, "num_workers": 2, **options})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return pictures(tmp_path / "data")


@pytest.fixture
def dataset(root: Path) -> ImageFolder:
    return ImageFolder(root, MIDDLE)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", DATASETS)
def test_elements_are_pillows(name: str, workers: int, root: Path) -> None:
    middle, low = (DATASETS[name](root, recipe) for recipe in (MIDDLE, LOW))
    for dataset in (middle, low, middle):
        loader = made(dataset, num_workers=workers)
        assert_passes(loader, torchs(dataset))
        counts = counts_of(loader)
        assert counts.photos > 0 and counts.hits > 0 and counts.changed == 0 and counts.error is None


@pytest.mark.parametrize("workers", [0, 2])
def test_random_crops_are_those_without_an_index(workers: int, root: Path) -> None:
    first, *others = (made(ImageFolder(root, RANDOM), seed=3, num_workers=workers) for _ in range(3))
    epochs = [list(first) for _ in range(3)]
    for start, again in enumerate(others):
        again.set_epoch(start)
        assert_same([list(again) for _ in range(3 - start)], epochs[start:])
        assert counts_of(again).hits > 0


def test_what_is_known_grows_downwards(root: Path, home: Path) -> None:
    known = []
    for recipe in (MIDDLE, LOW, MIDDLE):
        list(made(ImageFolder(root, recipe)))
        known.append(sum(only(home).read_bytes()[64 : 64 + PHOTOS + 2]))
    assert 0 < known[0] < known[1] == known[2]


def test_explain_and_stats(dataset: Any, home: Path) -> None:
    loader = made(dataset)
    assert "index" not in loader.explain() and not home.exists()
    assert counts_of(loader) is None
    list(loader)
    known = PHOTOS + 1 - PHOTOS // len(FORMS)  # a progressive file and a PNG are not the own decoder's
    line = f"index    of {PHOTOS + 2} photos the decoder's states of {known} are known, which saves rows above a crop"
    assert f"{line} (kept in the user's cache folder)" in loader.explain()
    metrics = loader.stats().metrics()
    assert metrics["penstock/jpeg_index/photos"] == known
    assert metrics["penstock/jpeg_index/bytes"] == counts_of(loader).bytes > 0


def test_recipes_without_a_crop_have_no_index(root: Path, home: Path) -> None:
    list(made(ImageFolder(root, transforms.Compose([transforms.Resize((32, 32)), transforms.PILToTensor()]))))
    assert not home.exists()


def replaced(path: Path, data: bytes) -> None:
    """Exchange the bytes of a file, and nothing else that a file system shows."""
    status = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def of_another_picture(data: bytes) -> bytes:
    """Return a file of the same size and head, with the data of another picture behind it."""
    there = scan_of(data)
    other = encoded(99, subsampling=0)
    assert other[: scan_of(other)] == data[:there]
    data_of_other = other[scan_of(other) : -2][: len(data) - there - 2].rstrip(b"\xff")
    return data[:there] + data_of_other + b"\x00" * (len(data) - there - 2 - len(data_of_other)) + b"\xff\xd9"


def one_byte_off(data: bytes) -> bytes:
    at = scan_of(data) + 300
    while data[at] in (0, 255) or data[at + 1] in (0, 255) or data[at] ^ 1 == 255:
        at += 1
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "another picture": of_another_picture,
    "one bit": one_byte_off,
    "cut off": lambda data: data[: len(data) // 2],
    "cut off with an end": lambda data: data[: len(data) // 2].rstrip(b"\xff") + b"\xff\xd9",
    "appended to": lambda data: data + b"\0" * 100,
    "another table": lambda data: (
        data.replace(b"\xff\xdb\x00\x43\x00", b"\xff\xdb\x00\x43\x00", 1)[:30] + bytes([data[30] ^ 3]) + data[31:]
    ),
    "empty": lambda data: b"",
}


@pytest.mark.parametrize("change", CHANGES)
def test_files_that_change_between_two_passes(change: str, tmp_path: Path) -> None:
    root = tmp_path / "data" / "class"
    root.mkdir(parents=True)
    for number in range(3):
        (root / f"{number}.jpg").write_bytes(encoded(number, subsampling=0))
    dataset, path = ImageFolder(tmp_path / "data", MIDDLE), root / "1.jpg"
    loader = DataLoader(dataset, batch_size=1, num_workers=1)
    whole = list(torch.utils.data.DataLoader(dataset))
    assert_same(list(loader), whole)
    data = path.read_bytes()
    replaced(path, CHANGES[change](data))
    try:
        wanted: Any = next(iter(torch.utils.data.DataLoader(Subset(dataset, [1]))))
    except Exception:
        wanted = None
    for _ in range(2):
        first, second, third = outcomes(loader)
        assert_same([first, third], [whole[0], whole[2]])
        if wanted is None:
            assert isinstance(second, tuple) and "1.jpg" in second[1]
        else:
            assert_same(second, wanted)
    replaced(path, data)
    assert_passes(loader, whole)
    assert counts_of(loader).changed > 0 or change in ("appended to", "empty", "cut off")


def test_a_list_of_files_that_a_program_exchanges(root: Path) -> None:
    dataset = torchvision.datasets.ImageFolder(root, MIDDLE)
    loader = made(dataset)
    assert_same(list(loader), torchs(dataset))
    dataset.samples.reverse()
    assert_passes(loader, torchs(dataset))


def test_forks_share_an_index(dataset: Any) -> None:
    loader, wanted = made(dataset), torchs(dataset)
    assert_same(list(loader), wanted)
    hits = counts_of(loader).hits

    def reads() -> None:  # torch's own operations may wait for threads of the parent's
        assert [batch[0].numpy().tobytes() for batch in loader] == [batch[0].numpy().tobytes() for batch in wanted]

    assert_in_child(reads)
    assert counts_of(loader).hits > hits


def test_copies_of_a_loader(dataset: Any) -> None:
    loader = made(dataset)
    wanted = list(loader)
    copy = pickle.loads(pickle.dumps(loader))
    assert counts_of(copy) is None
    assert_same(list(copy), wanted)
    assert counts_of(copy).hits > 0


def in_memory(loader: Any, why: str) -> None:
    """Assert that a loader gives torch's batches by an index in memory, and says why."""
    assert_passes(loader, torchs(loader.dataset))
    assert counts_of(loader).hits > 0
    assert f"not kept in the user's cache folder: {why}" in loader.explain()


def writable_by_others(home: Path) -> None:
    home.mkdir(parents=True)
    home.chmod(0o777)


def a_file(home: Path) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    home.write_text("mine")


@pytest.mark.parametrize(
    ("make", "why"), [(writable_by_others, "other users can write into the cache folder"), (a_file, "")]
)
def test_a_folder_that_cannot_be_used(make: Callable[[Path], None], why: str, dataset: Any, home: Path) -> None:
    make(home)
    in_memory(made(dataset), why)
    assert home.read_text() == "mine" if home.is_file() else not list(home.iterdir())


def read_only(flags: int, name: str, folder: int) -> int | None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), name)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("folder_of", lambda kind: None, "the user has no home folder"),
        ("open_own_file", read_only, "Read-only file system"),
        ("_LEFT", 1.0, "the cache folder has no room"),
    ],
)
def test_where_nothing_can_be_kept(
    name: str, value: Any, why: str, dataset: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"penstock.storage.jpeg_index.{name}", value)
    in_memory(made(dataset), why)
    assert not home.exists() or not any(path.stat().st_blocks for path in home.glob("*.states"))


def test_a_damaged_file_is_made_anew(dataset: Any, home: Path) -> None:
    list(made(dataset))
    path = only(home)
    path.write_bytes(b"no index" + path.read_bytes()[8:])
    loader = made(dataset)
    assert_passes(loader, torchs(dataset))
    assert counts_of(loader).hits > 0 and only(home) == path


def test_the_folder_is_bounded(dataset: Any, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = ImageFolder(pictures(tmp_path / "other"), MIDDLE)
    loader = made(dataset)
    list(loader)
    path = only(home)
    monkeypatch.setattr("penstock.storage.jpeg_index.MAX_BYTES", path.stat().st_blocks * 512 + 100)
    held = made(other)
    in_memory(held, "the cache folder has no room")  # the other one is held
    del loader, held
    os.utime(path, (time.time() - 1000,) * 2)
    loader = made(other)
    assert_same(list(loader), torchs(other))
    assert only(home) != path
